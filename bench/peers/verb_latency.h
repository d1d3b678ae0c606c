// The latency of a one-sided READ of 64 bytes from a warm line, and of the same with UCX over shared memory.
#ifndef BENCH_PEERS_VERB_LATENCY_H_
#define BENCH_PEERS_VERB_LATENCY_H_

#include "krcore/status.h"

namespace peers {

inline constexpr uint32_t kVerbBytes = 64;

// Nanoseconds from the push of a READ to a VirtualQueue to its completion popped: the mean of many, one at a time,
// through the RC queue that a hot peer gets.
krcore::Result<double> VirtualQueueReadNs();

// The mean latency that ucx_perftest reports, in nanoseconds. `uct`: of UCT's get (bcopy) on the posix transport, UCX's
// lowest level; else of ucp_get, its interface for users. kNotFound: there is no ucx_perftest. kUnavailable: it failed.
krcore::Result<double> UcxGetNs(bool uct);

}  // namespace peers

#endif  // BENCH_PEERS_VERB_LATENCY_H_
