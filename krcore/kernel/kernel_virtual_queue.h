// KernelVirtualQueue: a VirtualQueue that is an open file of /dev/krcore.
//
// What it has posted is with the kernel, which reports positions: one at a position completes all before it, and the
// last of each doorbell is signaled.
#ifndef KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
#define KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/lazy_array.h"
#include "krcore/kernel/kernel_queue.h"
#include "krcore/vqp/one_sided_queue.h"
#include "krcore/vqp/one_sided_ring.h"
#include "krcore/vqp/request_check.h"

namespace krcore::kernel {

class KernelPool;

class KernelVirtualQueue final : public vqp::OneSidedQueue {
 public:
  static constexpr uint32_t kMaxInlineBytes = 256;

  KernelVirtualQueue(KernelPool& pool, uint32_t depth);
  ~KernelVirtualQueue() override;
  Status Start();

  using OneSidedQueue::Connect;
  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return peer_; }
  std::span<const RemoteRegion> regions() const override { return {regions_.data(), region_count_}; }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override { return ring_.Pop(out); }
  uint32_t outstanding() const override { return ring_.outstanding(); }

  // ---- for KernelPool; those that return a number: of WRs that completed by it
  size_t PostStaged();
  size_t TakeCompletions();
  size_t DiscardStaged() { return ring_.SettleStaged(WcStatus::kDiscarded); }
  bool has_staged() const { return ring_.has_staged(); }
  bool nothing_posted() const { return ring_.nothing_posted(); }
  size_t memory_bytes() const;
  void ForgetPool() { pool_ = nullptr; }

 private:
  Status PrepareInline();
  void Fill(uint64_t position, const WorkRequest& wr);
  size_t CompleteUpTo(uint64_t position, WcStatus status);

  KernelPool* pool_;  // null: destroyed
  vqp::OneSidedRing ring_;
  LazyArray<krc_request> requests_;
  std::unique_ptr<Region> inline_payloads_;  // kMaxInlineBytes per WR; made when first needed
  KernelQueue queue_;                        // before the payloads: its end waits for those that use them
  bool broken_ = false;                      // until Connect
  NodeId peer_ = kNoNode;
  std::array<RemoteRegion, kMaxRegionsPerNode> regions_;
  size_t region_count_ = 0;
  vqp::LikeRequest like_;
  uint64_t like_version_ = 0;  // of the regions that it was made from
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
