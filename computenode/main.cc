// computenode: serves a workload with elastic workers. docs/operating.md, "Serve with elastic workers".
#include <glog/logging.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"
#include "computenode/load.h"
#include "computenode/options.h"
#include "computenode/queue_load.h"
#include "computenode/redis_load.h"
#include "computenode/service.h"
#include "krcore/clock.h"
#include "ycsb/workload/arrivals.h"

int main(int argc, char** argv) {
  const int64_t started_ns = krcore::RealClock()->NowNs();
  const cli::CommandLine line = cli::ParseFlags(computenode::ProgramDescription(), argc, argv);
  const auto options = computenode::OptionsFromFlags(line);
  if (!options.ok()) {
    return options.status() == krcore::StatusCode::kInvalidArgument ? cli::FailUsage(options.status().message())
                                                                    : cli::Fail(options.status());
  }
  const bool is_worker = options->elastic && options->elastic->board_fd >= 0;  // its front end has reported it
  for (const std::string& warning : options->warnings) {
    if (!is_worker) LOG(WARNING) << warning;
  }
  if (options->job.arrivals) LOG(INFO) << DescribePlan(*options->job.arrivals);
  if (is_worker) return computenode::ServeAsProgram(*options, started_ns);
  if (const auto status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  // In the background of a terminal, reading stdin must not stop the process: the read fails, and the channel is
  // closed.
  std::signal(SIGTTIN, SIG_IGN);
  std::unique_ptr<computenode::Load> load;
  if (options->redis) {
    load = std::make_unique<computenode::RedisLoad>(*options);
  } else if (options->elastic) {
    std::vector<std::string> again(argv, argv + argc);
    again[0] = "/proc/self/exe";
    load = std::make_unique<computenode::QueueLoad>(*options, std::move(again));
  } else {
    load = std::make_unique<computenode::JobLoad>(*options);
  }
  return computenode::Service(*options, *load, STDIN_FILENO).Run();
}
