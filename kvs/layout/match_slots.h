// Finds the slots of a key's candidate buckets that have its fingerprint: the inner loop of every operation.
#ifndef KVS_LAYOUT_MATCH_SLOTS_H_
#define KVS_LAYOUT_MATCH_SLOTS_H_

#include <cstdint>
#include <span>

#include "kvs/layout/subtable.h"

#ifdef __SSE2__
#  include <emmintrin.h>
#endif

namespace kvs {

inline constexpr size_t kCandidateBuckets = 4;  // two combined buckets

struct SlotMatches {
  uint32_t same_fingerprint = 0;  // bit c: candidate c, counted as in placement.h, whatever its state
  bool any_pending = false;       // a slot is PEND
};

inline SlotMatches MatchSlotsPlainly(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  SlotMatches matches;
  uint32_t candidate = 0;
  for (const Bucket& bucket : buckets) {
    for (const Slot slot : bucket.slots) {
      matches.same_fingerprint |= static_cast<uint32_t>(slot.fingerprint() == fingerprint) << candidate++;
      matches.any_pending |= slot.state() == SlotState::kPend;
    }
  }
  return matches;
}

#ifdef __SSE2__
// The fingerprints of two buckets, which are the highest bytes of their words, are brought into one vector and compared
// at once; where the headers are, the result is left out. PEND is the only state with the state's highest bit, so that
// the words may be united before they are looked at.
inline SlotMatches MatchSlots(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  static_assert(sizeof(Bucket) == 64 && kSlotsPerBucket == 7);
  constexpr uint64_t kPendBit = uint64_t{4} << 3;
  static_assert((Slot::Pend().word() & kPendBit) != 0 &&
                ((Slot::Free().WithState(SlotState::kFrz).word() | Slot::Free().WithState(SlotState::kVal).word() |
                  Slot::Free().WithState(SlotState::kIns).word()) &
                 kPendBit) == 0);
  const auto* const words = reinterpret_cast<const __m128i*>(buckets.data());
  const __m128i wanted = _mm_set1_epi8(static_cast<char>(fingerprint));
  __m128i with_headers = _mm_setzero_si128(), slots_alone = _mm_setzero_si128();
  // Of four pairs of words the eight highest bytes, as 16-bit numbers.
  const auto fingerprints = [&](const __m128i* pair) {
    const __m128i a = _mm_loadu_si128(pair), b = _mm_loadu_si128(pair + 1);
    const __m128i c = _mm_loadu_si128(pair + 2), d = _mm_loadu_si128(pair + 3);
    with_headers = _mm_or_si128(with_headers, a);
    slots_alone = _mm_or_si128(slots_alone, _mm_or_si128(b, _mm_or_si128(c, d)));
    const auto high_halves = [](__m128i left, __m128i right) {
      const __m128 both = _mm_shuffle_ps(_mm_castsi128_ps(left), _mm_castsi128_ps(right), _MM_SHUFFLE(3, 1, 3, 1));
      return _mm_srli_epi32(_mm_castps_si128(both), 24);
    };
    return _mm_packs_epi32(high_halves(a, b), high_halves(c, d));
  };
  uint32_t found[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const __m128i both = _mm_packus_epi16(fingerprints(words + i * 8), fingerprints(words + i * 8 + 4));
    found[i] = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(both, wanted)));
  }
  SlotMatches matches;
  for (uint32_t b = 0; b < kCandidateBuckets; ++b) {
    matches.same_fingerprint |= (found[b / 2] >> (b % 2 * 8 + 1) & 0x7f) << (b * kSlotsPerBucket);
  }
  const __m128i slots = _mm_or_si128(slots_alone, _mm_unpackhi_epi64(with_headers, with_headers));
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(slots));
  const auto high = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(slots, slots)));
  matches.any_pending = ((low | high) & kPendBit) != 0;
  return matches;
}
#else
inline SlotMatches MatchSlots(std::span<const Bucket, kCandidateBuckets> buckets, uint8_t fingerprint) {
  return MatchSlotsPlainly(buckets, fingerprint);
}
#endif

// What the buckets' headers say of a hash. In a table that is not being split they are all the same.
struct HeaderFit {
  bool fits = true;     // all of them: the key belongs here
  bool closed = false;  // one of them: the table is out of use
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

}  // namespace kvs

#endif  // KVS_LAYOUT_MATCH_SLOTS_H_
