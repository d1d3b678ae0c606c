// The 8-byte slot and the 8-byte bucket header: the only words of a subtable that clients CAS.
//
// Slot: fingerprint 8 | length 8 | node 8 | offset 34 | state 3 | version 3. The states and who may change them
// are a table of docs/protocol.md ("Slots"). A FREE slot and a fresh one are the word 0.
#ifndef KVS_LAYOUT_SLOT_H_
#define KVS_LAYOUT_SLOT_H_

#include <cstdint>

#include "kvs/layout/address.h"

namespace kvs {

enum class SlotState : uint8_t {
  kFree = 0,
  kIns = 1,   // tentative insert: invisible to readers, confirmed by its owner only, killed by anyone
  kVal = 2,   // authoritative
  kFrz = 3,   // frozen by a migration: authoritative only while the same slot of the new subtable is PEND
  kPend = 4,  // new subtable: not decided yet
};

class Slot {
 public:
  constexpr Slot() = default;
  constexpr explicit Slot(uint64_t word) : word_(word) {}

  // `length_units`: block bytes / 16, or kLargeBlock where that does not fit.
  static constexpr Slot Make(SlotState state, uint8_t fingerprint, uint8_t length_units, GlobalAddress block,
                             uint8_t version) {
    return Slot(uint64_t{fingerprint} << 56 | uint64_t{length_units} << 48 | uint64_t{block.node & 0xff} << 40 |
                (block.offset / kUnitBytes) << 6 | uint64_t{static_cast<uint8_t>(state)} << 3 | (version & 7u));
  }
  static constexpr Slot Free() { return Slot(0); }
  static constexpr Slot Pend() { return Slot(uint64_t{static_cast<uint8_t>(SlotState::kPend)} << 3); }

  constexpr uint64_t word() const { return word_; }
  constexpr SlotState state() const { return static_cast<SlotState>(word_ >> 3 & 7); }
  constexpr uint8_t fingerprint() const { return static_cast<uint8_t>(word_ >> 56); }
  constexpr uint8_t length_units() const { return static_cast<uint8_t>(word_ >> 48); }
  constexpr uint8_t version() const { return word_ & 7; }
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
  uint64_t word_ = 0;
};
static_assert(sizeof(Slot) == 8);

inline constexpr uint8_t kLargeBlock = 0;  // length_units of a block over 255 units: its header has the length
inline constexpr uint32_t kMaxSmallBlockBytes = 255 * kUnitBytes;

// generation 32 | suffix 24 | depth 8. Changed only by CAS, (d, s, g) -> (d + 1, s, g + 1), and at last, when the
// subtable is taken out of use, -> (closed, s, g + 1).
class BucketHeader {
 public:
  static constexpr uint32_t kClosed = 0xff;  // a depth that none has

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
  // Do keys with this h1 belong to the bucket's subtable?
  constexpr bool Fits(uint64_t h1) const { return !closed() && (h1 & ((uint64_t{1} << depth()) - 1)) == suffix(); }
  constexpr BucketHeader Deeper() const { return {depth() + 1, suffix(), generation() + 1}; }
  constexpr BucketHeader Closed() const { return {kClosed, suffix(), generation() + 1}; }

 private:
  uint64_t word_ = 0;
};
static_assert(sizeof(BucketHeader) == 8);

}  // namespace kvs

#endif  // KVS_LAYOUT_SLOT_H_
