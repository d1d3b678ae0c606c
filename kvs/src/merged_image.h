// The table that two frozen ones become, in local memory. What goes where follows from the two images alone, so all who
// finish one merge build the same.
#ifndef KVS_SRC_MERGED_IMAGE_H_
#define KVS_SRC_MERGED_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvs/layout/hash.h"
#include "kvs/layout/subtable.h"

namespace kvs {

class MergedImage {
 public:
  // Formats `out`, geometry.bytes() bytes, as an empty table.
  MergedImage(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header);

  // Adds the frozen values of a table, each in a slot of the bucket that it had: that is one of its key's, whatever the
  // key. Those that find their bucket full join homeless().
  void Add(std::span<const std::byte> frozen);
  const std::vector<Slot>& homeless() const { return homeless_; }
  // Puts one of them, whose key has this hash, into any free slot of its four buckets. False: there is none. After all
  // Adds.
  bool Place(Slot slot, const KeyHash& hash);

 private:
  Slot& SlotAt(uint32_t slot) { return *reinterpret_cast<Slot*>(out_.data() + SlotOffset(slot)); }
  // Into `preferred` or the first free slot of the bucket.
  bool PlaceInBucket(uint32_t bucket, Slot value, uint32_t preferred);

  std::span<std::byte> out_;
  const SubtableGeometry geometry_;
  std::vector<Slot> homeless_;
};

}  // namespace kvs

#endif  // KVS_SRC_MERGED_IMAGE_H_
