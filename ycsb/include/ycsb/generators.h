// The number generators of YCSB: Zipfian, scrambled Zipfian, skewed latest, and a counter of acknowledged inserts.
// Deterministic from the Random that is passed in.
//
// Thread safety: the generators belong to one worker each and are copied from one prototype, so that a new worker pays
// nothing for the zeta sums; AcknowledgedCounter is shared by all workers.
#ifndef YCSB_GENERATORS_H_
#define YCSB_GENERATORS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "ycsb/random.h"
#include "ycsb/workload.h"

namespace ycsb {

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

// 1 + 1/2^theta + ... + 1/n^theta. Large n by the Euler-Maclaurin formula (relative error below 1e-12), so it takes
// microseconds whatever n.
double Zeta(uint64_t n, double theta);

// Ranks 0, 1, ... with probability proportional to 1 / (rank + 1)^theta: Gray et al., "Quickly Generating
// Billion-Record Synthetic Databases", SIGMOD'94, as YCSB uses it.
class Zipfian {
 public:
  // items > 0; 0 < theta < 1.
  Zipfian(uint64_t items, double theta);
  uint64_t Next(Random& random) const;
  // More items; adds only the new terms to the sum. Fewer are ignored.
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

// How long the fields of a record are together, each of them drawn from `lengths` in [min, max].
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

// Hands out numbers for inserts, and knows up to which all inserts were acknowledged, so that readers never
// ask for a record that is not there yet. An insert that failed is never acknowledged: the limit stays below it.
class AcknowledgedCounter {
 public:
  // The first Next() is `first`; last() is first - 1. `window`, a power of two: numbers may run so far ahead of the
  // oldest unacknowledged one; beyond it, an acknowledgement is lost and the limit stays.
  static constexpr uint64_t kWindow = uint64_t{1} << 22;
  explicit AcknowledgedCounter(uint64_t first, uint64_t window = kWindow);
  uint64_t Next() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void Acknowledge(uint64_t number);
  // Every number up to and including it is acknowledged; pairs with Acknowledge's release.
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

}  // namespace ycsb

#endif  // YCSB_GENERATORS_H_
