// RcQueue: a VirtualQueue over an RC connection, its own ("verbs") or a shared one ("lite"). What it has posted is on
// the NIC.
#ifndef KRCORE_BASELINES_RC_QUEUE_H_
#define KRCORE_BASELINES_RC_QUEUE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "krcore/base/arrays.h"
#include "krcore/baselines/link.h"
#include "krcore/queue/one_sided_ring.h"

namespace krcore::baselines {

class RcPool;

class RcQueue final : public queue::QueueWithoutMessages {
 public:
  RcQueue(RcPool& pool, uint32_t depth);
  ~RcQueue() override;

  using QueueWithoutMessages::Connect;
  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return link_ ? link_->peer() : kNoNode; }
  uint32_t peer_incarnation() const override { return link_ ? link_->peer_incarnation() : 0; }
  std::span<const RemoteRegion> regions() const override {
    return link_ ? link_->regions() : std::span<const RemoteRegion>();
  }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override;
  uint32_t outstanding() const override;

  // ---- for Link, with its lock held
  void OnDone(WcStatus status, uint32_t qp_num);

  // ---- for RcPool
  // Posts staged WRs as far as there is room, or settles them if the link is broken. Returns how many WRs that
  // completed.
  size_t PostStaged();
  size_t DiscardStaged();
  bool has_staged() const;
  bool nothing_posted() const;
  size_t memory_bytes() const;
  void ForgetPool();

 private:
  StatusCode Check(std::span<const WorkRequest> wrs, size_t* bad_index);
  void Fill(uint64_t position, const WorkRequest& wr);
  // Lets go of the link; returns once no buffer is in use.
  void Detach();
  std::unique_lock<std::mutex> Lock() const { return link_ ? link_->Lock() : std::unique_lock<std::mutex>(); }

  RcPool* pool_;
  std::shared_ptr<Link> link_;
  queue::OneSidedRing ring_;
  LazyArray<rnic::SendWr> wrs_;
  LazyArray<Sge> sges_;                           // kMaxSge per WR
  std::unique_ptr<std::byte[]> inline_payloads_;  // kMaxInlineBytes per WR; made when first needed
};

}  // namespace krcore::baselines

#endif  // KRCORE_BASELINES_RC_QUEUE_H_
