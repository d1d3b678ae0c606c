#include "bench/peers/bound/bare_bound.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "krcore/rnic/sw/word_copy.h"

namespace peers {
namespace {

using kvs::BlockView;
using kvs::BucketHeader;
using kvs::DirectoryEntry;
using kvs::kCombinedBytes;
using kvs::kSlotsPerBucket;
using kvs::Slot;
using kvs::SlotState;

void Prefetch(const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

void PrefetchForWrite(const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 1);
}

}  // namespace

BareSession::BareSession(BareMemory& memory, const Shape& shape)
    : memory_(memory),
      safe_(memory.safe()),
      geometry_(memory.geometry()),
      block_bytes_(kvs::BlockBytes(shape.key_bytes, shape.value_bytes, false)),
      announcement_(memory.Register()),
      blocks_(memory.TakeBlocks()),
      image_(safe_ ? geometry_.bytes() : 0) {}

BareSession::~BareSession() {
  memory_.Unregister(announcement_);
  memory_.GiveBlocks(std::move(blocks_));
}

void BareSession::Run(Requests& requests, uint32_t in_flight) {
  for (;;) {
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < in_flight; ++lane) {
      Operation& op = operations_[count];
      if (!requests.Next(lane, &op.request)) continue;
      op.lane = lane;
      ++count;
    }
    if (count == 0) return;
    Execute(requests, std::span(operations_).first(count));
    if (safe_ && (until_round_ -= std::min(until_round_, count)) == 0) {
      memory_.Round(announcement_, &blocks_);
      until_round_ = kRoundEvery;
    }
  }
}

void BareSession::Execute(Requests& requests, std::span<Operation> operations) {
  std::array<Operation*, kMaxInFlight> todo;
  size_t count = 0;
  for (Operation& op : operations) {
    Begin(op);
    todo[count++] = &op;
  }
  while (count > 0) {
    for (size_t i = 0; i < count; ++i) ReadBuckets(*todo[i]);
    for (size_t i = 0; i < count; ++i) ReadBlocks(*todo[i]);
    size_t left = 0;
    for (size_t i = 0; i < count; ++i) {
      if (!Go(requests, *todo[i])) todo[left++] = todo[i];
    }
    count = left;
  }
}

void BareSession::Begin(Operation& op) {
  op.hash = hasher_(op.request.key);
  op.places = kvs::PlacesOf(op.hash, geometry_.groups);
  op.strangers = 0;
  op.own = 0;
  op.looks = 0;
  op.block = 0;
  op.written = false;
  Locate(op);
  if (op.request.verb == Verb::kGet) return;
  op.block = Allocate();
  PrefetchForWrite(memory_.At(op.block), block_bytes_);
}

void BareSession::Locate(Operation& op) {
  if (!safe_) {
    op.table = memory_.table();
  } else {
    if (!directory_.Lookup(op.hash, &op.entry)) Resolve(op);
    op.table = op.entry.address.offset;
  }
  for (const kvs::CombinedBucket& place : op.places.place) {
    Prefetch(memory_.At(op.table + kvs::CombinedOffset(place)), kCombinedBytes);
  }
}

// The entries that the hash may belong to, the deepest one that is present.
void BareSession::Resolve(Operation& op) {
  std::array<uint32_t, kvs::kMaxDepth + 1> index;
  uint32_t count = 0;
  index[count++] = 0;
  for (uint32_t depth = 1; depth <= kvs::kMaxDepth; ++depth) {
    if ((op.hash.h1 >> (depth - 1) & 1) != 0) index[count++] = op.hash.Suffix(depth);
  }
  std::array<uint64_t, kvs::kMaxDepth + 1> words;
  for (uint32_t i = count; i-- > 0;) words[i] = ReadWord(memory_.DirectoryOffset(index[i]));
  for (uint32_t i = count; i-- > 0;) {
    const DirectoryEntry entry(words[i]);
    if (!entry.present()) continue;
    op.entry = {entry.subtable(), index[i], entry, directory_.Ticket()};
    directory_.Insert(op.entry);
    return;
  }
}

void BareSession::ReadBuckets(Operation& op) {
  if (op.block != 0 && !op.written) {
    kvs::BuildBlock({memory_.At(op.block), block_bytes_}, op.hash.h1, /*birth_epoch=*/0, op.request.key,
                    op.request.value, /*expires_at_ms=*/0);
    ++accesses_.writes;
    op.written = true;
  }
  for (uint32_t p = 0; p < 2; ++p) {
    Read(op.buckets.data() + p * kCombinedBytes, op.table + kvs::CombinedOffset(op.places.place[p]), kCombinedBytes);
  }
  op.planned_count = 0;
  const auto buckets = op.candidates();
  op.headers_fit = kvs::FitOfHeaders(buckets, op.hash.h1).fits;
  for (uint32_t matches = kvs::MatchSlots(buckets, op.hash.fingerprint()); matches != 0; matches &= matches - 1) {
    const auto c = static_cast<uint32_t>(std::countr_zero(matches));
    const Slot slot = op.Candidate(c);
    const bool counts = slot.state() == SlotState::kVal || slot.state() == SlotState::kFrz ||
                        (slot.state() == SlotState::kIns && op.own != 0);
    const auto known = std::span(op.stranger).first(op.strangers);
    if (!counts || slot.word() == op.own || std::ranges::find(known, slot.word()) != known.end()) continue;
    op.planned[op.planned_count++] = static_cast<uint8_t>(c);
    Prefetch(memory_.At(slot.block().offset), block_bytes_);
  }
}

void BareSession::ReadBlocks(Operation& op) {
  op.val = op.frz = op.rival = -1;
  op.torn = false;
  for (uint32_t i = 0; i < op.planned_count; ++i) {
    const uint32_t c = op.planned[i];
    const Slot slot = op.Candidate(c);
    alignas(64) std::array<std::byte, kBlockBytes> unwanted;
    std::byte* const to = op.val < 0 ? op.found.data() : unwanted.data();
    Read(to, slot.block().offset, block_bytes_);
    if (op.val >= 0) continue;
    const BlockView block(to);
    if (!block.Intact(block_bytes_)) {
      op.torn = true;
      continue;
    }
    if (block.key() != op.request.key) {
      if (op.strangers < op.stranger.size()) op.stranger[op.strangers++] = slot.word();
      continue;
    }
    int& as = slot.state() == SlotState::kVal ? op.val : slot.state() == SlotState::kFrz ? op.frz : op.rival;
    as = static_cast<int>(c);
  }
}

bool BareSession::Go(Requests& requests, Operation& op) {
  if (op.torn) return false;
  switch (op.request.verb) {
    case Verb::kGet: return GoOnGet(requests, op);
    case Verb::kUpdate: return GoOnUpdate(requests, op);
    case Verb::kInsert: break;
  }
  return op.own != 0 ? Confirm(requests, op) : GoOnInsert(requests, op);
}

// A key that was not found where nothing moves is absent, if the headers, read again, say so. Otherwise the table is
// being split, and it is asked for anew.
bool BareSession::HeadersStillFit(Operation& op) {
  bool fit = op.headers_fit && op.frz < 0;
  for (uint32_t b = 0; fit && b < 4; ++b) {
    const uint32_t bucket = kvs::FirstBucket(op.places.place[b / 2]) + b % 2;
    fit = BucketHeader(ReadWord(op.table + kvs::BucketOffset(bucket))).Fits(op.hash.h1);
  }
  if (fit) return true;
  directory_.Forget(op.entry);
  Locate(op);
  return false;
}

// Without epochs a slot's block may be another key's by the time that it is read. That must not look like a missing
// record, so it is looked at again, and again.
bool BareSession::MayBeReused(Operation& op) {
  op.strangers = 0;
  return op.looks++ < kUnsafeLooks;
}

bool BareSession::GoOnGet(Requests& requests, Operation& op) {
  if (op.val >= 0) [[likely]] {
    requests.Done(op.lane, true, BlockView(op.found.data()).value());
    return true;
  }
  if (safe_ ? !HeadersStillFit(op) : MayBeReused(op)) return false;
  requests.Done(op.lane, false);
  return true;
}

bool BareSession::GoOnUpdate(Requests& requests, Operation& op) {
  if (op.val < 0) [[unlikely]] {
    if (safe_ ? !HeadersStillFit(op) : MayBeReused(op)) return false;
    End(requests, op, false);
    return true;
  }
  const auto c = static_cast<uint32_t>(op.val);
  for (int look = 0;; ++look) {
    const Slot old = op.Candidate(c);
    const Slot now = Slot::Make(SlotState::kVal, op.hash.fingerprint(), kvs::LengthUnits(block_bytes_),
                                {BareMemory::kNode, op.block}, static_cast<uint8_t>(old.version() + 1));
    const Slot there(CompareSwap(SlotOffset(op, c), old.word(), now.word()));
    if (there == old) {
      Retire(old.block().offset);
      op.block = 0;
      End(requests, op, true);
      return true;
    }
    // What won may be of the same key: then its word can be expected next, without another scan.
    if (look == 1 || !LookAgain(op, there)) return false;
  }
}

bool BareSession::LookAgain(Operation& op, Slot there) {
  if (there.state() != SlotState::kVal || there.fingerprint() != op.hash.fingerprint()) return false;
  const auto c = static_cast<uint32_t>(op.val);
  Read(op.found.data(), there.block().offset, block_bytes_);
  if (ReadWord(SlotOffset(op, c)) != there.word()) return false;
  const BlockView block(op.found.data());
  if (!block.Intact(block_bytes_) || block.key() != op.request.key) return false;
  op.Candidate(c) = there;
  return true;
}

bool BareSession::GoOnInsert(Requests& requests, Operation& op) {
  if (op.val >= 0) [[unlikely]] {
    End(requests, op, false);
    return true;
  }
  if (safe_ && (!op.headers_fit || op.frz >= 0)) {
    directory_.Forget(op.entry);
    Locate(op);
    return false;
  }
  const int candidate = kvs::ChooseFreeSlot(op.places, kvs::FreeSlots(op.candidates()));
  if (candidate < 0) {
    if (!safe_) {
      End(requests, op, false);
      return true;
    }
    Split(op.entry);
    Locate(op);
    return false;
  }
  const auto c = static_cast<uint32_t>(candidate);
  const Slot now = Slot::Make(safe_ ? SlotState::kIns : SlotState::kVal, op.hash.fingerprint(),
                              kvs::LengthUnits(block_bytes_), {BareMemory::kNode, op.block}, 0);
  if (CompareSwap(SlotOffset(op, c), Slot::Fresh().word(), now.word()) != Slot::Fresh().word()) return false;
  if (safe_) {
    op.own = now.word();
    op.own_candidate = c;
    return false;  // scan after it
  }
  op.block = 0;
  End(requests, op, true);
  return true;
}

// The scan after the tentative slot was written decides whether it may be confirmed.
bool BareSession::Confirm(Requests& requests, Operation& op) {
  const bool moved = !op.headers_fit || op.frz >= 0;
  if (moved || op.val >= 0 || op.rival >= 0) {
    // Whether it won or not, the slot is not in the table any more: a faster session had killed it.
    CompareSwap(SlotOffset(op, op.own_candidate), std::exchange(op.own, 0), Slot::Fresh().word());
    if (op.val >= 0) {
      End(requests, op, false);
      return true;
    }
    directory_.Forget(op.entry);
    Locate(op);
    return false;
  }
  const Slot own(std::exchange(op.own, 0));
  if (op.Candidate(op.own_candidate) != own) return false;  // killed by a splitter
  if (CompareSwap(SlotOffset(op, op.own_candidate), own.word(), own.WithState(SlotState::kVal).word()) != own.word()) {
    return false;
  }
  op.block = 0;
  End(requests, op, true);
  return true;
}

void BareSession::End(Requests& requests, Operation& op, bool ok) {
  if (op.block != 0) blocks_.free.push_back(op.block);
  requests.Done(op.lane, ok);
}

uint64_t BareSession::SlotOffset(const Operation& op, uint32_t c) const {
  const kvs::CombinedBucket& place = op.places.place[c / kvs::kCombinedSlots];
  const uint32_t bucket = kvs::FirstBucket(place) + c % kvs::kCombinedSlots / kSlotsPerBucket;
  return op.table + kvs::SlotOffset(bucket * kSlotsPerBucket + c % kSlotsPerBucket);
}

uint64_t BareSession::Allocate() {
  if (!blocks_.free.empty()) {
    const uint64_t block = blocks_.free.back();
    blocks_.free.pop_back();
    return block;
  }
  if (blocks_.cut + block_bytes_ > blocks_.cut_end) {
    blocks_.cut = memory_.TakeChunk();
    blocks_.cut_end = blocks_.cut + BareMemory::kChunkBytes;
  }
  return std::exchange(blocks_.cut, blocks_.cut + block_bytes_);
}

void BareSession::Retire(uint64_t block) { (safe_ ? blocks_.unstamped : blocks_.free).push_back(block); }

void BareSession::Read(void* to, uint64_t offset, size_t bytes) {
  krcore::rnic::sw::LoadWords(static_cast<std::byte*>(to), memory_.At(offset), bytes);
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the CAS that published what was read
  ++accesses_.reads;
}

uint64_t BareSession::ReadWord(uint64_t offset) {
  ++accesses_.reads;
  return memory_.Word(offset).load(std::memory_order_acquire);  // pairs with CompareSwap
}

uint64_t BareSession::CompareSwap(uint64_t offset, uint64_t expected, uint64_t desired) {
  ++accesses_.atomics;
  memory_.Word(offset).compare_exchange_strong(expected, desired);
  return expected;
}

// ---- the peers

namespace {

class BarePeer final : public Peer {
 public:
  BarePeer(std::unique_ptr<BareMemory> memory, const Shape& shape) : memory_(std::move(memory)), shape_(shape) {}
  std::unique_ptr<Session> NewSession() override { return std::make_unique<BareSession>(*memory_, shape_); }
  uint64_t MemoryBytes() override { return memory_->used_bytes(); }

 private:
  std::unique_ptr<BareMemory> memory_;
  Shape shape_;
};

krcore::Result<std::unique_ptr<Peer>> Make(const Shape& shape, bool safe) {
  auto memory = BareMemory::Create(shape, safe);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Peer>(std::make_unique<BarePeer>(*std::move(memory), shape));
}

}  // namespace

krcore::Result<std::unique_ptr<Peer>> MakeBareBound(const Shape& shape) { return Make(shape, /*safe=*/true); }
krcore::Result<std::unique_ptr<Peer>> MakeBareBoundUnsafe(const Shape& shape) { return Make(shape, /*safe=*/false); }

}  // namespace peers
