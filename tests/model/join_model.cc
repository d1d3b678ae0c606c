#include "tests/model/join_model.h"

#include <iterator>

#include "tests/model/slot_words.h"

namespace model {
namespace {

using M = JoinMutation;
constexpr int kMover = 0, kWriter = 1, kSweeper = 2, kView = 9;
constexpr uint8_t kUncopied = 0xff;
// Steps that several have: the word of the client's `table`, or the directory's, is brought to the learner.
constexpr uint8_t kPushFirst = 20, kPushRead = 21, kPushSwap = 22;

uint8_t Val(int block) { return MakeSlot(SlotState::kVal, block); }
bool Pushes(const JoinModel::Client& client) { return client.step >= kPushFirst; }

}  // namespace

const char* Name(JoinMutation mutation) {
  static const char* const kNames[] = {"move-without-block", "table-at-tail-only", "table-not-rewritten",
                                       "sweep-early",        "sweep-once",         "no-tables",
                                       "sweep-trusts-slots", "promote-midway"};
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

JoinModel::State JoinModel::Initial() const {
  State state{};
  state.tail[0] = 1;  // the directory names table 1
  state.tail[1] = Val(0);
  return state;
}

// A CAS at the tail. If it is won and the client knows of the learner, the push follows, and then `next_step`.
bool JoinModel::SwapAtTail(State* state, Client* client, int word, uint8_t from, uint8_t to, uint8_t next_step) const {
  if (state->tail[word] != from) return false;
  state->tail[word] = to;
  client->rest = next_step;
  client->old = client->knows ? from : 0;
  client->seen = client->knows ? to : 0;
  client->step = client->knows ? kPushFirst : next_step;
  return true;
}

// CAS(learner, old, seen). If it is lost to another word, which may be uncopied: READ the tail, copy its block, and try
// again with the tail's word. Returns true at the end.
bool JoinModel::Push(State* state, Client* client, int word) const {
  uint8_t& there = state->learner[word];
  if (client->step == kPushRead) {
    client->seen = state->tail[word];
    const bool same = client->seen == client->old;
    if (same && Mutated(M::kSweepTrustsSlots)) return true;
    if (word != 0 && HasBlock(client->seen)) state->copied |= static_cast<uint8_t>(1 << BlockOf(client->seen));
    if (same) return true;
    client->step = kPushSwap;
    return false;
  }
  const bool first = client->step == kPushFirst;
  if (there == client->old) {
    there = client->seen;
    return true;
  }
  if (first && there == client->seen) return true;
  client->old = there;
  client->step = kPushRead;
  return false;
}

void JoinModel::Mover(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.mover;
  const int fresh = c.table + 1;
  if (Pushes(c)) {
    // Which word it is follows from what comes next.
    const int word = c.rest == 2 || c.rest == 5 ? c.table : 0;
    if (Push(&next, &c, word)) c.step = c.rest;
    return emit(kMover, "pushes to the learner", next);
  }
  switch (c.step) {
    case 0:
      if (next.moves == config_.moves) return;
      c.table = next.tail[0];
      c.step = 1;
      return emit(kMover, "READ the directory", next);
    case 1: {
      const uint8_t word = next.tail[c.table];
      if (c.knows && !Mutated(M::kMoveWithoutBlock)) next.copied |= static_cast<uint8_t>(1 << BlockOf(word));
      (void)SwapAtTail(&next, &c, c.table, word, WithState(word, SlotState::kFrz), 2);
      return emit(kMover, "freezes the slot", next);
    }
    case 2:
      next.tail[fresh] = Val(BlockOf(next.tail[c.table]));
      if (c.knows && !Mutated(M::kTableAtTailOnly)) next.learner[fresh] = next.tail[fresh];
      c.step = 3;
      return emit(kMover, "WRITE a new table", next);
    case 3:
      (void)SwapAtTail(&next, &c, 0, c.table, static_cast<uint8_t>(fresh), 4);
      return emit(kMover, "publishes it", next);
    case 4:
      (void)SwapAtTail(&next, &c, c.table, next.tail[c.table], kFreeSlot, 5);
      return emit(kMover, "clears the slot", next);
    default:
      c.step = c.old = c.seen = c.rest = c.table = 0;
      ++next.moves;
      return emit(kMover, "ends a move", next);
  }
}

void JoinModel::Writer(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.writer;
  const int block = before.updates + 1;
  if (Pushes(c)) {
    if (Push(&next, &c, c.table)) c.step = c.rest;
    return emit(kWriter, "pushes to the learner", next);
  }
  switch (c.step) {
    case 0:
      if (next.updates == config_.updates) return;
      c.table = next.tail[0];
      c.step = 1;
      return emit(kWriter, "READ the directory", next);
    case 1:
      c.old = next.tail[c.table];
      c.step = StateOf(c.old) == SlotState::kVal ? 2 : 0;
      return emit(kWriter, "READ the slot", next);
    case 2:
      if (c.knows) next.copied |= static_cast<uint8_t>(1 << block);  // it writes its own block to both
      if (!SwapAtTail(&next, &c, c.table, c.old, Val(block), 3)) c.step = 0;
      return emit(kWriter, "CAS the slot", next);
    default:
      c.step = c.old = c.seen = c.rest = c.table = 0;
      ++next.updates;
      return emit(kWriter, "ends an update", next);
  }
}

// In each pass the directory's word first, then the table that it names.
void JoinModel::Sweeper(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.sweeper;
  const int word = c.rest == 1 ? 0 : c.table;
  if (Pushes(c)) {
    if (Push(&next, &c, word)) c.step = c.rest;
    return emit(kSweeper, "sweeps a word", next);
  }
  switch (c.step) {
    case 0:
      if (!next.joins || next.swept == 2 || (!next.active && !Mutated(M::kSweepEarly))) return;
      c.table = next.tail[0];
      c.old = next.learner[0];
      c.step = kPushRead;
      c.rest = 1;
      return emit(kSweeper, "READ the directory", next);
    case 1:
      c.rest = c.step = 2;
      if (Mutated(M::kNoTables)) return emit(kSweeper, "leaves the table out", next);
      c.old = next.learner[c.table];
      c.step = kPushRead;
      return emit(kSweeper, "READ the learner", next);
    default:
      c.step = c.old = c.seen = c.rest = c.table = 0;
      next.swept = Mutated(M::kSweepOnce) ? 2 : next.swept + 1;
      return emit(kSweeper, "has swept", next);
  }
}

void JoinModel::Views(const State& before, const Emit& emit) const {
  State next = before;
  if (!next.joins) {
    next.joins = 1;
    for (uint8_t& word : next.learner) word = kUncopied;
    return emit(kView, "the view with the learner is decided", next);
  }
  for (Client State::*client : {&State::mover, &State::writer}) {
    next = before;
    Client& c = next.*client;
    if (c.knows) continue;
    c.knows = 1;
    // What is not published yet gets to the learner as well.
    const bool unpublished = client == &State::mover && c.step == 3;
    if (unpublished && !Mutated(M::kTableNotRewritten)) next.learner[c.table + 1] = next.tail[c.table + 1];
    emit(kView, "a client acknowledges", next);
  }
  next = before;
  if (!next.active && next.mover.knows && next.writer.knows) {
    next.active = 1;
    emit(kView, "the view with the learner is active", next);
  }
  next = before;
  const bool midway = Pushes(next.mover) || Pushes(next.writer);
  if (next.active && next.swept == 2 && (!midway || Mutated(M::kPromoteMidway))) {
    next.promoted = 1;
    emit(kView, "the learner becomes the tail", next);
  }
}

void JoinModel::Successors(const State& state, const Emit& emit) const {
  if (state.promoted) return;
  Mover(state, emit);
  Writer(state, emit);
  Sweeper(state, emit);
  Views(state, emit);
}

// What a reader or the mover may come to from the directory.
std::string JoinModel::Violation(const State& state) const {
  if (!state.promoted) return "";
  if (state.learner[0] != state.tail[0]) return "the learner lacks the directory's word";
  const uint8_t word = state.learner[state.learner[0]];
  if (word != state.tail[state.tail[0]]) return "the learner lacks a word of the table";
  if (HasBlock(word) && (state.copied >> BlockOf(word) & 1) == 0) return "the learner lacks a block";
  const uint8_t fresh = state.tail[0] + 1;  // that the mover may be about to publish
  const bool will_publish = state.mover.step == 3;
  if (will_publish && state.learner[fresh] != state.tail[fresh]) return "the learner lacks a word of a new table";
  return "";
}

std::string JoinModel::Describe(const State& state) const {
  std::string text;
  for (const uint8_t* words : {state.tail, state.learner}) {
    text += words == state.tail ? "tail:" : "  learner:";
    for (int i = 0; i < kWords; ++i) text += " " + std::to_string(words[i]);
  }
  return text + "  copied " + std::to_string(state.copied);
}

}  // namespace model
