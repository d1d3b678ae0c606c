// A DC target in software, the part that executes its atomics, and the thread that serves all targets of a device.
#ifndef KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_
#define KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "krcore/rnic/sdc/target.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/qp.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {

struct SharedDevice;
class SoftwareDct;

// The atomics of a software DC target. An RC queue that is connected to itself executes them, because the device is
// atomic only against itself, and the CPU is not at all. A queue that broke is destroyed, so that nothing of it is
// executed any more; the atomics that it had fail, and another queue is made.
//
// Thread safety: one thread at a time, except for the counts.
class Atomics {
 public:
  struct Result {
    sdc_token token;
    sdc_status status;
    uint64_t before;  // on success: the old word
  };
  static constexpr uint64_t kAtomic = uint64_t{1} << 62;  // in wr_ids

  // `cq` has room for `depth` completions, and is polled by the caller.
  static krcore::Result<std::unique_ptr<Atomics>> Create(Context* context, ibv_pd* pd, ibv_cq* cq, uint32_t depth);
  ~Atomics();
  Atomics(const Atomics&) = delete;
  Atomics& operator=(const Atomics&) = delete;

  // False: there is no room now, and nothing was handed over.
  bool Post(const sdc_atomic_request& request);
  // Returns the result in a completion of the CQ whose wr_id has kAtomic, in posting order. Empty: perhaps a failure.
  std::optional<Result> Completed(const ibv_wc& wc);
  // Call after a failure: returns the pending atomics as failed, and makes a new queue. If that is broken, call again.
  std::vector<Result> Repair();

  // Any thread: how many were handed over, and how many are done. Release and acquire: a thread that sees an atomic
  // done may free its memory.
  uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  bool broken() const { return broken_ || events_.fatal.load(std::memory_order_acquire); }

 private:
  Atomics(Context* context, ibv_pd* pd, ibv_cq* cq, uint32_t depth)
      : context_(context), pd_(pd), cq_(cq), depth_(depth), tokens_(depth) {}
  Status MakeQueue();
  Status Connect();
  const uint64_t* words() const { return reinterpret_cast<const uint64_t*>(pages_->data()); }

  Context* const context_;
  ibv_pd* const pd_;
  ibv_cq* const cq_;
  const uint32_t depth_;
  std::vector<sdc_token> tokens_;
  std::unique_ptr<RegisteredPages> pages_;  // the results, by position
  ibv_qp* qp_ = nullptr;
  std::atomic<uint64_t> posted_{0}, done_{0};
  uint64_t repairs_ = 0;
  bool broken_ = false;
  bool refused_ = false;  // the failed one was certainly not executed, nor any after it
  QueueEvents events_;
};

// The thread that serves a device's software DC targets. It sleeps on a completion channel while nothing arrives.
//
// Thread safety: any thread except its own may call all methods.
class Agent {
 public:
  static Result<std::unique_ptr<Agent>> Start(Context* context);
  ~Agent();

  // For the CQs of its targets.
  ibv_comp_channel* channel() const { return channel_; }
  void Add(SoftwareDct* dct);
  // When it returns, the agent does not use the target any more.
  void Remove(SoftwareDct* dct);
  // Waits until no atomic that was handed over before is in flight to the memory of these regions. Atomics take no
  // longer than the protocol allows, so neither does this.
  void AwaitAtomics(const Regions* regions);
  // CPU time of the thread so far.
  int64_t CpuNs() const;

 private:
  Agent(ibv_comp_channel* channel, Socket stop);
  void Run();
  bool ServeAll();
  void ArmAll();
  void Sleep();

  ibv_comp_channel* const channel_;
  const Socket stop_;
  WriterFirstMutex mutex_;  // guards the list; shared while its elements are used
  std::vector<SoftwareDct*> dcts_;
  // The thread's own.
  bool stopped_ = false;
  bool broken_ = false;  // a target is broken, which no event will tell
  std::thread thread_;
};

// A device's agent, started when the first target needs it.
// Thread safety: all methods may be called from any thread.
class AgentSlot {
 public:
  Result<Agent*> Get(Context* context);
  Agent* made() {  // null: none was needed yet
    const std::lock_guard lock(mutex_);
    return agent_.get();
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Agent> agent_;
};

// A DC target in software: the core's sdc_target over a UD queue, whose number is the DCT's. The device's agent
// drives it; receives and their completions pass between the agent and the thread that owns the CQ.
class SoftwareDct final : public Dct, public CompletionSource {
 public:
  // `regions` belong to `pd`.
  static Result<std::unique_ptr<Dct>> Create(SharedDevice* device, ibv_pd* pd, Regions* regions, const DctAttr& attr);
  ~SoftwareDct() override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  // For the agent's thread. Serves some of what has arrived; false: nothing had.
  bool Serve();
  // Something does not work until a later Serve repairs it.
  bool broken() const { return port_->broken() || atomics_->broken(); }
  // From now on the agent's channel learns of arrivals.
  void Arm();

  // For any thread.
  const Regions* regions() const { return regions_; }
  const Atomics& atomics() const { return *atomics_; }

  // For the CQ's thread.
  void Drive() override {}
  size_t Take(std::span<Completion> out) override;
  bool Awake() const override { return true; }  // the agent may bring something at any time

 private:
  SoftwareDct(SharedDevice* device, Regions* regions, const DctAttr& attr);
  static const sdc_target_ops kOps;
  struct Incoming {
    UdPort::Datagram datagram;  // no payload: empty
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

  // The agent's own.
  std::vector<sdc_session> sessions_;
  std::vector<sdc_recv> receives_;
  sdc_target target_{};
  sdc_target_stats counted_{};

  uint64_t outstanding_ = 0;  // the CQ's thread's: receives whose completions it has not got

  std::mutex mutex_;  // guards what follows
  std::deque<sdc_recv> staged_;
  std::deque<Completion> completions_;
  // Hints, relaxed: a thread that finds one false looks again later.
  std::atomic<bool> any_staged_{false}, any_completions_{false};
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SOFTWARE_DCT_H_
