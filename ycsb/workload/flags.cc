#include "ycsb/workload/flags.h"

#include <utility>

#include "cli/common_flags.h"
#include "computenode/elastic/fleet.h"
#include "ycsb/workload/arrivals.h"

DEFINE_uint32(
    workers, 1,
    "Threads, each with a client of its own; of computenode, those to start with, and 0 waits for `workers N` "
    "on stdin. Without it: the property threadcount, or 1");
DEFINE_uint32(in_flight, 16, "Operations that each worker keeps in flight");
DEFINE_double(target, 0,
              "Operations a second, all workers together; latency then counts from when an operation was due. 0: the "
              "property target, or as fast as it goes");
DEFINE_string(profile, "", ycsb::kRateProfileHelp);
DEFINE_string(arrivals, "even",
              "When the operations of --target or --profile are due: even, at even intervals, or poisson, at random");
DEFINE_uint64(seed, 1, "Of keys, operations and Poisson arrivals: same seed, same workers, same sequence");
DEFINE_bool(overwrite, false, "Inserts replace records that exist, instead of failing");

namespace ycsb {
namespace {

constexpr uint32_t kMaxInFlight = 4096;

// -p wins wherever it appears, as in YCSB.
Status ReadProperties(const cli::CommandLine& line, Properties* properties) {
  for (const char letter : {'P', 'p'}) {
    for (const cli::ShortOption& option : line.short_options) {
      if (option.letter != letter) continue;
      KRCORE_RETURN_IF_ERROR(letter == 'P' ? properties->AddFile(option.value) : properties->AddOverride(option.value));
    }
  }
  return {};
}

}  // namespace

Result<WorkloadFlags> WorkloadFromFlags(const cli::CommandLine& line, uint32_t fewest) {
  KRCORE_RETURN_IF_ERROR(cli::CheckFabricFlags());
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("workers", FLAGS_workers, fewest, computenode::kMaxWorkers));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("in_flight", FLAGS_in_flight, 1, kMaxInFlight));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("target", FLAGS_target, 0, 1e9));
  KRCORE_RETURN_IF_ERROR(cli::CheckClientFlags());
  WorkloadFlags flags;
  KRCORE_RETURN_IF_ERROR(ReadProperties(line, &flags.properties));
  Result<Workload> workload = Workload::FromProperties(flags.properties, &flags.warnings);
  if (!workload.ok()) return workload.status();
  if (FLAGS_target > 0) workload->target_ops = FLAGS_target;
  flags.workers = FLAGS_workers;
  if (!cli::FlagGiven("workers") && workload->thread_count > 0) {
    if (workload->thread_count > computenode::kMaxWorkers) {
      return Status(StatusCode::kInvalidArgument, flags.properties.Origin("threadcount") +
                                                      ": threadcount=" + std::to_string(workload->thread_count) +
                                                      ": at most " + std::to_string(computenode::kMaxWorkers));
    }
    flags.workers = static_cast<uint32_t>(workload->thread_count);
  }
  flags.job.workload = *std::move(workload);
  flags.job.seed = FLAGS_seed;
  flags.job.overwrite = FLAGS_overwrite;
  flags.store = {.control_plane = FLAGS_control_plane,
                 .operation_timeout_ms = FLAGS_operation_timeout_ms,
                 .open_timeout_ms = FLAGS_open_timeout_ms,
                 .clock = nullptr};
  cli::SetFabric(&flags.store);
  return flags;
}

Status PlanFromFlags(uint64_t most, double seconds, JobOptions* job, std::vector<std::string>* warnings) {
  auto arrivals = PlanArrivals({.profile = FLAGS_profile,
                                .arrivals = FLAGS_arrivals,
                                .target = job->workload.target_ops,
                                .most = most == 0 ? Arrivals::kAll : most,
                                .seconds = seconds,
                                .seed = FLAGS_seed},
                               warnings);
  if (!arrivals.ok()) return arrivals.status();
  job->arrivals = *std::move(arrivals);
  if (job->arrivals || job->workload.target_ops > 0) return {};
  return cli::CheckNotGiven({"arrivals"}, "has no effect without --profile or --target");
}

}  // namespace ycsb
