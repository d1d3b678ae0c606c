// RcQueue: a VirtualQueue over an RC connection, its own ("verbs") or a shared one ("lite").
//
// Its WRs live in a ring, in posting order: [head_, posted_) is on the NIC, [posted_, tail_) staged. A settled entry is
// not posted but delivered with its status when head_ comes to it.
#ifndef KRCORE_BASELINE_RC_QUEUE_H_
#define KRCORE_BASELINE_RC_QUEUE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "krcore/base/lazy_array.h"
#include "krcore/baseline/link.h"
#include "krcore/pool/queue_state.h"
#include "krcore/virtual_queue.h"

namespace krcore::baseline {

class RcPool;

class RcQueue final : public VirtualQueue {
 public:
  RcQueue(RcPool& pool, uint32_t depth);
  ~RcQueue() override;

  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return link_ ? link_->peer() : kNoNode; }
  std::span<const RemoteRegion> regions() const override {
    return link_ ? link_->regions() : std::span<const RemoteRegion>();
  }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override;
  uint32_t outstanding() const override;

  // Messages: there are none.
  Status Bind(Port port, const BindOptions& options, Deadline deadline) override;
  Port port() const override { return kNoPort; }
  Status Connect(NodeId peer, Port port, Deadline deadline) override;
  Status Connect(const Sender& sender, Deadline deadline) override;
  uint32_t credits() const override { return 0; }
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index) override;
  size_t PopMessages(std::span<Message>) override { return 0; }

  // ---- for Link, which is locked
  void OnDone(WcStatus status, uint32_t qp_num);

  // ---- for RcPool
  // Posts what is staged as far as there is room, or settles it where the link is broken. Returns how many WRs
  // that completed.
  size_t PostStaged();
  size_t DiscardStaged();
  bool has_staged() const;
  bool nothing_posted() const;
  size_t memory_bytes() const;
  void ForgetPool();

 private:
  struct Entry {
    uint64_t user_wr_id;
    Opcode opcode;
    bool user_signaled;
    WcStatus settled;  // kSuccess: not
  };
  Entry& entry(uint64_t position) { return entries_[position & mask_]; }
  bool IsSettled(uint64_t position) { return entry(position).settled != WcStatus::kSuccess; }
  StatusCode Check(std::span<const WorkRequest> wrs, size_t* bad_index);
  void Fill(uint64_t position, const WorkRequest& wr);
  size_t SettleStaged(WcStatus status);
  void Retire(const Entry& entry, WcStatus status, uint32_t qp_num);
  size_t RetireSettled();
  // Lets go of the link; returns once no buffer is in use.
  void Detach();
  std::unique_lock<std::mutex> Lock() const { return link_ ? link_->Lock() : std::unique_lock<std::mutex>(); }

  RcPool* pool_;
  pool::QueueState state_;
  std::shared_ptr<Link> link_;
  const uint64_t mask_;
  uint64_t head_ = 0, posted_ = 0, tail_ = 0;
  LazyArray<rnic::SendWr> wrs_;
  LazyArray<Sge> sges_;  // kMaxSge per WR
  LazyArray<Entry> entries_;
  std::unique_ptr<std::byte[]> inline_payloads_;  // kMaxInlineBytes per WR; made when first needed
};

}  // namespace krcore::baseline

#endif  // KRCORE_BASELINE_RC_QUEUE_H_
