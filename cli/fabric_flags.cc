#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "krcore/node.h"

DEFINE_string(fabric, "",
              "Name of the fabric, the same for every program that belongs together (letters, digits, _ and -)");
DEFINE_string(
    rnic, "sw",
    "RNIC provider: sw, the software RNIC over this host's shared memory; verbs, an RDMA device, or Soft-RoCE");
DEFINE_string(fabric_address, "",
              "--rnic=verbs: HOST, HOST:PORT or [HOST]:PORT of the fabric's membership service (PORT: 7480). The first "
              "memory node at HOST is it, and has to stay");
DEFINE_string(
    rnic_port, "",
    "--rnic=verbs: the NIC's port, DEVICE[:PORT[:GID_INDEX[:MTU]]], such as mlx5_0:1:3. What is left out is chosen: "
    "the first active port, and its GID of RoCE v2 and IPv4 before others");

namespace cli {
namespace {

constexpr size_t kMaxFabricName = 40;  // as krcore/rnic.h has it

constexpr char kOnANetwork[] = "verbs";  // the provider that has an address and ports

// Returns which fabrics there are, if the one that was named is not among them. Those of a network cannot be listed.
std::string OtherFabrics() {
  const auto fabrics = krcore::ListFabrics(FLAGS_rnic);
  if (FLAGS_rnic == kOnANetwork || !fabrics.ok() || std::ranges::find(*fabrics, FLAGS_fabric) != fabrics->end()) {
    return "";
  }
  if (fabrics->empty()) return "There is no other. ";
  std::string others;
  for (const std::string& fabric : *fabrics) others += (others.empty() ? "" : ", ") + fabric;
  return "Others that exist: " + others + ". ";
}

bool IsNameByte(unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; }

}  // namespace

krcore::Status CheckFabricFlags() {
  using krcore::StatusCode;
  if (FLAGS_fabric.empty()) {
    return {StatusCode::kInvalidArgument,
            "--fabric is missing: name the fabric to use, the same for all programs, for example --fabric=demo"};
  }
  if (FLAGS_fabric.size() > kMaxFabricName || !std::all_of(FLAGS_fabric.begin(), FLAGS_fabric.end(), IsNameByte)) {
    return {StatusCode::kInvalidArgument, "--fabric=" + FLAGS_fabric + ": a fabric's name is 1 to " +
                                              std::to_string(kMaxFabricName) + " letters, digits, _ or -"};
  }
  const std::vector<std::string> providers = krcore::RnicProviders();
  if (std::find(providers.begin(), providers.end(), FLAGS_rnic) == providers.end()) {
    std::string message = "--rnic=" + FLAGS_rnic + ": this build has";
    for (const std::string& provider : providers) message += " --rnic=" + provider;
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  if (FLAGS_rnic == kOnANetwork && FLAGS_fabric_address.empty()) {
    return {StatusCode::kInvalidArgument,
            "--fabric_address is missing: with --rnic=verbs name the host of the fabric's first memory node, the same "
            "for all programs, for example --fabric_address=10.0.0.1"};
  }
  for (const auto& [name, value] : {std::pair<const char*, const std::string&>{"fabric_address", FLAGS_fabric_address},
                                    {"rnic_port", FLAGS_rnic_port}}) {
    if (FLAGS_rnic == kOnANetwork || value.empty()) continue;
    return {StatusCode::kInvalidArgument, "--" + std::string(name) + "=" + value + ": only with --rnic=verbs"};
  }
  return krcore::Status::Ok();
}

std::string FabricFlags() {
  std::string flags = "--fabric=" + FLAGS_fabric;
  if (FLAGS_rnic == kOnANetwork) flags += " --rnic=" + FLAGS_rnic + " --fabric_address=" + FLAGS_fabric_address;
  return flags;
}

int FailToOpen(const krcore::Status& status) {
  // A name that is gone looks like one that never existed.
  const auto processes = krcore::ProcessesOfRemovedFabric(FLAGS_rnic, FLAGS_fabric);
  if (status == krcore::StatusCode::kNotFound && processes.ok() && !processes->empty()) {
    std::string message = "the name of fabric " + FLAGS_fabric + " is gone: its files were removed, while process";
    for (const int32_t pid : *processes) message += " " + std::to_string(pid);
    return Fail({status.code(), message + " goes on using it"},
                "No other program can reach it any more. Stop all of its programs, and start it anew.");
  }
  return Fail(status, "Is " + FabricFlags() + " right? " + OtherFabrics() + "A store is started by: memnode " +
                          FabricFlags() +
                          " --node=1 --memory=1G --metaserver. A memory node or metadata server that died is started "
                          "again with the flags that it had.");
}

}  // namespace cli
