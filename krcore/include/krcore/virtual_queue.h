// VirtualQueue: a user's queue to one peer over connections that a pool shares (KRCORE section 3.1; qconnect,
// qpush, qpop). It looks like an ibv QP with its own CQ: user wr_ids, signaled and unsignaled WRs, completions
// of this queue only, in posting order, each exactly once.
//
// Request checks: Stage and Push refuse what this node can know to be wrong before it reaches a shared queue (opcode,
// SGE count, local key and bounds, atomic size and alignment, remote range outside the peer's published regions) with
// kInvalidArgument or kPermissionDenied; docs/krcore.md lists the codes. A peer's regions are looked up again, once for
// the whole node, when a quarter of the lease on them is left or it has run out; Push and Poll do that on their own, in
// some microseconds. A request that was staged before, and names a region that has been withdrawn by then, completes
// with kRemoteAccessError without being posted.
//
// Thread safety and blocking: as its QueuePool; Connect may block up to its deadline.
#ifndef KRCORE_VIRTUAL_QUEUE_H_
#define KRCORE_VIRTUAL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/message.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore {

class VirtualQueue : public OfOneProcess {
 public:
  // qconnect. Makes no handshake and creates no queue: the peer's DC metadata comes from the node's cache or, once,
  // from the metadata server by one-sided READ. Connecting again refreshes the metadata (after kRetryExceeded: the peer
  // may have a successor). kNotFound: no record of the peer. kUnavailable: its record is of a dead incarnation, or
  // there is no metadata server. kQueueFull: WRs are outstanding.
  virtual Status Connect(NodeId peer, Deadline deadline) = 0;
  virtual NodeId peer() const = 0;
  // Meaningful while connected: a peer that was started again has another one.
  virtual uint32_t peer_incarnation() const = 0;
  // Returns what the peer had published at the last lookup: by Connect, or when a lease was renewed (see
  // NodeOptions::mr_lease_ns). The span stays readable until the next Connect. Empty after Connect(Sender).
  virtual std::span<const RemoteRegion> regions() const = 0;

  // ---- two-sided (message.h)

  // qbind. Makes this queue receive what is sent to (this node, port) and publishes that at the metadata server;
  // kNoPort chooses a port. Blocks up to the deadline. kExists: the port is bound. kBadState: this queue is bound.
  virtual Status Bind(Port port, const BindOptions& options, Deadline deadline) = 0;
  virtual Port port() const = 0;  // kNoPort: not bound
  // qconnect to a bound port, for messages as well as one-sided requests. Looks the port up, then claims a sender's
  // place there by a few one-sided verbs; the peer's CPU takes no part. kNotFound: nobody is bound to the port.
  // kQueueFull: it has no place left for another sender, or WRs are outstanding here. kUnavailable, kTimeout.
  // Connecting a broken queue to the same port again keeps its place, and with it the order of its messages.
  virtual Status Connect(NodeId peer, Port port, Deadline deadline) = 0;
  // Connects to the port of a message's sender; no lookup. kInvalidArgument: the sender is not bound.
  virtual Status Connect(const Sender& sender, Deadline deadline) = 0;
  // Messages that Push would accept now: the credits left.
  virtual uint32_t credits() const = 0;

  // qpush_recv. All or none. kBadState: not bound. kQueueFull. kPermissionDenied: not in a live region of this node.
  virtual Status PushRecv(std::span<const Receive> receives, size_t* bad_index = nullptr) = 0;
  // qpop_msgs: up to out.size() messages that QueuePool::Poll has received. Does not poll by itself.
  virtual size_t PopMessages(std::span<Message> out) = 0;

  // ---- requests

  // qpush without the doorbell: the requests go out with the next Push on any queue of the pool, Flush or Poll, in one
  // batch with those of other queues. All or none: on failure nothing is accepted and *bad_index, if not null, is the
  // first offender. kQueueFull: more than the queue's depth would be accepted and not yet popped, or credits are too
  // few. Messages need Connect to a port (else kBadState), have at most 3 SGEs, and must not change before their
  // completion. A message that fails has an unknown outcome. Once no such message can be delivered any more, which
  // takes some polls, messages are accepted again (until then kUnavailable).
  virtual Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index = nullptr) = 0;
  // qpush: Stage, then the doorbell. If the NIC executes requests before its doorbell returns, their completions may
  // have been delivered when this returns.
  virtual Status Push(std::span<const WorkRequest> wrs, size_t* bad_index = nullptr) = 0;

  // A hint that `wrs` will be pushed soon. Where the NIC is software, this asks for their cache lines now, so that the
  // fetches overlap with what the caller does until the push. Nothing is checked or accepted.
  virtual void Prefetch(std::span<const WorkRequest> /*wrs*/) {}

  // qpop: returns up to out.size() completions that QueuePool::Poll, or Push, has delivered. Does not poll by itself.
  virtual size_t Pop(std::span<Completion> out) = 0;
  // Number of accepted WRs whose completion has not been delivered yet.
  virtual uint32_t outstanding() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_VIRTUAL_QUEUE_H_
