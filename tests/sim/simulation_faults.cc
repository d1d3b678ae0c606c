// What the run does to its clients.
#include <algorithm>

#include "tests/sim/simulation_core.h"

namespace surgekv_sim {
namespace {

constexpr int64_t kTakeoverNs = 100 * kMs, kLeaseNs = kSecond;

}  // namespace

Process* Simulation::AnyProcess(bool may_be_doomed) {
  std::vector<Process*> living;
  for (Process& process : processes_) {
    if (!process.dead && (may_be_doomed || !process.doomed)) living.push_back(&process);
  }
  return living.empty() ? nullptr : living[Below(living.size())];
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
  Trace("fault: %s", FaultName(fault.kind));
  switch (fault.kind) {
    case FaultKind::kKill: {
      uint32_t candidates = 0;
      for (const Process& process : processes_) candidates += !process.dead && !process.doomed;
      if (candidates < 2) return;  // somebody must be left
      Process& victim = *AnyProcess(false);
      victim.doomed = true;
      world_.KillAtVerb(victim.store->node().id(), fault.verb, fault.before, fault.duration_ns);
      return;
    }
    case FaultKind::kPause: {
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
      world_.BreakQueues(process->store->node().id(), 1 + Below(plan_.memory_nodes));
      ++result_.counts.queue_breaks;
      return;
    }
    case FaultKind::kBreakNode: {
      const NodeId node = 1 + Below(plan_.memory_nodes);
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
  }
}

kvs::Task<void> Simulation::RunCompaction(kvs::Client* client, bool thorough) {
  kvs::CompactReport report;
  (void)co_await client->CompactAsync({.thorough = thorough, .timeout_ms = 400}, &report);
  result_.counts.chunks_freed += report.chunks_freed;
  result_.counts.blocks_moved += report.blocks_moved;
}

}  // namespace surgekv_sim
