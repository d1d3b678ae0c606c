#include "krcore/dct/host_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace krcore::dct {
namespace {

using Words = std::array<uint64_t, sizeof(HostRecord) / sizeof(uint64_t)>;
static_assert(sizeof(Words) == sizeof(HostRecord));

// Bump with every change of HostRecord: builds that differ may meet on a fabric, and find nothing of each other then.
constexpr uint64_t kFormat = 1;

// Never 0.
uint64_t ChecksumOf(const Words& words) {
  return std::max<uint64_t>(XXH3_64bits_withSeed(words.data(), sizeof(words), kFormat << 16 | sizeof(words)), 1);
}

}  // namespace

HostCache::HostCache(std::span<std::byte> memory)
    : entries_(reinterpret_cast<Entry*>(memory.data()), memory.size() / sizeof(Entry)) {}

// Relaxed: nothing but the checksum says that the words belong together.
bool HostCache::Read(const Entry& entry, HostRecord* record, uint64_t* checksum) {
  *checksum = entry.checksum.load(std::memory_order_relaxed);
  if (*checksum == 0) return false;
  Words words;
  for (size_t i = 0; i < kWords; ++i) words[i] = entry.words[i].load(std::memory_order_relaxed);
  if (ChecksumOf(words) != *checksum) return false;
  *record = std::bit_cast<HostRecord>(words);
  return true;
}

std::optional<HostRecord> HostCache::Find(NodeId node, int64_t now_ns) const {
  const Entry* const entry = EntryOf(node);
  HostRecord record;
  uint64_t checksum = 0;
  if (entry == nullptr || !Read(*entry, &record, &checksum)) return std::nullopt;
  if (record.address.node != node || record.lease_until_ns <= now_ns) return std::nullopt;
  return record;
}

void HostCache::Put(const HostRecord& record) {
  Entry* const entry = EntryOf(record.address.node);
  if (entry == nullptr) return;
  const auto words = std::bit_cast<Words>(record);
  for (size_t i = 0; i < kWords; ++i) entry->words[i].store(words[i], std::memory_order_relaxed);
  entry->checksum.store(ChecksumOf(words), std::memory_order_relaxed);
}

void HostCache::Drop(NodeId node) {
  Entry* const entry = EntryOf(node);
  HostRecord record;
  uint64_t checksum = 0;
  if (entry == nullptr || !Read(*entry, &record, &checksum) || record.address.node != node) return;
  entry->checksum.compare_exchange_strong(checksum, 0, std::memory_order_relaxed);
}

}  // namespace krcore::dct
