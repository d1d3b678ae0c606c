// Reading a key's candidates in one table.
#include <array>
#include <bit>
#include <span>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

bool IsStranger(const Operation& op, uint64_t word) {
  for (uint32_t i = 0; i < op.strangers; ++i) {
    if (op.stranger[i] == word) return true;
  }
  return false;
}

void AddStranger(Operation& op, uint64_t word) {
  if (op.strangers < op.stranger.size()) op.stranger[op.strangers++] = word;
}

}  // namespace

// Fills headers_fit and any_pending, and `planned` with the candidates whose blocks must be read. They are in it at
// most once each.
uint32_t ClientCore::PlanMatches(Operation& op, uint32_t states, std::span<uint8_t> planned) {
  Scan& scan = op.scan;
  scan.headers_fit = true;
  scan.closed = false;
  scan.val = scan.frz = -1;
  scan.ins_count = 0;
  // Most slots neither match nor are PEND: find those that do without a branch for each.
  static_assert(kCandidates <= 32);
  const uint64_t fingerprint = op.hash.fingerprint();
  uint32_t matches = 0, pending = 0;
  for (uint32_t b = 0; b < 4; ++b) {
    const Bucket& bucket = reinterpret_cast<const Bucket*>(op.buffers->buckets.data())[b];
    scan.headers_fit &= bucket.header.Fits(op.hash.h1);
    scan.closed |= bucket.header.closed();
    for (uint32_t s = 0; s < kSlotsPerBucket; ++s) {
      const Slot slot = bucket.slots[s];
      const uint32_t c = b * kSlotsPerBucket + s;
      matches |= static_cast<uint32_t>(slot.word() >> 56 == fingerprint) << c;
      pending |= static_cast<uint32_t>(slot.state() == SlotState::kPend) << c;
    }
  }
  scan.any_pending = pending != 0;
  uint32_t count = 0;
  for (; matches != 0; matches &= matches - 1) {
    const auto c = static_cast<uint32_t>(std::countr_zero(matches));
    const Slot slot = op.Candidate(c);
    if (!slot.has_block() || (states >> static_cast<uint32_t>(slot.state()) & 1) == 0) continue;
    if (slot.word() == op.own_ins || IsStranger(op, slot.word())) continue;
    planned[count++] = static_cast<uint8_t>(c);
  }
  return count;
}

// Is the block at the begin of `match`, read behind the slots on the guess that one of them still is `guess`, the key's
// value?
bool ClientCore::IsGuessRight(Operation& op, Slot guess, std::span<const uint8_t> planned) {
  const BlockView block(op.buffers->match.data());
  for (const uint8_t c : planned) {
    if (op.Candidate(c) != guess && !Mutated(Mutation::kGuessUnchecked)) continue;
    if (!block.Intact(FirstReadBytes(guess)) || block.key() != op.key) return false;
    op.scan.block = block;
    op.scan.val = c;
    address_cache_.CountHit();
    return true;
  }
  return false;
}

Task<Step> ClientCore::ScanTable(Operation& op, TableRef table, uint32_t states, Slot guess) {
  Scan& scan = op.scan;
  scan.table = table;
  op.torn = false;
  if (!connections_.Reach(table.address.node)) {
    op.batch.Clear();
    co_return Step::kUnavailable;
  }
  for (uint32_t p = 0; p < 2; ++p) {
    op.batch.Read({table.address.node, table.address.offset + CombinedOffset(scan.places.place[p])},
                  op.buffers->buckets.data() + p * kCombinedBytes, kCombinedBytes);
  }
  // On the table's queue, or it would not be behind the slots; and within the pool, which may be another one than it
  // was when the guess was learnt.
  const bool guessed = guess != Slot::Free() && guess.block().node == table.address.node &&
                       guess.block().offset + FirstReadBytes(guess) <= connections_.PoolBytes(table.address.node);
  if (guessed) op.batch.Read(guess.block(), op.buffers->match.data(), FirstReadBytes(guess));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;

  std::array<uint8_t, kCandidates> planned;
  const uint32_t count = PlanMatches(op, states, planned);
  if (guessed && IsGuessRight(op, guess, std::span(planned).first(count))) co_return Step::kOk;
  // As many blocks at once as the buffer holds; one block fits always.
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin;
    for (uint32_t used = 0; end < count; ++end) {
      const Slot slot = op.Candidate(planned[end]);
      const uint32_t bytes = FirstReadBytes(slot);
      if (used + bytes > kMatchBytes) break;
      if (!connections_.Reach(slot.block().node)) {
        op.batch.Clear();
        co_return Step::kUnavailable;
      }
      op.batch.Read(slot.block(), op.buffers->match.data() + used, bytes);
      used += bytes;
    }
    const Outcome matched = co_await op.batch.Run();
    if (matched != Outcome::kOk) co_return Step::kUnavailable;

    for (uint32_t used = 0; begin < end; ++begin) {
      const uint32_t c = planned[begin];
      const Slot slot = op.Candidate(c);
      BlockView block(op.buffers->match.data() + used);
      uint32_t available = FirstReadBytes(slot);
      used += available;
      if (slot.length_units() == kLargeBlock) {
        if (block.header().hash != op.hash.h1) {
          AddStranger(op, slot.word());  // written before it was published, and one word: it cannot be torn
          continue;
        }
        const uint64_t bytes = block.bytes();
        const Step large = co_await ReadLargeBlock(op, slot, bytes);
        if (large != Step::kOk) co_return large;
        block = scan.block;
      } else if (!block.Intact(available) && !Mutated(Mutation::kNoChecksum)) {
        ++stats_.checksum_retries;
        op.torn = true;
        co_return Step::kRestart;
      }
      if (block.key() != op.key) {
        AddStranger(op, slot.word());
        continue;
      }
      if (slot.state() == SlotState::kIns && !Mutated(Mutation::kInsVisible)) {
        scan.ins[scan.ins_count++] = static_cast<uint8_t>(c);
        continue;
      }
      scan.block = block;
      if (slot.state() == SlotState::kVal || Mutated(Mutation::kInsVisible)) {
        scan.val = static_cast<int>(c);
        co_return Step::kOk;
      }
      scan.frz = static_cast<int>(c);
    }
  }
  co_return Step::kOk;
}

// Reads a block that is too long for the operation's buffer into memory of its own; scan.block is a view of it.
Task<Step> ClientCore::ReadLargeBlock(Operation& op, Slot slot, uint64_t bytes) {
  if (bytes > BlockBytes(kMaxKeyBytes, kMaxValueBytes)) co_return Step::kRestart;  // torn
  if (!AllocateLarge(bytes, &op.large_read)) co_return Step::kFull;
  op.batch.Read(slot.block(), op.large_read.memory.get(), static_cast<uint32_t>(bytes), op.large_read.region->lkey());
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const BlockView block(op.large_read.memory.get());
  if (!block.Intact(bytes) && !Mutated(Mutation::kNoChecksum)) {
    ++stats_.checksum_retries;
    op.torn = true;
    co_return Step::kRestart;
  }
  op.scan.block = block;
  co_return Step::kOk;
}

Task<Step> ClientCore::CheckHeaders(Operation& op) {
  const GlobalAddress table = op.scan.table.address;
  for (uint32_t b = 0; b < 4; ++b) {
    const uint32_t bucket = FirstBucket(op.scan.places.place[b / 2]) + b % 2;
    op.batch.Read({table.node, table.offset + BucketOffset(bucket)}, &op.buffers->headers[b], sizeof(uint64_t));
  }
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (const uint64_t header : op.buffers->headers) {
    if (!BucketHeader(header).Fits(op.hash.h1)) co_return Step::kRestart;
  }
  co_return Step::kOk;
}

}  // namespace kvs
