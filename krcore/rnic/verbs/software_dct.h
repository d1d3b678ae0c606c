// A DC target in software: the core's sdc_target over a UD queue, whose number is the DCT's. The device's agent
// (agent.h) drives it; receives and their completions pass between the agent and the thread that owns the CQ.
#ifndef KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_
#define KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "krcore/rnic/sdc/target.h"
#include "krcore/rnic/verbs/atomics.h"
#include "krcore/rnic/verbs/cq.h"
#include "krcore/rnic/verbs/regions.h"
#include "krcore/rnic/verbs/reply_handles.h"
#include "krcore/rnic/verbs/shared_device.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {

class SoftwareDct final : public Dct, public CompletionSource {
 public:
  // `regions` are those of `pd`.
  static Result<std::unique_ptr<Dct>> Create(SharedDevice* device, ibv_pd* pd, Regions* regions, const DctAttr& attr);
  ~SoftwareDct() override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  // Of the agent's thread. Serves some of what has come; false: nothing had.
  bool Serve();
  // Something does not work until a later Serve has repaired it.
  bool broken() const { return port_->broken() || atomics_->broken(); }
  // From now on the agent's channel is told of what comes.
  void Arm();

  // Any thread.
  const Regions* regions() const { return regions_; }
  const Atomics& atomics() const { return *atomics_; }

  // Of the CQ's thread.
  void Drive() override {}
  size_t Take(std::span<Completion> out) override;
  bool Awake() const override { return true; }  // the agent brings something at any time

 private:
  SoftwareDct(SharedDevice* device, Regions* regions, const DctAttr& attr);
  static const sdc_target_ops kOps;
  struct Incoming {
    UdPort::Datagram datagram;  // without a payload: none
    sdc_address from{};
  };
  Incoming Taken(const ibv_wc& wc);
  void Report(const Atomics::Result& result);
  void TakeStaged();
  void Received(const sdc_received& received);

  SharedDevice* const device_;
  Regions* const regions_;
  const DctAttr attr_;
  VerbsCq* const recv_cq_;  // null: it receives nothing
  ibv_cq* cq_ = nullptr;    // datagrams and atomics
  std::unique_ptr<UdPort> port_;
  std::unique_ptr<Atomics> atomics_;
  std::unique_ptr<ReplyHandles> handles_;
  bool attached_ = false, served_ = false;

  // The agent's.
  std::vector<sdc_session> sessions_;
  std::vector<sdc_recv> receives_;
  sdc_target target_{};
  sdc_target_stats counted_{};

  uint64_t outstanding_ = 0;  // of the CQ's thread: receives whose completions it has not got

  std::mutex mutex_;  // of what follows
  std::deque<sdc_recv> staged_;
  std::deque<Completion> completions_;
  // Hints, relaxed: who finds one false looks again later.
  std::atomic<bool> any_staged_{false}, any_completions_{false};
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_
