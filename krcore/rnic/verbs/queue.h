// What all queue pairs have in common: their states and lives, and rings that remember what libibverbs' completions do
// not tell: the caller's wr_ids, and which unsignaled WRs a completion stands for. Who derives from it makes the queue,
// says how its states are reached, and hands WRs to the NIC: RC and UD (qp.h), a DC initiator of mlx5 (mlx5_dci.h).
#ifndef KRCORE_RNIC_VERBS_QUEUE_H_
#define KRCORE_RNIC_VERBS_QUEUE_H_

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/verbs/cq.h"
#include "krcore/rnic/verbs/shared_device.h"

namespace krcore::rnic::verbs {

// How long a request is tried: libibverbs' attributes of a connection, and the longest that they can take. The NIC may
// wait up to four times its timer before each retry.
inline constexpr uint8_t kAckTimeout = 14;  // 4.096 us x 2^14 = 67 ms
inline constexpr uint8_t kRetries = 6;      // 7 is without end on Soft-RoCE
inline constexpr uint8_t kRnrTimer = 12;    // 0.64 ms
inline constexpr uint8_t kRnrRetries = 6;   // 7 is without end
inline constexpr int64_t kMaxRetransmissionNs =
    4 * (kRetries + 1) * (int64_t{4096} << kAckTimeout) + (kRnrRetries + 1) * int64_t{640'000} + kPacketLifetimeNs;

// SGEs are handed to libibverbs as they are.
ibv_sge* SgesOf(const Sge* sges);

class Queue : public Qp, public CqUser {
 public:
  ~Queue() override;

  QpType type() const override { return attr_.type; }
  QpState state() const override;
  Status ToErr() override;
  Status ToReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  bool IsOfThisLife(uint64_t token) const override { return WrToken::Life(token) == (life_ & 0x7fff); }
  bool Complete(const ibv_wc& wc, Completion* completion) override;
  size_t TakeFlushes(const VerbsCq* cq, std::span<Completion> out) override;

 protected:
  static constexpr size_t kBatch = 32;

  Queue(SharedDevice* device, uint32_t pd_index, const QpAttr& attr);
  // Room in its CQs for its WRs: before the NIC's queue is made.
  Status TakeRoom();
  // The NIC's queue, once there is one.
  void Adopt(ibv_qp* qp);
  // Hands up to kBatch WRs to the NIC behind one doorbell, the i-th with TokenOf(i) as its wr_id. How many of them it
  // took is *took; the errno.
  virtual int Post(std::span<const SendWr> wrs, size_t* took) = 0;
  uint64_t TokenOf(size_t i) const {
    return WrToken::Make(false, life_, *send_slot_, static_cast<uint32_t>(send_.posted + i));
  }
  Status Modify(ibv_qp_attr& attr, int mask, const char* wanted);

  SharedDevice* const device_;
  const uint32_t pd_index_;
  const QpAttr attr_;
  VerbsCq* const send_cq_;
  VerbsCq* const recv_cq_;      // null: it receives nothing
  mutable QueueEvents events_;  // the NIC's queue has it as context
  ibv_qp* qp_ = nullptr;
  mutable QpState state_ = QpState::kReset;
  uint16_t life_ = 0;
  QpPeer peer_, last_peer_;

 private:
  struct Sent {
    uint64_t wr_id;
    Opcode opcode;
    bool signaled;
    bool lost;         // the CQ was full
    WcStatus instead;  // of the NIC's status, if not kSuccess
  };
  // Positions of WRs, from 0 in each life.
  struct Ring {
    uint64_t posted = 0, done = 0;
    uint64_t PositionOf(uint32_t low) const { return done + static_cast<uint32_t>(low - static_cast<uint32_t>(done)); }
  };

  Sent& SentAt(uint64_t position) { return sent_[position & (sent_.size() - 1)]; }
  uint64_t& ReceivedAt(uint64_t position) { return received_[position & (received_.size() - 1)]; }
  // Posts them all, if the NIC takes them; how many it took.
  size_t PostBatch(std::span<const SendWr> wrs, Status* status);
  bool CompleteSend(const ibv_wc& wc, Completion* completion);
  bool CompleteRecv(const ibv_wc& wc, Completion* completion);
  void ForgetCompletions();
  // When it returned well nothing that was posted executes any more. To RESET, if need be.
  Status Quiesce();

  std::optional<uint16_t> send_slot_, recv_slot_;  // in their CQs, with room for its WRs
  bool failed_ = false;                            // in this life: something may be under way still
  Ring send_, recv_;
  std::vector<Sent> sent_;  // rings, of powers of two
  std::vector<uint64_t> received_;
  std::deque<uint64_t> flushes_;  // wr_ids of receives that were posted in ERR
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_QUEUE_H_
