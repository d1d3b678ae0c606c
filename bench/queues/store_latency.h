// What a Get costs compared with a bare READ, over any provider: one key of one client, one Get at a time, on RC,
// without and with its address cache: 2 round trips, and 1 when the cache knows the key's place. Gets take turns with
// READs of as many bytes through a bare RC QP, so that the ratio of the medians compares latencies of the same time.
#ifndef BENCH_QUEUES_STORE_LATENCY_H_
#define BENCH_QUEUES_STORE_LATENCY_H_

#include "bench/queues/rnic_latency.h"

namespace rnic_latency {

// As Measure and RunTarget, for path "store".
void MeasureStore(const Options& options);
void RunStoreTarget(const Options& options);

}  // namespace rnic_latency

#endif  // BENCH_QUEUES_STORE_LATENCY_H_
