#include "tests/sim/memory_nodes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvs/memory/join.h"
#include "kvs/memory/views.h"
#include "tests/kvs/mirrored_store.h"

namespace surgekv_sim {

using krcore::Deadline;
using krcore::NodeId;
using krcore::Status;

namespace {

constexpr int64_t kPatienceNs = 10'000'000'000;
constexpr uint32_t kMetaRecords = 64;

Status Failed(const std::string& what, const Status& status) {
  return {status.code(), what + ": " + status.ToString()};
}

}  // namespace

krcore::Result<std::unique_ptr<krcore::Node>> MemoryNodes::Open(NodeId id, bool first) const {
  krcore::NodeOptions options;
  options.rnic = "sim";
  options.fabric = options_.fabric;
  options.node = id;
  options.create_fabric = first;
  options.clock = &world_.clock();
  options.rc_peers = options_.rc_peers;
  return krcore::Node::Open(options);
}

krcore::Result<std::unique_ptr<krcore::Region>> MemoryNodes::MakeRegion(krcore::Node& node, size_t bytes) {
  return node.CreateRegion(kvs::PoolRegion(bytes));
}

Status MemoryNodes::Start(const MemoryNodesOptions& options) {
  options_ = options;
  if (mirrored()) {
    auto observer = Open(kObserver, true);
    if (!observer.ok()) return Failed("the node of the metadata server", observer.status());
    observer_ = std::move(*observer);
    KRCORE_RETURN_IF_ERROR(observer_->HostMetaServer(kMetaRecords));
  }
  std::vector<std::vector<surgekv_test::MirrorNode>> chains;
  for (NodeId pool = 1; pool <= options.pools; ++pool) {
    chains.emplace_back();
    for (uint32_t replica = 0; replica < options.replicas; ++replica) {
      const bool first = pool == 1 && !mirrored();
      auto node = Open(NodeOf(pool, replica), first);
      if (!node.ok()) return Failed("a memory node", node.status());
      auto memory = MakeRegion(**node, pool == 1 ? options.home_bytes : options.other_bytes);
      if (!memory.ok()) return Failed("a pool", memory.status());
      if (first) KRCORE_RETURN_IF_ERROR((*node)->HostMetaServer(kMetaRecords));
      if (mirrored()) {
        chains.back().push_back({node->get(), memory->get()});
      } else {
        const auto joined = JoinStore(**node, **memory, options.home, Deadline::After(world_.clock(), kPatienceNs));
        if (!joined.ok()) return Failed("joining", joined.status());
      }
      nodes_.push_back(std::move(*node));
      regions_.push_back(std::move(*memory));
    }
  }
  if (!mirrored()) return Status::Ok();
  return MakeMirroredStore(chains, options.home, Deadline::After(world_.clock(), kPatienceNs));
}

krcore::Result<MemoryNodes::Joined> MemoryNodes::Join() {
  auto node = Open(kFirstToJoin + joined_++, false);
  if (!node.ok()) return node.status();
  auto memory = MakeRegion(**node, std::max(options_.home_bytes, options_.other_bytes));
  if (!memory.ok()) return memory.status();
  KRCORE_RETURN_IF_ERROR((*node)->Publish(Deadline::After(world_.clock(), kPatienceNs)));
  nodes_.push_back(std::move(*node));
  regions_.push_back(std::move(*memory));
  return Joined{nodes_.back().get(), regions_.back().get()};
}

void MemoryNodes::Close() {
  regions_.clear();
  nodes_.clear();
  observer_.reset();
}

void MemoryNodes::PollConnections() {
  for (const auto& node : nodes_) {
    if (!IsDead(node->id())) (void)node->PollConnections();
  }
}

kvs::Configuration MemoryNodes::configuration() const { return kvs::ReadConfiguration(*observer_, {}).value(); }

std::vector<NodeId> MemoryNodes::ChainOf(NodeId pool) const {
  if (!mirrored()) return {pool};
  std::vector<NodeId> chain;
  const kvs::Configuration now = configuration();
  for (const kvs::Replica& replica : now.Find(pool)->chain) chain.push_back(replica.node);
  if (now.promoted == pool) chain.pop_back();
  return chain;
}

NodeId MemoryNodes::PoolOf(NodeId node) const {
  if (!mirrored()) return node;
  const kvs::Configuration now = configuration();
  for (const kvs::PoolView& view : now.pools) {
    if (view.learner.node == node) return view.pool;
    if (std::ranges::find(view.chain, node, &kvs::Replica::node) != view.chain.end()) return view.pool;
  }
  return krcore::kNoNode;
}

std::vector<NodeId> MemoryNodes::PoolsInUse() const {
  std::vector<NodeId> pools;
  if (mirrored()) {
    const kvs::Configuration now = configuration();
    for (const kvs::PoolView& view : now.pools) {
      if (view.in_use) pools.push_back(view.pool);
    }
  } else {
    for (NodeId pool = 1; pool <= options_.pools; ++pool) pools.push_back(pool);
  }
  return pools;
}

std::vector<NodeId> MemoryNodes::Dispensable(std::span<const NodeId> away) const {
  std::vector<NodeId> all;
  if (!mirrored()) return all;
  const kvs::Configuration now = configuration();
  const auto add = [&](std::vector<NodeId> nodes, size_t more_than) {
    std::erase_if(nodes, [&](NodeId node) { return IsDead(node) || std::ranges::find(away, node) != away.end(); });
    if (nodes.size() > more_than) all.insert(all.end(), nodes.begin(), nodes.end());
  };
  for (const kvs::PoolView& view : now.pools) {
    add(ChainOf(view.pool), view.in_use ? 1 : 0);
    if (view.learner.exists()) add({view.learner.node}, 0);
    if (now.promoted == view.pool) add({view.chain.back().node}, 0);
  }
  return all;
}

bool MemoryNodes::IsLast(NodeId node) const {
  const kvs::Configuration now = configuration();
  const auto is_other = [&](const kvs::Replica& replica) { return replica.node != node && !IsDead(replica.node); };
  return std::ranges::any_of(now.pools, [&](const kvs::PoolView& view) {
    const bool has = std::ranges::find(view.chain, node, &kvs::Replica::node) != view.chain.end();
    return has && view.in_use && std::ranges::none_of(view.chain, is_other);
  });
}

std::span<std::byte> MemoryNodes::BytesOf(NodeId node) const {
  const auto found = std::ranges::find(nodes_, node, [](const auto& opened) { return opened->id(); });
  return regions_[static_cast<size_t>(found - nodes_.begin())]->bytes();
}

std::span<std::byte> MemoryNodes::BytesOf(NodeId node, NodeId pool) const {
  const std::span<std::byte> all = BytesOf(node);
  return mirrored() ? all.first(configuration().Find(pool)->bytes) : all;
}

kvs::HomeArea MemoryNodes::Home() const {
  kvs::HomeArea home;
  std::memcpy(&home, &TailOf(1)[kvs::kHomeAreaOffset], sizeof(home));
  return home;
}

std::vector<surgekv_test::PoolImage> MemoryNodes::Images(uint32_t from_tail) const {
  std::vector<surgekv_test::PoolImage> images;
  for (const NodeId pool : PoolsInUse()) {
    const std::vector<NodeId> chain = ChainOf(pool);
    const size_t place = chain.size() - 1 - std::min<size_t>(from_tail, chain.size() - 1);
    images.push_back({pool, BytesOf(chain[place], pool)});
  }
  return images;
}

uint32_t MemoryNodes::LongestChain() const {
  size_t longest = 1;
  for (const NodeId pool : PoolsInUse()) longest = std::max(longest, ChainOf(pool).size());
  return static_cast<uint32_t>(longest);
}

}  // namespace surgekv_sim
