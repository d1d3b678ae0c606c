// The reports of a phase: YCSB's summary lines, and JSON. docs/operating.md describes both.
//
// Thread safety: pure functions.
#ifndef YCSB_REPORT_H_
#define YCSB_REPORT_H_

#include <iosfwd>
#include <map>
#include <optional>
#include <string>

#include "kvs/client.h"
#include "ycsb/runner.h"
#include "ycsb/workload/job.h"

namespace ycsb {

// What a report says besides the measurements.
struct ReportContext {
  std::map<std::string, std::string> flags = {};       // the flags of the command line, with their values
  std::map<std::string, std::string> properties = {};  // as read
  std::string control_plane = {};                      // of the store's clients
  uint32_t workers = 0;
  uint32_t in_flight = 0;
  double warmup_s = 0;
  std::optional<kvs::TableStats> table = {};  // after the phase
  std::optional<krcore::SoftwareDcStats> software_dc = {};
};

std::string_view RunEndName(RunEnd end);  // "finished", "time limit", "interrupted", "too many failures"

// Writes "[OVERALL], RunTime(ms), 10110" and so on.
void WriteSummary(const WorkloadJob& job, const RunResult& result, const ReportContext& context, std::ostream& out);
// Returns an object, indented, with a newline at its end.
std::string JsonReport(const WorkloadJob& job, const RunResult& result, const ReportContext& context);

}  // namespace ycsb

#endif  // YCSB_REPORT_H_
