// The control planes behind the interface of krcore's queues: krcore itself, its pool inside the kernel, and what
// KRCORE is compared with:
//
//   "krcore"  Node::Open: a pool of pre-made DC initiators
//   "verbs"   what a plain program does: each worker opens a Node of its own (device, PD), makes a pool (CQ) and, for
//             each queue that it connects, an RC QP whose number it exchanges with the peer
//   "lite"    as LITE (SOSP'17): one RC connection to each peer, made at its first use and shared by all pools of the
//             Node. In LITE the kernel keeps them for all processes of a host; here they end with their process
//
//   "kernel"  the module krcore.ko (kmod/README.md): all processes of the host share its RC connections and what is
//             known of peers. Memory nodes use "kernel", too, and NodeOptions::rnic is ignored; the module's nodes and
//             those of rnic's fabrics do not see each other
//
// The rest is about "verbs" and "lite". An RC connection needs the peer's CPU, which makes the other QP, so peers run
// an Acceptor. Memory nodes are nodes of krcore; a Node of "verbs" or "lite" is a client. It has local regions only and
// hosts no metadata server; its queues have no messages (kUnsupported) and no leases on remote regions. A broken
// connection is not repaired: Connect again. After an error completion nothing that was posted on the connection
// executes any more.
#ifndef KRCORE_CONTROL_PLANE_H_
#define KRCORE_CONTROL_PLANE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/fork.h"
#include "krcore/node.h"
#include "krcore/status.h"

namespace krcore {

std::vector<std::string> ControlPlanes();

// Steps of opening and connecting with "verbs" and "lite", in their order.
enum class ConnectStep {
  kContext,    // OpenNode: the device
  kPd,         // ... its protection domain
  kDatagrams,  // ... a UD QP for the exchange, which stands for the kernel's connection manager
  kCq,         // CreateQueuePool; "lite": the first Connect to a peer
  kQp,         // Connect: create the RC QP, RESET to INIT
  kExchange,   // ... ask the peer, which makes its QP, and wait for its answer
  kStates,     // ... INIT to RTR to RTS
};
inline constexpr size_t kConnectSteps = 7;
std::string_view ConnectStepName(ConnectStep step);

// As Node::Open, for the control plane of this name; kInvalidArgument: there is none. `done`, if given, is called at
// the end of each step, for measurements, in the thread that calls OpenNode, CreateQueuePool or Connect.
Result<std::unique_ptr<Node>> OpenNode(std::string_view control_plane, const NodeOptions& options,
                                       std::function<void(ConnectStep)> done = {});

// Answers RC connection requests to a node that Node::Open made, and owns this side's QPs. They go when the requester
// says so, or is found dead. It tells requesters the regions that the node has published. For one thread at a time.
class Acceptor : public OfOneProcess {
 public:
  // Announces itself in the fabric's records. A node has one Acceptor and must outlive it.
  static Result<std::unique_ptr<Acceptor>> Create(Node& node);
  // Answers the requests that have arrived; returns how many. Does not block; call it repeatedly.
  virtual size_t Serve() = 0;
  // Drops the connections of clients that are confirmed dead; returns how many. Asks the fabric once for each client:
  // once a second is enough. Serve does it too, every 128 connections.
  virtual size_t Sweep() = 0;
  // Announces itself again if the fabric has forgotten it, as it forgets a node that could not be reached for long.
  // Asks the fabric: once a second is enough.
  virtual Status Renew() = 0;
  virtual size_t connections() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_CONTROL_PLANE_H_
