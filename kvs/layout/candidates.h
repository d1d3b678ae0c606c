// A key's candidates: the slots of its two combined buckets. This looks at all of them at once, which is the inner loop
// of every operation, and chooses one for a new key. Candidates are numbered 0 to 27, in memory order: combined bucket
// * 14 + bucket * 7 + slot.
#ifndef KVS_LAYOUT_CANDIDATES_H_
#define KVS_LAYOUT_CANDIDATES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvs/layout/subtable.h"

#ifdef __SSE2__
#  include <emmintrin.h>
#endif

namespace kvs {

inline constexpr uint32_t kCandidates = 2 * kCombinedSlots;  // slots of a key's two combined buckets
inline constexpr size_t kCandidateBuckets = 4;               // two combined buckets

// ---- which match, which are free

// Bit c: candidate c has this fingerprint, whatever its state.
inline uint32_t MatchSlotsPlainly(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  uint32_t matches = 0, candidate = 0;
  for (const Bucket& bucket : buckets) {
    for (const Slot slot : bucket.slots) {
      matches |= static_cast<uint32_t>(slot.fingerprint() == fingerprint) << candidate++;
    }
  }
  return matches;
}

// Bit c: candidate c is FREE.
inline uint32_t FreeSlotsPlainly(std::span<const Bucket, kCandidateBuckets> buckets) {
  uint32_t free = 0, candidate = 0;
  for (const Bucket& bucket : buckets) {
    for (const Slot slot : bucket.slots) {
      free |= static_cast<uint32_t>(slot.state() == SlotState::kFree) << candidate++;
    }
  }
  return free;
}

#ifdef __SSE2__
namespace internal {

static_assert(sizeof(Bucket) == 64 && kSlotsPerBucket == 7);

// Returns a bit for each candidate: whether a certain byte of its slot is `wanted`. part(left, right) moves that byte
// of each of the four words in two vectors to the lowest byte of a 32-bit number, and clears the rest. The bytes of two
// buckets are put into one vector and compared at once. The results for the headers are dropped.
template <typename Part>
uint32_t CompareSlots(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t wanted, Part part) {
  const __m128i all_wanted = _mm_set1_epi8(static_cast<char>(wanted));
  const auto bytes_of = [&part](const Bucket& bucket) {
    const auto* const pairs = reinterpret_cast<const __m128i*>(&bucket);
    return _mm_packs_epi32(part(_mm_loadu_si128(pairs), _mm_loadu_si128(pairs + 1)),
                           part(_mm_loadu_si128(pairs + 2), _mm_loadu_si128(pairs + 3)));
  };
  uint32_t bits = 0;
  for (uint32_t b = 0; b < kCandidateBuckets; b += 2) {
    const __m128i both = _mm_packus_epi16(bytes_of(buckets[b]), bytes_of(buckets[b + 1]));
    const auto found = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(both, all_wanted)));
    bits |= (found >> 1 & 0x7f) << (b * kSlotsPerBucket) | (found >> 9 & 0x7f) << ((b + 1) * kSlotsPerBucket);
  }
  return bits;
}

// The high halves of four words, or the low ones.
template <int kHalf>
__m128i Halves(__m128i left, __m128i right) {
  return _mm_castps_si128(
      _mm_shuffle_ps(_mm_castsi128_ps(left), _mm_castsi128_ps(right), _MM_SHUFFLE(2 + kHalf, kHalf, 2 + kHalf, kHalf)));
}

}  // namespace internal

inline uint32_t MatchSlots(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  return internal::CompareSlots(buckets, fingerprint, [](__m128i left, __m128i right) {
    return _mm_srli_epi32(internal::Halves<1>(left, right), 24);
  });
}

inline uint32_t FreeSlots(std::span<const Bucket, kCandidateBuckets> buckets) {
  static_assert(Slot::Fresh().WithState(static_cast<SlotState>(7)).word() == 0x38);
  return internal::CompareSlots(buckets, 0, [](__m128i left, __m128i right) {
    return _mm_and_si128(internal::Halves<0>(left, right), _mm_set1_epi32(0x38));
  });
}
#else
inline uint32_t MatchSlots(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  return MatchSlotsPlainly(buckets, fingerprint);
}
inline uint32_t FreeSlots(std::span<const Bucket, kCandidateBuckets> buckets) { return FreeSlotsPlainly(buckets); }
#endif

// ---- what the headers say

// What the buckets' headers say of a hash. In a table that is not being split they are all the same.
struct HeaderFit {
  bool fits = true;     // all headers fit: the key belongs here
  bool closed = false;  // a header is closed: the table is out of use
};

inline HeaderFit FitOfHeaders(std::span<const Bucket, kCandidateBuckets> buckets, uint64_t h1) {
  const BucketHeader first = buckets[0].header;
  uint64_t differ = 0;
  for (const Bucket& bucket : buckets) differ |= bucket.header.word() ^ first.word();
  if (differ == 0) [[likely]]
    return {first.Fits(h1), first.closed()};
  HeaderFit fit;
  for (const Bucket& bucket : buckets) {
    fit.fits &= bucket.header.Fits(h1);
    fit.closed |= bucket.header.closed();
  }
  return fit;
}

// ---- which one a new key takes

// Chooses the slot that a new key takes: a FREE one of the less loaded combined bucket, main bucket before overflow
// (RACE, section 3.2). The order is worth 10 points of load factor at the first split.
// `free`: bit c is that of candidate c. Returns -1 if none is free.
inline int ChooseFreeSlot(const KeyPlaces& places, uint32_t free) {
  constexpr uint32_t kBucketMask = (1u << kSlotsPerBucket) - 1, kPlaceMask = (1u << kCombinedSlots) - 1;
  const bool first_has_more = std::popcount(free & kPlaceMask) >= std::popcount(free >> kCombinedSlots & kPlaceMask);
  const uint32_t p = first_has_more ? 0 : 1;
  const uint32_t there = free & kPlaceMask << p * kCombinedSlots;
  const uint32_t main = there & kBucketMask << (p * kCombinedSlots + places.place[p].half * kSlotsPerBucket);
  if (there == 0) return -1;  // the other one has none either
  return std::countr_zero(main != 0 ? main : there);
}

}  // namespace kvs

#endif  // KVS_LAYOUT_CANDIDATES_H_
