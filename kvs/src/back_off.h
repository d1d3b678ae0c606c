// How long to wait before a lost race is run again: about a round trip, twice as long after each further loss, and
// jittered, so that clients that met once do not meet again in step. In time of the injected clock, not in polls: an
// idle client polls a hundred times a round trip and a busy one once in ten.
#ifndef KVS_SRC_BACK_OFF_H_
#define KVS_SRC_BACK_OFF_H_

#include <algorithm>
#include <cstdint>

namespace kvs {

// What a batch takes from being staged to being noticed, smoothed. Samples are few (one batch in kSampleEvery), so
// measuring costs next to nothing.
class RoundTripEstimate {
 public:
  static constexpr uint64_t kSampleEvery = 64;

  void Add(int64_t sample_ns) {
    // One that was taken while the process was stopped must not count for long.
    const int64_t sample = std::clamp(sample_ns, kMinNs, known_ ? std::min(kMaxNs, ns_ * 8) : kMaxNs);
    ns_ = known_ ? ns_ + (sample - ns_) / 8 : sample;
    known_ = true;
  }
  int64_t ns() const { return ns_; }

 private:
  static constexpr int64_t kMinNs = 100;
  static constexpr int64_t kMaxNs = 10'000'000;
  int64_t ns_ = 2'000;
  bool known_ = false;
};

// `losses` in a row before this one. `random`: 31 random bits.
inline int64_t BackOffNs(int64_t round_trip_ns, uint32_t losses, uint32_t random) {
  constexpr uint32_t kMaxDoublings = 6;
  const int64_t mean = round_trip_ns << std::min(losses, kMaxDoublings);
  return mean / 2 + static_cast<int64_t>(static_cast<uint64_t>(mean) * (random & 0xffff) >> 16);
}

}  // namespace kvs

#endif  // KVS_SRC_BACK_OFF_H_
