#include "bench/peers/peer.h"

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

}  // namespace

std::vector<std::string> PeerNames() {
  std::vector<std::string> names;
  for (const Named& peer : kPeers) names.emplace_back(peer.name);
  return names;
}

krcore::Result<std::unique_ptr<Peer>> MakePeer(const std::string& name, const Shape& shape) {
  for (const Named& peer : kPeers) {
    if (name == peer.name) return peer.make(shape);
  }
  return krcore::Status(krcore::StatusCode::kInvalidArgument, "there is no peer \"" + name + "\"");
}

}  // namespace peers
