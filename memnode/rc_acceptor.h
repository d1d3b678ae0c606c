// RcAcceptor: a thread that answers clients of the control planes "verbs" and "lite" (krcore/control_plane.h), whose RC
// connections need this side's CPU. Clients of krcore never need it.
//
// A NIC raises an event when a client asks for a connection. The software RNIC has none, so the thread has to look. How
// often is the user's choice: looking costs CPU, and saves the client that connects a wait. docs/operating.md
// describes both.
//
// Thread safety: create, destroy and ask from one thread.
#ifndef MEMNODE_RC_ACCEPTOR_H_
#define MEMNODE_RC_ACCEPTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/status.h"

namespace memnode {

// How often the thread looks for requests.
enum class RcAcceptorMode : uint8_t {
  kOff,    // none: RC connections are refused
  kSleep,  // continuously for 2 ms after a request; then ever less often, after two seconds every 20 ms
  kSpin,   // all the time: a core
};

class RcAcceptor {
 public:
  // Announces itself, and serves from now on. `node`, of krcore, must outlive this; `mode` is not kOff.
  static krcore::Result<std::unique_ptr<RcAcceptor>> Start(krcore::Node& node, RcAcceptorMode mode);
  // Ends within some milliseconds, and drops the connections.
  ~RcAcceptor();
  RcAcceptor(const RcAcceptor&) = delete;
  RcAcceptor& operator=(const RcAcceptor&) = delete;

  // Figures, which may be read at any time: requests answered, present connections, CPU time of the thread.
  uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  uint64_t connections() const { return connections_.load(std::memory_order_relaxed); }
  int64_t cpu_ns();

 private:
  RcAcceptor(std::unique_ptr<krcore::Acceptor> acceptor, RcAcceptorMode mode)
      : acceptor_(std::move(acceptor)), mode_(mode) {}
  void Run();
  void Sweep();

  const std::unique_ptr<krcore::Acceptor> acceptor_;  // used by the thread only
  const RcAcceptorMode mode_;
  std::atomic<bool> stop_{false};  // a request only; the join orders the rest
  // Figures only: nothing is published through them.
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> connections_{0};
  std::thread thread_;
};

}  // namespace memnode

#endif  // MEMNODE_RC_ACCEPTOR_H_
