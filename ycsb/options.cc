#include "ycsb/options.h"

#include <gflags/gflags.h>

#include <limits>
#include <utility>

#include "ycsb/workload/flags.h"

DEFINE_double(warmup, 0, "Seconds at the start of `run` that are not measured");
DEFINE_string(json, "", "File for the report as JSON; - is stdout");
DEFINE_uint64(max_failures, 1000, "Stop after so many failed or wrong operations; 0: never");
DEFINE_uint32(latency_sampling, 1, "Time every n-th operation of a lane only; all are counted (closed loop)");
DEFINE_bool(table_stats, false, "Report the table's load factor and memory at the end; takes seconds on large tables");
DEFINE_bool(plant_mismatch, false,
            "Self-test of the verification: `load` writes one wrong value, at the key that a zipfian `run` asks for "
            "most, and a `run` of workload c must then fail");

namespace ycsb {
namespace {

// Given, and without effect in this phase or loop.
Status CheckUnused(Phase phase, bool open_loop) {
  if (phase == Phase::kLoad) {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven({"warmup"}, "has no effect on a load: all of it is measured"));
  }
  if (phase == Phase::kRun && FLAGS_plant_mismatch) {
    return {StatusCode::kInvalidArgument, "--plant_mismatch has no effect on a run: `ycsb load` plants it"};
  }
  if (!open_loop) return {};
  return cli::CheckNotGiven({"latency_sampling"}, "has no effect with --profile or --target: every operation is timed");
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
  program.short_options = kPropertyOptions;
  program.short_help = kPropertyHelp;
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
  auto flags = WorkloadFromFlags(line, 1);
  if (!flags.ok()) return flags.status();
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("warmup", FLAGS_warmup, 0, 1e6));
  KRCORE_RETURN_IF_ERROR(
      cli::CheckRange("latency_sampling", FLAGS_latency_sampling, 1, std::numeric_limits<uint32_t>::max()));
  Options options;
  options.store = std::move(flags->store);
  options.job = std::move(flags->job);
  options.warnings = std::move(flags->warnings);
  options.job.phase = *phase;
  options.job.plant_mismatch = FLAGS_plant_mismatch && *phase == Phase::kLoad;
  options.job.latency_sampling = FLAGS_latency_sampling;
  options.job.max_failures = FLAGS_max_failures;
  if (*phase == Phase::kLoad && !FLAGS_profile.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--profile=" + FLAGS_profile + ": a load writes all its records; expected 'ycsb run', or --target");
  }
  const Workload& workload = options.job.workload;
  const double warmup_s = *phase == Phase::kRun ? FLAGS_warmup : 0;
  const uint64_t count = *phase == Phase::kRun ? workload.operation_count : workload.insert_count;
  const auto limit_s = static_cast<double>(workload.max_execution_time_s);
  KRCORE_RETURN_IF_ERROR(PlanFromFlags(count, limit_s > 0 ? limit_s + warmup_s : 0, &options.job, &options.warnings));
  const std::shared_ptr<const Arrivals>& arrivals = options.job.arrivals;
  KRCORE_RETURN_IF_ERROR(CheckUnused(*phase, arrivals || workload.target_ops > 0));
  if (arrivals && warmup_s * 1e9 >= static_cast<double>(arrivals->end_ns)) {
    return Status(StatusCode::kInvalidArgument, "--warmup=" + std::to_string(warmup_s) +
                                                    ": expected less than what the load lasts, or nothing is measured");
  }
  if (*phase == Phase::kRun && !arrivals && workload.operation_count == 0 && workload.max_execution_time_s == 0) {
    options.warnings.push_back("no operationcount and no maxexecutiontime: runs until Ctrl-C");
  }
  options.runner.workers = flags->workers;
  options.runner.in_flight = FLAGS_in_flight;
  options.runner.warmup_s = FLAGS_warmup;
  options.json_path = FLAGS_json;
  options.table_stats = FLAGS_table_stats;
  for (const std::string& name : ProgramDescription().flags) {
    std::string value;
    if (gflags::GetCommandLineOption(name.c_str(), &value)) options.report.flags[name] = value;
  }
  options.report.properties = flags->properties.ToMap();
  options.report.control_plane = options.store.control_plane;
  options.report.workers = options.runner.workers;
  options.report.in_flight = options.runner.in_flight;
  options.report.warmup_s = warmup_s;
  return options;
}

}  // namespace ycsb
