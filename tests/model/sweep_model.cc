#include "tests/model/sweep_model.h"

#include <algorithm>

#include "tests/model/slot_words.h"

namespace model {
namespace {

using M = SweepMutation;
constexpr int kMover = 0, kSplitter = 1, kInserter = 2, kInserterRound = 3, kReader = 4, kReaderRound = 5;

// Blocks: two in X, and one that stands for any other.
constexpr uint8_t kLive = 1, kSpare = 2, kElsewhere = 3;
bool InX(uint8_t block) { return block == kLive || block == kSpare; }
bool NamesX(uint8_t slot) { return HasBlock(slot) && InX(BlockOf(slot)); }

constexpr uint8_t kDead = 99;
constexpr uint8_t kSplitting = 1, kPublished = 2, kSplit = 3;  // states of the directory words; 0 at first

}  // namespace

const char* Name(SweepMutation mutation) {
  static const char* const kNames[] = {
      "scan-at-once",        "scan-ignores-directory", "free-at-once",   "scan-ignores-ins",
      "keep-free-list",      "slots-before-epoch",     "keep-own-block", "take-over-unregistered",
      "take-over-unchecked", "scan-ignores-frozen",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

SweepModel::State SweepModel::Initial() const {
  State state{};
  state.epoch = 1;
  state.slots[0] = MakeSlot(SlotState::kVal, kLive);
  state.reader.view = state.reader.announced = state.inserter.view = state.inserter.announced = 1;
  state.reader.registered = config_.read;
  state.inserter.registered = config_.insert && !config_.late;
  state.inserter.has_block_of_x = config_.insert;
  return state;
}

// docs/protocol.md, Empty 1 to 4.
void SweepModel::Mover(const State& before, const Emit& emit) const {
  State next = before;
  const auto all_beyond = [&next](uint8_t epoch) {
    for (const Client* client : {&next.inserter, &next.reader}) {
      if ((client->registered || client->counter_seen) && client->announced <= epoch) return false;
    }
    return true;
  };
  switch (next.mover) {
    case 0:
      next.evacuating = 1;
      ++next.evacuations;
      next.mover = 1;
      return emit(kMover, "empty 1: CAS the evacuation slot", next);
    case 1:
      next.mover_epoch = next.epoch;
      next.mover = Mutated(M::kScanAtOnce) ? 3 : 2;
      return emit(kMover, "empty 2: READ the epoch", next);
    case 2:
      if (!all_beyond(next.mover_epoch)) return;
      next.mover = 3;
      return emit(kMover, "empty 2: all announcements are beyond it", next);
    case 3:
      next.mover_directory = next.directory;
      next.mover_found = next.mover_scanned = 0;
      next.mover = 4;
      return emit(kMover, "empty 3: READ the directory", next);
    case 4:  // the slots are read in any order
      for (int i = 0; i < 3; ++i) {
        if ((next.mover_scanned >> i & 1) != 0) continue;
        State scanned = next;
        uint8_t& slot = scanned.slots[i];
        const bool ignores_frozen = StateOf(slot) == SlotState::kFrz && Mutated(M::kScanIgnoresFrozen);
        if (NamesX(slot) && !ignores_frozen) {
          const SlotState state = StateOf(slot);
          if (state != SlotState::kIns || !Mutated(M::kScanIgnoresIns)) scanned.mover_found = 1;
          if (state == SlotState::kVal) slot = MakeSlot(SlotState::kVal, kElsewhere);
          if (state == SlotState::kIns && !Mutated(M::kScanIgnoresIns)) slot = kFreeSlot;
        }
        scanned.mover_scanned |= static_cast<uint8_t>(1 << i);
        if (scanned.mover_scanned == 7) scanned.mover = 5;
        emit(kMover, "empty 3: look at a slot, CAS it if it names X", scanned);
      }
      return;
    case 5: {
      // References move only once the child is published.
      const bool still = next.directory == next.mover_directory && next.directory != kPublished;
      const bool valid = (still || Mutated(M::kScanIgnoresDirectory)) && !next.mover_found;
      next.mover = valid ? 6 : 3;
      next.mover_directory = next.mover_found = next.mover_scanned = 0;
      return emit(kMover, "empty 3: READ the directory again", next);
    }
    case 6:
      next.mover_epoch = next.epoch;
      next.mover = Mutated(M::kFreeAtOnce) ? 8 : 7;
      return emit(kMover, "empty 4: READ the epoch", next);
    case 7:
      if (!all_beyond(next.mover_epoch)) return;
      next.mover = 8;
      return emit(kMover, "empty 4: all announcements are beyond it", next);
    case 8:
      next.chunk_free = 1;
      next.mover = 9;
      return emit(kMover, "empty 4: CAS the chunk word to FREE", next);
    default: return;
  }
}

void SweepModel::Splitter(const State& before, const Emit& emit) const {
  State next = before;
  uint8_t &s = next.slots[0], &n = next.slots[1];
  switch (next.splitter) {
    case 0: next.directory = kSplitting; break;
    case 1: next.splitter_word = s; break;
    case 2:
      if (s != next.splitter_word) {  // the CAS was lost: look again
        next.splitter = 1;
        return emit(kSplitter, "split 4: CAS S[0] VAL -> FRZ, lost", next);
      }
      s = WithState(s, SlotState::kFrz);
      break;
    case 3:
      n = WithState(next.splitter_word, SlotState::kVal);
      next.directory = kPublished;
      break;
    case 4: s = kFreeSlot; break;
    case 5:
      next.directory = kSplit;
      next.splitter_word = 0;
      break;
    default: return;
  }
  static const char* const kSteps[] = {
      "split 2: CAS dir[s] -> SPLITTING", "split 4: READ S[0]",
      "split 4: CAS S[0] VAL -> FRZ",     "split 5: CAS dir[child] -> N",
      "split 6: CAS S[0] FRZ -> FREE",    "split 7: CAS dir[s] -> NORMAL",
  };
  emit(kSplitter, kSteps[next.splitter++], next);
}

// One insert, with a block of X if the free list has one. It may begin again at any time (a torn READ, a lost CAS).
void SweepModel::Inserter(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.inserter;
  uint8_t& slot = next.slots[2];
  const auto begin_again = [&] {
    State again = before;
    Client& d = again.inserter;
    d.step = 1;
    d.epoch = d.view;  // it no longer holds anything except what it has allocated
    if (d.knows && InX(d.block) && !Mutated(M::kKeepOwnBlock)) d.block = kElsewhere;
    emit(kInserter, "begins again", again);
  };
  switch (c.step) {
    case 0:
      if (!c.registered) return;
      c.epoch = c.view;
      c.block = c.has_block_of_x ? kSpare : kElsewhere;
      c.has_block_of_x = 0;
      c.step = 1;
      return emit(kInserter, "allocates a block", next);
    case 1:
      begin_again();
      if (InX(c.block) && next.chunk_free) next.error = 1;
      if (slot != kFreeSlot) return;
      slot = MakeSlot(SlotState::kIns, c.block);
      c.step = 2;
      return emit(kInserter, "write 6a: CAS FREE -> INS", next);
    case 2:
      if (slot != MakeSlot(SlotState::kIns, c.block)) return begin_again();  // killed
      if (InX(c.block) && next.chunk_free) next.error = 1;
      slot = MakeSlot(SlotState::kVal, c.block);
      c.step = 3;
      c.block = c.epoch = 0;
      return emit(kInserter, "write 6f: CAS INS -> VAL", next);
    default: return;
  }
}

// A client begins its life with the memory of one that has ended: it registers, then checks whether the memory is still
// good.
void SweepModel::TakeOver(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.inserter;
  if (c.registered || c.round > 3) return;
  const bool early = Mutated(M::kTakeOverUnregistered);
  const auto check = [&] {
    if (next.evacuations != 0 && !Mutated(M::kTakeOverUnchecked)) c.has_block_of_x = 0;
    if (next.evacuations != 0) c.knows = 1;
  };
  switch (c.round) {
    case 0:
      c.round = 1;
      if (early) {
        check();
        return emit(kInserter, "READ the count of evacuations", next);
      }
      c.round_epoch = next.epoch;
      return emit(kInserter, "READ the epoch", next);
    case 1:
      c.round = 2;
      if (early) {
        c.round_epoch = next.epoch;
        return emit(kInserter, "READ the epoch", next);
      }
      c.announced = c.view = c.round_epoch;
      c.round_epoch = 0;
      c.counter_seen = 1;  // the mover sees it from here on
      return emit(kInserter, "CAS the client word: registered", next);
    default:
      c.round = 0;
      c.registered = 1;
      if (early) {
        c.announced = c.view = c.round_epoch;
        c.round_epoch = 0;
        return emit(kInserter, "CAS the client word: registered", next);
      }
      check();
      c.counter_seen = 0;
      return emit(kInserter, "READ the count of evacuations", next);
  }
}

void SweepModel::Reader(const State& before, const Emit& emit) const {
  State next = before;
  Client& c = next.reader;
  switch (c.step) {
    case 0:
      c.epoch = c.view;
      c.step = 1;
      return emit(kReader, "a read begins", next);
    case 1:
      for (int i = 0; i < 3; ++i) {
        next = before;
        if (StateOf(next.slots[i]) != SlotState::kVal && StateOf(next.slots[i]) != SlotState::kFrz) continue;
        next.reader.block = BlockOf(next.slots[i]);
        next.reader.step = 2;
        emit(kReader, "READ a slot", next);
      }
      return;
    default:
      if (InX(c.block) && next.chunk_free) next.error = 1;
      c.step = c.block = c.epoch = 0;
      return emit(kReader, "READ the block; the read ends", next);
  }
}

// READs the epoch and then the evacuation slots; forgets what is in X; announces; advances the epoch.
void SweepModel::Maintenance(const State& before, bool inserter, const Emit& emit) const {
  State next = before;
  Client& c = inserter ? next.inserter : next.reader;
  const int process = inserter ? kInserterRound : kReaderRound;
  if (!c.registered) return;
  const bool swapped = Mutated(M::kSlotsBeforeEpoch);
  const auto read_epoch = [&] { c.round_epoch = next.epoch; };
  const auto read_slots = [&] { c.round_evacuating = next.evacuating; };
  switch (c.round) {
    case 0:
      c.round = 4;
      swapped ? read_slots() : read_epoch();
      return emit(process, swapped ? "READ the evacuation slots" : "READ the epoch", next);
    case 4:
      c.round = 5;
      swapped ? read_epoch() : read_slots();
      return emit(process, swapped ? "READ the epoch" : "READ the evacuation slots", next);
    case 5:
      c.round = 6;
      c.view = c.round_epoch;
      if (c.round_evacuating) {
        c.knows = 1;
        if (!Mutated(M::kKeepFreeList)) c.has_block_of_x = 0;
      }
      c.round_evacuating = 0;
      return emit(process, "forgets what it has of X, takes the epoch as its view", next);
    case 6: {
      const bool in_flight = inserter ? c.step == 1 || c.step == 2 : c.step != 0;
      c.announced = in_flight ? std::min(c.view, c.epoch) : c.view;
      c.round = 7;
      return emit(process, "CAS the announcement", next);
    }
    case 7: {
      bool all = true;
      for (const Client* other : {&next.inserter, &next.reader}) {
        const bool counts = other->registered || other->counter_seen;
        all &= !counts || other->announced == c.round_epoch;
      }
      if (all && next.epoch == c.round_epoch && next.epoch < config_.epochs) ++next.epoch;
      c.round = c.round_epoch = 0;
      return emit(process, "CAS the epoch", next);
    }
    default: return;
  }
}

void SweepModel::Successors(const State& state, const Emit& emit) const {
  Mover(state, emit);
  if (config_.split) Splitter(state, emit);
  if (config_.late) TakeOver(state, emit);
  if (config_.insert) Inserter(state, emit);
  Maintenance(state, true, emit);
  if (config_.read) Reader(state, emit);
  Maintenance(state, false, emit);
  if (config_.die && state.inserter.registered) {
    State next = state;
    next.inserter = Client{};
    next.inserter.step = next.inserter.round = kDead;
    emit(kInserter, "HAS DIED, confirmed", next);
  }
}

std::string SweepModel::Violation(const State& state) const {
  if (state.error) return "a free chunk was used";
  for (const uint8_t slot : state.slots) {
    if (state.chunk_free && NamesX(slot)) return "a slot names a free chunk";
  }
  return "";
}

std::string SweepModel::Describe(const State& state) const {
  std::string text = std::string("epoch ") + std::to_string(state.epoch) + ", announced " +
                     std::to_string(state.inserter.announced) + " " + std::to_string(state.reader.announced) + ";";
  static const char* const kNames[] = {" S[0]", " N[0]", " S[1]"};
  for (int i = 0; i < 3; ++i) {
    text += std::string(kNames[i]) + " " + kSlotNames[static_cast<int>(StateOf(state.slots[i]))];
    if (HasBlock(state.slots[i])) text += NamesX(state.slots[i]) ? " in X" : " elsewhere";
  }
  if (state.chunk_free) text += "; X is free";
  return text;
}

}  // namespace model
