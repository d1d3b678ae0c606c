#include "ycsb/options.h"

#include <gflags/gflags.h>

#include <cmath>
#include <utility>

#include "cli/common_flags.h"
#include "ycsb/workload/arrivals.h"

DEFINE_uint32(workers, 1, "Threads, each with a client of its own. Without it: the property threadcount, or 1");
DEFINE_uint32(in_flight, 16, "Operations that each worker keeps in flight");
DEFINE_double(target, 0,
              "Operations a second, all workers together; latency then counts from when an operation was due. 0: the "
              "property target, or as fast as it goes");
DEFINE_string(profile, "", ycsb::kRateProfileHelp);
DEFINE_string(arrivals, "even",
              "When the operations of --target or --profile are due: even, at even intervals, or poisson, at random");
DEFINE_double(warmup, 0, "Seconds at the start of `run` that are not measured");
DEFINE_uint64(seed, 1, "Of keys, operations and Poisson arrivals: same seed, same workers, same sequence");
DEFINE_string(json, "", "File for the report as JSON; - is stdout");
DEFINE_bool(overwrite, false, "Inserts replace records that exist, instead of failing");
DEFINE_uint64(max_failures, 1000, "Stop after so many failed or wrong operations; 0: never");
DEFINE_uint32(latency_sampling, 1, "Time every n-th operation of a lane only; all are counted (closed loop)");
DEFINE_bool(table_stats, false, "Report the table's load factor and memory at the end; takes seconds on large tables");
DEFINE_bool(plant_mismatch, false,
            "Self-test of the verification: `load` writes one wrong value, at the key that a zipfian `run` asks for "
            "most, and a `run` of workload c must then fail");

namespace ycsb {
namespace {

constexpr uint32_t kMaxWorkers = 1024;
constexpr uint32_t kMaxInFlight = 4096;

Status OutOfRange(const std::string& flag, const std::string& value, const std::string& expected) {
  return {StatusCode::kInvalidArgument, "--" + flag + "=" + value + ": expected " + expected};
}

Status CheckFlags() {
  if (FLAGS_workers < 1 || FLAGS_workers > kMaxWorkers) {
    return OutOfRange("workers", std::to_string(FLAGS_workers), "1 to " + std::to_string(kMaxWorkers));
  }
  if (FLAGS_in_flight < 1 || FLAGS_in_flight > kMaxInFlight) {
    return OutOfRange("in_flight", std::to_string(FLAGS_in_flight), "1 to " + std::to_string(kMaxInFlight));
  }
  if (!(FLAGS_target >= 0 && FLAGS_target <= 1e9)) {
    return OutOfRange("target", std::to_string(FLAGS_target), "0 to 1000000000 operations a second");
  }
  if (!(FLAGS_warmup >= 0 && FLAGS_warmup <= 1e6)) {
    return OutOfRange("warmup", std::to_string(FLAGS_warmup), "seconds, 0 to 1000000");
  }
  if (FLAGS_latency_sampling < 1) return OutOfRange("latency_sampling", "0", "at least 1");
  return cli::CheckClientFlags();
}

// Given, and without effect in this phase or loop.
Status CheckUnused(Phase phase, bool open_loop) {
  const auto refuse = [](const char* flag, const char* why) {
    return Status(StatusCode::kInvalidArgument, std::string("--") + flag + " has no effect " + why);
  };
  if (phase == Phase::kLoad && cli::FlagGiven("warmup")) return refuse("warmup", "on a load: all of it is measured");
  if (phase == Phase::kRun && FLAGS_plant_mismatch) return refuse("plant_mismatch", "on a run: `ycsb load` plants it");
  if (!open_loop && cli::FlagGiven("arrivals")) return refuse("arrivals", "without --profile or --target");
  if (open_loop && cli::FlagGiven("latency_sampling")) {
    return refuse("latency_sampling", "with --profile or --target: every operation is timed");
  }
  return {};
}

Result<Phase> PhaseOf(const cli::CommandLine& line) {
  if (line.arguments.size() > 1) {
    return Status(StatusCode::kInvalidArgument,
                  line.arguments[1] + ": no database is named here as in YCSB; --fabric=NAME says which store");
  }
  if (line.arguments.empty()) {
    return Status(StatusCode::kInvalidArgument, "which phase? 'ycsb load' writes the records, 'ycsb run' uses them");
  }
  if (line.arguments[0] == "load") return Phase::kLoad;
  if (line.arguments[0] == "run") return Phase::kRun;
  return Status(StatusCode::kInvalidArgument, line.arguments[0] + ": unknown command; expected load or run");
}

}  // namespace

cli::Program ProgramDescription() {
  cli::Program program;
  program.name = "ycsb";
  program.summary =
      "Loads records into a running fabric's store, or runs a YCSB core workload on them. Every value read is\n"
      "verified. Status lines go to stderr, the summary to stdout.";
  program.usage =
      "ycsb load --fabric=NAME -P FILE [-p KEY=VALUE]... [flags]\n"
      "ycsb run  --fabric=NAME -P FILE [-p KEY=VALUE]... [flags]";
  program.flags = {
      "fabric",          "workers",       "in_flight",      "target",    "profile",      "arrivals",
      "warmup",          "seed",          "json",           "overwrite", "max_failures", "latency_sampling",
      "table_stats",     "rnic",          "fabric_address", "rnic_port", "log",          "operation_timeout_ms",
      "open_timeout_ms", "control_plane", "plant_mismatch"};
  program.short_options = "Pp";
  program.short_help =
      "  -P FILE\n    Properties of the workload, YCSB's syntax; ycsb/workloads/ has the standard ones. Repeatable.\n"
      "  -p KEY=VALUE\n    One property, e.g. recordcount, operationcount, maxexecutiontime; wins over files. "
      "Repeatable.\n";
  program.max_arguments = 2;
  program.hints = {{"threads", "--workers=N says how many threads there are"},
                   {"s", "status lines are printed anyway; -p status.interval=SECONDS, 0 for none"},
                   {"db", "the store is that of --fabric=NAME"},
                   {"load", "the first word says it: ycsb load"},
                   {"t", "the first word says it: ycsb run"},
                   {"l", "status lines have no label"},
                   {"jvm_args", "there is no JVM"},
                   {"cp", "there is no JVM"}};
  program.examples =
      "ycsb load --fabric=demo -P ycsb/workloads/workloadc -p recordcount=1000000 --workers=2\n"
      "ycsb run --fabric=demo -P ycsb/workloads/workloadc -p operationcount=5000000 --workers=2\n"
      "ycsb run --fabric=demo -P ycsb/workloads/workloada -p operationcount=0 -p maxexecutiontime=30 --target=200000\n"
      "ycsb run --fabric=demo -P ycsb/workloads/workloadb -p operationcount=0 --profile=burst:20000,200000,5,2,15 "
      "--arrivals=poisson\n"
      "ycsb run --fabric=demo -P ycsb/workloads/workloadb --warmup=2 --json=b.json";
  return program;
}

Result<Options> OptionsFromFlags(const cli::CommandLine& line) {
  const Result<Phase> phase = PhaseOf(line);
  if (!phase.ok()) return phase.status();
  KRCORE_RETURN_IF_ERROR(cli::CheckFabricFlags());
  KRCORE_RETURN_IF_ERROR(CheckFlags());

  Properties properties;
  for (const char letter : {'P', 'p'}) {  // -p wins wherever it stands, as in YCSB
    for (const cli::ShortOption& option : line.short_options) {
      if (option.letter != letter) continue;
      KRCORE_RETURN_IF_ERROR(letter == 'P' ? properties.AddFile(option.value) : properties.AddOverride(option.value));
    }
  }
  Options options;
  Result<Workload> workload = Workload::FromProperties(properties, &options.warnings);
  if (!workload.ok()) return workload.status();
  if (FLAGS_target > 0) workload->target_ops = FLAGS_target;
  if (*phase == Phase::kLoad && !FLAGS_profile.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--profile=" + FLAGS_profile + ": a load writes all its records; expected 'ycsb run', or --target");
  }
  const double warmup_s = *phase == Phase::kRun ? FLAGS_warmup : 0;
  const uint64_t count = *phase == Phase::kRun ? workload->operation_count : workload->insert_count;
  const auto limit_s = static_cast<double>(workload->max_execution_time_s);
  const auto arrivals = PlanArrivals({.profile = FLAGS_profile,
                                      .arrivals = FLAGS_arrivals,
                                      .target = workload->target_ops,
                                      .most = count == 0 ? Arrivals::kAll : count,
                                      .seconds = limit_s > 0 ? limit_s + warmup_s : 0,
                                      .seed = FLAGS_seed},
                                     &options.warnings);
  if (!arrivals.ok()) return arrivals.status();
  KRCORE_RETURN_IF_ERROR(CheckUnused(*phase, *arrivals || workload->target_ops > 0));
  if (*arrivals && warmup_s * 1e9 >= static_cast<double>((*arrivals)->end_ns)) {
    return OutOfRange("warmup", std::to_string(warmup_s), "less than what the load lasts, or nothing is measured");
  }
  if (*phase == Phase::kRun && !*arrivals && workload->operation_count == 0 && workload->max_execution_time_s == 0) {
    options.warnings.push_back("no operationcount and no maxexecutiontime: runs until Ctrl-C");
  }
  options.store = {.control_plane = FLAGS_control_plane,
                   .operation_timeout_ms = FLAGS_operation_timeout_ms,
                   .open_timeout_ms = FLAGS_open_timeout_ms,
                   .clock = nullptr};
  cli::SetFabric(&options.store);
  options.job = {.workload = *workload,
                 .phase = *phase,
                 .seed = FLAGS_seed,
                 .overwrite = FLAGS_overwrite,
                 .plant_mismatch = FLAGS_plant_mismatch && *phase == Phase::kLoad,
                 .latency_sampling = FLAGS_latency_sampling,
                 .max_failures = FLAGS_max_failures,
                 .arrivals = *arrivals,
                 .clock = nullptr};
  const bool use_threadcount = !cli::FlagGiven("workers") && workload->thread_count > 0;
  if (use_threadcount && workload->thread_count > kMaxWorkers) {
    return OutOfRange("workers", std::to_string(workload->thread_count) + " (threadcount)",
                      "1 to " + std::to_string(kMaxWorkers));
  }
  options.runner.workers = use_threadcount ? static_cast<uint32_t>(workload->thread_count) : FLAGS_workers;
  options.runner.in_flight = FLAGS_in_flight;
  options.runner.warmup_s = FLAGS_warmup;
  options.json_path = FLAGS_json;
  options.table_stats = FLAGS_table_stats;
  for (const std::string& name : ProgramDescription().flags) {
    std::string value;
    if (gflags::GetCommandLineOption(name.c_str(), &value)) options.report.flags[name] = value;
  }
  options.report.properties = properties.ToMap();
  options.report.control_plane = FLAGS_control_plane;
  options.report.workers = options.runner.workers;
  options.report.in_flight = options.runner.in_flight;
  options.report.warmup_s = warmup_s;
  return options;
}

}  // namespace ycsb
