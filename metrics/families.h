// Families: builds the answer to a scrape, in Prometheus's text format 0.0.4. Values come from existing counts; nothing
// is kept here. The text is written here because Debian's prometheus-cpp is a shared library only: it would load the
// shared libstdc++ into every program, which takes as long as the rest of their start (bench_start).
//
// Thread safety: a value.
#ifndef METRICS_FAMILIES_H_
#define METRICS_FAMILIES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/types.h"

namespace metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

struct Histogram {
  struct Bucket {
    double upper_bound;
    uint64_t cumulative_count;  // of values up to the bound
  };
  std::vector<Bucket> buckets;  // at least one; the last one's bound is infinity
  double sum = 0;
};

class Families {
 public:
  // Each adds one time series. Series of one name are one family; the first of them sets its help and type. `help` is
  // one line without backslashes.
  void AddCounter(const std::string& name, std::string_view help, double value, const Labels& labels = {});
  void AddGauge(const std::string& name, std::string_view help, double value, const Labels& labels = {});
  void AddHistogram(const std::string& name, std::string_view help, const Histogram& value, const Labels& labels = {});

  std::string Text() const;

 private:
  struct Family {
    std::string name;
    std::string text;
  };
  // Returns the text of a family, to which the caller appends.
  std::string& TextOf(const std::string& name, std::string_view help, std::string_view type);

  std::vector<Family> families_;
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
