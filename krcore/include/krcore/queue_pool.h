// QueuePool: the pool of pre-made connections of one thread (KRCORE section 3.2). It holds one CQ and a few DC
// initiators, each of which reaches every peer, so that VirtualQueue::Connect creates nothing. It has several because
// an initiator waits for its current target, and one dead peer must not stall all queues.
//
// The pool never posts beyond the depth of a physical queue: it counts outstanding WRs, polls when a queue is full, and
// signals the last WR of a doorbell even if the caller did not. A physical queue that a remote fault broke is reset,
// and its flushed READs are posted again. A flushed WRITE or atomic is reported as kFlushed; its outcome is unknown.
//
// Hot peers get an RC queue of their own, made in the background by Poll. Queues to them move there and back without
// losing or reordering anything (docs/krcore.md, "RC queues for hot peers").
//
// Thread safety: a pool and its VirtualQueues belong to one thread at a time of the process that made them (fork.h).
// Blocking: calls on the data path neither block nor make system calls, but for the exceptions of K11
// (docs/architecture.md).
#ifndef KRCORE_QUEUE_POOL_H_
#define KRCORE_QUEUE_POOL_H_

#include <cstdint>
#include <memory>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/message.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore {

class VirtualQueue;
class Node;

struct QueuePoolOptions {
  uint32_t dc_initiators = 2;
  uint32_t sq_depth = 512;  // WRs per physical queue
  // Messages longer than this are read by the receiver from the sender's memory, where that is allowed (message.h).
  uint32_t copy_bytes = kDefaultCopyBytes;
  // RC queues to hot peers that accept them (NodeOptions::rc_peers), in addition to the DC initiators; 0: none. Limited
  // to what the device's CQ has room for, at most 128.
  uint32_t max_rc_queues = 16;
  // A peer is hot if it gets at least this many WRs in 10 ms, averaged over some such periods.
  uint32_t rc_hot_wrs = 1000;
  // Making, connecting and destroying an RC queue's QP takes up to a millisecond each on a NIC. These steps are left to
  // a Poll that finds nothing in flight, but are delayed no longer than this.
  int64_t rc_patience_ns = 1'000'000;
  friend bool operator==(const QueuePoolOptions&, const QueuePoolOptions&) = default;
};

struct QueuePoolStats {
  uint64_t doorbells = 0;  // PostSend calls, and Execute
  uint64_t work_requests = 0;
  uint64_t completions = 0;
  uint64_t sq_full_polls = 0;     // times a full queue had to be polled before posting
  uint64_t broken_queues = 0;     // physical queues reset after an error
  uint64_t host_queues = 0;       // DC initiators that the host's processes share
  uint64_t broken_by_others = 0;  // times another process's fault broke one of those and we lost nothing
  uint64_t reposted_reads = 0;
  uint64_t reposted_messages = 0;
  uint64_t metadata_hits = 0;     // qconnects served from the node's cache
  uint64_t metadata_lookups = 0;  // ... by one-sided READs at the metadata server
  uint64_t rc_connects = 0;       // peers that went over to an RC queue
  uint64_t rc_refusals = 0;       // ... that did not, because they did not answer or had no room left
  uint64_t rc_reclaims = 0;       // RC queues given up, for a hotter peer or because they broke
  uint64_t lease_renewals = 0;    // lookups because a lease on a peer's regions had run out or was about to
  uint64_t lease_extensions = 0;  // ... that nobody answered: the lease was extended for a while
};

// Decides whether a pool may ring doorbells.
class PostGate {
 public:
  virtual ~PostGate() = default;
  // Asked right before each round of doorbells for staged WRs, and before Push executes WRs. While it returns false,
  // they stay staged.
  virtual bool MayPost() = 0;
};

class QueuePool : public OfOneProcess {
 public:
  // Makes an unconnected queue (the paper's `queue`). `depth`: WRs accepted and not yet popped.
  virtual Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) = 0;
  // Rings the doorbell of every staged WR.
  virtual void Flush() = 0;
  // Flush(), then moves completions from the CQ to their VirtualQueues, and arrived messages to the bound ones. Returns
  // how many completed WRs, signaled or not, and messages it found.
  virtual size_t Poll() = 0;
  // `gate` outlives the pool, or is null. While a gate is shut, staging more than the physical queues hold is refused
  // with kQueueFull; one call must not stage more than a physical queue's depth.
  virtual void SetGate(PostGate* gate) = 0;
  // Completes every WR that is staged and not posted, in its turn, with kDiscarded: it was never posted and never will
  // be. Posted WRs complete as usual.
  virtual void DiscardStaged() = 0;
  // Whether every posted WR has completed; staged ones do not count.
  virtual bool NothingPosted() const = 0;
  virtual Node& node() const = 0;
  virtual const QueuePoolStats& stats() const = 0;
  // Bytes that this pool holds for connections; they do not depend on the number of peers.
  virtual size_t memory_bytes() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_QUEUE_POOL_H_
