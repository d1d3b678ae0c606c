// Families: builds the answer to a scrape, family by family. Values come from existing counts; nothing is kept here.
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
  // Each adds one time series. Series of one name are one family; the first of them sets its help and type.
  void Counter(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void Gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void Histogram(const std::string& name, const std::string& help, prometheus::ClientMetric::Histogram value,
                 const Labels& labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

// Returns the upper bounds, in seconds, of every histogram of durations: 1, 2.5 and 5 of each decade from a microsecond
// to 100 seconds.
std::span<const double> DurationBounds();

// Adds what every program reports of its process: CPU time, memory, when it started (seconds of the system's clock).
void AddProcess(double started_unix_s, Families* families);

// Adds what DC in software has done.
void AddSoftwareDc(const krcore::SoftwareDcStats& stats, Families* families);

}  // namespace metrics

#endif  // METRICS_FAMILIES_H_
