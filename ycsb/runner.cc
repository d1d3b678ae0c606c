#include "ycsb/runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <ostream>
#include <string>

namespace ycsb {
namespace {

using krcore::Deadline;

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kLookNs = 5'000'000;  // between looks at the interrupt flag

// Formatted as YCSB does: "2026-11-20 13:24:44:017".
std::string TimeStamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char text[64];
  const size_t used = std::strftime(text, sizeof(text), "%F %T", &local);
  std::snprintf(text + used, sizeof(text) - used, ":%03ld", now.tv_nsec / 1'000'000);
  return text;
}

class Progress {
 public:
  Progress(const WorkloadJob& job, std::ostream* log, int64_t start_ns) : job_(job), log_(log), last_ns_(start_ns) {}

  void Print(const Measurements& interval, int64_t now_ns, int64_t start_ns, const std::string& note) {
    done_ += interval.operations;
    failed_ += interval.failed_operations;
    mismatched_ += interval.mismatches;
    if (!log_) return;
    const double seconds = static_cast<double>(now_ns - start_ns) / kNsPerS;
    const auto per_second = [&](uint64_t count) {
      return static_cast<double>(count) * kNsPerS / static_cast<double>(now_ns - last_ns_);
    };
    const double rate = per_second(interval.operations);
    char text[400];
    int used = std::snprintf(text, sizeof(text), "%s %.0f sec: %llu operations; %.1f current ops/sec; ",
                             TimeStamp().c_str(), seconds, static_cast<unsigned long long>(done_), rate);
    if (job_.open_loop()) {
      const uint64_t due = job_.DueBy(now_ns);
      used += std::snprintf(text + used, sizeof(text) - used, "%.1f due ops/sec; ", per_second(due - due_));
      due_ = due;
    }
    if (const int64_t end_ns = job_.PlannedEndNs(); end_ns != Deadline::Never().at_ns) {
      const double left = static_cast<double>(std::max<int64_t>(end_ns - now_ns, 0)) / kNsPerS;
      used += std::snprintf(text + used, sizeof(text) - used, "est completion in %.0f s; ", std::ceil(left));
    } else if (job_.total_operations() != std::numeric_limits<uint64_t>::max() && rate > 0) {
      const double left = static_cast<double>(job_.total_operations() - std::min(done_, job_.total_operations()));
      used += std::snprintf(text + used, sizeof(text) - used, "est completion in %.0f s; ", std::ceil(left / rate));
    }
    std::snprintf(text + used, sizeof(text) - used, "p99 %.1f us; %s", interval.Latencies().PercentileNs(99) / 1000,
                  note.c_str());
    *log_ << text;
    if (failed_ > 0) *log_ << "; " << failed_ << " FAILED";
    if (mismatched_ > 0) *log_ << "; " << mismatched_ << " MISMATCHED";
    *log_ << std::endl;
    last_ns_ = now_ns;
  }

 private:
  const WorkloadJob& job_;
  std::ostream* const log_;
  int64_t last_ns_;
  uint64_t done_ = 0;
  uint64_t due_ = 0;
  uint64_t failed_ = 0;
  uint64_t mismatched_ = 0;
};

void PrintProblems(WorkloadJob& job, std::ostream* log) {
  for (const std::string& problem : job.TakeProblems()) {
    if (log) *log << problem << std::endl;
  }
}

}  // namespace

RunResult RunWorkload(kvs::Store& store, WorkloadJob& job, const RunnerOptions& options) {
  const Workload& workload = job.options().workload;
  krcore::Clock& clock = job.options().clock ? *job.options().clock : *krcore::RealClock();
  RunResult result;
  computenode::ElasticWorkers workers(store, job,
                                      {.lanes_per_worker = options.in_flight, .clock = job.options().clock});
  const int64_t start_ns = clock.NowNs();
  result.error = workers.AddWorkers(options.workers);
  if (!result.error.ok()) job.Stop();

  const auto after = [&](double seconds) { return start_ns + static_cast<int64_t>(seconds * kNsPerS); };
  const int64_t kNever = Deadline::Never().at_ns;
  int64_t warm_ns = job.options().phase == Phase::kRun && options.warmup_s > 0 ? after(options.warmup_s) : kNever;
  const int64_t interval_ns = static_cast<int64_t>(workload.status_interval_s) * kNsPerS;
  int64_t status_ns = interval_ns == 0 ? kNever : start_ns + interval_ns;
  const int64_t limit_ns =
      workload.max_execution_time_s == 0
          ? kNever
          : after(static_cast<double>(workload.max_execution_time_s) + (warm_ns == kNever ? 0 : options.warmup_s));

  Progress progress(job, options.log, start_ns);
  bool ended = false;
  while (!ended) {
    const int64_t wake_ns = std::min({clock.NowNs() + kLookNs, warm_ns, status_ns, limit_ns});
    ended = workers.WaitForAll({wake_ns});
    const int64_t now_ns = clock.NowNs();
    PrintProblems(job, options.log);
    if (!job.stopped() && !workers.FirstError().ok()) job.Stop();
    if (!job.stopped() && options.interrupted && options.interrupted()) {
      result.end = RunEnd::kInterrupted;
      job.Stop();
    }
    if (!job.stopped() && now_ns >= limit_ns && !ended) {
      result.end = RunEnd::kTimeLimit;
      job.Stop();
    }
    if (now_ns >= warm_ns) {
      warm_ns = kNever;
      job.BeginMeasuring();
    }
    if (now_ns >= status_ns && !ended) {
      status_ns = std::max(status_ns + interval_ns, now_ns);
      const uint32_t running = workers.running();
      std::string note = std::to_string(running) + (running == 1 ? " worker" : " workers");
      if (warm_ns != kNever) note += " (warm-up, not measured)";
      progress.Print(job.TakeInterval(), now_ns, start_ns, note);
    }
  }
  const Measurements rest = job.TakeInterval();
  // A phase shorter than the interval still shows one line.
  if (interval_ns != 0) progress.Print(rest, clock.NowNs(), start_ns, "done");
  PrintProblems(job, options.log);
  if (job.gave_up()) result.end = RunEnd::kTooManyFailures;
  if (result.error.ok()) result.error = workers.FirstError();
  result.measured = job.Total();
  result.measured_ns = job.MeasuredNs();
  result.client_stats = workers.TotalClientStats();
  result.workers = workers.Records();
  return result;
}

}  // namespace ycsb
