// KernelVirtualQueue: a VirtualQueue that is an open file of /dev/krcore.
//
// Its WRs live in a ring, in posting order: [head_, posted_) is with the kernel, [posted_, tail_) staged. The kernel
// reports positions; one at a position completes all before it, and the last of each doorbell is signaled. A settled
// entry is not posted but delivered with its status when head_ comes to it.
#ifndef KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
#define KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/lazy_array.h"
#include "krcore/kernel/kernel_queue.h"
#include "krcore/pool/queue_state.h"
#include "krcore/virtual_queue.h"
#include "krcore/vqp/request_check.h"

namespace krcore::kernel {

class KernelPool;

class KernelVirtualQueue final : public VirtualQueue {
 public:
  static constexpr uint32_t kMaxInlineBytes = 256;

  KernelVirtualQueue(KernelPool& pool, uint32_t depth);
  ~KernelVirtualQueue() override;
  Status Start();

  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return peer_; }
  std::span<const RemoteRegion> regions() const override { return {regions_.data(), region_count_}; }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override { return state_.Pop(out); }
  uint32_t outstanding() const override { return state_.outstanding(); }

  // Messages: there are none.
  Status Bind(Port port, const BindOptions& options, Deadline deadline) override;
  Port port() const override { return kNoPort; }
  Status Connect(NodeId peer, Port port, Deadline deadline) override;
  Status Connect(const Sender& sender, Deadline deadline) override;
  uint32_t credits() const override { return 0; }
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index) override;
  size_t PopMessages(std::span<Message>) override { return 0; }

  // ---- for KernelPool; those that return a number: of WRs that completed by it
  size_t PostStaged();
  size_t TakeCompletions();
  size_t SettleStaged(WcStatus status);
  bool has_staged() const { return posted_ != tail_; }
  bool nothing_posted() const { return head_ == posted_; }
  size_t memory_bytes() const;
  void ForgetPool() { pool_ = nullptr; }

 private:
  struct Entry {
    uint64_t user_wr_id;
    Opcode opcode;
    bool user_signaled;
    WcStatus settled;  // kSuccess: not
  };
  Entry& entry(uint64_t position) { return entries_[position & mask_]; }
  bool IsSettled(uint64_t position) { return entry(position).settled != WcStatus::kSuccess; }
  Status PrepareInline();
  void Fill(uint64_t position, const WorkRequest& wr);
  void Retire(const Entry& entry, WcStatus status);
  size_t RetireSettled();
  size_t CompleteUpTo(uint64_t position, WcStatus status);

  KernelPool* pool_;  // null: destroyed
  pool::QueueState state_;
  const uint64_t mask_;
  LazyArray<krc_request> requests_;
  LazyArray<Entry> entries_;
  std::unique_ptr<Region> inline_payloads_;  // kMaxInlineBytes per WR; made when first needed
  KernelQueue queue_;                        // before the payloads: its end waits for those that use them
  uint64_t head_ = 0, posted_ = 0, tail_ = 0;
  bool broken_ = false;  // until Connect
  NodeId peer_ = kNoNode;
  std::array<RemoteRegion, kMaxRegionsPerNode> regions_;
  size_t region_count_ = 0;
  vqp::LikeRequest like_;
  uint64_t like_version_ = 0;  // of the regions that it was made from
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
