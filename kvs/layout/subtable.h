// A subtable: 64 bytes of header, then groups of three 64-byte buckets: main 0, overflow, main 1 (RACE, section
// 3.2). A main bucket and the overflow bucket it shares are contiguous.
#ifndef KVS_LAYOUT_SUBTABLE_H_
#define KVS_LAYOUT_SUBTABLE_H_

#include <cstddef>
#include <cstdint>

#include "kvs/layout/hash.h"
#include "kvs/layout/slot.h"

namespace kvs {

inline constexpr uint32_t kSlotsPerBucket = 7;
inline constexpr uint32_t kBucketsPerGroup = 3;
inline constexpr uint32_t kBucketBytes = 64;
inline constexpr uint32_t kCombinedBytes = 2 * kBucketBytes;
inline constexpr uint32_t kCombinedSlots = 2 * kSlotsPerBucket;
inline constexpr uint32_t kGroupBytes = kBucketsPerGroup * kBucketBytes;

struct Bucket {
  BucketHeader header;
  Slot slots[kSlotsPerBucket];
};
static_assert(sizeof(Bucket) == kBucketBytes);

struct SubtableHeader {
  // 0, or who is splitting: only there to avoid double work; safety never depends on it.
  uint64_t lock = 0;
  uint64_t reserved[7] = {};
};
static_assert(sizeof(SubtableHeader) == 64);

// The geometry is the store's, fixed when its home is formatted.
struct SubtableGeometry {
  uint32_t groups = 128;

  size_t bytes() const { return sizeof(SubtableHeader) + size_t{groups} * kGroupBytes; }
  uint32_t buckets() const { return groups * kBucketsPerGroup; }
  uint32_t slots() const { return buckets() * kSlotsPerBucket; }
};

// Offsets within a subtable. A slot's index counts buckets in memory order: bucket * 7 + slot.
inline uint64_t BucketOffset(uint32_t bucket) { return sizeof(SubtableHeader) + uint64_t{bucket} * kBucketBytes; }
// In words behind the subtable's header: behind the slots before it, and the headers of its bucket and those before.
inline uint32_t SlotWord(uint32_t slot) { return slot + slot / kSlotsPerBucket + 1; }
inline uint64_t SlotOffset(uint32_t slot) { return sizeof(SubtableHeader) + uint64_t{SlotWord(slot)} * 8; }
inline uint32_t FirstBucket(const CombinedBucket& place) { return place.group * kBucketsPerGroup + place.half; }
inline uint64_t CombinedOffset(const CombinedBucket& place) { return BucketOffset(FirstBucket(place)); }

}  // namespace kvs

#endif  // KVS_LAYOUT_SUBTABLE_H_
