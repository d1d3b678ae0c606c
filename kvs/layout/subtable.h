// A subtable: 64 bytes of header, then groups of three 64-byte buckets: main 0, overflow, main 1 (RACE, section
// 3.2). A main bucket and the overflow bucket that it shares are contiguous. A bucket is a header and seven slots of 8
// bytes each; besides the lock, clients CAS only these words of a subtable. A slot holds the address of a block. A
// key's hash tells its slots.
#ifndef KVS_LAYOUT_SUBTABLE_H_
#define KVS_LAYOUT_SUBTABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "krcore/types.h"

namespace kvs {

// ---- where a key goes

// One 128-bit XXH3 of the key, keyed by the store's seed, gives everything, from disjoint bits: h1's low bits (the
// suffix) choose the subtable, h1's high half the first combined bucket and h2's high half the second; h2's low byte is
// the fingerprint. So the place within a subtable does not depend on the suffix, and a split keeps every slot's index.
struct KeyHash {
  uint64_t h1 = 0;  // stored in the key's block
  uint64_t h2 = 0;

  uint8_t fingerprint() const { return static_cast<uint8_t>(h2); }
  // The directory index at `depth`.
  uint32_t Suffix(uint32_t depth) const { return static_cast<uint32_t>(h1 & ((uint64_t{1} << depth) - 1)); }
};

// A store's seed, for its life. Whoever does not know it cannot compute keys that collide (docs/protocol.md).
struct HashSeed {
  uint64_t low, high;
  friend bool operator==(const HashSeed&, const HashSeed&) = default;
};

// Hashes the keys of one store: XXH3-128 with a secret that follows from the seed.
class Hasher {
 public:
  explicit Hasher(const HashSeed& seed);
  const HashSeed& seed() const { return seed_; }
  KeyHash operator()(std::string_view key) const;
  using Secret = std::array<uint64_t, 24>;
  const Secret& secret() const { return secret_; }

 private:
  alignas(64) Secret secret_;
  HashSeed seed_;
};

// A main bucket together with its group's overflow bucket: 128 contiguous bytes, one READ.
struct CombinedBucket {
  uint32_t group = 0;
  uint32_t half = 0;  // 0: main bucket 0 and overflow; 1: overflow and main bucket 1
};

// The two combined buckets of a key in a subtable of `groups` >= 2 groups. They are never in one group, so their slots
// are disjoint.
struct KeyPlaces {
  CombinedBucket place[2];
};

inline KeyPlaces PlacesOf(const KeyHash& hash, uint32_t groups) {
  KeyPlaces places;
  const uint64_t first = ((hash.h1 >> 32) * (uint64_t{groups} * 2)) >> 32;
  places.place[0] = {static_cast<uint32_t>(first >> 1), static_cast<uint32_t>(first & 1)};
  const uint64_t second = ((hash.h2 >> 32) * (uint64_t{groups - 1} * 2)) >> 32;
  uint32_t group = places.place[0].group + 1 + static_cast<uint32_t>(second >> 1);
  if (group >= groups) group -= groups;
  places.place[1] = {group, static_cast<uint32_t>(second & 1)};
  return places;
}

// ---- places in memory

// A 16-byte-aligned place in the memory of a memory node, as slots and directory entries hold it in 42 bits. Offsets
// count from the start of the node's pool region: 34 bits of 16-byte units, so 256 GiB.
inline constexpr uint64_t kUnitBytes = 16;
inline constexpr int kOffsetBits = 34;
inline constexpr uint64_t kMaxPoolBytes = (uint64_t{1} << kOffsetBits) * kUnitBytes;

struct GlobalAddress {
  krcore::NodeId node = krcore::kNoNode;  // 1..255
  uint64_t offset = 0;                    // bytes, a multiple of kUnitBytes

  bool valid() const { return node != krcore::kNoNode; }
  friend bool operator==(const GlobalAddress&, const GlobalAddress&) = default;
};

// ---- the slot: fingerprint 8 | length 8 | node 8 | offset 34 | state 3 | version 3

// docs/protocol.md ("Slots") has the states and who may change them. Which words may come back, and why nobody expects
// them then, is in "Words that come back" there.
//
// Nothing relies on the version of a VAL or FRZ slot: its block is pinned while somebody may expect the word. That of
// an INS slot counts how often its inserter has begun with the same block, because a killed one begins again.
enum class SlotState : uint8_t {
  kFree = 0,
  kIns = 1,  // tentative insert: invisible to readers, confirmed by its owner only, killed by anyone
  kVal = 2,  // authoritative
  kFrz = 3,  // frozen by a split or merge: authoritative only until the new subtable is published
};

class Slot {
 public:
  constexpr Slot() = default;
  constexpr explicit Slot(uint64_t word) : word_(word) {}

  // `length_units`: block bytes / 16, or kLargeBlock if that does not fit.
  static constexpr Slot Make(SlotState state, uint8_t fingerprint, uint8_t length_units, GlobalAddress block,
                             uint8_t version) {
    return Slot(uint64_t{fingerprint} << 56 | uint64_t{length_units} << 48 | uint64_t{block.node & 0xff} << 40 |
                (block.offset / kUnitBytes) << 6 | uint64_t{static_cast<uint8_t>(state)} << 3 | (version & 7u));
  }
  // The FREE slot of a fresh table, or of one that a split or merge has made.
  static constexpr Slot Fresh() { return Slot(0); }
  // Any other FREE slot. 53 of the bits of `nonce` tell it from others. The fingerprint is 0, so that a FREE slot
  // matches no more keys than a fresh one.
  static constexpr Slot Free(uint64_t nonce) { return Slot(nonce & kNonceMask); }

  constexpr uint64_t word() const { return word_; }
  constexpr SlotState state() const { return static_cast<SlotState>(word_ >> 3 & 7); }
  constexpr uint8_t fingerprint() const { return static_cast<uint8_t>(word_ >> 56); }
  constexpr uint8_t length_units() const { return static_cast<uint8_t>(word_ >> 48); }
  constexpr uint8_t version() const { return word_ & 7; }
  constexpr bool free() const { return state() == SlotState::kFree; }
  constexpr GlobalAddress block() const {
    return {static_cast<krcore::NodeId>(word_ >> 40 & 0xff),
            (word_ >> 6 & ((uint64_t{1} << kOffsetBits) - 1)) * kUnitBytes};
  }
  // INS, VAL or FRZ: the address names a block.
  constexpr bool has_block() const {
    const SlotState s = state();
    return s == SlotState::kIns || s == SlotState::kVal || s == SlotState::kFrz;
  }
  constexpr Slot WithState(SlotState state) const {
    return Slot((word_ & ~uint64_t{0x38}) | uint64_t{static_cast<uint8_t>(state)} << 3);
  }
  friend constexpr bool operator==(Slot, Slot) = default;

 private:
  static constexpr uint64_t kNonceMask = 0x00ff'ffff'ffff'ffc7;
  uint64_t word_ = 0;
};
static_assert(sizeof(Slot) == 8);
static_assert(Slot::Fresh().free() && Slot::Free(~uint64_t{0}).free() && Slot::Free(~uint64_t{0}).fingerprint() == 0);

inline constexpr uint32_t kTentativeWords = 8;  // versions: how often an inserter may begin with one block

inline constexpr uint8_t kLargeBlock = 0;  // length_units of a block of more than 255 units: its header has the length
inline constexpr uint32_t kMaxSmallBlockBytes = 255 * kUnitBytes;

// ---- the bucket header

// generation 32 | suffix 24 | depth 8. Changed only by CAS: (d, s, g) -> (d + 1, s, g + 1), and in the end, when the
// subtable is taken out of use, -> (closed, s, g + 1).
class BucketHeader {
 public:
  static constexpr uint32_t kClosed = 0xff;  // no subtable has this depth

  constexpr BucketHeader() = default;
  constexpr explicit BucketHeader(uint64_t word) : word_(word) {}
  constexpr BucketHeader(uint32_t depth, uint32_t suffix, uint32_t generation)
      : word_(uint64_t{generation} << 32 | uint64_t{suffix & 0xffffff} << 8 | (depth & 0xff)) {}

  constexpr uint64_t word() const { return word_; }
  constexpr uint32_t depth() const { return word_ & 0xff; }
  constexpr uint32_t suffix() const { return word_ >> 8 & 0xffffff; }
  constexpr uint32_t generation() const { return static_cast<uint32_t>(word_ >> 32); }
  // No key belongs here any more, and no slot of the subtable will be a value again.
  constexpr bool closed() const { return depth() == kClosed; }
  // Returns whether keys with this h1 belong to the bucket's subtable.
  constexpr bool Fits(uint64_t h1) const { return !closed() && (h1 & ((uint64_t{1} << depth()) - 1)) == suffix(); }
  constexpr BucketHeader Deeper() const { return {depth() + 1, suffix(), generation() + 1}; }
  constexpr BucketHeader Closed() const { return {kClosed, suffix(), generation() + 1}; }

 private:
  uint64_t word_ = 0;
};
static_assert(sizeof(BucketHeader) == 8);

// ---- the subtable

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
  // 0, or the client that splits or merges. It only avoids double work; safety never depends on it.
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
// A slot's place in words after the subtable's header. The slots before it precede it, and the headers of its bucket
// and of those before.
inline uint32_t SlotWord(uint32_t slot) { return slot + slot / kSlotsPerBucket + 1; }
inline uint64_t SlotOffset(uint32_t slot) { return sizeof(SubtableHeader) + uint64_t{SlotWord(slot)} * 8; }
inline uint32_t FirstBucket(const CombinedBucket& place) { return place.group * kBucketsPerGroup + place.half; }
inline uint64_t CombinedOffset(const CombinedBucket& place) { return BucketOffset(FirstBucket(place)); }

}  // namespace kvs

#endif  // KVS_LAYOUT_SUBTABLE_H_
