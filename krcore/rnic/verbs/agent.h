// The thread that serves the software DC's targets of a device. It sleeps on a completion channel while nothing comes.
#ifndef KRCORE_RNIC_VERBS_AGENT_H_
#define KRCORE_RNIC_VERBS_AGENT_H_

#include <infiniband/verbs.h>

#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "krcore/rnic/verbs/context.h"
#include "krcore/rnic/verbs/regions.h"
#include "krcore/rnic/verbs/socket.h"

namespace krcore::rnic::verbs {

class SoftwareDct;

// Thread safety: all methods may be called from any thread but its own.
class Agent {
 public:
  static Result<std::unique_ptr<Agent>> Start(Context* context);
  ~Agent();

  // For the CQs of its targets.
  ibv_comp_channel* channel() const { return channel_; }
  void Add(SoftwareDct* dct);
  // When it returns the agent does not use it any more.
  void Remove(SoftwareDct* dct);
  // Waits until no atomic that was handed over before is under way to the memory of these. They take no longer than the
  // protocol gives them, so neither does this.
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
  WriterFirstMutex mutex_;  // of the list, shared while its elements are used
  std::vector<SoftwareDct*> dcts_;
  // The thread's.
  bool stopped_ = false;
  bool broken_ = false;  // a target is, which no event will tell
  std::thread thread_;
};

// A device's agent, which is started when the first target needs it.
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

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_AGENT_H_
