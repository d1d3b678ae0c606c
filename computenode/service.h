// Service: a compute node's main loop: it drives a Load, obeys commands, tells its status, drains, and sums up.
//
// Thread safety: main thread only; others may watch it from their threads.
#ifndef COMPUTENODE_SERVICE_H_
#define COMPUTENODE_SERVICE_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "computenode/channel.h"
#include "computenode/load.h"
#include "computenode/operation.h"
#include "computenode/options.h"
#include "krcore/clock.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"

namespace computenode {

class Service final : private metrics::Source {
 public:
  // Commands are read from the descriptor `input`, answers written to stdout.
  Service(const Options& options, Load& load, int input);

  // Runs until the load is done, the duration is over, `quit`, or a stop signal; then drains. Returns the exit status.
  // Call it while the process has one thread.
  int Run();

 private:
  // Waits until the first workers are able to serve.
  krcore::Status AwaitFirstWorkers();
  void Wait(int64_t timeout_ns);
  void Obey(const Command& command);
  void PrintStatus();
  // Returns why the service ends; null: it goes on.
  const char* End(int64_t now_ns);
  // Retires all workers and waits for them.
  void Drain();
  int PrintSummary(const char* end);
  // Called by the threads that watch it.
  std::string Collect() const override;
  std::string Trouble() const override;
  metrics::Announcement Tell() const;
  // Requires mutex_.
  std::string TroubleNow(const FleetView& view) const;

  // The main thread holds it except while it waits; guards the load, and draining_.
  mutable std::mutex mutex_;
  const Options& options_;
  Load& load_;
  Channel channel_;
  krcore::Clock& clock_;
  Operation operation_;
  bool quit_ = false;
  bool draining_ = false;
  const int64_t started_unix_ns_ = metrics::UnixNowNs();
};

}  // namespace computenode

#endif  // COMPUTENODE_SERVICE_H_
