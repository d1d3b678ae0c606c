#include "krcore/rnic/sw/tables.h"

#include <algorithm>
#include <cstring>

namespace krcore::rnic::sw {

NamePool::NamePool(uint32_t count, uint32_t index_bits, uint32_t max_generation)
    : index_bits_(index_bits), max_generation_(max_generation), generations_(count, 0) {
  for (uint32_t index = 0; index < count; ++index) free_.push_back(index);
}

uint32_t NamePool::Take() {
  if (free_.empty()) return 0;
  const uint32_t index = free_.front();
  free_.pop_front();
  uint32_t& generation = generations_[index];
  generation = generation == max_generation_ ? 1 : generation + 1;
  return generation << index_bits_ | index;
}

void NamePool::Give(uint32_t name) { free_.push_back(name & ((1U << index_bits_) - 1)); }

Tables::Tables(Fabric* fabric)
    : fabric_(fabric),
      mr_keys_(kMaxMrs, 16, 0xffff),
      qp_numbers_(kMaxQps, 10, 0x3fff),
      segment_indices_(kMaxSegments, 16, 0xffff) {}

uint64_t Tables::NextSerial() {
  const std::lock_guard lock(mutex_);
  return next_serial_++;
}

uint32_t Tables::NextPd() {
  const std::lock_guard lock(mutex_);
  return next_pd_++;
}

Result<SegmentRef> Tables::AddSegment(uint64_t serial, const std::string& suffix, const std::byte* base, size_t length,
                                      const std::string& memory_name) {
  const std::lock_guard lock(mutex_);
  const uint32_t name = segment_indices_.Take();
  if (name == 0) return TableFull("memories and receive queues", kMaxSegments);
  const SegmentRef segment{name & 0xffff, serial};
  SegmentEntry& entry = fabric_->segment().segments[segment.index];
  uint64_t words[kSuffixBytes / 8] = {};
  std::memcpy(words, suffix.data(), std::min(suffix.size(), kSuffixBytes - 1));
  for (size_t i = 0; i < std::size(words); ++i) entry.suffix[i].store(words[i], std::memory_order_relaxed);
  entry.serial.store(serial, std::memory_order_release);  // pairs with Peer::MapSegment
  ranges_[base] = {length, segment, memory_name};
  return segment;
}

bool Tables::NameInUse(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) { return range.second.name == name; });
}

void Tables::RemoveSegment(const SegmentRef& segment, const std::byte* base) {
  const std::lock_guard lock(mutex_);
  fabric_->segment().segments[segment.index].serial.store(0, std::memory_order_relaxed);
  // Before the next owner's suffix: a reader that sees it must see the serial change too.
  std::atomic_thread_fence(std::memory_order_release);
  ranges_.erase(base);
  segment_indices_.Give(segment.index);
}

Result<uint32_t> Tables::AddMr(uint32_t pd, void* addr, size_t length, uint32_t rights) {
  const std::lock_guard lock(mutex_);
  const std::byte* begin = static_cast<const std::byte*>(addr);
  SegmentRef segment;
  uint64_t offset = 0;
  if ((rights & (kRemoteRead | kRemoteWrite | kRemoteAtomic)) != 0) {
    auto range = ranges_.upper_bound(begin);
    const bool below = range != ranges_.begin();
    if (below) --range;
    if (!below || static_cast<size_t>(begin - range->first) > range->second.length ||
        length > range->second.length - static_cast<size_t>(begin - range->first)) {
      return Status(StatusCode::kUnsupported,
                    "remote rights need memory from AllocMemory of this device: peers cannot reach other memory");
    }
    segment = range->second.segment;
    offset = static_cast<uint64_t>(begin - range->first);
  }
  const uint32_t key = mr_keys_.Take();
  if (key == 0) return TableFull("memory regions", kMaxMrs);
  MrEntry& entry = fabric_->segment().mrs[MrIndex(key)];
  entry.rights.store(rights, std::memory_order_relaxed);
  entry.segment.store(segment.index, std::memory_order_relaxed);
  entry.serial.store(segment.serial, std::memory_order_relaxed);
  entry.base.store(reinterpret_cast<uint64_t>(addr), std::memory_order_relaxed);
  entry.length.store(length, std::memory_order_relaxed);
  entry.offset.store(offset, std::memory_order_relaxed);
  entry.pd.store(pd, std::memory_order_relaxed);
  entry.key.store(key, std::memory_order_release);  // pairs with Peer::Translate
  return key;
}

void Tables::RemoveMr(uint32_t key) {
  const std::lock_guard lock(mutex_);
  MrEntry& entry = fabric_->segment().mrs[MrIndex(key)];
  entry.key.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before the fields of the next key
  entry.pd.store(0, std::memory_order_relaxed);         // so that the key 0 fits no Pd either
  mr_keys_.Give(MrIndex(key));
}

Result<uint32_t> Tables::AddQp(uint32_t pd, EntryType type) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = qp_numbers_.Take();
  if (number == 0) return TableFull("queue pairs and DC targets", kMaxQps);
  QpEntry& entry = qp(number);
  entry.peer.store(0, std::memory_order_relaxed);
  entry.pd.store(pd, std::memory_order_relaxed);
  entry.rights.store(0, std::memory_order_relaxed);
  entry.qkey.store(0, std::memory_order_relaxed);
  entry.inbox_segment.store(kNoSegment, std::memory_order_relaxed);
  entry.inbox_serial.store(0, std::memory_order_relaxed);
  entry.word.store(QpWord(number, type, static_cast<uint8_t>(QpState::kReset)), std::memory_order_release);
  return number;
}

void Tables::RemoveQp(uint32_t number) {
  const std::lock_guard lock(mutex_);
  qp(number).word.store(0, std::memory_order_release);
  qp_numbers_.Give(number);
}

}  // namespace krcore::rnic::sw
