// HostCache: what the processes of a host have looked up of their peers, in memory that they share. So a new process
// finds the metadata of every peer that another one uses, and one lookup renews a lease for all.
//
// One entry for each node id modulo the number of entries; what does not fit displaces what was there. An entry is
// plain words and their checksum. Writers do not exclude each other, and may be killed in the middle: the words of two
// writers, or of half a one, have no valid checksum, and are as if nothing were there. An entry is what *one* lookup
// found and the lease that began with it; so the entry of any lookup is as good as that lookup, whatever overwrote what
// in which order, and what the rules of leases say of lookups holds (docs/krcore.md).
//
// Thread safety: from any thread of any process.
#ifndef KRCORE_DCT_HOST_CACHE_H_
#define KRCORE_DCT_HOST_CACHE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::dct {

// Plain data without padding, as it lies in the host's memory.
struct HostRecord {
  rnic::DeviceAddress address;
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  uint32_t sequence = 0;       // of the record
  int64_t lease_until_ns = 0;  // CLOCK_MONOTONIC, the host's
  uint32_t region_count = 0;
  uint32_t reserved = 0;
  std::array<RemoteRegion, kMaxRegionsPerNode> regions;
};
static_assert(std::has_unique_object_representations_v<HostRecord>);

class HostCache {
 public:
  // Of rnic::Device::HostMemory: may be empty, then nothing is ever found.
  explicit HostCache(std::span<std::byte> memory);

  size_t capacity() const { return entries_.size(); }
  // What was looked up last, if its lease has not run out at `now_ns`.
  std::optional<HostRecord> Find(NodeId node, int64_t now_ns) const;
  void Put(const HostRecord& record);
  // Forgets what the cache has of `node`, so that the next to ask looks it up.
  void Drop(NodeId node);

 private:
  static constexpr size_t kWords = sizeof(HostRecord) / sizeof(uint64_t);
  struct alignas(64) Entry {
    std::atomic<uint64_t> checksum;  // 0: nothing is there
    std::array<std::atomic<uint64_t>, kWords> words;
  };
  Entry* EntryOf(NodeId node) const { return entries_.empty() ? nullptr : &entries_[node % entries_.size()]; }
  static bool Read(const Entry& entry, HostRecord* record, uint64_t* checksum);

  const std::span<Entry> entries_;
};

}  // namespace krcore::dct

#endif  // KRCORE_DCT_HOST_CACHE_H_
