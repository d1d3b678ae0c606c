// What a Get costs beside a bare READ, over any provider: one key of one client, one Get at a time, on RC, with and
// without its address cache. 2 round trips, and 1 when the cache knows the key's place.
#ifndef BENCH_STORE_LATENCY_H_
#define BENCH_STORE_LATENCY_H_

#include "bench/rnic_latency.h"

namespace rnic_latency {

// As Measure and RunTarget, for path "store".
void MeasureStore(const Options& options);
void RunStoreTarget(const Options& options);

}  // namespace rnic_latency

#endif  // BENCH_STORE_LATENCY_H_
