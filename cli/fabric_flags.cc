#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "krcore/node.h"

DEFINE_string(fabric, "",
              "Name of the fabric: 1 to 40 letters, digits, _ or -. All programs with the same name belong together");
DEFINE_string(rnic, "sw",
              "The NIC. sw: a software NIC over this host's shared memory. verbs: an RDMA device or Soft-RoCE");
DEFINE_string(fabric_address, "",
              "With --rnic=verbs: the address of the fabric's membership service, as HOST, HOST:PORT or [HOST]:PORT. "
              "The default PORT is 7480. The first memory node on HOST runs the service, and must stay up");
DEFINE_string(
    rnic_port, "",
    "With --rnic=verbs: the port of the NIC, as DEVICE[:PORT[:GID_INDEX[:MTU]]], such as mlx5_0:1:3. Default: the "
    "first active port, and its GID of RoCE v2 for IPv4, if it has one");

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
  if (fabrics->empty()) return "There is no other fabric. ";
  std::string others;
  for (const std::string& fabric : *fabrics) others += (others.empty() ? "" : ", ") + fabric;
  return "Other fabrics that exist: " + others + ". ";
}

bool IsNameByte(unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; }

}  // namespace

krcore::Status CheckFabricFlags() {
  using krcore::StatusCode;
  if (FLAGS_fabric.empty()) {
    return {StatusCode::kInvalidArgument,
            "--fabric is missing: give the name of the fabric, for example --fabric=demo"};
  }
  if (FLAGS_fabric.size() > kMaxFabricName || !std::all_of(FLAGS_fabric.begin(), FLAGS_fabric.end(), IsNameByte)) {
    return {StatusCode::kInvalidArgument, "--fabric=" + FLAGS_fabric + ": the name of a fabric has 1 to " +
                                              std::to_string(kMaxFabricName) + " letters, digits, _ or -"};
  }
  const std::vector<std::string> providers = krcore::RnicProviders();
  if (std::find(providers.begin(), providers.end(), FLAGS_rnic) == providers.end()) {
    std::string message = "--rnic=" + FLAGS_rnic + ": this build supports";
    for (const std::string& provider : providers) message += " --rnic=" + provider;
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  if (FLAGS_rnic == kOnANetwork && FLAGS_fabric_address.empty()) {
    return {StatusCode::kInvalidArgument,
            "--fabric_address is missing: with --rnic=verbs, give every program the host of the fabric's first memory "
            "node, for example --fabric_address=10.0.0.1"};
  }
  for (const auto& [name, value] : {std::pair<const char*, const std::string&>{"fabric_address", FLAGS_fabric_address},
                                    {"rnic_port", FLAGS_rnic_port}}) {
    if (FLAGS_rnic == kOnANetwork || value.empty()) continue;
    return {StatusCode::kInvalidArgument, "--" + std::string(name) + "=" + value + ": this flag needs --rnic=verbs"};
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
    std::string message = "the files of fabric " + FLAGS_fabric + " were removed while it was in use by process";
    for (const int32_t pid : *processes) message += " " + std::to_string(pid);
    return Fail({status.code(), message},
                "No other program can reach this fabric any more. Stop all of its programs, and start them again.");
  }
  return Fail(status, "Is " + FabricFlags() + " right? " + OtherFabrics() + "To start a store: memnode " +
                          FabricFlags() +
                          " --node=1 --memory=1G --metaserver. If a memory node or a metadata server died, start it "
                          "again with the same flags.");
}

}  // namespace cli
