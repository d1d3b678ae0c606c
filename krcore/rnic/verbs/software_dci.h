// A DC initiator in software: the core's sdc_initiator over a UD queue. Posting and polling drive it, so it needs no
// thread. If nobody polls, what was posted is not repeated when it gets lost.
#ifndef KRCORE_RNIC_VERBS_SOFTWARE_DCI_H_
#define KRCORE_RNIC_VERBS_SOFTWARE_DCI_H_

#include <infiniband/verbs.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/verbs/device.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/qp.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {

class SoftwareDci final : public Qp, public CompletionSource {
 public:
  // `regions` belong to `pd`, which has `pd_index` among the address handles.
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, Regions* regions,
                                            const QpAttr& attr);
  ~SoftwareDci() override;

  QpType type() const override { return QpType::kDci; }
  QpState state() const override;
  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;
  Status ToErr() override;
  // Takes a round trip to each target that has something of it; if targets do not answer, until the requests to them
  // have expired. Other initiators of the CQ are driven meanwhile.
  Status ToReset() override;
  bool BeginReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  void Drive() override;
  size_t Take(std::span<Completion> out) override;
  bool Awake() const override { return !idle() || core_.polled != core_.done; }

 private:
  struct Sent {
    uint64_t wr_id;
    bool signaled;
    bool lost;  // the CQ was full
  };
  SoftwareDci(SharedDevice* device, uint32_t pd_index, Regions* regions, const QpAttr& attr);
  static const sdc_initiator_ops kOps;
  void Fill(const SendWr& wr, sdc_wr* filled);
  void Hold(const std::shared_ptr<PortHandles>& handles);
  Status Move(QpState from, QpState to);
  void Run(bool posted);
  bool idle() const { return core_.done == core_.posted && core_.closing == 0; }
  void ForgetCompletions();
  Sent& SentAt(uint64_t position) { return sent_[position & (sent_.size() - 1)]; }

  SharedDevice* const device_;
  const uint32_t pd_index_;
  Regions* const regions_;
  const QpAttr attr_;
  VerbsCq* const send_cq_;
  ibv_cq* recv_cq_ = nullptr;  // for the answers
  std::unique_ptr<UdPort> port_;
  QpState state_ = QpState::kReset;
  std::vector<sdc_queued_wr> wrs_;
  std::vector<sdc_peer> peers_;
  sdc_initiator core_{};
  sdc_initiator_stats counted_{};
  // The handles that the core's addresses name, and a bounded number more.
  std::unordered_map<const PortHandles*, std::shared_ptr<PortHandles>> held_;
  const PortHandles* held_last_ = nullptr;
  bool starved_ = false;  // the core found no buffer
  uint32_t quiet_polls_ = 0;
  uint64_t next_ns_ = 0;  // when there is something to do
  // By position, from 0, in a ring whose size is a power of two. A slot of the send queue becomes free when its
  // completion, or a later one, is taken.
  std::vector<Sent> sent_;
  uint64_t posted_ = 0, taken_ = 0;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SOFTWARE_DCI_H_
