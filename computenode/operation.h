// How a compute node is watched: what it tells its operators of its workers, of what these did to the store, and of how
// long requests took; and the endpoint and the announcements that tell it.
#ifndef COMPUTENODE_OPERATION_H_
#define COMPUTENODE_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "computenode/elastic/fleet.h"
#include "computenode/options.h"
#include "krcore/node.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"
#include "metrics/families.h"
#include "ycsb/workload/measurements.h"

namespace computenode {

// Operation: the endpoint for metrics and health, and the announcements in the fabric, if --metrics asks for them. It
// has a device of the fabric and threads of its own that sleep, so that it and the service never wait for each other.
//
// Thread safety: the main thread only, except for trouble().
class Operation {
 public:
  // The exported and announced objects must outlive it.
  Operation() = default;
  ~Operation() { Stop(); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Listens, if the options say so. Call it after the process has forked what it has to. kExists: the address is in
  // use.
  krcore::Status Listen(const Options& options, const metrics::Source& source);
  // Announces the node from now on, once the fabric is there. Failures are logged; the service goes on without.
  void Announce(const Options& options, std::function<metrics::Announcement()> tell);
  // Returns why the last announcement failed; empty: it did not fail, or none is wanted. Any thread may ask.
  std::string trouble() const;
  // When it returns, nobody asks `source` or `tell` any more.
  void Stop();

 private:
  mutable std::mutex mutex_;  // guards announcer_ against threads that ask for trouble
  std::unique_ptr<metrics::Exporter> exporter_;
  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<metrics::Announcer> announcer_;
};

struct WorkerCounts {
  uint64_t starting = 0, serving = 0, draining = 0, retired = 0, failed = 0;
};
WorkerCounts CountWorkers(const std::vector<WorkerRecord>& records);

struct FleetView {
  std::vector<WorkerRecord> records;  // of all workers that ever existed
  uint32_t wanted = 0;
  uint32_t standby = 0;
  uint64_t restarted = 0;                              // in place of others that had died or could not start
  std::optional<krcore::SoftwareDcStats> software_dc;  // of this node's workers
};

// Adds what every compute node reports: its kind, workers, their starts, the store's counters.
void AddFleet(const Options& options, const FleetView& view, metrics::Families* families);
// Adds requests, replied to and failed, and the values they read.
void AddRequests(const LoadCounts& counts, metrics::Families* families);
// Adds how long the requests took that were replied to.
void AddLatencies(const ycsb::LatencyHistogram& latencies, metrics::Families* families);
metrics::Histogram HistogramOf(const ycsb::LatencyHistogram& latencies);

// Returns why the node is not able to serve, as its workers and its announcements show; empty: it is able.
std::string TroubleOf(const FleetView& view, const Operation& operation);
// Returns the announcement of a compute node that began at `started_ns` (metrics::UnixNowNs).
metrics::Announcement AnnouncementOf(const FleetView& view, int64_t started_ns, metrics::State state);

// Returns the time from wanted to the first reply, without the time in which there was nothing to do. 0: no reply yet.
int64_t BootstrapNs(const WorkerTimes& times);

}  // namespace computenode

#endif  // COMPUTENODE_OPERATION_H_
