// An RC or UD queue pair. Its rings remember what libibverbs' completions do not tell: the caller's wr_ids, and which
// unsignaled WRs a completion stands for.
#ifndef KRCORE_RNIC_VERBS_QP_H_
#define KRCORE_RNIC_VERBS_QP_H_

#include <infiniband/verbs.h>

#include <atomic>
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

class VerbsQp final : public Qp, public QueueEvents {
 public:
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);
  ~VerbsQp() override;

  QpType type() const override { return attr_.type; }
  QpState state() const override;
  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;
  Status ToErr() override;
  Status ToReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;
  void OnFatalError() override { fatal_.store(true, std::memory_order_release); }

  // For the CQs.
  bool IsOfThisLife(uint64_t token) const { return WrToken::Life(token) == (life_ & 0x7fff); }
  // False: there is nothing to tell the caller.
  bool Complete(const ibv_wc& wc, Completion* completion);
  size_t TakeFlushes(const VerbsCq* cq, std::span<Completion> out);

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
  static constexpr size_t kBatch = 32;

  VerbsQp(SharedDevice* device, uint32_t pd_index, const QpAttr& attr);
  Status WrongState(const char* wanted) const;
  Status Modify(ibv_qp_attr& attr, int mask, const char* wanted);
  bool Malformed(const SendWr& wr) const;
  // Posts them all, if the NIC takes them; how many it took.
  size_t PostBatch(std::span<const SendWr> wrs, Status* status);
  bool CompleteSend(const ibv_wc& wc, Completion* completion);
  bool CompleteRecv(const ibv_wc& wc, Completion* completion);
  void ForgetCompletions();
  // When it returns nothing that was posted executes any more. To RESET, if need be.
  void Quiesce();

  SharedDevice* const device_;
  const uint32_t pd_index_;
  const QpAttr attr_;
  VerbsCq* const send_cq_;
  VerbsCq* const recv_cq_;                         // null: it receives nothing
  std::optional<uint16_t> send_slot_, recv_slot_;  // in their CQs, with room for its WRs
  ibv_qp* qp_ = nullptr;
  mutable QpState state_ = QpState::kReset;
  // Release and acquire: set by the context's thread. A hint to ask the NIC, since it may be late.
  mutable std::atomic<bool> fatal_{false};
  uint16_t life_ = 0;
  bool failed_ = false;  // in this life: something may be under way still
  QpPeer peer_, last_peer_;
  uint32_t qkey_ = 0;
  Ring send_, recv_;
  std::vector<Sent> sent_;
  std::vector<uint64_t> received_;
  std::deque<uint64_t> flushes_;  // wr_ids of receives that were posted in ERR
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_QP_H_
