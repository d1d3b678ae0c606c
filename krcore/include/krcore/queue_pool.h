// QueuePool: the pool of pre-made connections of one thread (KRCORE section 3.2). It holds one CQ and a few
// DC initiators, each of which reaches every peer, so that VirtualQueue::Connect creates nothing. Several
// initiators, because an initiator waits for its current target and one dead peer must not stall all.
//
// The pool never posts beyond the depth of a physical queue: it counts outstanding WRs, polls when a queue is
// full, and signals the last WR of a doorbell even if the caller did not. A physical queue that a remote fault
// broke is reset, and flushed READs are posted again; a flushed WRITE or atomic is reported as kFlushed, its
// outcome unknown.
//
// Peers that prove hot get an RC queue of their own, in the background of Poll; the queues to them move there and back
// without losing or reordering anything (docs/krcore.md, "RC queues for hot peers").
//
// Thread safety: a pool and its VirtualQueues belong to one thread at a time, of the process that made them (fork.h).
// Blocking: none of the calls on the data path blocks or makes a system call.
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
  // RC queues to hot peers that accept them (NodeOptions::rc_peers), beside the DC initiators; 0: none. As many as the
  // device's CQ has room for, at most 128.
  uint32_t max_rc_queues = 16;
  // A peer is hot from so many WRs in 10 ms on, on average over some of these.
  uint32_t rc_hot_wrs = 1000;
  // Making, connecting and destroying an RC queue's QP, each up to a millisecond on a NIC, is left to a Poll that finds
  // nothing under way, but for no longer than this.
  int64_t rc_patience_ns = 1'000'000;
  friend bool operator==(const QueuePoolOptions&, const QueuePoolOptions&) = default;
};

struct QueuePoolStats {
  uint64_t doorbells = 0;  // PostSend calls, and Execute
  uint64_t work_requests = 0;
  uint64_t completions = 0;
  uint64_t sq_full_polls = 0;     // times a full queue had to be polled before posting
  uint64_t broken_queues = 0;     // physical queues reset after an error
  uint64_t host_queues = 0;       // DC initiators that are the host's, shared with other processes
  uint64_t broken_by_others = 0;  // times another process's fault had broken one of those, and nothing of ours was lost
  uint64_t reposted_reads = 0;
  uint64_t reposted_messages = 0;
  uint64_t metadata_hits = 0;     // qconnects served from the node's cache
  uint64_t metadata_lookups = 0;  // ... by one-sided READs at the metadata server
  uint64_t rc_connects = 0;       // peers that went over to an RC queue
  uint64_t rc_refusals = 0;       // ... that did not, because they did not answer or had no place left
  uint64_t rc_reclaims = 0;       // RC queues given up, for a hotter peer or because they broke
  uint64_t lease_renewals = 0;    // lookups because a lease on a peer's regions ran out, or was about to
  uint64_t lease_extensions = 0;  // ... that found nobody to answer: the lease was extended for a while
};

// Decides whether a pool may ring doorbells.
class PostGate {
 public:
  virtual ~PostGate() = default;
  // Asked right before each round of doorbells for staged WRs, and before WRs are executed by Push. While it says no,
  // they stay staged.
  virtual bool MayPost() = 0;
};

class QueuePool : public OfOneProcess {
 public:
  // An unconnected queue (the paper's `queue`). `depth`: WRs accepted and not yet popped.
  virtual Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) = 0;
  // Rings the doorbell of every staged WR.
  virtual void Flush() = 0;
  // Flush(), then moves completions from the CQ to the VirtualQueues they belong to, and messages that arrived to the
  // bound ones. Returns how many WRs, signaled or not, it found completed, and messages.
  virtual size_t Poll() = 0;
  // `gate` outlives the pool, or null. While a gate is shut, staging beyond what the physical queues hold is refused
  // with kQueueFull; one call must not stage more than a physical queue's depth.
  virtual void SetGate(PostGate* gate) = 0;
  // Every WR that is staged and not posted completes, in its turn, with kDiscarded: it was never posted and never will
  // be. What was posted completes as ever.
  virtual void DiscardStaged() = 0;
  // Everything that was posted has been completed; what is staged does not count.
  virtual bool NothingPosted() const = 0;
  virtual Node& node() const = 0;
  virtual const QueuePoolStats& stats() const = 0;
  // Bytes this pool holds for connections, whatever the number of peers.
  virtual size_t memory_bytes() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_QUEUE_POOL_H_
