#include "bench/peers/peer.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace peers {
namespace {

struct Named {
  const char* name;
  krcore::Result<std::unique_ptr<Peer>> (*make)(const Shape& shape);
};

constexpr Named kPeers[] = {
    {"surgekv", MakeSurgekv}, {"bound", MakeBareBound},     {"bound-unsafe", MakeBareBoundUnsafe},
    {"tbb", MakeTbb},         {"absl", MakeAbsl},           {"boost", MakeBoost},
    {"lmdb", MakeLmdb},       {"memcached", MakeMemcached}, {"redis", MakeRedis}};

// "surgekv@4" is SurgeKV over four memory nodes. 0: something else.
uint32_t MemoryNodesOf(const std::string& name) {
  constexpr std::string_view kPrefix = "surgekv@";
  const std::string_view number = std::string_view(name).substr(std::min(kPrefix.size(), name.size()));
  if (name.compare(0, kPrefix.size(), kPrefix) != 0 || number.size() != 1) return 0;
  return number[0] >= '2' && number[0] <= '8' ? static_cast<uint32_t>(number[0] - '0') : 0;
}

// SurgeKV with other flags of its memory nodes.
constexpr Named kVariants[] = {
    {"surgekv-sized", MakeSurgekvSized},
    {"surgekv-r1", [](const Shape& shape) { return MakeSurgekvMirrored(1, false, shape); }},
    {"surgekv-r2", [](const Shape& shape) { return MakeSurgekvMirrored(2, false, shape); }},
    {"surgekv-r3", [](const Shape& shape) { return MakeSurgekvMirrored(3, false, shape); }},
    {"surgekv-r2-learner", [](const Shape& shape) { return MakeSurgekvMirrored(2, true, shape); }}};

}  // namespace

std::vector<std::string> PeerNames() {
  std::vector<std::string> names;
  for (const Named& peer : kPeers) names.emplace_back(peer.name);
  return names;
}

bool IsPeer(const std::string& name) {
  const auto has_it = [&](const Named& peer) { return name == peer.name; };
  return MemoryNodesOf(name) > 1 || std::ranges::any_of(kPeers, has_it) || std::ranges::any_of(kVariants, has_it);
}

krcore::Result<std::unique_ptr<Peer>> MakePeer(const std::string& name, const Shape& shape) {
  if (const uint32_t nodes = MemoryNodesOf(name); nodes > 1) return MakeSurgekvOver(nodes, shape);
  for (const std::span<const Named> all : {std::span<const Named>(kPeers), std::span<const Named>(kVariants)}) {
    const auto peer = std::ranges::find_if(all, [&](const Named& each) { return name == each.name; });
    if (peer != all.end()) return peer->make(shape);
  }
  return krcore::Status(krcore::StatusCode::kInvalidArgument, "there is no peer \"" + name + "\"");
}

}  // namespace peers
