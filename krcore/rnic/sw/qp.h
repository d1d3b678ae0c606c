// Completion queues and queue pairs.
#ifndef KRCORE_RNIC_SW_QP_H_
#define KRCORE_RNIC_SW_QP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/base/word_pair.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/rnic/sw/requester.h"
#include "krcore/rnic/sw/tables.h"
#include "krcore/status.h"

namespace krcore::rnic::sw {

// Completion queue: a ring in this process. Belongs to one thread at a time, with the Qps that fill it.
class SwCq final : public Cq {
 public:
  explicit SwCq(uint32_t depth);
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  void PushReceived(const Completion& completion) {
    if (HasRoom()) ring_[tail_++ & mask_] = {completion, nullptr, 0};
  }
  // For a send queue: polling it frees the queue's slots up to `position`. Writes words, since polls read words.
  void PushSent(uint64_t wr_id, WcStatus status, Opcode opcode, uint32_t qp_num, SendCounters* counters,
                uint64_t position) {
    if (!HasRoom()) [[unlikely]]
      return;
    Entry& entry = ring_[tail_++ & mask_];
    static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_id) == 0 && kNoNode == 0);
    SetPairAt<0>(entry.completion, WordPair{wr_id, PartOfWord<offsetof(Completion, status), 8>(status) |
                                                       PartOfWord<offsetof(Completion, opcode), 8>(opcode)});
    SetPairAt<16>(entry.completion, WordPair{PartOfWord<offsetof(Completion, qp_num), 16>(qp_num), 0});
    entry.counters = counters;
    entry.position = position;
  }
  // Drops what a destroyed queue left, as verbs providers do.
  void Forget(uint32_t qp_num, const SendCounters* counters);

  void Attach(Receiver* receiver) { receivers_.push_back(receiver); }
  void Detach(Receiver* receiver);

 private:
  struct Entry {
    Completion completion;
    SendCounters* counters;  // null: for a receive
    uint64_t position;
  };
  size_t Take(std::span<Completion> out);
  bool HasRoom() {
    if (tail_ - head_ != depth_) [[likely]]
      return true;
    overrun_ = true;
    return false;
  }
  const uint32_t depth_;
  const uint64_t mask_;
  LazyArray<Entry> ring_;
  uint64_t head_ = 0, tail_ = 0;
  bool overrun_ = false;
  std::vector<Receiver*> receivers_;
};

// A device's part in one of the host's DC initiators.
//
// Why a part and not the whole queue: the software RNIC executes a WR in the process that posted it, whose private
// memory the WR names, so no process could execute a WR of another. Holders share what they would notice of each other
// on a NIC: the state, which one holder's fault changes for all, and the places of the send queue, of which each holder
// owns a part. Each of these is one word, changed by single atomics. A holder that is killed leaves words that name it,
// and a device that needs a part asks the kernel whether that holder lives.
//
// Thread safety: as a Qp.
class HostQpPart {
 public:
  // Claims a part for QP `number` of the fabric's device. kInvalidArgument: there is no such initiator. kOutOfMemory:
  // every part of it has a living holder.
  static Result<std::unique_ptr<HostQpPart>> Claim(Fabric* fabric, uint32_t host_qp, uint32_t number);
  // Gives the part back.
  ~HostQpPart();
  HostQpPart(const HostQpPart&) = delete;
  HostQpPart& operator=(const HostQpPart&) = delete;

  // Acquire: a holder that sees that the queue works again sees what the holder that reset it had seen.
  bool in_error() const { return (qp_->state.load(std::memory_order_acquire) & kInError) != 0; }
  void Break() { qp_->state.fetch_or(kInError, std::memory_order_acq_rel); }
  // Brings it back unless another holder has.
  void Reset();

 private:
  static constexpr uint64_t kInError = 1;
  HostQpPart(HostQp* qp, std::atomic<uint64_t>* holder) : qp_(qp), holder_(holder) {}

  HostQp* const qp_;
  std::atomic<uint64_t>* const holder_;
};

// Queue pair: the verbs' state machine and the accounting of its send queue around a Requester.
class SwQp final : public Qp {
 public:
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, const QpAttr& attr, uint32_t pd);
  ~SwQp() override;
  QpType type() const override { return attr_.type; }
  QpState state() const override {
    return state_ == QpState::kRts && host_part_ != nullptr && host_part_->in_error() ? QpState::kErr : state_;
  }
  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;
  Status ToErr() override;
  Status ToReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;
  bool Execute(std::span<const WorkRequest> wrs, const Reach& reach) override;
  void Prefetch(std::span<const WorkRequest> wrs, const AddressHandle* ah, uint32_t rkey) override {
    requester_.Prefetch(wrs, ah, rkey);
  }

 private:
  SwQp(SharedDevice* device, const QpAttr& attr, uint32_t pd, uint32_t number);
  Status PostSlowly(std::span<const SendWr> wrs, size_t fits, size_t* bad_index);
  Status Stop(std::span<const SendWr> wrs, size_t fits, size_t at, const Requester::Outcome& outcome,
              size_t* bad_index);
  void SetState(QpState state);
  // The next WRs are done. Counts those that succeeded, and completes those of them that are signaled.
  void Succeed(std::span<const SendWr> wrs);
  void Fail(std::span<const SendWr> wrs, WcStatus status);
  void Push(const SendWr& wr, WcStatus status, uint64_t position);
  QpEntry& entry() { return device_->tables.qp(num_); }

  SharedDevice* const device_;
  const QpAttr attr_;
  SwCq* const send_cq_;
  QpState state_ = QpState::kReset;
  SendCounters counters_;
  Requester requester_;
  std::unique_ptr<Receiver> receiver_;     // null: the queue receives nothing
  std::unique_ptr<HostQpPart> host_part_;  // null: the QP is private
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_QP_H_
