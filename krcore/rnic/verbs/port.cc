#include "krcore/rnic/verbs/port.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "krcore/rnic/verbs/convert.h"

namespace krcore::rnic::verbs {
namespace {

struct DeviceListDeleter {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};

bool ParseByte(const std::string& text, uint8_t* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end && !text.empty();
}

int GidScore(const ibv_gid_entry& entry) {
  static constexpr std::array<uint8_t, 12> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool ipv4 = std::memcmp(entry.gid.raw, kIpv4Prefix.data(), kIpv4Prefix.size()) == 0;
  const bool link_local = entry.gid.raw[0] == 0xfe && (entry.gid.raw[1] & 0xc0) == 0x80;
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0) + (ipv4 ? 2 : link_local ? 0 : 1);
}

int Bytes(ibv_mtu mtu) { return 128 << mtu; }  // IBV_MTU_256 is 1

bool ParseMtu(const std::string& text, std::optional<ibv_mtu>* mtu) {
  for (const ibv_mtu known : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (text == std::to_string(Bytes(known))) *mtu = known;
  }
  return mtu->has_value();
}

// False: no GID fits.
bool ChooseGid(ibv_context* context, const PortChoice& choice, Port* port) {
  int best = -1;
  for (int index = 0; index < std::min(port->attr.gid_tbl_len, 256); ++index) {
    if (choice.gid_index && *choice.gid_index != index) continue;
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port->number, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    if (GidScore(entry) <= best) continue;
    best = GidScore(entry);
    port->gid_index = static_cast<uint8_t>(index);
    port->gid = entry.gid;
  }
  return best >= 0;
}

}  // namespace

Result<PortChoice> ParsePortChoice(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  PortChoice choice{parts[0], {}, {}, {}};
  uint8_t value = 0;
  bool valid = parts.size() <= 4 && (parts.size() == 1 || !parts[0].empty());
  if (valid && parts.size() > 1 && (valid = ParseByte(parts[1], &value) && value > 0)) choice.port = value;
  if (valid && parts.size() > 2 && (valid = ParseByte(parts[2], &value))) choice.gid_index = value;
  if (valid && parts.size() > 3) valid = ParseMtu(parts[3], &choice.mtu);
  if (valid) return choice;
  return Status(StatusCode::kInvalidArgument,
                "'" + text +
                    "' names no port of an RDMA device: say device, device:port, device:port:gid_index or "
                    "device:port:gid_index:mtu, such as rxe0:1:1 or rxe0:1:1:1024");
}

Result<Port> OpenPort(const PortChoice& choice) {
  int count = 0;
  const std::unique_ptr<ibv_device*, DeviceListDeleter> list(ibv_get_device_list(&count));
  std::string seen;
  for (int i = 0; list != nullptr && i < count; ++i) {
    ibv_device* const device = list.get()[i];
    const std::string name = ibv_get_device_name(device);
    Port port;
    port.context.reset(ibv_open_device(device));
    if (port.context == nullptr || ibv_query_device(port.context.get(), &port.device) != 0) {
      seen += "\n  " + name + ": cannot be opened: " + std::strerror(errno);
      continue;
    }
    for (unsigned int number = 1; number <= port.device.phys_port_cnt; ++number) {
      port.number = static_cast<uint8_t>(number);
      port.name = name + ":" + std::to_string(number);
      if (ibv_query_port(port.context.get(), port.number, &port.attr) != 0) continue;
      const bool wanted = (choice.device.empty() || choice.device == name) && choice.port.value_or(number) == number;
      const bool active = port.attr.state == IBV_PORT_ACTIVE;
      const bool fits = choice.mtu.value_or(port.attr.active_mtu) <= port.attr.active_mtu;
      if (wanted && active && fits && ChooseGid(port.context.get(), choice, &port)) {
        port.attr.active_mtu = choice.mtu.value_or(port.attr.active_mtu);
        return port;
      }
      seen += "\n  " + port.name + ": " + ibv_port_state_str(port.attr.state) + ", MTU " +
              std::to_string(Bytes(port.attr.active_mtu)) + (wanted && active && fits ? ", no such GID" : "");
    }
  }
  const std::string what = choice.device.empty() ? "no RDMA device with an active port"
                           : choice.port ? "no active port " + choice.device + ":" + std::to_string(*choice.port)
                                         : "no RDMA device " + choice.device + " with an active port";
  const std::string mtu = choice.mtu ? " of MTU " + std::to_string(Bytes(*choice.mtu)) + " or more" : "";
  return Status(StatusCode::kUnavailable,
                what + mtu + (seen.empty() ? "; this machine has no RDMA device" : "; it has:" + seen));
}

}  // namespace krcore::rnic::verbs
