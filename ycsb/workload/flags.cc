#include "ycsb/workload/flags.h"

#include <utility>

#include "cli/common_flags.h"
#include "computenode/elastic/fleet.h"
#include "ycsb/workload/arrivals.h"

DEFINE_uint32(workers, 1,
              "Workers, each with its own client of the store, 1 to 1024. computenode starts with so many; 0 waits for "
              "`workers N` on stdin. Default: the property threadcount if it is set, else 1");
DEFINE_uint32(in_flight, 16,
              "Operations that each worker keeps in flight, 1 to 4096. Default with computenode --redis: 64");
DEFINE_double(
    target, 0,
    "Operations per second of all workers together, 0 to 1000000000. Latency then counts from when an operation "
    "was due. 0: the property target if it is set, else as fast as possible");
DEFINE_string(profile, "", ycsb::kRateProfileHelp);
DEFINE_string(arrivals, "even",
              "When operations of --target or --profile are due. even: at even intervals. poisson: at random");
DEFINE_uint64(seed, 1,
              "Seed of keys, operations and Poisson arrivals. The same seed and --workers give the same sequence");
DEFINE_bool(overwrite, false, "Let inserts replace existing records instead of failing");

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

Result<WorkloadFlags> StoreFromFlags(uint32_t fewest) {
  KRCORE_RETURN_IF_ERROR(cli::CheckFabricFlags());
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("workers", FLAGS_workers, fewest, computenode::kMaxWorkers));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("in_flight", FLAGS_in_flight, 1, kMaxInFlight));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("target", FLAGS_target, 0, 1e9));
  KRCORE_RETURN_IF_ERROR(cli::CheckClientFlags());
  WorkloadFlags flags;
  flags.workers = FLAGS_workers;
  flags.store = {.control_plane = FLAGS_control_plane,
                 .operation_timeout_ms = FLAGS_operation_timeout_ms,
                 .open_timeout_ms = FLAGS_open_timeout_ms,
                 .clock = nullptr};
  cli::SetFabric(&flags.store);
  return flags;
}

Result<WorkloadFlags> WorkloadFromFlags(const cli::CommandLine& line, uint32_t fewest) {
  Result<WorkloadFlags> store = StoreFromFlags(fewest);
  if (!store.ok()) return store.status();
  WorkloadFlags flags = *std::move(store);
  KRCORE_RETURN_IF_ERROR(ReadProperties(line, &flags.properties));
  Result<Workload> workload = Workload::FromProperties(flags.properties, &flags.warnings);
  if (!workload.ok()) return workload.status();
  if (FLAGS_target > 0) workload->target_ops = FLAGS_target;
  if (!cli::FlagGiven("workers") && workload->thread_count > 0) {
    if (workload->thread_count > computenode::kMaxWorkers) {
      return Status(StatusCode::kInvalidArgument, flags.properties.Origin("threadcount") +
                                                      ": threadcount=" + std::to_string(workload->thread_count) +
                                                      ": expected at most " + std::to_string(computenode::kMaxWorkers));
    }
    flags.workers = static_cast<uint32_t>(workload->thread_count);
  }
  flags.job.workload = *std::move(workload);
  flags.job.seed = FLAGS_seed;
  flags.job.overwrite = FLAGS_overwrite;
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
