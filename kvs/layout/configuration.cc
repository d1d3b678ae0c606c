#include "kvs/layout/configuration.h"

#include <cstring>
#include <utility>

#include "kvs/layout/subtable.h"

namespace kvs {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kMagic = 0x31'30'53'4c'4f'4f'50'53;  // "SPOOLS01"

// The record's words: kMagic, number, active, home, replicas, promoted, pools; for each pool its id, bytes,
// whether it is in use, learner and replicas; for each of these its node and incarnation, as for the learner.
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
  bool complete() const { return !short_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool short_ = false;
};

}  // namespace

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
  if (view == nullptr || view->learner.exists() || view->chain.size() >= replicas || !active) return false;
  view->learner = learner;
  return Begin(*this);
}

bool Configuration::Promote(krcore::NodeId pool) {
  PoolView* const view = Find(pool);
  if (view == nullptr || !view->learner.exists() || !active) return false;
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
  return any;
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
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

Result<Configuration> DecodeConfiguration(std::span<const std::byte> value) {
  const Status corrupt(StatusCode::kCorrupt, "the fabric's record of the store's pools is damaged");
  Reader reader(value);
  if (reader.Next() != kMagic) return corrupt;
  Configuration configuration;
  configuration.number = reader.Next();
  configuration.active = reader.Next() != 0;
  configuration.home = static_cast<krcore::NodeId>(reader.Next());
  configuration.replicas = static_cast<uint32_t>(reader.Next());
  if (configuration.replicas == 0 || configuration.replicas > kMaxReplicas) return corrupt;
  configuration.promoted = static_cast<krcore::NodeId>(reader.Next());
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
                       view.bytes <= kMaxPoolBytes && replicas > 0 && replicas <= kMaxReplicas &&
                       configuration.Find(view.pool) == nullptr;
    if (!sound) return corrupt;
    for (uint64_t r = 0; r < replicas; ++r) view.chain.push_back(reader.NextReplica());
    const auto is_node = [](const Replica& replica) { return replica.node <= krcore::kMaxMemoryNode; };
    if (!std::ranges::all_of(view.chain, is_node) || !is_node(view.learner)) return corrupt;
    configuration.pools.push_back(std::move(view));
  }
  const bool promotes = configuration.promoted != krcore::kNoNode;
  if (promotes && configuration.Find(configuration.promoted) == nullptr) return corrupt;
  if (!reader.complete() || configuration.Find(configuration.home) == nullptr) return corrupt;
  return configuration;
}

}  // namespace kvs
