// Families: builds what a scrape answers, family by family. Values come from counts that exist; nothing is kept here.
//
// Thread safety: a value.
#ifndef METRICS_FAMILIES_H_
#define METRICS_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "krcore/types.h"

namespace metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  // Each adds one time series. Those of one name are one family, whose help and type the first of them says.
  void Counter(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void Gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void Histogram(const std::string& name, const std::string& help, prometheus::ClientMetric::Histogram value,
                 const Labels& labels = {});

  const std::vector<prometheus::MetricFamily>& all() const { return families_; }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

// The upper bounds, in seconds, of every histogram of durations: 1, 2.5 and 5 of each decade from a microsecond to 100
// seconds.
std::span<const double> DurationBounds();
// The histogram of these durations, in nanoseconds, over DurationBounds(): a duration counts in each bucket whose bound
// it does not exceed.
prometheus::ClientMetric::Histogram HistogramOf(std::span<const int64_t> durations_ns);

// What every program says of its process: CPU time, memory, when it started (seconds of the system's clock).
void AddProcess(double started_unix_s, Families* families);

// What DC in software has done.
void AddSoftwareDc(const krcore::SoftwareDcStats& stats, Families* families);

}  // namespace metrics

#endif  // METRICS_FAMILIES_H_
