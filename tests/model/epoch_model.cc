#include "tests/model/epoch_model.h"

#include <algorithm>

namespace model {
namespace {

using M = EpochMutation;
constexpr int kReader = 0, kReaderRound = 1, kWriter = 2, kWriterRound = 3;

// The reader's operation.
constexpr uint8_t kIdle = 0, kReadWord = 1, kTakeWord = 2, kReadBlock = 3;

}  // namespace

const char* Name(EpochMutation mutation) {
  static const char* const kNames[] = {
      "free-at-once",         "free-at-stamp",        "stamp-before-unlink", "announce-newest",
      "no-quarantine",        "quarantine-too-short", "advance-alone",       "keep-cache",
      "counter-before-epoch", "count-late",           "cache-late-entry",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

EpochModel::State EpochModel::Initial() const {
  State state{};
  state.epoch = state.reader.view = state.reader.announced = state.writer.view = state.writer.announced = 1;
  state.blocks[0] = {BlockState::kLinked, 0, 1, 0, 0};
  return state;
}

// An operation begins with the client's view of the epoch. The client announces that until the operation ends.
void EpochModel::ReaderOperation(const State& before, const Emit& emit) const {
  State next = before;
  Reader& r = next.reader;
  // An expelled client posts nothing more; what it had posted before still executes.
  switch (r.step) {
    case kIdle:
      if (r.expelled) return;
      r.epoch = r.view;
      if (config_.cached && r.cached) {
        r.step = kReadBlock;
        r.block = r.cached_block;
        r.life = r.cached_life;
      } else {
        r.step = kReadWord;
        r.flushes_seen = r.flushes;
      }
      return emit(kReader, "an operation begins", next);
    case kReadWord:
      r.block = next.word;
      r.life = next.blocks[r.block].life;
      r.step = kTakeWord;
      return emit(kReader, "READ the word", next);
    case kTakeWord:
      r.step = kReadBlock;
      if (r.expelled) {
        r.step = kIdle;
      } else if (config_.cached && (r.flushes_seen == r.flushes || Mutated(M::kCacheLateEntry))) {
        r.cached = 1;
        r.cached_block = r.block;
        r.cached_life = r.life;
      }
      r.flushes_seen = 0;
      return emit(kReader, "the word has come", next);
    default:
      next.reused_under_reader = next.blocks[r.block].life != r.life || next.blocks[r.block].state == BlockState::kFree;
      r.step = kIdle;
      r.block = r.life = r.epoch = 0;
      return emit(kReader, "READ what it names; the operation ends", next);
  }
}

void EpochModel::ReaderMaintenance(const State& before, const Emit& emit) const {
  State next = before;
  Reader& r = next.reader;
  const auto read_epoch = [&] { r.round_epoch = next.epoch; };
  const auto read_counter = [&] { r.round_counter = next.counter; };
  const bool swapped = Mutated(M::kCounterBeforeEpoch);
  switch (r.round) {
    default:
      if (r.expelled) {
        // It learns this from its heartbeat. Once nothing that it had posted is outstanding it acknowledges and
        // registers anew.
        if (r.step != kIdle) return;
        r.expelled = 0;
        r.view = r.announced = next.epoch;
        r.cached = r.cached_block = r.cached_life = 0;
        r.counter_seen = next.counter;
        return emit(kReaderRound, "acknowledges, and registers anew", next);
      }
      r.round = 1;
      swapped ? read_counter() : read_epoch();
      return emit(kReaderRound, swapped ? "READ the counter" : "READ the epoch", next);
    case 1:
      r.round = 2;
      swapped ? read_epoch() : read_counter();
      return emit(kReaderRound, swapped ? "READ the epoch" : "READ the counter", next);
    case 2:
      // The answers have arrived: forget the cache, and only then announce.
      r.round = 3;
      if (config_.cached && r.round_counter != r.counter_seen && !Mutated(M::kKeepCache)) {
        r.cached = r.cached_block = r.cached_life = 0;
        ++r.flushes;
      }
      r.counter_seen = r.round_counter;
      r.view = r.round_epoch;
      return emit(kReaderRound, "takes the epoch as its view", next);
    case 3:
      // The CAS of the client word.
      if (!r.expelled) {
        r.announced = r.step == kIdle || Mutated(M::kAnnounceNewest) ? r.view : std::min(r.view, r.epoch);
      }
      r.round = 4;
      return emit(kReaderRound, "CAS the announcement", next);
    case 4:
      AdvanceEpoch(r.round_epoch, r.announced == r.round_epoch && next.writer.announced == r.round_epoch, &next);
      r.round = r.round_epoch = r.round_counter = 0;
      return emit(kReaderRound, "CAS the epoch", next);
  }
}

// The epoch goes up by one when all have announced it.
void EpochModel::AdvanceEpoch(uint8_t epoch, bool all_announced_it, State* state) const {
  if (!all_announced_it && !Mutated(M::kAdvanceAlone)) return;
  if (state->epoch == epoch && state->epoch < config_.epochs) ++state->epoch;
}

void EpochModel::WriterOperation(const State& before, const Emit& emit) const {
  if (before.writer.replaced != 0) {  // count the subtable that was just unlinked
    State next = before;
    const int block = before.writer.replaced - 1;
    next.writer.replaced = 0;
    next.blocks[block].counted = 1;
    ++next.counter;
    return emit(kWriter, "counts it", next);
  }
  for (int i = 0; i < config_.blocks; ++i) {
    State next = before;
    if (next.blocks[i].state != BlockState::kFree) continue;
    const uint8_t old = next.word;
    const uint8_t life = static_cast<uint8_t>(next.blocks[i].life + 1);
    next.blocks[i] = {BlockState::kLinked, life, next.writer.view, 0, 0};
    next.blocks[old].state = BlockState::kUnlinked;
    next.word = static_cast<uint8_t>(i);
    if (Mutated(M::kFreeAtOnce)) next.blocks[old].state = BlockState::kFree;
    if (config_.cached) {
      next.writer.replaced = static_cast<uint8_t>(old + 1);
    } else {
      next.blocks[old].counted = 1;
    }
    return emit(kWriter, "CAS the word; what it named is unlinked", next);
  }
}

void EpochModel::WriterMaintenance(const State& before, const Emit& emit) const {
  State next = before;
  Writer& w = next.writer;
  const auto stampable = [&](const Block& block) {
    return block.state == BlockState::kUnlinked && (block.counted || Mutated(M::kCountLate));
  };
  switch (w.round) {
    case 0:
      // What is unlinked by now is stamped with the epoch that is read now.
      w.round = 1;
      for (int i = 0; i < config_.blocks; ++i) w.round_marked |= static_cast<uint8_t>(stampable(next.blocks[i]) << i);
      w.round_epoch = next.epoch;
      return emit(kWriterRound, "READ the epoch", next);
    case 1:
      w.round = 2;
      w.reader_announced = next.reader.announced;
      w.reader_expelled = next.reader.expelled;
      return emit(kWriterRound, "READ the announcements", next);
    case 2: {
      w.round = 3;
      w.view = w.round_epoch;
      const uint8_t smallest = w.reader_expelled ? w.announced : std::min(w.announced, w.reader_announced);
      for (int i = 0; i < config_.blocks; ++i) {
        Block& block = next.blocks[i];
        const bool marked = (w.round_marked >> i & 1) != 0 || Mutated(M::kStampBeforeUnlink);
        if (stampable(block) && marked) {
          block.state = BlockState::kStamped;
          block.stamp = w.round_epoch;
        }
        const int zombie_knows = w.reader_announced + (Mutated(M::kQuarantineTooShort) ? 0 : 1);
        const bool pinned = w.reader_expelled && block.birth <= zombie_knows && !Mutated(M::kNoQuarantine);
        const bool old = block.stamp < smallest || (Mutated(M::kFreeAtStamp) && block.stamp <= smallest);
        if (block.state == BlockState::kStamped && old && !pinned) {
          block = {BlockState::kFree, block.life, 0, 0, 0};
        }
      }
      return emit(kWriterRound, "stamps and frees", next);
    }
    case 3:
      w.round = 4;
      w.announced = w.view;
      return emit(kWriterRound, "CAS its announcement", next);
    default: {
      AdvanceEpoch(w.round_epoch, w.reader_expelled || w.reader_announced == w.round_epoch, &next);
      w.round = w.round_epoch = w.round_marked = w.reader_announced = w.reader_expelled = 0;
      return emit(kWriterRound, "CAS the epoch", next);
    }
  }
}

void EpochModel::Successors(const State& state, const Emit& emit) const {
  ReaderOperation(state, emit);
  ReaderMaintenance(state, emit);
  WriterOperation(state, emit);
  WriterMaintenance(state, emit);
  if (config_.expel && !state.reader.expelled) {
    State next = state;
    next.reader.expelled = 1;
    emit(kReader, "IS EXPELLED", next);
  }
}

std::string EpochModel::Violation(const State& state) const {
  return state.reused_under_reader ? "reused under the reader" : "";
}

std::string EpochModel::Describe(const State& state) const {
  static const char* const kStates[] = {"free", "linked", "unlinked", "stamped"};
  std::string text = std::string("epoch ") + std::to_string(state.epoch) + ", R announced " +
                     std::to_string(state.reader.announced) + (state.reader.expelled ? " (expelled)" : "") +
                     ", W announced " + std::to_string(state.writer.announced) + ", word " +
                     std::to_string(state.word) + ";";
  for (int i = 0; i < config_.blocks; ++i) {
    const Block& block = state.blocks[i];
    text += std::string(" b") + std::to_string(i) + " " + kStates[static_cast<int>(block.state)] + " life " +
            std::to_string(block.life) + " born " + std::to_string(block.birth) + " stamp " +
            std::to_string(block.stamp);
  }
  return text;
}

}  // namespace model
