// Queue pairs, and the completion and receive queues that they use.
#ifndef KRCORE_RNIC_SIM_QP_H_
#define KRCORE_RNIC_SIM_QP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/engine.h"
#include "krcore/rnic/sim/fabric.h"

namespace krcore::rnic::sim {

class SimCq final : public Cq {
 public:
  SimCq(Engine* engine, DeviceState* device, uint32_t depth) : engine_(engine), device_(device), depth_(depth) {}
  ~SimCq() override { device_->unpolled -= entries_.size(); }
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  // For a send queue: polling the completion frees the queue's slots up to `position`. For a receive: counters is null.
  void Push(const Completion& completion, SendCounters* counters, uint64_t position);
  // Drops what a destroyed queue left, as verbs providers do.
  void Forget(uint32_t qp_num, const SendCounters* counters);

 private:
  struct Entry {
    Completion completion;
    SendCounters* counters;
    uint64_t position;
  };
  // Polls in a row that find nothing while nothing happens in the World. A loop that only polls a Cq would never end,
  // so after this many the next event is executed.
  static constexpr uint32_t kIdlePolls = 4096;

  bool Nudge();

  Engine* const engine_;
  DeviceState* const device_;
  const uint32_t depth_;
  std::deque<Entry> entries_;
  bool overrun_ = false;
  uint32_t idle_polls_ = 0;
  uint64_t seen_events_ = 0;
  int64_t seen_ns_ = 0;
};

// Whether [sge.addr, sge.addr + length) lies in an MR of `pd`, with local write right if `written`.
bool LocalRange(const DeviceState& device, uint32_t pd, const Sge& sge, bool written);

struct Message : Arrival {
  std::span<const std::byte> bytes;  // kWriteImm: none
};

// Receiver: the receive queue of a Qp or Dct. A message that executes goes straight into the next posted receive.
class Receiver {
 public:
  struct Options {
    EntryType type = EntryType::kRc;
    uint32_t number = 0;
    uint32_t pd = 0;
    SimCq* cq = nullptr;
    uint32_t depth = 0;
    uint32_t max_bytes = 0;
  };
  Receiver(DeviceState* device, const Options& options) : device_(device), options_(options) {}
  ~Receiver() { options_.cq->Forget(options_.number, nullptr); }

  // kQueueFull, kInvalidArgument.
  Status Post(std::span<const RecvWr> wrs, size_t* bad_index);
  bool empty() const { return posted_.empty(); }
  // Returns kSuccess, or what the sender is told. `*broken`: the receive itself failed, which breaks an RC queue.
  WcStatus Deliver(const Message& message, bool* broken);
  // Completes every receive as flushed.
  void Flush();
  // Drops all receives.
  void Reset();

 private:
  struct Posted {
    uint64_t wr_id = 0;
    std::vector<Sge> sges;
  };
  void Complete(const Posted& recv, WcStatus status, const Arrival& arrival);

  DeviceState* const device_;
  const Options options_;
  std::deque<Posted> posted_;
};

// Queue pair: the verbs' state machine and the accounting of its send queue.
class SimQp final : public Qp {
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

  // Of its SendQueue. Called in posting order, but not for an unsignaled success.
  void SendCompleted(const Verb& verb, WcStatus status);
  // A verb failed, which has been reported already; the rest is flushed when this returns.
  void SendFailed() { (void)ToErr(); }
  // A receive failed, which breaks the Qp.
  void ReceiveFailed() { (void)ToErr(); }
  // Its process was killed: the caller sees everything flushed; verbs that have left linger until `until_ns`.
  std::unique_ptr<SendQueue> Die(int64_t until_ns);
  SendQueue& send_queue() { return *queue_; }

 private:
  SimQp(Fabric* fabric, DeviceState* device, const QpAttr& attr, uint32_t pd, uint32_t number);
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
  uint64_t last_write_ = 0;             // counters_.posted at the last WRITE, atomic or message
  bool doubtful_ = false;               // one of them had not completed when the queue broke
  int64_t reset_due_ns_ = 0;            // when the reset in progress may end; 0: none has begun
  std::unique_ptr<Receiver> receiver_;  // null: the queue receives nothing
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_QP_H_
