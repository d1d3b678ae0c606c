// Queue pair: the verbs' state machine and the accounting of its send queue.
#ifndef KRCORE_RNIC_SIM_QP_H_
#define KRCORE_RNIC_SIM_QP_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/cq.h"
#include "krcore/rnic/sim/fabric.h"
#include "krcore/rnic/sim/receiver.h"

namespace krcore::rnic::sim {

class SimQp final : public Qp, private SendQueueOwner {
 public:
  static Result<std::unique_ptr<Qp>> Create(Fabric* fabric, DeviceState* device, const QpAttr& attr, uint32_t pd);
  ~SimQp() override;
  QpType type() const override { return attr_.type; }
  QpState state() const override { return state_; }
  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;
  Status ToErr() override;
  Status ToReset() override;
  bool BeginReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  // A receive failed, which breaks the Qp.
  void ReceiveFailed() { (void)ToErr(); }
  // The process that owns it was killed: the caller sees everything flushed, what has left lingers until `until_ns`.
  std::unique_ptr<SendQueue> Die(int64_t until_ns);
  SendQueue& send_queue() { return *queue_; }

 private:
  SimQp(Fabric* fabric, DeviceState* device, const QpAttr& attr, uint32_t pd, uint32_t number);
  void SendCompleted(const Verb& verb, WcStatus status) override;
  void SendFailed() override;
  Status CheckAlive() const;
  void SetState(QpState state);
  void PushCompletion(uint64_t wr_id, Opcode opcode, WcStatus status, uint64_t position);

  Fabric* const fabric_;
  Engine* const engine_;
  DeviceState* const device_;
  const QpAttr attr_;
  SimCq* const send_cq_;
  QpState state_ = QpState::kReset;
  SendCounters counters_;
  std::unique_ptr<SendQueue> queue_;    // null: the process is dead
  uint64_t last_write_ = 0;             // or atomic or message: counters_.posted with it
  bool doubtful_ = false;               // one of them had not completed when the queue broke
  int64_t reset_due_ns_ = 0;            // when the reset that has begun may end; 0: none has
  std::unique_ptr<Receiver> receiver_;  // null: the queue receives nothing
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_QP_H_
