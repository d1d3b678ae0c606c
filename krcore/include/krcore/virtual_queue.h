// VirtualQueue: a user's queue to one peer over connections that a pool shares (KRCORE section 3.1; qconnect,
// qpush, qpop). It looks like an ibv QP with its own CQ: user wr_ids, signaled and unsignaled WRs, completions
// of this queue only, in posting order, each exactly once.
//
// Request checks: Stage and Push refuse what this node can know to be wrong before it reaches a shared queue
// (opcode, SGE count, local key and bounds, atomic size and alignment, remote range outside the peer's
// published regions) with kInvalidArgument or kPermissionDenied.
//
// Thread safety and blocking: as its QueuePool; Connect may block up to its deadline.
#ifndef KRCORE_VIRTUAL_QUEUE_H_
#define KRCORE_VIRTUAL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore {

class VirtualQueue {
 public:
  virtual ~VirtualQueue() = default;

  // qconnect. No handshake and no creation of queues: the peer's DC metadata comes from the node's cache or, once,
  // from the metadata server by one-sided READ. Connecting again refreshes the metadata (after kRetryExceeded: the
  // peer may have a successor). kNotFound: no record of the peer. kUnavailable: its record is of a dead
  // incarnation, or no metadata server. kQueueFull: WRs are outstanding.
  virtual Status Connect(NodeId peer, Deadline deadline) = 0;
  virtual NodeId peer() const = 0;
  // What the peer published, fixed since Connect.
  virtual std::span<const RemoteRegion> regions() const = 0;

  // qpush without the doorbell: the requests go out with the next Push on any queue of the pool, Flush or Poll, in
  // one batch with those of other queues. All or none: on failure nothing is accepted and *bad_index, if not
  // null, is the first offender. kQueueFull: more than the queue's depth accepted and not yet popped.
  virtual Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index = nullptr) = 0;
  // qpush: Stage, then the doorbell.
  virtual Status Push(std::span<const WorkRequest> wrs, size_t* bad_index = nullptr) = 0;

  // qpop: up to out.size() completions that QueuePool::Poll has delivered. Does not poll by itself.
  virtual size_t Pop(std::span<Completion> out) = 0;
  // Accepted WRs whose completion has not been delivered yet.
  virtual uint32_t outstanding() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_VIRTUAL_QUEUE_H_
