// The control planes behind the interface of krcore's queues: krcore itself, its pool inside the kernel, and what
// KRCORE is compared with:
//
//   "krcore"  Node::Open: a pool of pre-made DC initiators
//   "verbs"   what a plain program does: each worker opens a Node of its own (device, PD), makes a pool (CQ) and, for
//             each queue that it connects, an RC QP whose number it exchanges with the peer
//   "lite"    as LITE (SOSP'17): one RC connection to each peer, made at its first use, which all pools of the Node
//             share. In LITE the kernel keeps them, for all processes of a host; here they go with their process
//
//   "kernel"  the module krcore.ko: its RC connections are shared by all processes of the host, and what is known of
//             peers as well (kmod/README.md). Memory nodes are of "kernel", too, and rnic means nothing; neither rnic's
//             fabrics nor its nodes are to be seen from there, nor the other way round
//
// What follows is of "verbs" and "lite". An RC connection needs the peer's CPU, which makes the other QP: peers run an
// Acceptor. Memory nodes are nodes of krcore; a Node of "verbs" or "lite" is a client. It has local regions only and
// hosts no metadata server; its queues have no messages (kUnsupported), no leases on remote regions, and a broken
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

// Parts of opening and connecting with "verbs" and "lite", in their order.
enum class ConnectStep {
  kContext,    // OpenNode: the device
  kPd,         // ... its protection domain
  kDatagrams,  // ... a UD QP for the exchange, which stands for the kernel's connection manager
  kCq,         // CreateQueuePool; "lite": the first Connect to a peer
  kQp,         // Connect: create the RC QP, RESET to INIT
  kExchange,   // ... ask the peer, who makes his QP, and wait for his answer
  kStates,     // ... INIT to RTR to RTS
};
inline constexpr size_t kConnectSteps = 7;
std::string_view ConnectStepName(ConnectStep step);

// As Node::Open, by the name of a control plane; kInvalidArgument: no such one. `done`, if given, is called at the end
// of each step, for measurements, in the thread that calls OpenNode, CreateQueuePool or Connect.
Result<std::unique_ptr<Node>> OpenNode(std::string_view control_plane, const NodeOptions& options,
                                       std::function<void(ConnectStep)> done = {});

// Answers RC connection requests to a node that Node::Open made, and owns this side's QPs. They go when the requester
// says so, or is found dead. It tells requesters the regions that the node has published. For one thread at a time.
class Acceptor : public OfOneProcess {
 public:
  // Announces itself in the fabric's records. One for a node, which must outlive it.
  static Result<std::unique_ptr<Acceptor>> Create(Node& node);
  // Answers what has come; returns how many requests. Does not block: to be called again and again.
  virtual size_t Serve() = 0;
  // Drops the connections of clients that are confirmed dead; returns how many. Asks the fabric once for each client:
  // once a second is enough. Serve does it too, every 128 connections.
  virtual size_t Sweep() = 0;
  // Announces itself again if the fabric has forgotten it, as one does whose node could not be reached for long. Asks
  // the fabric: once a second is enough.
  virtual Status Renew() = 0;
  virtual size_t connections() const = 0;
};

}  // namespace krcore

#endif  // KRCORE_CONTROL_PLANE_H_
