// Queue pair: the verbs' state machine and the accounting of its send queue around a Requester.
#ifndef KRCORE_RNIC_SW_QP_H_
#define KRCORE_RNIC_SW_QP_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/cq.h"
#include "krcore/rnic/sw/host_qp.h"
#include "krcore/rnic/sw/receiver.h"
#include "krcore/rnic/sw/requester.h"
#include "krcore/rnic/sw/shared_device.h"

namespace krcore::rnic::sw {

class SwQp final : public Qp, private Receiver::Owner {
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
  void ReceiveFailed() override { (void)ToErr(); }
  void SetState(QpState state);
  // The next WRs are done. Those that succeeded are counted, and what is signaled of them completes.
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
