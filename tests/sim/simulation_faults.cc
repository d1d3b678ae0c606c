// The faults: what the run does to its clients.
#include <algorithm>
#include <cstring>
#include <span>

#include "tests/sim/simulation_core.h"

namespace surgekv_sim {
namespace {

constexpr int64_t kTakeoverNs = 100 * kMs;
// For so long views may change after a memory node is back.
constexpr int64_t kViewsNs = 2 * kLeaseNs;

}  // namespace

Process* Simulation::AnyProcess(bool may_be_doomed, bool may_join) {
  std::vector<Process*> living;
  for (Process& process : processes_) {
    if (process.memory_node != krcore::kNoNode && !may_join) continue;
    if (!process.dead && (may_be_doomed || !process.doomed)) living.push_back(&process);
  }
  return living.empty() ? nullptr : living[Below(living.size())];
}

// Somebody must be left, and so must a replica of each pool. Only one memory node at a time is about to die: others
// that are, too, might become the replicas of one pool.
Process* Simulation::AnyVictim() {
  std::vector<Process*> victims, joiners;
  const NodeId doomed = DoomedMemoryNode();
  const std::vector<NodeId> needed_by_none = memory_nodes_.Dispensable(Away());
  for (Process& process : processes_) {
    if (process.dead || process.doomed) continue;
    if (process.memory_node == krcore::kNoNode) {
      victims.push_back(&process);
    } else if (doomed == krcore::kNoNode &&
               (std::ranges::find(needed_by_none, process.memory_node) != needed_by_none.end() ||
                memory_nodes_.PoolOf(process.memory_node) == krcore::kNoNode)) {
      joiners.push_back(&process);
    }
  }
  if (victims.size() < 2) victims.clear();
  victims.insert(victims.end(), joiners.begin(), joiners.end());
  return victims.empty() ? nullptr : victims[Below(victims.size())];
}

ClientState* Simulation::AnyClient() {
  std::vector<ClientState*> living;
  for (ClientState& state : clients_) {
    if (state.alive() && !state.leaving) living.push_back(&state);
  }
  return living.empty() ? nullptr : living[Below(living.size())];
}

void Simulation::SlowDown(int64_t duration_ns) {
  slow_until_ns_ = std::max(slow_until_ns_, world_.now_ns() + duration_ns);
  slow_tempo_ns_ = std::max(duration_ns / 100, kUs);
}

void Simulation::CountPause(int64_t duration_ns) {
  ++result_.counts.pauses;
  if (duration_ns > kTakeoverNs) ++result_.counts.long_pauses;
  if (duration_ns > kLeaseNs) ++result_.counts.longer_pauses;
}

void Simulation::Inject(const Fault& fault) {
  if ((fault.kind == FaultKind::kArrive || fault.kind == FaultKind::kJoin) && PromotionPending()) {
    deferred_.push_back(fault);
    return;
  }
  Trace("fault: %s", FaultName(fault.kind));
  switch (fault.kind) {
    case FaultKind::kKill: {
      Process* const victim = AnyVictim();
      if (victim == nullptr) return;
      victim->doomed = true;
      world_.KillAtVerb(victim->store->node().id(), fault.verb, fault.before, fault.duration_ns);
      return;
    }
    case FaultKind::kPause: {
      if (Joiner* const joiner = AnyJoiner(); joiner != nullptr && Chance(0.3)) {
        joiner->step_at_ns = world_.now_ns() + fault.duration_ns;
        SlowDown(fault.duration_ns);
        CountPause(fault.duration_ns);
        return;
      }
      ClientState* state = AnyClient();
      if (state == nullptr) return;
      state->next_poll_ns = world_.now_ns() + fault.duration_ns;
      SlowDown(fault.duration_ns);
      CountPause(fault.duration_ns);
      return;
    }
    case FaultKind::kPauseSplitter: ambushes_.push_back(fault.duration_ns); return;
    case FaultKind::kPauseAll: {
      const Process* process = AnyProcess(true);
      if (process == nullptr) return;
      for (ClientState& state : clients_) {
        if (state.process == process) state.next_poll_ns = world_.now_ns() + fault.duration_ns;
      }
      for (Joiner& joiner : joiners_) {
        if (joiner.process == process) joiner.step_at_ns = world_.now_ns() + fault.duration_ns;
      }
      SlowDown(fault.duration_ns);
      CountPause(fault.duration_ns);
      return;
    }
    case FaultKind::kStall: {
      const Process* process = AnyProcess(true);
      if (process == nullptr) return;
      world_.StallDoorbells(process->store->node().id(), fault.duration_ns);
      SlowDown(fault.duration_ns);
      ++result_.counts.stalls;
      return;
    }
    case FaultKind::kBreakQueues: {
      const Process* process = AnyProcess(true);
      if (process == nullptr) return;
      world_.BreakQueues(process->store->node().id(), AnyMemoryNode());
      ++result_.counts.queue_breaks;
      return;
    }
    case FaultKind::kBreakNode: {
      const NodeId node = AnyMemoryNode();
      for (const Process& process : processes_) {
        if (!process.dead) world_.BreakQueues(process.store->node().id(), node);
      }
      ++result_.counts.node_breaks;
      return;
    }
    case FaultKind::kArrive: return Arrive();
    case FaultKind::kLeave: {
      ClientState* state = AnyClient();
      if (state != nullptr) state->leaving = true;
      return;
    }
    case FaultKind::kCompact: {
      ClientState* state = AnyClient();
      if (state == nullptr) return;
      state->client->Spawn(RunCompaction(state->client.get(), Chance(0.5)));
      return;
    }
    case FaultKind::kDrain: return BeginDrain(fault.duration_ns);
    case FaultKind::kKillMemoryNode: return KillMemoryNode(fault.duration_ns);
    case FaultKind::kCutOff:
    case FaultKind::kStop: return Hide(fault);
    case FaultKind::kJoin: return Join(fault);
    case FaultKind::kSetReplicas: {
      const Process* const process = AnyProcess(true);
      if (process == nullptr) return;
      const uint32_t replicas = 1 + Below(3);
      const Status set = process->store->SetReplicas(replicas);
      Trace("each pool is to have %u replicas: %s", replicas, set.ToString().c_str());
      result_.counts.replicas_set += set.ok();
      return;
    }
  }
}

kvs::Task<void> Simulation::RunCompaction(kvs::Client* client, bool thorough) {
  kvs::CompactReport report;
  (void)co_await client->CompactAsync({.thorough = thorough, .timeout_ms = 400}, &report);
  result_.counts.chunks_freed += report.chunks_freed;
  result_.counts.blocks_moved += report.blocks_moved;
}

// Drains a memory node that no living client empties. A dead client may have begun with it, and died in the middle. If
// pools are mirrored, only those can be drained that have joined: the others have no process that looks after them.
void Simulation::BeginDrain(int64_t duration_ns) {
  ClientState* state = AnyClient();
  const Joiner* const joiner = AnyJoiner();
  if (state == nullptr || (memory_nodes_.mirrored() && joiner == nullptr)) return;
  const NodeId node = memory_nodes_.mirrored() ? joiner->process->memory_node : 2 + Below(plan_.memory_nodes - 1);
  const ClientState*& drainer = drainers_[node];
  if (drainer != nullptr && drainer->alive()) return;
  drainer = state;
  ++result_.counts.drains_begun;
  state->client->Spawn(RunDrain(state, node, 2'000 + duration_ns / kMs, Chance(0.8)));
}

kvs::Task<void> Simulation::RunDrain(ClientState* state, NodeId node, int64_t timeout_ms, bool give_back) {
  kvs::Client* const client = state->client.get();
  const bool is_replica = memory_nodes_.mirrored() && memory_nodes_.PoolOf(node) != krcore::kNoNode;
  kvs::DrainReport report;
  const Status drained = co_await client->DrainNodeAsync(node, {.timeout_ms = timeout_ms}, &report);
  Trace("client %u has drained memory node %u: %s", state->number, node, drained.ToString().c_str());
  result_.counts.tables_moved += report.tables_moved;
  drainers_[node] = nullptr;
  if (closing_ || drained == StatusCode::kBadState) co_return;  // the client is closing
  if (drained.ok()) {
    if (!memory_nodes_.mirrored()) LoseMemory(node);
    if (memory_nodes_.mirrored() && EndDrained(node, is_replica)) co_return;
  }
  // If the node is not taken back, another drain goes on with it, or nobody uses it any more.
  Status taken_back(StatusCode::kUnavailable, "not tried");
  for (int i = 0; give_back && i < 3 && taken_back == StatusCode::kUnavailable; ++i) {
    drained_.erase(node);
    taken_back = co_await client->UndrainNodeAsync(node);
  }
}

bool Simulation::EndDrained(NodeId node, bool was_replica) {
  result_.counts.replicas_drained += was_replica;
  if (Chance(0.5)) {
    drained_.insert(node);  // and is in no pool from now on
    return false;
  }
  const auto process = std::ranges::find(processes_, node, &Process::memory_node);
  world_.Kill(process->store->node().id(), 0);
  (void)CheckDeath(*process);
  return true;
}

void Simulation::LoseMemory(NodeId node) {
  ++result_.counts.drains;
  const std::span<std::byte> memory = memory_nodes_.BytesOf(node);
  const uint64_t chunks = memory.size() / plan_.chunk_bytes;
  for (uint64_t chunk = kvs::ReservedChunks(memory.size(), plan_.chunk_bytes); chunk < chunks; ++chunk) {
    kvs::ChunkWord word;
    std::memcpy(&word, &memory[kvs::ChunkWordOffset(chunk)], sizeof(word));
    if (word.kind() != kvs::ChunkKind::kFree) {
      return Violation("drain", "memory node " + std::to_string(node) + " is drained, and its chunk " +
                                    std::to_string(chunk) + " is taken");
    }
    std::memset(&memory[chunk * plan_.chunk_bytes], 0xa5, plan_.chunk_bytes);
  }
}

NodeId Simulation::AnyMemoryNode() {
  if (!joiners_.empty()) return memory_nodes_.Nth(Below(memory_nodes_.size()));
  const NodeId pool = 1 + Below(plan_.memory_nodes);
  return MemoryNodes::NodeOf(pool, plan_.replicas > 1 ? Below(plan_.replicas) : 0);
}

std::vector<NodeId> Simulation::Away() const {
  std::vector<NodeId> away{DoomedMemoryNode()};
  for (const auto& [node, until_ns] : hidden_) {
    if (until_ns > world_.now_ns()) away.push_back(node);
  }
  return away;
}

void Simulation::Hide(const Fault& fault) {
  // Where pools are not mirrored, operations may fail, and any memory node may.
  const std::vector<NodeId> candidates =
      memory_nodes_.mirrored() ? memory_nodes_.Dispensable(Away()) : std::vector{AnyMemoryNode()};
  if (candidates.empty()) return;
  const NodeId node = candidates[Below(candidates.size())];
  const bool cut_off = fault.kind == FaultKind::kCutOff;
  Trace("memory node %u %s for %ld us", node, cut_off ? "is cut off" : "stops", fault.duration_ns / kUs);
  ++(cut_off ? result_.counts.memory_nodes_cut_off : result_.counts.memory_nodes_stopped);
  hidden_[node] = world_.now_ns() + fault.duration_ns;
  SlowDown(fault.duration_ns);
  if (cut_off) return world_.CutOff(node, fault.duration_ns);
  world_.Freeze(node, fault.duration_ns);
}

bool Simulation::AnyNodeFailed(int64_t since_ns) const {
  return result_.counts.memory_node_deaths > 0 || left_alive_ns_ >= since_ns - kViewsNs ||
         std::ranges::any_of(hidden_, [&](const auto& hidden) { return hidden.second >= since_ns - kViewsNs; });
}

void Simulation::KillMemoryNode(int64_t linger_ns) {
  const std::vector<NodeId> candidates = memory_nodes_.Dispensable(Away());
  if (candidates.empty()) return;
  const NodeId victim = candidates[Below(candidates.size())];
  const std::vector<NodeId> chain = memory_nodes_.ChainOf(memory_nodes_.PoolOf(victim));
  Trace("memory node %u dies", victim);
  ++result_.counts.memory_node_deaths;
  result_.counts.heads_killed += victim == chain.front();
  result_.counts.tails_killed += victim == chain.back();
  world_.Kill(victim, linger_ns);
  for (Process& process : processes_) {
    if (process.memory_node != victim) continue;
    world_.Kill(process.store->node().id(), linger_ns);
    (void)CheckDeath(process);
  }
}

}  // namespace surgekv_sim
