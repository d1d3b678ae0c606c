#include "kvs/src/merged_image.h"

#include <cstring>

#include "kvs/layout/pool.h"

namespace kvs {

MergedImage::MergedImage(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header)
    : out_(out), geometry_(geometry) {
  FormatSubtable(out, geometry, header, Slot::Free());
}

void MergedImage::Add(std::span<const std::byte> frozen) {
  for (uint32_t s = 0; s < geometry_.slots(); ++s) {
    uint64_t word;
    std::memcpy(&word, frozen.data() + SlotOffset(s), sizeof(word));
    const Slot slot(word);
    if (slot.state() != SlotState::kFrz) continue;
    const Slot value = slot.WithState(SlotState::kVal);
    if (!PlaceInBucket(s / kSlotsPerBucket, value, s)) homeless_.push_back(value);
  }
}

bool MergedImage::Place(Slot slot, const KeyHash& hash) {
  const KeyPlaces places = PlacesOf(hash, geometry_.groups);
  for (const CombinedBucket& place : places.place) {
    for (uint32_t b = 0; b < 2; ++b) {
      const uint32_t bucket = FirstBucket(place) + b;
      if (PlaceInBucket(bucket, slot, bucket * kSlotsPerBucket)) return true;
    }
  }
  return false;
}

bool MergedImage::PlaceInBucket(uint32_t bucket, Slot value, uint32_t preferred) {
  if (SlotAt(preferred) == Slot::Free()) {
    SlotAt(preferred) = value;
    return true;
  }
  for (uint32_t s = bucket * kSlotsPerBucket; s < (bucket + 1) * kSlotsPerBucket; ++s) {
    if (!(SlotAt(s) == Slot::Free())) continue;
    SlotAt(s) = value;
    return true;
  }
  return false;
}

}  // namespace kvs
