// What the two services of a compute node have in common of what they tell those who operate them: their workers, what
// these did to the store, and how long requests took.
#ifndef COMPUTENODE_FLEET_METRICS_H_
#define COMPUTENODE_FLEET_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "computenode/elastic/fleet.h"
#include "computenode/operation.h"
#include "computenode/options.h"
#include "metrics/announcement.h"
#include "metrics/families.h"
#include "ycsb/workload/measurements.h"

namespace computenode {

struct FleetView {
  std::vector<WorkerRecord> records;  // of all workers that ever were
  uint32_t wanted = 0;
  uint32_t standby = 0;
  uint64_t restarted = 0;                              // in the place of others that had died or could not start
  std::optional<krcore::SoftwareDcStats> software_dc;  // of this node's workers
};

// What every compute node says: its kind, workers, their starts, the store's counters.
void AddFleet(const Options& options, const FleetView& view, metrics::Families* families);
// Requests, replied to and failed, and the values they read.
void AddRequests(const LoadCounts& counts, metrics::Families* families);
// How long requests took that were replied to.
void AddLatencies(const ycsb::LatencyHistogram& latencies, metrics::Families* families);
prometheus::ClientMetric::Histogram HistogramOf(const ycsb::LatencyHistogram& latencies);

// Why it is not able to serve, as its workers and its announcements show; empty: it is.
std::string TroubleOf(const FleetView& view, const Operation& operation);
// Of a compute node that began at `started_ns` (metrics::UnixNowNs).
metrics::Announcement AnnouncementOf(const FleetView& view, int64_t started_ns, metrics::State state);

// From wanted to the first reply, without the time in which there was nothing to do. 0: it has not replied.
int64_t BootstrapNs(const WorkerTimes& times);

}  // namespace computenode

#endif  // COMPUTENODE_FLEET_METRICS_H_
