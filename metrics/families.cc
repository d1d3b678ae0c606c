#include "metrics/families.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <limits>

namespace metrics {
namespace {

constexpr std::array kDurationBounds = {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,
                                        1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 5e-1,
                                        1.0,  2.5,    5.0,  10.0, 25.0,   50.0, 100.0};

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Returns the memory of this process, in bytes; 0 if the system does not tell.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return file ? resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

prometheus::ClientMetric& Families::Add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                        const Labels& labels) {
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&](const prometheus::MetricFamily& candidate) { return candidate.name == name; });
  if (family == families_.end()) family = families_.insert(families_.end(), {name, help, type, {}});
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  return metric;
}

void Families::Counter(const std::string& name, const std::string& help, double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void Families::Gauge(const std::string& name, const std::string& help, double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void Families::Histogram(const std::string& name, const std::string& help, prometheus::ClientMetric::Histogram value,
                         const Labels& labels) {
  Add(name, help, prometheus::MetricType::Histogram, labels).histogram = std::move(value);
}

std::span<const double> DurationBounds() { return kDurationBounds; }

void AddProcess(double started_unix_s, Families* families) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  families->Counter("process_cpu_seconds_total", "CPU time of this process, in seconds",
                    Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  families->Gauge("process_resident_memory_bytes", "Resident memory of this process, shared memory included, in bytes",
                  ResidentBytes());
  families->Gauge("process_start_time_seconds", "When this process began to serve, in seconds since 1970",
                  started_unix_s);
}

void AddSoftwareDc(const krcore::SoftwareDcStats& stats, Families* families) {
  families->Counter("surgekv_dc_agent_cpu_seconds_total",
                    "CPU time of the thread that serves requests of peers, in seconds",
                    static_cast<double>(stats.agent_cpu_ns) * 1e-9);
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    families->Counter(std::string("surgekv_dc_") + name + "_total", help, static_cast<double>(value));
  };
  count("sent", "Requests sent", stats.sent);
  count("sent_again", "Requests sent again because no answer came", stats.sent_again);
  count("timeouts", "Times that no answer came in time", stats.timeouts);
  count("sessions", "Sessions requested", stats.sessions);
  count("sessions_gone", "Sessions that the target had already dropped", stats.sessions_gone);
  count("served", "Requests of peers that were executed", stats.served);
  count("served_again", "Requests of peers that came twice or whose answer was lost", stats.served_again);
  count("early", "Requests of peers that came before an earlier one, which was late or lost", stats.early);
  count("expired", "Requests of peers that came after their deadline", stats.expired);
  count("busy", "Times that a peer was refused a session", stats.busy);
  count("atomic_repairs", "Times that the queue for atomics was rebuilt", stats.atomic_repairs);
}

}  // namespace metrics
