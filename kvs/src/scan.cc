// Reading a key's candidates in one table.
#include <bit>
#include <cassert>
#include <span>

#include "kvs/layout/match_slots.h"
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

// Which candidates' blocks must be read, of the buckets that were: each at most once.
void ClientCore::PlanMatches(Operation& op) {
  Scan& scan = op.scan;
  scan.val = scan.frz = -1;
  scan.ins_count = 0;
  scan.judged = scan.asked = scan.planned_count = 0;
  for (uint32_t left = MatchSlots(op.buffers->candidates(), op.hash.fingerprint()).same_fingerprint; left != 0;
       left &= left - 1) {
    const auto c = static_cast<uint32_t>(std::countr_zero(left));
    const Slot slot = op.Candidate(c);
    if (!slot.has_block() || (scan.states >> static_cast<uint32_t>(slot.state()) & 1) == 0) continue;
    if (slot.word() == op.own_ins || IsStranger(op, slot.word())) continue;
    scan.planned[scan.planned_count++] = static_cast<uint8_t>(c);
  }
}

// The usual case of PlanMatches and ReadMatches.
bool ClientCore::ReadOnlyMatch(Operation& op) {
  Scan& scan = op.scan;
  assert((scan.states >> static_cast<uint32_t>(SlotState::kVal) & 1) != 0);
  uint32_t c;
  if (!FindOnlyMatch(op, &c)) return false;
  const Slot slot = op.Candidate(c);
  if (!connections_.Reach(slot.block().node)) return false;
  scan.val = scan.frz = -1;
  scan.ins_count = scan.judged = scan.judged_bytes = 0;
  scan.planned[0] = static_cast<uint8_t>(c);
  scan.asked = scan.planned_count = 1;
  scan.reading = Scan::Reading::kBlocks;
  op.batch.Read(slot.block(), op.buffers->match.data(), static_cast<uint32_t>(slot.length_units() * kUnitBytes));
  return true;
}

// No candidate is the key's value. What else the buckets say: a value counts whatever that is.
void ClientCore::LookAtBuckets(Operation& op) {
  const std::span<const Bucket, kCandidateBuckets> buckets = op.buffers->candidates();
  const HeaderFit fit = FitOfHeaders(buckets, op.hash.h1);
  op.scan.headers_fit = fit.fits;
  op.scan.closed = fit.closed;
  op.scan.any_pending = MatchSlots(buckets, op.hash.fingerprint()).any_pending;
}

// Is the block at the begin of `match`, read behind the slots on the guess that one of them still is scan.guess, the
// key's value?
bool ClientCore::IsGuessRight(Operation& op) {
  Scan& scan = op.scan;
  const BlockView block(op.buffers->match.data());
  for (const uint8_t c : std::span(scan.planned).first(scan.planned_count)) {
    if (op.Candidate(c) != scan.guess && !Mutated(Mutation::kGuessUnchecked)) continue;
    if (!block.Intact(FirstReadBytes(scan.guess)) || block.key() != op.key) return false;
    scan.block = block;
    scan.val = c;
    address_cache_.CountHit();
    return true;
  }
  return false;
}

// On the table's queue, or it would not be behind the slots; and within the pool, which may be another one than it was
// when the guess was learnt.
Slot ClientCore::UsableGuess(Slot guess, krcore::NodeId node) const {
  const bool usable = guess != Slot::Free() && guess.block().node == node &&
                      guess.block().offset + FirstReadBytes(guess) <= connections_.PoolBytes(node);
  return usable ? guess : Slot::Free();
}

Step ClientCore::BeginScan(Operation& op, const TableRef& table, uint32_t states, Slot guess) {
  Scan& scan = op.scan;
  scan.table = table;
  scan.states = states;
  scan.reading = Scan::Reading::kBuckets;
  op.torn = false;
  const krcore::NodeId node = table.address.node;
  if (!connections_.Reach(node)) {
    op.batch.Clear();
    return Step::kUnavailable;
  }
  for (uint32_t p = 0; p < 2; ++p) {
    op.batch.Read({node, table.address.offset + CombinedOffset(scan.places.place[p])},
                  op.buffers->buckets.data() + p * kCombinedBytes, kCombinedBytes);
  }
  scan.guess = UsableGuess(guess, node);
  if (scan.guess != Slot::Free()) op.batch.Read(guess.block(), op.buffers->match.data(), FirstReadBytes(guess));
  return Step::kRun;
}

Step ClientCore::GoOnScan(Operation& op, Outcome outcome) {
  Scan& scan = op.scan;
  if (outcome != Outcome::kOk) [[unlikely]]
    return Step::kUnavailable;
  switch (scan.reading) {
    case Scan::Reading::kBuckets:
      if (ReadOnlyMatch(op)) [[likely]]
        return Step::kRun;
      PlanMatches(op);
      if (scan.guess != Slot::Free() && IsGuessRight(op)) return Step::kOk;
      return ReadMatches(op);
    case Scan::Reading::kBlocks: return JudgeMatches(op);
    case Scan::Reading::kLargeBlock: break;
  }
  const Step intact = CheckLargeBlock(op, scan.large_bytes);
  if (intact != Step::kOk) return intact;
  const uint32_t c = scan.planned[scan.judged++];
  scan.judged_bytes += FirstReadBytes(op.Candidate(c));
  return JudgeMatch(op, c, scan.block) ? Step::kOk : JudgeMatches(op);
}

// Asks for the blocks of as many planned candidates as the buffer holds; one block fits always.
Step ClientCore::ReadMatches(Operation& op) {
  Scan& scan = op.scan;
  if (scan.asked == scan.planned_count) {
    LookAtBuckets(op);
    return Step::kOk;
  }
  scan.reading = Scan::Reading::kBlocks;
  scan.judged_bytes = 0;
  for (uint32_t used = 0; scan.asked < scan.planned_count; ++scan.asked) {
    const Slot slot = op.Candidate(scan.planned[scan.asked]);
    const uint32_t bytes = FirstReadBytes(slot);
    if (used + bytes > kMatchBytes) break;
    if (!connections_.Reach(slot.block().node)) {
      op.batch.Clear();
      return Step::kUnavailable;
    }
    op.batch.Read(slot.block(), op.buffers->match.data() + used, bytes);
    used += bytes;
  }
  return Step::kRun;
}

// Looks at the blocks that were read. True: *step is what comes of it; false: none of them is the value.
bool ClientCore::JudgeRead(Operation& op, Step* step) {
  Scan& scan = op.scan;
  while (scan.judged < scan.asked) {
    const uint32_t c = scan.planned[scan.judged];
    const Slot slot = op.Candidate(c);
    const BlockView block(op.buffers->match.data() + scan.judged_bytes);
    const uint32_t available = FirstReadBytes(slot);
    if (slot.length_units() == kLargeBlock) [[unlikely]] {
      if (block.header().hash == op.hash.h1) {
        scan.reading = Scan::Reading::kLargeBlock;
        scan.large_bytes = block.bytes();
        *step = AskForLargeBlock(op, slot, scan.large_bytes);
        return true;
      }
      AddStranger(op, slot.word());  // written before it was published, and one word: it cannot be torn
    } else if (!block.Intact(available) && !Mutated(Mutation::kNoChecksum)) {
      ++stats_.checksum_retries;
      op.torn = true;
      *step = Step::kRestart;
      return true;
    } else if (JudgeMatch(op, c, block)) {
      *step = Step::kOk;
      return true;
    }
    ++scan.judged;
    scan.judged_bytes += available;
  }
  return false;
}

Step ClientCore::JudgeMatches(Operation& op) {
  Step step;
  return JudgeRead(op, &step) ? step : ReadMatches(op);
}

// Notes what the block of candidate `c` is. True: the scan needs no more.
bool ClientCore::JudgeMatch(Operation& op, uint32_t c, BlockView block) {
  Scan& scan = op.scan;
  const Slot slot = op.Candidate(c);
  if (block.key() != op.key) {
    AddStranger(op, slot.word());
    return false;
  }
  if (slot.state() == SlotState::kIns && !Mutated(Mutation::kInsVisible)) {
    scan.ins[scan.ins_count++] = static_cast<uint8_t>(c);
    return false;
  }
  scan.block = block;
  if (slot.state() == SlotState::kVal || Mutated(Mutation::kInsVisible)) {
    scan.val = static_cast<int>(c);
    return true;
  }
  scan.frz = static_cast<int>(c);
  return false;
}

Task<Step> ClientCore::ScanTable(Operation& op, TableRef table, uint32_t states, Slot guess) {
  Step scanned = BeginScan(op, table, states, guess);
  while (scanned == Step::kRun) {
    const Outcome read = co_await op.batch.Run();
    scanned = GoOnScan(op, read);
  }
  co_return scanned;
}

// Asks for a block that is too long for the operation's buffer, into memory of its own.
Step ClientCore::AskForLargeBlock(Operation& op, Slot slot, uint64_t bytes) {
  if (bytes > BlockBytes(kMaxKeyBytes, kMaxValueBytes)) return Step::kRestart;  // torn
  if (!AllocateLarge(bytes, &op.large_read)) return Step::kFull;
  op.batch.Read(slot.block(), op.large_read.memory.get(), static_cast<uint32_t>(bytes), op.large_read.region->lkey());
  return Step::kRun;
}

// It was read: scan.block is a view of it.
Step ClientCore::CheckLargeBlock(Operation& op, uint64_t bytes) {
  const BlockView block(op.large_read.memory.get());
  if (!block.Intact(bytes) && !Mutated(Mutation::kNoChecksum)) {
    ++stats_.checksum_retries;
    op.torn = true;
    return Step::kRestart;
  }
  op.scan.block = block;
  return Step::kOk;
}

Task<Step> ClientCore::ReadLargeBlock(Operation& op, Slot slot, uint64_t bytes) {
  const Step asked = AskForLargeBlock(op, slot, bytes);
  if (asked != Step::kRun) co_return asked;
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  co_return CheckLargeBlock(op, bytes);
}

Task<Step> ClientCore::CheckHeaders(Operation& op) {
  ReadHeaders(op, [&op](GlobalAddress from, void* to, uint32_t bytes) { op.batch.Read(from, to, bytes); });
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  co_return HeadersFit(op) ? Step::kOk : Step::kRestart;
}

}  // namespace kvs
