// Memory nodes that join, and the processes that look after their memory.
#include <algorithm>
#include <utility>

#include "tests/sim/simulation_core.h"

namespace surgekv_sim {
namespace {

// In peace: a view that somebody does not acknowledge takes 1.5 leases, a dead process's verbs a second, and several
// learners may come one after the other.
constexpr int64_t kAwaitReplicasNs = 30 * kSecond;
// All clients stand still while a joiner's call blocks, and its process may die in that call.
constexpr int64_t kJoinersTimeoutNs = 4 * kSecond;
constexpr int64_t kTouchNs = 20 * kMs;  // how often somebody writes meanwhile, so that dead replicas are noticed
constexpr uint64_t kNever = uint64_t{1} << 62;

}  // namespace

void Simulation::Join(const Fault& fault) {
  SlowDown(fault.slow_ns);
  const auto joined = memory_nodes_.Join();
  if (!joined.ok()) {
    if (!plan_.queues_break) Violation("setup", "a memory node that joins: " + joined.status().ToString());
    return;
  }
  Process* const process = StartProcess(kJoinersTimeoutNs);
  if (process == nullptr) return;
  process->memory_node = joined->node->id();
  Trace("memory node %u joins, with process %u", process->memory_node, process->number);
  auto keeper = kvs::ReplicaKeeper::Create(*process->store, *joined->node, *joined->region);
  if (!keeper.ok()) return Violation("setup", "a keeper: " + keeper.status().ToString());
  Joiner& joiner = joiners_.emplace_back();
  joiner.process = process;
  joiner.keeper = *std::move(keeper);
  joiner.bytes = joined->region->bytes().size();
  joiner.step_at_ns = world_.now_ns();
  joiner.speed = static_cast<double>(LogUniform(random_, 100, 2'000)) / 1e3;
  ++result_.counts.joins;
  if (fault.verb == 0 || DoomedMemoryNode() != krcore::kNoNode) return;
  process->doomed = true;
  world_.KillAtVerb(process->store->node().id(), fault.verb, fault.before, fault.duration_ns);
}

Joiner* Simulation::NextJoiner() {
  Joiner* next = nullptr;
  for (Joiner& joiner : joiners_) {
    if (joiner.alive() && (next == nullptr || joiner.step_at_ns < next->step_at_ns)) next = &joiner;
  }
  return next;
}

void Simulation::StepJoiner(Joiner& joiner) {
  world_.RunUntil(std::max(world_.now_ns(), joiner.step_at_ns));
  // A keeper without a client would begin one to go on with a view of which nobody knows. While that call blocks, all
  // clients stand still, and the view comes only by the end of their leases.
  const bool known = world_.now_ns() - watched_ns_ < 2 * kLeaseNs && !memory_nodes_.configuration().active;
  if (!joiner.keeper->stats().is_client && (PromotionPending() || known)) {
    WatchViews();
    joiner.step_at_ns = world_.now_ns() + kMs;
    return;
  }
  const int64_t next_ns = joiner.keeper->Step();
  joiner.step_at_ns = world_.now_ns() + 50 +
                      static_cast<int64_t>(static_cast<double>(next_ns) * joiner.speed *
                                           (0.1 + 2 * static_cast<double>(Below(1'000)) / 1e3));
  const kvs::ReplicaKeeperStats& stats = joiner.keeper->stats();
  Counts& counts = result_.counts;
  if (stats.passes != joiner.passes) {
    counts.further_passes += joiner.passed;
    joiner.passed = true;
  }
  joiner.passes = stats.passes;
  counts.words_pushed += stats.words_pushed - joiner.words_pushed;
  joiner.words_pushed = stats.words_pushed;
  if (stats.state != joiner.state) {
    Trace("memory node %u is now a %s, of pool %u", joiner.process->memory_node,
          std::string(ReplicaStateName(stats.state)).c_str(), stats.pool);
    if (joiner.state == kvs::ReplicaState::kLearner && stats.state == kvs::ReplicaState::kMember) {
      ++counts.learners_promoted;
      promoted_ns_ = world_.now_ns();
    }
    counts.pools_made += joiner.state == kvs::ReplicaState::kSpare && stats.state == kvs::ReplicaState::kMember;
    joiner.passed = joiner.passed && stats.state == kvs::ReplicaState::kLearner;
  }
  joiner.state = stats.state;
  WatchViews();
  (void)CheckDeath(*joiner.process);
}

Joiner* Simulation::AnyJoiner() {
  std::vector<Joiner*> living;
  for (Joiner& joiner : joiners_) {
    if (joiner.alive()) living.push_back(&joiner);
  }
  return living.empty() ? nullptr : living[Below(living.size())];
}

void Simulation::JoinerDied(Process& process) {
  const auto joiner = std::ranges::find(joiners_, &process, &Joiner::process);
  result_.counts.learners_killed += joiner->state == kvs::ReplicaState::kLearner;
  if (memory_nodes_.IsDead(process.memory_node)) return;
  // A replica of each pool must be left: this one stays without a keeper, as those of the beginning are.
  if (memory_nodes_.IsLast(process.memory_node)) return;
  Trace("memory node %u dies with it", process.memory_node);
  ++result_.counts.memory_node_deaths;
  world_.Kill(process.memory_node, 100 * kUs);
}

NodeId Simulation::DoomedMemoryNode() const {
  for (const Process& process : processes_) {
    if (process.memory_node != krcore::kNoNode && process.doomed && !process.dead) return process.memory_node;
  }
  return krcore::kNoNode;
}

bool Simulation::PromotionPending() const {
  if (joiners_.empty()) return false;
  const kvs::Configuration now = memory_nodes_.configuration();
  if (now.active || now.promoted == krcore::kNoNode) return false;
  return !memory_nodes_.IsDead(now.Find(now.promoted)->chain.back().node);
}

void Simulation::WatchViews() {
  const kvs::Configuration now = memory_nodes_.configuration();
  if (now.number == watched_.number && now.active == watched_.active) return;
  const kvs::PoolView* const promoted = watched_.active ? nullptr : watched_.Find(watched_.promoted);
  if (promoted != nullptr && now.number != watched_.number) {
    const kvs::PoolView* const view = now.Find(promoted->pool);
    result_.counts.promotions_given_up += view != nullptr && view->learner == promoted->chain.back();
  }
  if (trace_) {
    std::string text;
    for (const kvs::PoolView& view : now.pools) {
      text += " " + std::to_string(view.pool) + (view.in_use ? ":" : " (new):");
      for (const kvs::Replica& replica : view.chain) text += " " + std::to_string(replica.node);
      if (view.learner.exists()) text += " <- " + std::to_string(view.learner.node);
      text += ";";
    }
    Trace("view %lu, %s,%s", now.number, now.active ? "active" : "pending", text.c_str());
  }
  for (const kvs::PoolView& view : watched_.pools) {
    const kvs::PoolView* const then = now.Find(view.pool);
    for (const kvs::Replica& replica : view.chain) {
      const bool stays = then == nullptr || std::ranges::find(then->chain, replica) != then->chain.end();
      if (stays || memory_nodes_.IsDead(replica.node) || replica == then->learner) continue;
      left_alive_ns_ = world_.now_ns();
      ++result_.counts.left_alive;
    }
  }
  for (const NodeId node : drained_) {
    if (memory_nodes_.PoolOf(node) == krcore::kNoNode) continue;
    Violation("drain", "memory node " + std::to_string(node) + " is drained, and has become a replica");
  }
  watched_ = now;
  watched_ns_ = world_.now_ns();
}

std::string Simulation::Lacking() const {
  // The memory nodes of the beginning have no keepers, and one that was removed compares no more. A view of which no
  // client was told waits for the next one.
  const auto compares = [](const Joiner& joiner) {
    return joiner.alive() && joiner.state != kvs::ReplicaState::kRemoved;
  };
  if (std::ranges::none_of(joiners_, compares)) return {};
  const kvs::Configuration now = memory_nodes_.configuration();
  std::string text = now.active ? "" : "view " + std::to_string(now.number) + " is pending\n";
  std::vector<NodeId> free;
  for (const Joiner& joiner : joiners_) {
    if (!joiner.alive() || joiner.state == kvs::ReplicaState::kRemoved) continue;
    const NodeId node = joiner.process->memory_node;
    const kvs::PoolView* const view = now.Find(memory_nodes_.PoolOf(node));
    const std::string name = "memory node " + std::to_string(node);
    if (view != nullptr && view->learner.node == node) {
      text += name + " is a learner of pool " + std::to_string(view->pool) + "\n";
    }
    // Only who is alone in a new pool gives that up.
    if (view == nullptr || (!view->in_use && view->chain.size() == 1 && !view->learner.exists())) free.push_back(node);
  }
  for (const NodeId node : free) {
    const auto told = std::ranges::find(now.nodes, node, [](const auto& each) { return each.replica.node; });
    if (told == now.nodes.end()) {
      text += "memory node " + std::to_string(node) + " has told nothing\n";
      continue;
    }
    for (const kvs::PoolView& view : now.pools) {
      if (!view.in_use || !now.Lacks(view, told->replica)) continue;
      text += "pool " + std::to_string(view.pool) + " has " + std::to_string(view.chain.size()) + " replicas\n";
    }
  }
  // A keeper whose node was removed leaves the others alone.
  const bool any_keeps = std::ranges::any_of(
      joiners_, [](const Joiner& joiner) { return joiner.alive() && joiner.state != kvs::ReplicaState::kRemoved; });
  if (kvs::Configuration next = now; any_keeps && now.active && next.RemoveExcess())
    text += "a pool has too many replicas\n";
  return text;
}

void Simulation::AwaitReplicas() {
  if (joiners_.empty()) return;
  for (Process& process : processes_) {
    if (process.memory_node == krcore::kNoNode || !process.doomed || process.dead) continue;
    world_.KillAtVerb(process.store->node().id(), kNever, true, 0);
    process.doomed = false;
  }
  deferred_.clear();
  for (Joiner& joiner : joiners_) joiner.step_at_ns = std::min(joiner.step_at_ns, world_.now_ns());
  const int64_t begun_ns = progress_ns_ = world_.now_ns();
  int64_t touch_at_ns = begun_ns;
  tempo_ns_ = 500 * kUs;
  waits_for_replicas_ = true;
  while (Fine()) {
    if (world_.now_ns() >= touch_at_ns) {
      const std::string lacking = Lacking();
      if (lacking.empty()) break;
      if (world_.now_ns() - begun_ns > kAwaitReplicasNs) {
        return Violation("join", "in peace, after " + std::to_string(kAwaitReplicasNs / kSecond) +
                                     " virtual seconds:\n" + lacking + InFlight());
      }
      ClientState* const state = AnyClient();
      if (state != nullptr && state->in_flight < state->lanes) Start(*state, OpKind::kPut, Below(plan_.keys));
      touch_at_ns = world_.now_ns() + kTouchNs;
    }
    Step();
  }
  waits_for_replicas_ = false;
  if (Fine()) Drain();
  // Whoever opens the store waits for a promotion, and nobody else goes on meanwhile.
  while (Fine() && PromotionPending()) Step();
}

}  // namespace surgekv_sim
