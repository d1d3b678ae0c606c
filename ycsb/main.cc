// ycsb: loads and runs YCSB's core workloads. docs/operating.md.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/flags.h"
#include "ycsb/workload/job.h"

DEFINE_double(warmup, 0, "Seconds, 0 to 1000000, at the start of `run` that are not measured");
DEFINE_string(json, "", "File for a report as JSON; - is stdout. Default: no report");
DEFINE_uint64(max_failures, 1000, "Stop after this many operations that failed or returned a wrong value. 0: never");
DEFINE_uint32(
    latency_sampling, 1,
    "Measure the latency of only every n-th operation of a lane; n is 1 or more. All are counted. Not with --target or "
    "--profile");
DEFINE_bool(table_stats, false,
            "Also report the load factor and memory of the table at the end. Takes seconds on a large table");
DEFINE_bool(
    plant_mismatch, false,
    "Self-test of the verification: `load` writes one wrong value, at the key that a zipfian `run` reads most. A "
    "`run` of workload c must then fail");

namespace ycsb {
namespace {

struct Options {
  kvs::StoreOptions store;
  JobOptions job;
  RunnerOptions runner;
  ReportContext report;
  std::string json_path;  // empty: no JSON
  bool table_stats = false;
  std::vector<std::string> warnings;
};

// ---- the command line

// kInvalidArgument: a flag was given that has no effect in this phase or loop.
Status CheckUnused(Phase phase, bool open_loop) {
  if (phase == Phase::kLoad) {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven({"warmup"}, "has no effect on a load: all of it is measured"));
  }
  if (phase == Phase::kRun && FLAGS_plant_mismatch) {
    return {StatusCode::kInvalidArgument, "--plant_mismatch has no effect on a run: give it to `ycsb load`"};
  }
  if (!open_loop) return {};
  return cli::CheckNotGiven({"latency_sampling"}, "has no effect with --profile or --target: every operation is timed");
}

Result<Phase> PhaseOf(const cli::CommandLine& line) {
  if (line.arguments.size() > 1) {
    return Status(
        StatusCode::kInvalidArgument,
        line.arguments[1] +
            ": unexpected argument; YCSB's name of a database has no use here: --fabric=NAME says which store");
  }
  if (line.arguments.empty()) {
    return Status(StatusCode::kInvalidArgument, "no phase given: 'ycsb load' writes the records, 'ycsb run' uses them");
  }
  if (line.arguments[0] == "load") return Phase::kLoad;
  if (line.arguments[0] == "run") return Phase::kRun;
  return Status(StatusCode::kInvalidArgument, line.arguments[0] + ": unknown command; expected load or run");
}

cli::Program ProgramDescription() {
  cli::Program program;
  program.name = "ycsb";
  program.summary =
      "Loads records into the store of a running fabric, or runs a YCSB core workload on them. Verifies every\n"
      "value that it reads. Prints status lines on stderr, and the summary on stdout.";
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
  program.hints = {
      {"threads", "use --workers=N"},
      {"s", "status lines are printed by default; -p status.interval=SECONDS changes their interval, 0: none"},
      {"db", "--fabric=NAME names the store"},
      {"load", "use the command: ycsb load"},
      {"t", "use the command: ycsb run"},
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

// Returns the flags, which cli::ParseFlags has set, as options. kInvalidArgument and what Workload::FromProperties
// says: messages for the user.
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
                  "--profile=" + FLAGS_profile + ": only for 'ycsb run'; for a load, give --target");
  }
  const Workload& workload = options.job.workload;
  const double warmup_s = *phase == Phase::kRun ? FLAGS_warmup : 0;
  const uint64_t count = *phase == Phase::kRun ? workload.operation_count : workload.insert_count;
  const auto limit_s = static_cast<double>(workload.max_execution_time_s);
  KRCORE_RETURN_IF_ERROR(PlanFromFlags(count, limit_s > 0 ? limit_s + warmup_s : 0, &options.job, &options.warnings));
  const std::shared_ptr<const Arrivals>& arrivals = options.job.arrivals;
  KRCORE_RETURN_IF_ERROR(CheckUnused(*phase, arrivals || workload.target_ops > 0));
  if (arrivals && warmup_s * 1e9 >= static_cast<double>(arrivals->end_ns)) {
    return Status(StatusCode::kInvalidArgument,
                  "--warmup=" + std::to_string(warmup_s) +
                      ": expected less than the duration of the load, or nothing is measured");
  }
  if (*phase == Phase::kRun && !arrivals && workload.operation_count == 0 && workload.max_execution_time_s == 0) {
    options.warnings.push_back("neither operationcount nor maxexecutiontime is set: runs until Ctrl-C");
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

// ---- the run

// Opens a report before the phase, so that a bad path costs no run. `setting`: the one that names the path.
Status OpenReport(const char* setting, const std::string& path, std::ofstream* file) {
  if (path.empty() || path == "-") return {};
  file->open(path);
  if (*file) return {};
  return {StatusCode::kInvalidArgument, setting + path + ": cannot write the file; does its folder exist?"};
}

// A report that goes to stdout instead is checked when the program ends.
Status CheckReport(const char* setting, const std::string& path, std::ofstream* file) {
  if (!file->is_open() || file->flush()) return {};
  return {StatusCode::kUnavailable, setting + path + ": cannot write all of the file; is the disk full?"};
}

void ExplainFailure(const Options& options, const RunResult& result) {
  if (!result.error.ok()) {
    (void)cli::Fail(result.error, "A worker could not connect; are all memory nodes of --fabric=" +
                                      options.store.fabric + " running?");
    return;
  }
  const Measurements& measured = result.measured;
  std::string message = std::to_string(measured.failed_operations) + " operations failed, " +
                        std::to_string(measured.mismatches) + " values were wrong";
  if (result.end == RunEnd::kTooManyFailures) message += "; stopped at --max_failures";
  std::string way_out;
  const auto any = [&](StatusCode code, std::initializer_list<Operation> operations) {
    return std::ranges::any_of(
        operations, [&](Operation operation) { return measured[operation].returns[static_cast<size_t>(code)] > 0; });
  };
  if (any(StatusCode::kExists, {Operation::kInsert})) {
    way_out =
        options.job.phase == Phase::kLoad
            ? "Some records existed already: load into an empty store, or give --overwrite."
            : "Another run has inserted these records; --overwrite replaces them. Runs that insert at the same time "
              "need separate ranges of records: -p insertstart=N -p insertcount=N, for example one half of "
              "recordcount each.";
  } else if (any(StatusCode::kNotFound, {Operation::kRead, Operation::kUpdate})) {
    way_out = "Records are missing: run 'ycsb load' first, with the same recordcount, insertorder and keylength.";
  } else if (any(StatusCode::kOutOfMemory, {Operation::kInsert, Operation::kUpdate})) {
    way_out = "The memory nodes are full: start them with a larger --memory, or add a memory node.";
  } else if (any(StatusCode::kUnavailable, {Operation::kRead, Operation::kUpdate, Operation::kInsert})) {
    way_out =
        "A memory node is not reachable; 'surge status' shows which one. Start it again with the same flags. If that "
        "is refused, its memory is lost, and so are its keys.";
  }
  (void)cli::Fail({StatusCode::kInternal, message}, way_out);
}

int Run(Options& options) {
  for (const std::string& warning : options.warnings) std::cerr << "ycsb: warning: " << warning << '\n';
  if (const Status status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  std::ofstream json, summary;
  const std::string& summary_path = options.job.workload.export_file;
  for (const Status& status :
       {OpenReport("--json=", options.json_path, &json), OpenReport("exportfile=", summary_path, &summary)}) {
    if (!status.ok()) return cli::Fail(status);
  }
  auto store = kvs::Store::Open(options.store);
  if (!store.ok()) return cli::FailToOpen(store.status());

  if (options.job.arrivals) std::cerr << "ycsb: " << DescribePlan(*options.job.arrivals) << '\n';
  options.runner.log = &std::cerr;
  options.runner.interrupted = [] { return cli::StopSignal::Requested(); };
  WorkloadJob job(options.job);
  const RunResult result = RunWorkload(**store, job, options.runner);
  if (options.table_stats) {
    if (auto client = (*store)->NewClient(); client.ok()) {
      auto table = (*client)->ReadTableStats();
      if (table.ok()) {
        options.report.table = std::move(*table);
      } else {
        std::cerr << "ycsb: --table_stats: " << table.status().ToString() << '\n';
      }
    }
  }
  options.report.software_dc = (*store)->software_dc();
  std::ostream& summary_out = summary.is_open() ? summary : std::cout;
  WriteSummary(job, result, options.report, summary_out);
  std::ostream& json_out = json.is_open() ? json : std::cout;
  if (!options.json_path.empty()) json_out << JsonReport(job, result, options.report);
  for (const Status& status :
       {CheckReport("exportfile=", summary_path, &summary), CheckReport("--json=", options.json_path, &json)}) {
    if (!status.ok()) return cli::Fail(status);
  }
  if (!result.good()) {
    ExplainFailure(options, result);
    return cli::kExitFailure;
  }
  return result.end == RunEnd::kInterrupted ? cli::kExitInterrupt : 0;
}

}  // namespace
}  // namespace ycsb

int main(int argc, char** argv) {
  const cli::CommandLine line = cli::ParseFlags(ycsb::ProgramDescription(), argc, argv);
  auto options = ycsb::OptionsFromFlags(line);
  if (!options.ok()) {
    return options.status() == krcore::StatusCode::kInvalidArgument ? cli::FailUsage(options.status().message())
                                                                    : cli::Fail(options.status());
  }
  return ycsb::Run(*options);
}
