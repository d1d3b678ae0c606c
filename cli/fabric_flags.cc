#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "krcore/node.h"

DEFINE_string(fabric, "",
              "Name of the fabric, the same for every program that belongs together (letters, digits, _ and -)");
DEFINE_string(rnic, "sw", "RNIC provider; sw is the software RNIC over this host's shared memory");

namespace cli {
namespace {

constexpr size_t kMaxFabricName = 40;  // as krcore/rnic/registry.h has it

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
  if (std::find(providers.begin(), providers.end(), FLAGS_rnic) != providers.end()) return krcore::Status::Ok();
  std::string message = "--rnic=" + FLAGS_rnic + ": this build has";
  for (const std::string& provider : providers) message += " --rnic=" + provider;
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace cli
