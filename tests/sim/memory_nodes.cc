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
      krcore::RegionOptions region;
      region.length = pool == 1 ? options.home_bytes : options.other_bytes;
      region.remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite | krcore::kRemoteAtomic;
      region.tag = kvs::kPoolRegionTag;
      auto memory = (*node)->CreateRegion(region);
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
  return chain;
}

std::vector<NodeId> MemoryNodes::Dispensable() const {
  std::vector<NodeId> all;
  for (NodeId pool = 1; mirrored() && pool <= options_.pools; ++pool) {
    std::vector<NodeId> living = ChainOf(pool);
    std::erase_if(living, [this](NodeId node) { return IsDead(node); });
    if (living.size() > 1) all.insert(all.end(), living.begin(), living.end());
  }
  return all;
}

std::span<std::byte> MemoryNodes::BytesOf(NodeId node) const { return regions_[IndexOf(node)]->bytes(); }

kvs::HomeArea MemoryNodes::Home() const {
  kvs::HomeArea home;
  std::memcpy(&home, &TailOf(1)[kvs::kHomeAreaOffset], sizeof(home));
  return home;
}

std::vector<surgekv_test::PoolImage> MemoryNodes::Images(uint32_t from_tail) const {
  std::vector<surgekv_test::PoolImage> images;
  for (NodeId pool = 1; pool <= options_.pools; ++pool) {
    const std::vector<NodeId> chain = ChainOf(pool);
    const size_t place = chain.size() - 1 - std::min<size_t>(from_tail, chain.size() - 1);
    images.push_back({pool, BytesOf(chain[place])});
  }
  return images;
}

uint32_t MemoryNodes::LongestChain() const {
  size_t longest = 1;
  for (NodeId pool = 1; pool <= options_.pools; ++pool) longest = std::max(longest, ChainOf(pool).size());
  return static_cast<uint32_t>(longest);
}

}  // namespace surgekv_sim
