#include "computenode/options.h"

#include <gflags/gflags.h>

#include <utility>

#include "cli/common_flags.h"
#include "computenode/control.h"
#include "ycsb/arrivals.h"
#include "ycsb/properties.h"
#include "ycsb/rate_profile.h"
#include "ycsb/workload.h"

DEFINE_uint32(workers, 1, "Threads to start with, each with a client of its own; 0: wait for `workers N` on stdin");
DEFINE_uint32(in_flight, 16, "Operations that each worker keeps in flight");
DEFINE_double(duration, 0, "Seconds to serve; 0: until operationcount, `quit` or SIGTERM");
DEFINE_double(target, 0,
              "Operations a second, all workers together; latency then counts from when an operation was due. 0: the "
              "property target, or as fast as it goes");
DEFINE_string(profile, "", ycsb::kRateProfileHelp);
DEFINE_string(arrivals, "even",
              "When the operations of --target or --profile are due: even, at even intervals, or poisson, at random");
DEFINE_uint64(seed, 1, "Of keys, operations and Poisson arrivals");
DEFINE_bool(overwrite, false, "Inserts replace records that exist, instead of failing");
DEFINE_uint64(max_failures, 0, "Stop after so many failed or wrong operations; 0: never");
DEFINE_bool(json_status, false, "A status line on stdout every second");

namespace computenode {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Status CheckRange(const char* flag, double value, double min, double max) {
  if (value >= min && value <= max) return {};
  std::string given;
  gflags::GetCommandLineOption(flag, &given);
  return {StatusCode::kInvalidArgument, std::string("--") + flag + "=" + given + ": expected " +
                                            std::to_string(static_cast<int64_t>(min)) + " to " +
                                            std::to_string(static_cast<int64_t>(max))};
}

}  // namespace

cli::Program ProgramDescription() {
  cli::Program program;
  program.name = "computenode";
  program.summary =
      "Serves a YCSB workload on a running fabric's store with workers that come and go while it runs. Reads\n"
      "commands on stdin (workers N, status, quit) and answers on stdout, one JSON object a line.";
  program.usage = "computenode --fabric=NAME --workers=N -P FILE [-p KEY=VALUE]... [flags]";
  program.flags = {"fabric",
                   "workers",
                   "in_flight",
                   "duration",
                   "target",
                   "profile",
                   "arrivals",
                   "seed",
                   "overwrite",
                   "max_failures",
                   "json_status",
                   "rnic",
                   "log",
                   "operation_timeout_ms",
                   "open_timeout_ms",
                   "control_plane"};
  program.short_options = "Pp";
  program.short_help =
      "  -P FILE\n    Properties of the workload, YCSB's syntax; ycsb/workloads/ has the standard ones. Repeatable.\n"
      "  -p KEY=VALUE\n    One property, e.g. recordcount; wins over files. operationcount=0: no end. Repeatable.\n";
  program.examples =
      "computenode --fabric=demo --workers=2 -P ycsb/workloads/workloadc -p operationcount=0 --duration=10 "
      "--json_status\n"
      "(sleep 5; echo workers 4; sleep 5; echo quit) | computenode --fabric=demo -P ycsb/workloads/workloada";
  return program;
}

Result<Options> OptionsFromFlags(const cli::CommandLine& line) {
  KRCORE_RETURN_IF_ERROR(cli::CheckFabricFlags());
  KRCORE_RETURN_IF_ERROR(cli::CheckClientFlags());
  KRCORE_RETURN_IF_ERROR(CheckRange("workers", FLAGS_workers, 0, kMaxWorkers));
  KRCORE_RETURN_IF_ERROR(CheckRange("in_flight", FLAGS_in_flight, 1, 4096));
  KRCORE_RETURN_IF_ERROR(CheckRange("duration", FLAGS_duration, 0, 1e9));
  KRCORE_RETURN_IF_ERROR(CheckRange("target", FLAGS_target, 0, 1e9));

  ycsb::Properties properties;
  for (const char letter : {'P', 'p'}) {  // -p wins wherever it stands, as in YCSB
    for (const cli::ShortOption& option : line.short_options) {
      if (option.letter != letter) continue;
      KRCORE_RETURN_IF_ERROR(letter == 'P' ? properties.AddFile(option.value) : properties.AddOverride(option.value));
    }
  }
  Options options;
  Result<ycsb::Workload> workload = ycsb::Workload::FromProperties(properties, &options.warnings);
  if (!workload.ok()) return workload.status();
  if (FLAGS_target > 0) workload->target_ops = FLAGS_target;
  options.duration_s = FLAGS_duration > 0 ? FLAGS_duration : static_cast<double>(workload->max_execution_time_s);
  const auto arrivals =
      ycsb::PlanArrivals({.profile = FLAGS_profile,
                          .arrivals = FLAGS_arrivals,
                          .target = workload->target_ops,
                          .most = workload->operation_count == 0 ? ycsb::Arrivals::kAll : workload->operation_count,
                          .seconds = options.duration_s,
                          .seed = FLAGS_seed},
                         &options.warnings);
  if (!arrivals.ok()) return arrivals.status();
  options.store = {.rnic = FLAGS_rnic,
                   .fabric = FLAGS_fabric,
                   .control_plane = FLAGS_control_plane,
                   .operation_timeout_ms = FLAGS_operation_timeout_ms,
                   .open_timeout_ms = FLAGS_open_timeout_ms,
                   .clock = nullptr};
  options.job = {.workload = *workload,
                 .phase = ycsb::Phase::kRun,
                 .seed = FLAGS_seed,
                 .overwrite = FLAGS_overwrite,
                 .plant_mismatch = false,
                 .latency_sampling = 1,
                 .max_failures = FLAGS_max_failures,
                 .arrivals = *arrivals,
                 .clock = nullptr};
  const bool use_threadcount = !cli::FlagGiven("workers") && workload->thread_count > 0;
  options.workers = use_threadcount ? static_cast<uint32_t>(workload->thread_count) : FLAGS_workers;
  options.in_flight = FLAGS_in_flight;
  options.json_status = FLAGS_json_status;
  return options;
}

}  // namespace computenode
