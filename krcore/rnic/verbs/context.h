// A NIC as this process has opened it: the port, its asynchronous events, and what forked children must not keep.
#ifndef KRCORE_RNIC_VERBS_CONTEXT_H_
#define KRCORE_RNIC_VERBS_CONTEXT_H_

#include <atomic>
#include <memory>
#include <thread>

#include "krcore/rnic/fork_guard.h"
#include "krcore/rnic/rnic.h"
#include "krcore/rnic/verbs/convert.h"
#include "krcore/rnic/verbs/port.h"
#include "krcore/rnic/verbs/socket.h"

namespace krcore::rnic::verbs {

// What the NIC reports of a queue beside its completions. A queue that has a use for it gives its own to libibverbs as
// context.
struct QueueEvents {
  // Release and acquire: set by the context's thread. A hint to ask the NIC, since it may be late.
  std::atomic<bool> fatal{false};
};

class Context {
 public:
  // The NIC's descriptor, or a duplicate of it, gets above `floor` (member.h).
  static Result<std::unique_ptr<Context>> Open(const PortChoice& choice, int floor);
  ~Context();

  ibv_context* get() const { return port_.context.get(); }
  const Port& port() const { return port_; }
  PortAddress address() const;
  // The highest descriptor that keeps the NIC's context.
  int highest_descriptor() const;
  bool port_active() const { return port_active_.load(std::memory_order_relaxed); }  // as of the latest event

 private:
  Context(Port port, Socket stop, int duplicate);
  void Run();
  void Handle(const ibv_async_event& event);

  Port port_;
  const uint32_t generation_ = ForkGeneration();
  const Socket stop_;
  const int duplicate_;                  // of the NIC's descriptor; -1: none
  std::atomic<bool> port_active_{true};  // relaxed: a hint
  std::thread thread_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_CONTEXT_H_
