#include "ycsb/workload/measurements.h"

#include <boost/histogram/algorithm/sum.hpp>
#include <boost/histogram/axis/traits.hpp>
#include <boost/histogram/storage_adaptor.hpp>
#include <cmath>
#include <numeric>

namespace ycsb {
namespace {

constexpr unsigned kOctaves = 37;  // 1 ns to 2^37 ns = 137 s; shorter and longer go to the axis's two overflow buckets
constexpr unsigned kBucketsPerOctave = 128;

}  // namespace

void LatencyHistogram::Allocate() {
  histogram_.emplace(std::make_tuple(Axis(kOctaves * kBucketsPerOctave, 1.0, std::ldexp(1.0, kOctaves))));
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  if (other.count_ == 0) return;
  if (!histogram_) Allocate();
  *histogram_ += *other.histogram_;
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  min_ns_ = std::min(min_ns_, other.min_ns_);
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

void LatencyHistogram::Clear() {
  if (count_ == 0) return;
  histogram_->reset();
  count_ = 0;
  sum_ns_ = 0;
  min_ns_ = std::numeric_limits<int64_t>::max();
  max_ns_ = 0;
}

double LatencyHistogram::PercentileNs(double percent) const { return PercentilesNs({percent}).front(); }

std::vector<double> LatencyHistogram::PercentilesNs(const std::vector<double>& ascending_percents) const {
  std::vector<double> values(ascending_percents.size(), 0.0);
  if (count_ == 0) return values;
  const Axis& axis = histogram_->axis();
  size_t next = 0;
  uint64_t seen = 0;
  for (int i = -1; i <= axis.size() && next < values.size(); ++i) {
    seen += histogram_->at(i);
    while (next < values.size()) {
      const double wanted = std::ceil(ascending_percents[next] / 100 * static_cast<double>(count_));
      if (static_cast<double>(seen) < std::max(wanted, 1.0)) break;
      const double middle = i < 0 ? 0 : i == axis.size() ? static_cast<double>(max_ns_) : axis.value(i + 0.5);
      values[next++] = std::clamp(middle, static_cast<double>(min_ns_), static_cast<double>(max_ns_));
    }
  }
  while (next < values.size()) values[next++] = static_cast<double>(max_ns_);
  return values;
}

std::vector<uint64_t> LatencyHistogram::CountsUpTo(const std::vector<double>& ascending_ns) const {
  std::vector<uint64_t> counts(ascending_ns.size(), 0);
  if (count_ == 0) return counts;
  const Axis& axis = histogram_->axis();
  size_t next = 0;
  uint64_t seen = 0;
  for (int i = -1; i < axis.size(); ++i) {
    const double middle = i < 0 ? 0 : axis.value(i + 0.5);
    for (; next < counts.size() && middle > ascending_ns[next]; ++next) counts[next] = seen;
    seen += histogram_->at(i);
  }
  // Durations beyond the axis exceed all the bounds that are left, unless those are beyond the axis too.
  const double longest = static_cast<double>(max_ns_);
  for (; next < counts.size(); ++next) counts[next] = longest <= ascending_ns[next] ? count_ : seen;
  return counts;
}

std::string_view OperationName(Operation operation) {
  switch (operation) {
    case Operation::kRead: return "READ";
    case Operation::kUpdate: return "UPDATE";
    case Operation::kInsert: return "INSERT";
    case Operation::kReadModifyWrite: return "READ-MODIFY-WRITE";
  }
  return "?";
}

std::string_view ReturnName(krcore::StatusCode code) {
  using krcore::StatusCode;
  switch (code) {
    case StatusCode::kOk: return "OK";
    case StatusCode::kNotFound: return "NOT_FOUND";
    case StatusCode::kExists: return "EXISTS";
    case StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case StatusCode::kOutOfMemory: return "OUT_OF_MEMORY";
    case StatusCode::kUnavailable: return "UNAVAILABLE";
    case StatusCode::kTimeout: return "TIMEOUT";
    case StatusCode::kUnknown: return "UNKNOWN";
    case StatusCode::kUnsupported: return "UNSUPPORTED";
    case StatusCode::kPermissionDenied: return "PERMISSION_DENIED";
    case StatusCode::kQueueFull: return "QUEUE_FULL";
    case StatusCode::kBadState: return "BAD_STATE";
    case StatusCode::kCorrupt: return "CORRUPT";
    case StatusCode::kInternal: return "INTERNAL";
  }
  return "?";
}

uint64_t OperationMeasurements::operations() const {
  return std::accumulate(returns.begin(), returns.end(), uint64_t{0});
}

void Measurements::Merge(const Measurements& other) {
  for (size_t i = 0; i < of.size(); ++i) {
    of[i].succeeded.Merge(other.of[i].succeeded);
    of[i].failed.Merge(other.of[i].failed);
    for (size_t code = 0; code < kStatusCodes; ++code) of[i].returns[code] += other.of[i].returns[code];
  }
  operations += other.operations;
  failed_operations += other.failed_operations;
  verified += other.verified;
  mismatches += other.mismatches;
}

void Measurements::Clear() {
  for (OperationMeasurements& one : of) {
    one.succeeded.Clear();
    one.failed.Clear();
    one.returns = {};
  }
  operations = failed_operations = verified = mismatches = 0;
}

LatencyHistogram Measurements::Latencies() const {
  LatencyHistogram all;
  for (const OperationMeasurements& one : of) all.Merge(one.succeeded);
  return all;
}

}  // namespace ycsb
