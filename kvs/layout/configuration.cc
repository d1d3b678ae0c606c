#include "kvs/layout/configuration.h"

#include <cstring>
#include <set>
#include <utility>

#include "kvs/layout/subtable.h"

namespace kvs {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kMagic = 0x32'30'53'4c'4f'4f'50'53;  // "SPOOLS02"

// The record's words: kMagic, number, active, home, replicas, promoted, pools; for each pool its id, bytes,
// whether it is in use, learner and replicas; for each of these its node and incarnation, as for the learner; then how
// many memory nodes are known, and for each its node, incarnation, bytes, domain and whether it is leaving.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> value) : left_(value) {}
  uint64_t Next() {
    uint64_t word = 0;
    if (left_.size() < sizeof(word)) {
      short_ = true;
      return 0;
    }
    std::memcpy(&word, left_.data(), sizeof(word));
    left_ = left_.subspan(sizeof(word));
    return word;
  }
  Replica NextReplica() {
    const auto node = static_cast<krcore::NodeId>(Next());
    return {node, static_cast<uint32_t>(Next())};
  }
  bool is_short() const { return short_; }
  bool complete() const { return !short_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool short_ = false;
};

}  // namespace

const PoolView* Configuration::PoolOf(const Replica& node) const {
  const auto has = [&](const PoolView& view) {
    return view.learner == node || std::ranges::find(view.chain, node) != view.chain.end();
  };
  const auto found = std::ranges::find_if(pools, has);
  return found == pools.end() ? nullptr : &*found;
}

bool Configuration::HasSpare(uint64_t bytes) const {
  return std::ranges::any_of(nodes, [&](const MemoryNode& node) {
    const PoolView* const view = PoolOf(node.replica);
    return !node.leaving && node.bytes >= bytes && (view == nullptr || !view->in_use);
  });
}

size_t Configuration::Domains() const {
  std::set<uint64_t> domains;
  for (const MemoryNode& node : nodes) {
    if (!node.leaving) domains.insert(node.domain);
  }
  return domains.size();
}

size_t Configuration::DomainsOf(const PoolView& view) const {
  std::set<uint64_t> domains;
  for (const Replica& replica : view.chain) {
    const MemoryNode* const has = Find(replica);
    if (has == nullptr) return 0;
    if (!has->leaving) domains.insert(has->domain);
  }
  return domains.size();
}

size_t Configuration::Staying(const PoolView& view) const {
  return static_cast<size_t>(
      std::ranges::count_if(view.chain, [this](const Replica& replica) { return !IsLeaving(replica); }));
}

bool Configuration::Lacks(const PoolView& view, const Replica& node) const {
  const MemoryNode* const joins = Find(node);
  if (view.chain.size() >= kMaxChain || (joins != nullptr && joins->leaving)) return false;
  if (Staying(view) < replicas) return true;
  if (joins == nullptr) return false;
  // With it the replicas that stay would be in one more.
  PoolView grown = view;
  grown.chain.push_back(node);
  const size_t domains = DomainsOf(view);
  return domains > 0 && domains < replicas && DomainsOf(grown) > domains;
}

bool Configuration::Enter(const MemoryNode& node) {
  const auto known = std::ranges::find(nodes, node.replica, &MemoryNode::replica);
  if (known == nodes.end()) {
    nodes.push_back(node);
    return true;
  }
  MemoryNode next = node;
  next.leaving = known->leaving;
  return std::exchange(*known, next) != next;
}

bool Configuration::SetLeaving(krcore::NodeId node, bool leaving) {
  bool any = false;
  for (MemoryNode& each : nodes) {
    if (each.replica.node == node) any |= std::exchange(each.leaving, leaving) != leaving;
  }
  return any;
}

bool Configuration::Begin(Configuration next) {
  const uint64_t former = number;
  *this = std::move(next);
  number = former + 1;
  active = false;
  promoted = krcore::kNoNode;
  return true;
}

bool Configuration::Remove(const Replica& replica) {
  Configuration next = *this;
  (void)next.Demote(promoted);
  for (PoolView& view : next.pools) {
    if (view.learner == replica) {
      view.learner = {};
      return Begin(std::move(next));
    }
    const auto found = std::ranges::find(view.chain, replica);
    if (found == view.chain.end()) continue;
    if (view.chain.size() == 1) return false;
    view.chain.erase(found);
    return Begin(std::move(next));
  }
  return false;
}

bool Configuration::Return(const Replica& was, const Replica& is) {
  Configuration next = *this;
  (void)next.Demote(promoted);
  for (PoolView& view : next.pools) {
    const auto found = std::ranges::find(view.chain, was);
    if (found == view.chain.end()) continue;
    *found = is;
    return Begin(std::move(next));
  }
  return false;
}

bool Configuration::AddLearner(krcore::NodeId pool, const Replica& learner) {
  PoolView* const view = Find(pool);
  if (view == nullptr || view->learner.exists() || !Lacks(*view, learner) || !active) return false;
  view->learner = learner;
  return Begin(*this);
}

bool Configuration::Promote(const Replica& learner) {
  const auto view = std::ranges::find(pools, learner, &PoolView::learner);
  if (view == pools.end() || !learner.exists() || !active) return false;
  const krcore::NodeId pool = view->pool;
  view->chain.push_back(std::exchange(view->learner, {}));
  (void)Begin(*this);
  promoted = pool;
  return true;
}

bool Configuration::Demote(krcore::NodeId pool) {
  PoolView* const view = Find(pool);
  if (active || promoted != pool || view == nullptr) return false;
  view->learner = view->chain.back();
  view->chain.pop_back();
  return Begin(*this);
}

bool Configuration::AddPool(uint64_t bytes, const Replica& replica) {
  krcore::NodeId id = 1;
  while (Find(id) != nullptr) ++id;
  if (!active || id > krcore::kMaxMemoryNode) return false;
  pools.push_back({.pool = id, .bytes = bytes, .in_use = false, .chain = {replica}, .learner = {}});
  return Begin(*this);
}

bool Configuration::RemovePool(krcore::NodeId pool) {
  const PoolView* const view = Find(pool);
  if (!active || view == nullptr || view->in_use) return false;
  std::erase_if(pools, [pool](const PoolView& each) { return each.pool == pool; });
  return Begin(*this);
}

bool Configuration::RemoveDead(const std::function<bool(const Replica&)>& is_dead) {
  bool any = false;
  const std::vector<PoolView> before = pools;
  for (const PoolView& view : before) {
    if (!view.in_use && std::ranges::all_of(view.chain, is_dead)) any |= RemovePool(view.pool);
  }
  for (const PoolView& view : before) {
    if (!std::ranges::all_of(view.chain, is_dead)) {
      for (const Replica& replica : view.chain) any |= is_dead(replica) && Remove(replica);
    }
    any |= view.learner.exists() && is_dead(view.learner) && Remove(view.learner);
  }
  return std::erase_if(nodes, [&](const MemoryNode& node) { return is_dead(node.replica); }) > 0 || any;
}

bool Configuration::RemoveExcess() {
  if (!active) return false;
  bool any = false;
  const std::vector<PoolView> before = pools;
  for (const PoolView& view : before) {
    if (!view.in_use && view.chain.size() == 1 && IsLeaving(view.chain.front())) {
      any |= RemovePool(view.pool);
      continue;
    }
    for (Replica excess = ExcessOf(view); excess.exists() && Remove(excess); excess = ExcessOf(*Find(view.pool))) {
      any = true;
    }
  }
  return any;
}

// Returns what the pool need not have; no node: nothing.
Replica Configuration::ExcessOf(const PoolView& view) const {
  if (view.learner.exists()) {
    // It may have joined for its failure domain while all had told theirs.
    const bool unknown = DomainsOf(view) == 0 && !IsLeaving(view.learner) && view.chain.size() < kMaxChain;
    return Lacks(view, view.learner) || unknown ? Replica{} : view.learner;
  }
  if (view.in_use && view.chain.size() <= replicas) return {};
  const auto leaves = [this](const Replica& replica) { return IsLeaving(replica); };
  const auto leaving = std::ranges::find_if(view.chain, leaves);
  if (leaving != view.chain.end()) return *leaving;
  if (view.chain.size() <= replicas) return {};
  for (auto replica = view.chain.rbegin(); replica != view.chain.rend(); ++replica) {
    const MemoryNode* const has = Find(*replica);
    const auto shares = [&](const Replica& other) {
      const MemoryNode* const others = Find(other);
      return other != *replica && others != nullptr && others->domain == has->domain;
    };
    if (has != nullptr && std::ranges::any_of(view.chain, shares)) return *replica;
  }
  return view.chain.back();
}

std::vector<std::byte> Encode(const Configuration& configuration) {
  std::vector<uint64_t> words = {kMagic,
                                 configuration.number,
                                 configuration.active ? 1u : 0u,
                                 configuration.home,
                                 configuration.replicas,
                                 configuration.promoted,
                                 configuration.pools.size()};
  for (const PoolView& view : configuration.pools) {
    words.insert(words.end(), {view.pool, view.bytes, view.in_use ? 1u : 0u, view.learner.node,
                               view.learner.incarnation, view.chain.size()});
    for (const Replica& replica : view.chain) words.insert(words.end(), {replica.node, replica.incarnation});
  }
  words.push_back(configuration.nodes.size());
  for (const MemoryNode& node : configuration.nodes) {
    words.insert(words.end(),
                 {node.replica.node, node.replica.incarnation, node.bytes, node.domain, node.leaving ? 1u : 0u});
  }
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

Result<Configuration> DecodeConfiguration(std::span<const std::byte> value) {
  const Status corrupt(StatusCode::kCorrupt, "the fabric's record of the store's pools is damaged");
  Reader reader(value);
  const uint64_t magic = reader.Next();
  if (magic != kMagic && magic << 16 == kMagic << 16) {
    return Status(StatusCode::kCorrupt,
                  "the fabric's record of the store's pools is that of another version of these programs");
  }
  if (magic != kMagic) return corrupt;
  Configuration configuration;
  configuration.number = reader.Next();
  configuration.active = reader.Next() != 0;
  configuration.home = static_cast<krcore::NodeId>(reader.Next());
  configuration.replicas = static_cast<uint32_t>(reader.Next());
  if (configuration.replicas == 0 || configuration.replicas > kMaxReplicas) return corrupt;
  configuration.promoted = static_cast<krcore::NodeId>(reader.Next());
  const auto is_node = [](const Replica& replica) { return replica.node <= krcore::kMaxMemoryNode; };
  const uint64_t pools = reader.Next();
  if (pools > krcore::kMaxMemoryNode) return corrupt;
  for (uint64_t p = 0; p < pools; ++p) {
    PoolView view;
    view.pool = static_cast<krcore::NodeId>(reader.Next());
    view.bytes = reader.Next();
    view.in_use = reader.Next() != 0;
    view.learner = reader.NextReplica();
    const uint64_t replicas = reader.Next();
    const bool sound = view.pool != krcore::kNoNode && view.pool <= krcore::kMaxMemoryNode &&
                       view.bytes <= kMaxPoolBytes && replicas > 0 && replicas <= kMaxChain &&
                       configuration.Find(view.pool) == nullptr;
    if (!sound) return corrupt;
    for (uint64_t r = 0; r < replicas; ++r) view.chain.push_back(reader.NextReplica());
    if (!std::ranges::all_of(view.chain, is_node) || !is_node(view.learner)) return corrupt;
    configuration.pools.push_back(std::move(view));
  }
  const uint64_t nodes = reader.Next();
  for (uint64_t n = 0; n < nodes && !reader.is_short(); ++n) {
    MemoryNode node{.replica = reader.NextReplica()};
    node.bytes = reader.Next();
    node.domain = reader.Next();
    node.leaving = reader.Next() != 0;
    if (!is_node(node.replica)) return corrupt;
    configuration.nodes.push_back(node);
  }
  const bool promotes = configuration.promoted != krcore::kNoNode;
  if (promotes && configuration.Find(configuration.promoted) == nullptr) return corrupt;
  if (!reader.complete() || configuration.Find(configuration.home) == nullptr) return corrupt;
  return configuration;
}

}  // namespace kvs
