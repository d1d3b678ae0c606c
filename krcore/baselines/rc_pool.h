// RcPool: the queues of one thread over RC connections.
#ifndef KRCORE_BASELINES_RC_POOL_H_
#define KRCORE_BASELINES_RC_POOL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "krcore/baselines/link.h"
#include "krcore/baselines/rc_queue.h"
#include "krcore/queue/request_check.h"
#include "krcore/queue/ring_pool.h"
#include "krcore/queue_pool.h"

namespace krcore::baselines {

class RcNode;

inline constexpr uint32_t kMaxSge = 4;            // per WR
inline constexpr uint32_t kMaxInlineBytes = 256;  // likewise, or the NIC's limit if that is less

// Checks the form of a request, for a queue with its own connection: it must accept all or none, but the NIC refuses
// WRs one by one. The NIC checks the memory. kUnsupported: a message.
StatusCode CheckForm(const WorkRequest& wr, const queue::RequestLimits& limits);

class RcPool final : public queue::RingPool<RcQueue> {
 public:
  // options: a QP of "verbs" has up to sq_depth places, whatever its queue's depth. The CQ has dc_initiators x sq_depth
  // places, which the QPs share. If they do not suffice, Connect makes another such CQ.
  static Result<std::unique_ptr<QueuePool>> Create(RcNode& node, const QueuePoolOptions& options);
  ~RcPool() override;

  Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) override;
  size_t Poll() override;
  Node& node() const override;
  size_t memory_bytes() const override;

  // ---- for RcQueue
  // Returns a connection of the queue's own, or the node's shared one.
  Result<std::shared_ptr<Link>> LinkTo(NodeId peer, uint32_t depth, Deadline deadline);
  void Release(std::shared_ptr<Link> link);

 private:
  RcPool(RcNode& node, const rnic::Caps& caps);
  Status AddCq();

  RcNode& node_;
  std::array<Completion, 64> batch_;
  struct OwnCq {
    std::unique_ptr<rnic::Cq> cq;
    uint32_t used = 0;  // places, out of cq_depth_
  };
  std::vector<OwnCq> cqs_;  // "verbs": not empty
  uint32_t cq_depth_ = 0, link_depth_ = 0;
  struct Used {
    Link* link = nullptr;
    uint32_t queues = 0;
    size_t cq = 0;  // "verbs": index in cqs_
  };
  std::vector<Used> links_;  // "verbs": by Link::index()
};

}  // namespace krcore::baselines

#endif  // KRCORE_BASELINES_RC_POOL_H_
