// Which port of which NIC a Device is.
#ifndef KRCORE_RNIC_VERBS_PORT_H_
#define KRCORE_RNIC_VERBS_PORT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "krcore/status.h"

namespace krcore::rnic::verbs {

// "device[:port[:gid_index[:mtu]]]"; what is left out is chosen.
struct PortChoice {
  std::string device;           // empty: any
  std::optional<uint8_t> port;  // from 1
  std::optional<uint8_t> gid_index;
  std::optional<ibv_mtu> mtu;
};
Result<PortChoice> ParsePortChoice(const std::string& text);

struct ContextDeleter {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
using ContextPtr = std::unique_ptr<ibv_context, ContextDeleter>;

struct Port {
  ContextPtr context;
  std::string name;  // "rxe0:1"
  uint8_t number = 0;
  uint8_t gid_index = 0;
  ibv_gid gid{};
  ibv_port_attr attr{};  // active_mtu: what is used
  ibv_device_attr device{};
};
// The first active port that fits, of its GIDs a routable one (RoCE v2 before others, IPv4 before IPv6 before
// link-local), and its MTU. kUnavailable: there is none; the message lists the devices that there are, with the states
// and MTUs of their ports.
Result<Port> OpenPort(const PortChoice& choice);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_PORT_H_
