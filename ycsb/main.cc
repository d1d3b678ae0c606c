// ycsb: loads and runs YCSB's core workloads. docs/ycsb.md.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <memory>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"
#include "kvs/client.h"
#include "ycsb/options.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"
#include "ycsb/workload/arrivals.h"

namespace ycsb {
namespace {

// Opened before the phase, so that a bad path costs no run. `setting`: that names the path.
Status OpenReport(const char* setting, const std::string& path, std::ofstream* file) {
  if (path.empty() || path == "-") return {};
  file->open(path);
  if (*file) return {};
  return {StatusCode::kInvalidArgument, setting + path + ": cannot write the file; does its folder exist?"};
}

// What goes to stdout instead is checked when the program ends.
Status CheckReport(const char* setting, const std::string& path, std::ofstream* file) {
  if (!file->is_open() || file->flush()) return {};
  return {StatusCode::kUnavailable, setting + path + ": writing failed; is the disk full?"};
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
            ? "Records were there already: load into an empty store, or give --overwrite."
            : "Another run has inserted these records: --overwrite replaces them. Clients that insert at the same "
              "time each need records of their own, by -p insertstart=N -p insertcount=N: the first half and the "
              "second of recordcount, say.";
  } else if (any(StatusCode::kNotFound, {Operation::kRead, Operation::kUpdate})) {
    way_out = "Records are missing: run 'ycsb load' first, with the same recordcount, insertorder and keylength.";
  } else if (any(StatusCode::kOutOfMemory, {Operation::kInsert, Operation::kUpdate})) {
    way_out = "The memory nodes are full: start them with a larger --memory, or add one.";
  } else if (any(StatusCode::kUnavailable, {Operation::kRead, Operation::kUpdate, Operation::kInsert})) {
    way_out =
        "A memory node is away ('surge status' tells which): start it again with the flags that it had. If that is "
        "refused, its memory is gone, and so are its keys.";
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
