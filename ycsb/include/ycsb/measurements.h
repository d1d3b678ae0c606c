// Measurements: what one worker, or all together, measured: latencies and outcomes per operation type.
//
// Thread safety: a value; a worker publishes its own under the job's lock.
#ifndef YCSB_MEASUREMENTS_H_
#define YCSB_MEASUREMENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "krcore/status.h"
#include "ycsb/histogram.h"

namespace ycsb {

// kReadModifyWrite is measured as a whole, and its read and update once more as such, as YCSB does.
enum class Operation : uint8_t { kRead, kUpdate, kInsert, kReadModifyWrite };
inline constexpr size_t kOperationKinds = 4;
std::string_view OperationName(Operation operation);  // "READ", "UPDATE", "INSERT", "READ-MODIFY-WRITE"

inline constexpr size_t kStatusCodes = static_cast<size_t>(krcore::StatusCode::kInternal) + 1;
// YCSB's "OK", "NOT_FOUND", ...: the code's name in capitals.
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

struct Measurements {
  std::array<OperationMeasurements, kOperationKinds> of;
  // Operations of the workload: a read-modify-write is one, though its parts are measured as READ and UPDATE too.
  uint64_t operations = 0;
  uint64_t failed_operations = 0;
  uint64_t verified = 0;    // values read that were what was written
  uint64_t mismatches = 0;  // ... and that were not

  OperationMeasurements& operator[](Operation operation) { return of[static_cast<size_t>(operation)]; }
  const OperationMeasurements& operator[](Operation operation) const { return of[static_cast<size_t>(operation)]; }
  void Merge(const Measurements& other);
  void Clear();
  // Of all kinds together; a read-modify-write counts with its parts.
  LatencyHistogram Latencies() const;
};

}  // namespace ycsb

#endif  // YCSB_MEASUREMENTS_H_
