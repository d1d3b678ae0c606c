#include "tests/model/cache_model.h"

namespace model {
namespace {

using M = CacheMutation;
constexpr int kWriter = 0, kReader = 1;
constexpr uint8_t kIdle = 0, kFetch = 1, kFetchAgain = 2;  // the reader
constexpr uint8_t kWrite = 1, kSwap = 2;                   // the writer
constexpr uint8_t kInitialValue = 14;

}  // namespace

const char* Name(CacheMutation mutation) {
  static const char* const kNames[] = {"unordered", "trust-without-slot", "no-grace"};
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

CacheModel::State CacheModel::Initial() const {
  State state{.body = {}, .monitor = Monitor(kInitialValue)};
  state.body.blocks[0] = {kInitialValue, 1, 0};
  return state;
}

Monitor::InFlight CacheModel::InFlight(const Body& body) const {
  Monitor::InFlight ops{};
  ops[kWriter] = {.kind = OpKind::kUpdate, .value = static_cast<uint8_t>(body.updates + 1)};
  ops[kReader] = {.kind = OpKind::kGet};
  return ops;
}

void CacheModel::Writer(const State& before, const Emit& emit) const {
  State next = before;
  Body& b = next.body;
  switch (b.writer_step) {
    case kIdle:
      if (b.updates == config_.updates) return;
      for (int i = 0; i < config_.blocks; ++i) {
        if (b.blocks[i].busy || b.blocks[i].held) continue;
        b.blocks[i].busy = 1;
        b.writer_block = static_cast<uint8_t>(i);
        b.writer_step = kWrite;
        next.monitor.Invoke(kWriter, InFlight(b));
        return emit(kWriter, "an Update begins", next);
      }
      return;
    case kWrite:
      b.blocks[b.writer_block].value = static_cast<uint8_t>(b.updates + 1);
      b.writer_step = kSwap;
      return emit(kWriter, "WRITE the block", next);
    default: {
      Block& old = b.blocks[b.slot];
      old.busy = 0;
      old.held = b.reader_step != kIdle && !Mutated(M::kNoGrace);
      b.slot = b.writer_block;
      b.writer_step = kIdle;
      b.writer_block = 0;
      next.monitor.Respond(kWriter, 1);
      ++b.updates;
      return emit(kWriter, "CAS the slot; the Update ends", next);
    }
  }
}

void CacheModel::Reader(const State& before, const Emit& emit) const {
  State next = before;
  Body& b = next.body;
  const auto finish = [&](uint8_t value) {
    b.cached = static_cast<uint8_t>(b.seen_slot + 1);
    b.reader_step = kIdle;
    b.slot_read = b.block_read = b.seen_slot = b.seen_value = 0;
    for (Block& block : b.blocks) block.held = 0;
    next.monitor.Respond(kReader, value);
    ++b.gets;
  };
  switch (b.reader_step) {
    case kIdle:
      if (b.gets == config_.gets) return;
      b.reader_step = kFetch;
      next.monitor.Invoke(kReader, InFlight(b));
      return emit(kReader, "a Get begins", next);
    case kFetch:
      // One batch READs the slot and then the cached block.
      if (!b.slot_read) {
        b.slot_read = 1;
        b.seen_slot = b.slot;
        if (b.cached == 0) b.block_read = 1, b.reader_step = kFetchAgain;
        emit(kReader, "READ the slot", next);
      }
      if (before.body.cached != 0 && !before.body.block_read && (before.body.slot_read || Mutated(M::kUnordered))) {
        next = before;
        b.block_read = 1;
        b.seen_value = b.blocks[b.cached - 1].value;
        emit(kReader, "READ the cached block", next);
      }
      if (before.body.slot_read && before.body.block_read) {
        next = before;
        if (b.seen_slot + 1 == b.cached || Mutated(M::kTrustWithoutSlot)) {
          finish(b.seen_value);
          return emit(kReader, "the slot names the cached block: its value", next);
        }
        b.reader_step = kFetchAgain;
        emit(kReader, "the slot names another block", next);
      }
      return;
    default: finish(b.blocks[b.seen_slot].value); return emit(kReader, "READ the block that the slot names", next);
  }
}

void CacheModel::Successors(const State& state, const Emit& emit) const {
  Writer(state, emit);
  Reader(state, emit);
}

std::string CacheModel::Violation(const State& state) const {
  return state.monitor.linearizable() ? "" : "not linearizable";
}

std::string CacheModel::Describe(const State& state) const {
  const Body& b = state.body;
  std::string text = std::string("slot names b") + std::to_string(b.slot) + ";";
  for (int i = 0; i < config_.blocks; ++i) {
    text += std::string(" b") + std::to_string(i) + " = " + std::to_string(b.blocks[i].value);
  }
  if (b.cached) text += std::string("; cached b") + std::to_string(b.cached - 1);
  return text;
}

}  // namespace model
