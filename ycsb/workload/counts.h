// Counts and times by name, as the JSON of ycsb and computenode has them.
//
// Thread safety: pure functions.
#ifndef YCSB_WORKLOAD_COUNTS_H_
#define YCSB_WORKLOAD_COUNTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "krcore/types.h"
#include "kvs/client.h"

namespace ycsb {

// A count of kvs::ClientStats. StoreCounters() has all of them, in their order.
struct StoreCounter {
  const char* name;
  const char* help;
  uint64_t kvs::ClientStats::*count;
};
std::span<const StoreCounter> StoreCounters();

// Returns all counts, and two ratios of them.
nlohmann::ordered_json ClientStatsJson(const kvs::ClientStats& stats);
nlohmann::ordered_json SoftwareDcJson(const krcore::SoftwareDcStats& stats);

// Returns the microseconds from one time of a worker's life to another; null if it has not reached one of them.
nlohmann::ordered_json PartUs(int64_t from_ns, int64_t to_ns);

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_COUNTS_H_
