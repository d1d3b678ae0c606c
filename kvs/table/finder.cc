#include "kvs/table/finder.h"

#include <algorithm>
#include <bit>
#include <span>

#include "kvs/memory/mutation.h"

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

void Finder::PlanMatches(Operation& op) {
  Scan& scan = op.scan;
  scan.val = scan.frz = -1;
  scan.ins_count = 0;
  scan.judged = scan.asked = scan.planned_count = 0;
  for (uint32_t left = MatchSlots(op.buffers->candidates(), op.hash.fingerprint()); left != 0; left &= left - 1) {
    const auto c = static_cast<uint32_t>(std::countr_zero(left));
    const Slot slot = op.Candidate(c);
    if (!slot.has_block() || (scan.states >> static_cast<uint32_t>(slot.state()) & 1) == 0) continue;
    if (slot.word() == op.own_ins || IsStranger(op, slot.word())) continue;
    scan.planned[scan.planned_count++] = static_cast<uint8_t>(c);
  }
}

// Notes what else the buckets say, when no candidate is the key's value: a value counts whatever they say.
void Finder::LookAtBuckets(Operation& op) {
  const std::span<const Bucket, kCandidateBuckets> buckets = op.buffers->candidates();
  const HeaderFit fit = FitOfHeaders(buckets, op.hash.h1);
  op.scan.headers_fit = fit.fits;
  op.scan.closed = fit.closed;
}

// Is the block in `match` the key's value? It was read after the slots, on the guess that one still is scan.guess.
bool Finder::IsGuessRight(Operation& op) {
  Scan& scan = op.scan;
  const BlockView block(op.buffers->match.data());
  for (const uint8_t c : std::span(scan.planned).first(scan.planned_count)) {
    if (op.Candidate(c) != scan.guess && !Mutated(Mutation::kGuessUnchecked)) continue;
    if (!block.Intact(FirstReadBytes(scan.guess)) || block.key() != op.key) return false;
    scan.block = block;
    scan.val = c;
    addresses_.CountHit();
    return true;
  }
  return false;
}

// Returns the guess if it is usable. It must be on the table's queue, because otherwise its READ would not be ordered
// after that of the slots. It must lie within the pool, which may be a different one than when the guess was learnt.
Slot Finder::UsableGuess(Slot guess, krcore::NodeId node) const {
  const bool usable = !guess.free() && guess.block().node == node &&
                      guess.block().offset + FirstReadBytes(guess) <= common_.connections.PoolBytes(node);
  return usable ? guess : Slot();
}

Step Finder::BeginScan(Operation& op, Batch& batch, uint32_t states, Slot guess) {
  Scan& scan = op.scan;
  const krcore::NodeId node = scan.table.address.node;
  scan.states = states;
  scan.reading = Scan::Reading::kBuckets;
  scan.frz = -1;
  scan.ins_count = 0;
  op.torn = false;
  if (!common_.connections.Reach(node)) return Step::kUnavailable;
  ReadBuckets(op, batch);
  scan.guess = UsableGuess(guess, node);
  if (!scan.guess.free()) batch.Read(guess.block(), op.buffers->match.data(), FirstReadBytes(guess));
  return Step::kRun;
}

Step Finder::GoOnScan(Operation& op, Batch& batch) {
  Scan& scan = op.scan;
  switch (scan.reading) {
    case Scan::Reading::kBuckets:
      if (AskForOnlyMatch(op, batch)) [[likely]]
        return Step::kRun;
      PlanMatches(op);
      if (!scan.guess.free() && IsGuessRight(op)) return Step::kOk;
      return ReadMatches(op, batch);
    case Scan::Reading::kOnlyBlock:
      if (IsOnlyMatchRight(op)) [[likely]]
        return Step::kOk;
      // Torn, or another key's. PlanMatches plans this same block, which has been read already.
      PlanMatches(op);
      scan.asked = scan.planned_count;
      scan.judged_bytes = 0;
      return JudgeMatches(op, batch);
    case Scan::Reading::kBlocks: return JudgeMatches(op, batch);
    case Scan::Reading::kLargeBlock:
    case Scan::Reading::kHeaders: break;  // the latter is GoOnReading's
  }
  const Step intact = CheckBlock(op, BlockView(op.large_read.memory.get()), scan.large_bytes);
  if (intact != Step::kOk) return intact;
  const uint32_t c = scan.planned[scan.judged++];
  scan.judged_bytes += FirstReadBytes(op.Candidate(c));
  return JudgeMatch(op, c, scan.block) ? Step::kOk : JudgeMatches(op, batch);
}

// The buckets have arrived. In the usual case one candidate matches, which is a value, and this asks for its block.
bool Finder::AskForOnlyMatch(Operation& op, Batch& batch) {
  uint32_t c;
  if (!FindOnlyMatch(op, &c)) return false;
  const Slot slot = op.Candidate(c);
  if (!common_.connections.Reach(slot.block().node)) return false;
  op.scan.val = static_cast<int>(c);
  op.scan.reading = Scan::Reading::kOnlyBlock;
  batch.Read(slot.block(), op.buffers->match.data(), static_cast<uint32_t>(slot.length_units() * kUnitBytes));
  return true;
}

// Returns whether the block that was asked for is the key's, and whole.
bool Finder::IsOnlyMatchRight(Operation& op) {
  const BlockView block(op.buffers->match.data());
  const Slot slot = op.Candidate(static_cast<uint32_t>(op.scan.val));
  if (!block.Intact(slot.length_units() * kUnitBytes) && !Mutated(Mutation::kNoChecksum)) return false;
  op.scan.block = block;
  return block.key() == op.key;
}

// Asks for the blocks of as many planned candidates as the buffer holds. One block always fits.
Step Finder::ReadMatches(Operation& op, Batch& batch) {
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
    if (!common_.connections.Reach(slot.block().node)) return Step::kUnavailable;
    batch.Read(slot.block(), op.buffers->match.data() + used, bytes);
    used += bytes;
  }
  return Step::kRun;
}

// Looks at the blocks that were read. True: *step is the result; false: none of them is the value.
bool Finder::JudgeRead(Operation& op, Batch& batch, Step* step) {
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
        *step = AskForLargeBlock(op, batch, slot, scan.large_bytes);
        return true;
      }
      AddStranger(op, slot.word());  // the hash is one word, written before the block was published: it cannot be torn
    } else if (IsTorn(op, block, available)) {
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

Step Finder::JudgeMatches(Operation& op, Batch& batch) {
  Step step;
  return JudgeRead(op, batch, &step) ? step : ReadMatches(op, batch);
}

// Notes what the block of candidate `c` is. True: the scan needs no more.
bool Finder::JudgeMatch(Operation& op, uint32_t c, BlockView block) {
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

Task<Step> Finder::ScanTable(Operation& op, TableRef table, uint32_t states, Slot guess) {
  op.scan.table = table;
  Step scanned = BeginScan(op, op.batch, states, guess);
  for (;;) {
    const Outcome read = co_await op.batch.Run();  // includes what was in the batch before
    if (scanned != Step::kRun) co_return scanned;
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    scanned = GoOnScan(op, op.batch);
  }
}

Step Finder::BeginRead(Operation& op, Batch& batch) {
  addresses_.Count(common_.clock);
  if (!cache_.Lookup(op.hash, &op.scan.table)) return Step::kRestart;
  return BeginScan(op, batch, kReaderStates, addresses_.Lookup(op.hash.h1));
}

Step Finder::GoOnReading(Operation& op, Batch& batch) {
  Scan& scan = op.scan;
  if (scan.reading == Scan::Reading::kHeaders) return HeadersFit(op) ? Step::kOk : Step::kRestart;
  const Step scanned = GoOnScan(op, batch);
  if (scanned != Step::kOk || scan.val >= 0) return scanned;
  // No block is the key's. So the key is absent, if nothing moves. The headers, read again, tell that [Get 2].
  if (scan.closed || !scan.headers_fit || scan.frz >= 0) return Step::kRestart;
  if (op.inserts) return Step::kOk;  // it looks again after it has made its tentative slot
  if (Mutated(Mutation::kMultiGetMissUnchecked) || Mutated(Mutation::kWriteMissUnchecked)) return Step::kOk;
  scan.reading = Scan::Reading::kHeaders;
  ReadHeaders(op, batch);
  return Step::kRun;
}

// Asks for a block that is too long for the operation's buffer, to be read into memory of its own.
Step Finder::AskForLargeBlock(Operation& op, Batch& batch, Slot slot, uint64_t bytes) {
  if (bytes > BlockBytes(kMaxKeyBytes, kMaxValueBytes, true)) return Step::kRestart;  // torn
  if (!op.large_read.Grow(common_.node, bytes)) return Step::kFull;
  batch.Read(slot.block(), op.large_read.memory.get(), static_cast<uint32_t>(bytes), op.large_read.region->lkey());
  return Step::kRun;
}

bool Finder::IsTorn(Operation& op, BlockView block, uint64_t bytes) {
  const bool fits = block.bytes() <= bytes;  // what follows relies on the lengths, also under the mutation
  if (Mutated(Mutation::kNoChecksum) ? fits : block.Intact(bytes)) return false;
  ++common_.stats.checksum_retries;
  op.torn = true;
  return true;
}

// The block was read. If it is whole, scan.block becomes a view of it.
Step Finder::CheckBlock(Operation& op, BlockView block, uint64_t bytes) {
  if (IsTorn(op, block, bytes)) return Step::kRestart;
  op.scan.block = block;
  return Step::kOk;
}

Task<Step> Finder::ReadBlock(Operation& op, Slot slot) {
  const uint32_t first_bytes = FirstReadBytes(slot);
  op.batch.Read(slot.block(), op.buffers->match.data(), first_bytes);
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  const BlockView block(op.buffers->match.data());
  if (slot.length_units() != kLargeBlock) co_return CheckBlock(op, block, first_bytes);
  const uint64_t bytes = block.bytes();
  const Step asked = AskForLargeBlock(op, op.batch, slot, bytes);
  if (asked != Step::kRun) co_return asked;
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  co_return CheckBlock(op, BlockView(op.large_read.memory.get()), bytes);
}

Task<Step> Finder::CheckHeaders(Operation& op) {
  ReadHeaders(op, op.batch);
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  co_return HeadersFit(op) ? Step::kOk : Step::kRestart;
}

void Finder::ReadHeaders(Operation& op, Batch& batch) {
  const GlobalAddress table = op.scan.table.address;
  for (uint32_t b = 0; b < 4; ++b) {
    const uint32_t bucket = FirstBucket(op.scan.places.place[b / 2]) + b % 2;
    batch.Read({table.node, table.offset + BucketOffset(bucket)}, &op.buffers->headers[b], sizeof(uint64_t));
  }
}

bool Finder::HeadersFit(const Operation& op) {
  return std::ranges::all_of(op.buffers->headers,
                             [&op](uint64_t header) { return BucketHeader(header).Fits(op.hash.h1); });
}

}  // namespace kvs
