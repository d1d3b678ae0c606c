// Random: SplitMix64 (Steele, Lea, Flood, OOPSLA'14), a generator of one word of state. Deterministic from its seed.
//
// Thread safety: one per worker.
#ifndef YCSB_RANDOM_H_
#define YCSB_RANDOM_H_

#include <cstdint>

namespace ycsb {

// SplitMix64's output function: a bijection that passes for random.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Streams of one seed are independent: stream 0, 1, ... for workers 0, 1, ...
  Random(uint64_t seed, uint64_t stream) : state_(Mix64(Mix64(seed + kStep) + stream * kStep)) {}

  uint64_t Next() { return Mix64(state_ += kStep); }
  // Uniform in [0, 1).
  double NextDouble() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Uniform in [0, bound); bound > 0. Lemire's multiplication; its bias is below bound / 2^64.
  uint64_t Below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((Wide{Next()} * bound) >> 64);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

}  // namespace ycsb

#endif  // YCSB_RANDOM_H_
