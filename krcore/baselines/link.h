// Link: an RC connection to a peer, and the owners of the WRs in flight on it.
//
// Thread safety: a link of a "verbs" pool belongs to the pool's thread. A "lite" link is shared: hold Lock() during
// every call of it, and of the functions of its queues that say so.
#ifndef KRCORE_BASELINES_LINK_H_
#define KRCORE_BASELINES_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/baselines/exchange.h"
#include "krcore/control_plane.h"
#include "krcore/rnic.h"

namespace krcore::baselines {

class RcQueue;

// What a link and its pools take from their node. Outlives them.
struct LinkContext {
  rnic::Device* device = nullptr;
  rnic::Pd* pd = nullptr;
  Exchange* exchange = nullptr;
  Clock* clock = nullptr;
  std::function<void(ConnectStep)> done;

  void Done(ConnectStep step) const {
    if (done) done(step);
  }
};

class Link {
 public:
  // "verbs": completes into the pool's CQ, in which `index` marks its completions.
  static Result<std::unique_ptr<Link>> Connect(const LinkContext& context, NodeId peer, rnic::Cq& cq, uint32_t index,
                                               uint32_t depth, Deadline deadline);
  // "lite": shared, with a CQ of its own.
  static Result<std::unique_ptr<Link>> ConnectShared(const LinkContext& context, NodeId peer, uint32_t depth,
                                                     Deadline deadline);
  ~Link();

  std::unique_lock<std::mutex> Lock() { return shared() ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>(); }
  bool shared() const { return own_cq_ != nullptr; }
  NodeId peer() const { return agreed_.peer.node; }
  uint32_t peer_incarnation() const { return agreed_.peer.incarnation; }
  std::span<const RemoteRegion> regions() const { return {agreed_.reply.regions, agreed_.reply.region_count}; }
  bool broken() const { return broken_; }
  uint32_t depth() const { return depth_; }
  uint32_t index() const { return index_; }
  uint32_t free() const { return depth_ - static_cast<uint32_t>(tail_ - head_); }
  size_t memory_bytes() const { return sizeof(*this) + log_.size() * sizeof(UnderWay); }

  // Posts `wrs` of `owner`, no more than free(); the last is signaled. Returns how many the NIC took; it refuses
  // malformed ones.
  size_t Post(RcQueue* owner, std::span<rnic::SendWr> wrs);
  static uint32_t IndexOf(const Completion& completion) { return static_cast<uint32_t>(completion.wr_id >> 32); }
  // Hands the WRs that `completion` completes back to their queues; returns how many. A failure ends the connection:
  // everything in flight is settled, and none of it executes any more.
  size_t Complete(const Completion& completion);
  // Calls Complete for all that its own CQ has.
  size_t Poll();
  // Moves the QP to ERR: everything in flight is flushed.
  void Break();
  // Ends the connection as a failure does; returns how many WRs that settled.
  size_t End();
  // Forgets what `owner` has in flight. Only if broken and its buffers are free, or if the NIC will be gone first.
  void Disown(const RcQueue* owner);

 private:
  Link(const LinkContext& context, uint32_t index, uint32_t depth)
      : context_(context), index_(index), depth_(depth), log_(depth) {}
  Status Establish(NodeId peer, rnic::Cq& cq, Deadline deadline);
  // Hands the WRs before position `end` back to their queues.
  size_t Settle(uint64_t end, WcStatus status);

  const LinkContext& context_;
  const uint32_t index_;
  const uint32_t depth_;
  std::mutex mutex_;
  std::unique_ptr<rnic::Cq> own_cq_;
  std::unique_ptr<rnic::Qp> qp_;
  Exchange::Agreed agreed_;  // id 0: nothing has been agreed
  bool broken_ = false;
  struct UnderWay {
    RcQueue* owner;  // null: gone
  };
  // WRs in flight, by position: [head_, tail_). A completion at a position completes all before it.
  LazyArray<UnderWay> log_;
  uint64_t head_ = 0, tail_ = 0;
};

}  // namespace krcore::baselines

#endif  // KRCORE_BASELINES_LINK_H_
