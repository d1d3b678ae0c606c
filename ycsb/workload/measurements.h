// What workers measure: LatencyHistogram, and Measurements, latencies and outcomes per operation type.
#ifndef YCSB_WORKLOAD_MEASUREMENTS_H_
#define YCSB_WORKLOAD_MEASUREMENTS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <boost/histogram/axis/regular.hpp>
#include <boost/histogram/histogram.hpp>
#include <boost/histogram/make_histogram.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "krcore/status.h"

namespace ycsb {

// A piecewise-linear log2: the bits of a double, read as a number, grow by 2^52 for each power of two, and linearly
// between.
struct PiecewiseLog2 {
  template <typename T>
  static T forward(T value) {
    return static_cast<T>(std::bit_cast<uint64_t>(static_cast<double>(value))) * 0x1p-52;
  }
  template <typename T>
  static T inverse(T position) {
    return std::bit_cast<double>(static_cast<uint64_t>(position * 0x1p52));
  }
};

// LatencyHistogram: counts of durations in log-linear buckets (as HdrHistogram's), by Boost.Histogram: each power of
// two is cut into 128 equal buckets, so a percentile is within 0.4% of a recorded value, from 1 ns to 137 s.
//
// Thread safety: one per worker; merged when it is done.
class LatencyHistogram {
 public:
  void Record(int64_t duration_ns) {
    const int64_t ns = std::max<int64_t>(duration_ns, 0);
    if (!histogram_) [[unlikely]]
      Allocate();
    (*histogram_)(static_cast<double>(ns));
    ++count_;
    sum_ns_ += static_cast<double>(ns);
    min_ns_ = std::min(min_ns_, ns);
    max_ns_ = std::max(max_ns_, ns);
  }
  void Merge(const LatencyHistogram& other);
  void Clear();

  uint64_t count() const { return count_; }
  int64_t min_ns() const { return count_ == 0 ? 0 : min_ns_; }
  int64_t max_ns() const { return max_ns_; }
  double mean_ns() const { return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_); }
  // Returns the duration that `percent` (0 to 100) of the recorded ones do not exceed: the middle of its bucket, kept
  // within [min, max]. 0 when nothing is recorded.
  double PercentileNs(double percent) const;
  // Returns how many durations do not exceed each of these. A duration counts as the middle of its bucket, within 0.4%.
  std::vector<uint64_t> CountsUpTo(const std::vector<double>& ascending_ns) const;
  std::vector<double> PercentilesNs(const std::vector<double>& ascending_percents) const;

 private:
  using Axis = boost::histogram::axis::regular<double, PiecewiseLog2>;
  using Histogram = boost::histogram::histogram<std::tuple<Axis>, boost::histogram::dense_storage<uint64_t>>;

  void Allocate();

  // Made at the first duration: a new worker does not pay for what it never measures.
  std::optional<Histogram> histogram_;
  uint64_t count_ = 0;
  double sum_ns_ = 0;
  int64_t min_ns_ = std::numeric_limits<int64_t>::max();
  int64_t max_ns_ = 0;
};

// kReadModifyWrite is one operation of the store. YCSB also measures its read and its update, which are no operations
// here.
enum class Operation : uint8_t { kRead, kUpdate, kInsert, kReadModifyWrite };
inline constexpr size_t kOperationKinds = 4;
std::string_view OperationName(Operation operation);  // "READ", "UPDATE", "INSERT", "READ-MODIFY-WRITE"

inline constexpr size_t kStatusCodes = static_cast<size_t>(krcore::StatusCode::kInternal) + 1;
// Returns YCSB's "OK", "NOT_FOUND", ...: the code's name in capitals.
std::string_view ReturnName(krcore::StatusCode code);

struct OperationMeasurements {
  LatencyHistogram succeeded;
  LatencyHistogram failed;
  std::array<uint64_t, kStatusCodes> returns{};

  void Record(krcore::StatusCode code, int64_t duration_ns) {
    ++returns[static_cast<size_t>(code)];
    if (code == krcore::StatusCode::kOk) [[likely]] {
      succeeded.Record(duration_ns);
    } else {
      failed.Record(duration_ns);
    }
  }
  // Counts an operation whose latency is not sampled.
  void Count(krcore::StatusCode code) { ++returns[static_cast<size_t>(code)]; }
  uint64_t operations() const;
  uint64_t failures() const { return operations() - returns[0]; }
};

// Measurements: what one worker, or all together, measured: latencies and outcomes per operation type.
//
// Thread safety: a value; a worker publishes its own under the job's lock.
struct Measurements {
  std::array<OperationMeasurements, kOperationKinds> of;
  uint64_t operations = 0;
  uint64_t failed_operations = 0;
  uint64_t verified = 0;    // values read that were as written
  uint64_t mismatches = 0;  // ... and that were not

  OperationMeasurements& operator[](Operation operation) { return of[static_cast<size_t>(operation)]; }
  const OperationMeasurements& operator[](Operation operation) const { return of[static_cast<size_t>(operation)]; }
  void Merge(const Measurements& other);
  void Clear();
  // Returns the latencies of all kinds together.
  LatencyHistogram Latencies() const;
};

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_MEASUREMENTS_H_
