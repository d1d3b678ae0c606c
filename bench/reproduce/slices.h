// One slice of a data path: the same batch again and again for a while, each time as soon as the last one is over.
#ifndef BENCH_REPRODUCE_SLICES_H_
#define BENCH_REPRODUCE_SLICES_H_

#include "bench/reproduce/report.h"

namespace reproduce {

// Runs `batch` for an eighth of the slice to warm up, then for the slice, and puts into the row what a batch took,
// and how many of its `in_flight` operations were done a second. The clock is read once a batch, which is in both.
template <typename Batch>
void RunSlice(const Options& options, size_t in_flight, Row& row, Batch batch) {
  constexpr size_t kLeastBatches = 8;
  const int64_t slice_ns = options.quick ? 4'000'000 : 20'000'000;
  Samples ns(size_t{1} << 20);  // written to now: no page of it comes during the slice
  ns.clear();
  for (const int64_t start = timed::Now(); timed::Now() - start < slice_ns / 8;) batch();
  const int64_t start = timed::Now();
  int64_t last = start;
  while (last - start < slice_ns || ns.size() < kLeastBatches) {
    batch();
    const int64_t at = timed::Now();
    ns.push_back(at - last);
    last = at;
  }
  row["in_flight"] = in_flight;
  row["samples"] = ns.size();
  row["ops_per_s"] = static_cast<double>(ns.size() * in_flight) * 1e9 / static_cast<double>(last - start);
  AddSpread(row, "latency_us", std::move(ns));
}

}  // namespace reproduce

#endif  // BENCH_REPRODUCE_SLICES_H_
