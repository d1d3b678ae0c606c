// Random numbers, the number generators of YCSB, and KeyChooser, which uses them to ask for records. All are
// deterministic from the seed.
#ifndef YCSB_WORKLOAD_GENERATORS_H_
#define YCSB_WORKLOAD_GENERATORS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "ycsb/workload/workload.h"

namespace ycsb {

// SplitMix64's output function: a bijection whose outputs pass for random.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Random: SplitMix64 (Steele, Lea, Flood, OOPSLA'14), a generator of one word of state. Deterministic from its seed.
//
// Thread safety: one per worker.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Streams of one seed are independent: stream 0, 1, ... for workers 0, 1, ...
  Random(uint64_t seed, uint64_t stream) : state_(Mix64(Mix64(seed + kStep) + stream * kStep)) {}

  uint64_t Next() { return Mix64(state_ += kStep); }
  // Returns a number uniform in [0, 1).
  double NextDouble() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Returns a number uniform in [0, bound); bound > 0. Lemire's multiplication; its bias is below bound / 2^64.
  uint64_t Below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((Wide{Next()} * bound) >> 64);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

// The number generators of YCSB: Zipfian, scrambled Zipfian, skewed latest, and a counter of acknowledged inserts.
// Deterministic from the Random that is passed in.
//
// Thread safety: the generators belong to one worker each and are copied from one prototype, so that a new worker pays
// nothing for the zeta sums; AcknowledgedCounter is shared by all workers.

// FNV-1a over the number's 8 bytes, least significant first, as YCSB hashes.
constexpr uint64_t FnvHash64(uint64_t number) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < 8; ++i) {
    hash ^= number & 0xff;
    hash *= 0x100000001b3u;
    number >>= 8;
  }
  return hash;
}

// Returns 1 + 1/2^theta + ... + 1/n^theta. Large n by the Euler-Maclaurin formula (relative error below 1e-12), so it
// takes microseconds for any n.
double Zeta(uint64_t n, double theta);

// Ranks 0, 1, ... with probability proportional to 1 / (rank + 1)^theta: Gray et al., "Quickly Generating
// Billion-Record Synthetic Databases", SIGMOD'94, as YCSB uses it.
class Zipfian {
 public:
  // items > 0; 0 < theta < 1.
  Zipfian(uint64_t items, double theta);
  uint64_t Next(Random& random) const;
  // Grows to `items`; adds only the new terms to the sum. A smaller number is ignored.
  void GrowTo(uint64_t items);
  uint64_t items() const { return items_; }
  double Probability(uint64_t rank) const;

 private:
  void Prepare();

  uint64_t items_;
  double theta_;
  double alpha_;
  double zeta_two_;
  double zeta_;
  double eta_ = 0;
  double second_ = 0;  // below it: rank 1
};

// Zipfian popularity spread over the item space: the hash of a Zipfian rank among 10 billion, as in YCSB, so that the
// popular items do not depend on how many there are.
class ScrambledZipfian {
 public:
  static constexpr uint64_t kRanks = 10'000'000'000;

  ScrambledZipfian(uint64_t items, double theta) : items_(items), ranks_(kRanks, theta) {}
  uint64_t Next(Random& random) const { return ItemOfRank(ranks_.Next(random)); }
  uint64_t ItemOfRank(uint64_t rank) const { return FnvHash64(rank) % items_; }
  double RankProbability(uint64_t rank) const { return ranks_.Probability(rank); }

 private:
  uint64_t items_;
  Zipfian ranks_;
};

// The total length of a record's fields, each of them drawn from `lengths` in [min, max].
class RecordLength {
 public:
  RecordLength(uint64_t fields, uint64_t min, uint64_t max, FieldLengths lengths)
      : fields_(fields), min_(min), max_(max) {
    if (lengths == FieldLengths::kZipfian) short_.emplace(max - min + 1, kTheta);
    if (lengths == FieldLengths::kConstant) min_ = max_;
  }
  size_t Next(Random& random) const;
  double mean() const;

 private:
  static constexpr double kTheta = 0.99;  // as in YCSB, whatever zipfianconstant says
  uint64_t fields_, min_, max_;
  std::optional<Zipfian> short_;
};

// Hands out numbers for inserts, and knows up to which number all inserts were acknowledged, so that readers never ask
// for a record that is not there yet. A failed insert is never acknowledged: the limit stays below it.
class AcknowledgedCounter {
 public:
  // The first Next() is `first`; last() is first - 1. `window`, a power of two: how far numbers may run ahead of the
  // oldest unacknowledged one. Beyond it, an acknowledgement is lost and the limit stays.
  static constexpr uint64_t kWindow = uint64_t{1} << 22;
  explicit AcknowledgedCounter(uint64_t first, uint64_t window = kWindow);
  uint64_t Next() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void Acknowledge(uint64_t number);
  // Every number up to and including the result is acknowledged; pairs with Acknowledge's release.
  uint64_t last() const { return limit_.load(std::memory_order_acquire) - 1; }

 private:
  std::atomic<uint8_t>& Slot(uint64_t number) { return acknowledged_[number & (window_ - 1)]; }

  const uint64_t window_;
  std::unique_ptr<std::atomic<uint8_t>[]> acknowledged_;
  std::atomic<uint64_t> next_;
  std::atomic<uint64_t> limit_;  // the first number not acknowledged; moved by the holder of advancing_
  std::atomic_flag advancing_;
};

// Recently inserted records are the popular ones: last - Zipfian rank.
class SkewedLatest {
 public:
  // Over the records [first, last].
  SkewedLatest(uint64_t first, uint64_t last, double theta) : first_(first), ranks_(last + 1 - first, theta) {}
  uint64_t Next(Random& random, uint64_t last) {
    const uint64_t count = last + 1 - first_;
    if (count > ranks_.items()) ranks_.GrowTo(count);
    return last - ranks_.Next(random);
  }

 private:
  uint64_t first_;
  Zipfian ranks_;
};

// KeyChooser: decides which record the run phase asks for next, by the workload's distribution.
//
// Thread safety: copied from the job's prototype, one per worker. The AcknowledgedCounter is shared.
class KeyChooser {
 public:
  // `inserted` counts the client's own records (OwnRecords), and must outlive the chooser and its copies.
  KeyChooser(const Workload& workload, const AcknowledgedCounter& inserted);

  // Returns a record that exists. `ticket`: the operation's number in the whole run, for the sequential distribution.
  uint64_t Next(Random& random, uint64_t ticket);
  // Returns the record that the distribution asks for most often; the first one if all are equally popular.
  uint64_t Hottest() const;

 private:
  uint64_t NextOwn(Random& random, uint64_t ticket);

  Distribution distribution_;
  OwnRecords own_;
  uint64_t hot_count_ = 0;
  double hot_operations_ = 0;
  const AcknowledgedCounter* inserted_;
  std::optional<ScrambledZipfian> scrambled_;
  std::optional<SkewedLatest> latest_;
};

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_GENERATORS_H_
