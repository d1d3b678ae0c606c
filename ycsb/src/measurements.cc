#include "ycsb/measurements.h"

#include <numeric>

namespace ycsb {

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
