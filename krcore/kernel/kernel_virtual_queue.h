// KernelVirtualQueue: a VirtualQueue that is an open file of /dev/krcore.
//
// What it has posted is with the kernel, which reports positions. A completion at a position completes all WRs before
// it, and the last WR of each doorbell is signaled.
#ifndef KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
#define KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/kernel/kernel_queue.h"
#include "krcore/queue/one_sided_ring.h"
#include "krcore/queue/request_check.h"
#include "krcore/virtual_queue.h"

namespace krcore::kernel {

class KernelPool;

inline bool IsSend(Opcode opcode) { return opcode == Opcode::kSend || opcode == Opcode::kSendImm; }

class KernelVirtualQueue final : public VirtualQueue {
 public:
  static constexpr uint32_t kMaxInlineBytes = 256;

  KernelVirtualQueue(KernelPool& pool, uint32_t depth);
  ~KernelVirtualQueue() override;
  Status Start();

  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return peer_; }
  uint32_t peer_incarnation() const override { return incarnation_; }
  std::span<const RemoteRegion> regions() const override { return {regions_.data(), region_count_}; }

  // Messages are copied: a message that is longer than the port has room for is refused (kInvalidArgument).
  // kUnsupported: kWriteImm.
  Status Bind(Port port, const BindOptions& options, Deadline deadline) override;
  Port port() const override { return pool_ != nullptr ? port_ : kNoPort; }
  Status Connect(NodeId peer, Port port, Deadline deadline) override;
  // Looks the port up, as connecting by number does.
  Status Connect(const Sender& sender, Deadline deadline) override;
  uint32_t credits() const override { return pool_ != nullptr && !broken_ && !forked() ? credits_ : 0; }
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index) override;
  size_t PopMessages(std::span<Message> out) override;

  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override { return forked() ? 0 : ring_.Pop(out); }
  uint32_t outstanding() const override { return forked() ? 0 : ring_.outstanding(); }

  // ---- for KernelPool; functions that return a number return how many WRs they completed
  size_t PostStaged();
  size_t TakeCompletions();
  // Takes arrived messages, and credits. Returns how many messages.
  size_t TakeMessages();
  size_t DiscardStaged() { return SettleStaged(WcStatus::kDiscarded); }
  bool has_staged() const { return ring_.has_staged(); }
  bool nothing_posted() const { return ring_.nothing_posted(); }
  size_t memory_bytes() const;
  void ForgetPool() { pool_ = nullptr; }

 private:
  Status ConnectTo(NodeId peer, Port port, Deadline deadline);
  StatusCode CheckBatch(std::span<const WorkRequest> wrs, size_t* bad_index, bool* has_inline);
  StatusCode CheckMessage(const WorkRequest& wr) const;
  void AskCredits();
  size_t SettleStaged(WcStatus status);
  Status PrepareInline();
  void Fill(uint64_t position, const WorkRequest& wr);
  size_t CompleteUpTo(uint64_t position, WcStatus status);

  KernelPool* pool_;  // null: destroyed
  queue::OneSidedRing ring_;
  LazyArray<krc_request> requests_;
  std::unique_ptr<Region> inline_payloads_;  // kMaxInlineBytes per WR; made when first needed
  KernelQueue queue_;                        // before the payloads: its destruction waits for the WRs that use them
  bool broken_ = false;                      // until Connect
  NodeId peer_ = kNoNode;
  uint32_t incarnation_ = 0;  // the peer's
  std::array<RemoteRegion, kMaxRegionsPerNode> regions_;
  size_t region_count_ = 0;
  // ---- messages
  Port port_ = kNoPort;                  // bound to
  uint32_t receive_depth_ = 0;           // of the bound port
  uint32_t receives_ = 0;                // posted and not popped
  std::vector<Message> ready_;           // arrived messages
  uint32_t slots_ = 0, copy_bytes_ = 0;  // of the peer's port; slots 0: none
  uint32_t credits_ = 0;                 // not taken by accepted messages
  uint32_t staged_messages_ = 0;

  queue::LikeRequest like_;
  uint64_t like_version_ = 0;  // of the regions that it was made from
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_VIRTUAL_QUEUE_H_
