#include "metrics/families.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <fstream>

namespace metrics {
namespace {

constexpr std::array kDurationBounds = {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,
                                        1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 5e-1,
                                        1.0,  2.5,    5.0,  10.0, 25.0,   50.0, 100.0};

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 16).ptr;
  return {text.data(), end};
}

void AppendSeries(const std::string& name, const Labels& labels, double value, std::string* text) {
  text->append(name);
  char before = '{';
  for (const auto& [label, content] : labels) {
    text->append(1, before).append(label).append("=\"");
    for (const char c : content) {
      if (c == '\\' || c == '"') text->append(1, '\\');
      text->append(c == '\n' ? "\\n" : std::string(1, c));
    }
    text->append("\"");
    before = ',';
  }
  if (!labels.empty()) text->append("}");
  text->append(" ").append(Number(value)).append("\n");
}

// Returns the memory of this process, in bytes; 0 if the system does not tell.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return file ? resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

std::string& Families::TextOf(const std::string& name, std::string_view help, std::string_view type) {
  const auto found = std::ranges::find(families_, name, &Family::name);
  if (found != families_.end()) return found->text;
  families_.push_back({name, ""});
  std::string& text = families_.back().text;
  text.append("# HELP ").append(name).append(" ").append(help).append("\n");
  text.append("# TYPE ").append(name).append(" ").append(type).append("\n");
  return text;
}

void Families::AddCounter(const std::string& name, std::string_view help, double value, const Labels& labels) {
  AppendSeries(name, labels, value, &TextOf(name, help, "counter"));
}

void Families::AddGauge(const std::string& name, std::string_view help, double value, const Labels& labels) {
  AppendSeries(name, labels, value, &TextOf(name, help, "gauge"));
}

void Families::AddHistogram(const std::string& name, std::string_view help, const Histogram& value,
                            const Labels& labels) {
  std::string& text = TextOf(name, help, "histogram");
  Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  for (const Histogram::Bucket& bucket : value.buckets) {
    with_bound.back().second = std::isinf(bucket.upper_bound) ? "+Inf" : Number(bucket.upper_bound);
    AppendSeries(name + "_bucket", with_bound, static_cast<double>(bucket.cumulative_count), &text);
  }
  AppendSeries(name + "_sum", labels, value.sum, &text);
  AppendSeries(name + "_count", labels, static_cast<double>(value.buckets.back().cumulative_count), &text);
}

std::string Families::Text() const {
  std::string text;
  for (const Family& family : families_) text += family.text;
  return text;
}

std::span<const double> DurationBounds() { return kDurationBounds; }

void AddProcess(double started_unix_s, Families* families) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  families->AddCounter("process_cpu_seconds_total", "CPU time of this process, in seconds",
                       Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  families->AddGauge("process_resident_memory_bytes",
                     "Resident memory of this process, shared memory included, in bytes", ResidentBytes());
  families->AddGauge("process_start_time_seconds", "When this process began to serve, in seconds since 1970",
                     started_unix_s);
}

void AddSoftwareDc(const krcore::SoftwareDcStats& stats, Families* families) {
  families->AddCounter("surgekv_dc_agent_cpu_seconds_total",
                       "CPU time of the thread that serves requests of peers, in seconds",
                       static_cast<double>(stats.agent_cpu_ns) * 1e-9);
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    families->AddCounter(std::string("surgekv_dc_") + name + "_total", help, static_cast<double>(value));
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
