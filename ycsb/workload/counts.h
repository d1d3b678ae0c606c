// Counts and times by name, as the JSON of ycsb and computenode has them.
//
// Thread safety: pure functions.
#ifndef YCSB_WORKLOAD_COUNTS_H_
#define YCSB_WORKLOAD_COUNTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "krcore/types.h"

namespace ycsb {

// Rounded to three digits after the point; 0 of 0 is 0.
double Ratio(uint64_t count, uint64_t of);

nlohmann::ordered_json SoftwareDcJson(const krcore::SoftwareDcStats& stats);

// From one time of a worker's life to another, in microseconds; null if it has not reached one of them.
nlohmann::ordered_json PartUs(int64_t from_ns, int64_t to_ns);

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_COUNTS_H_
