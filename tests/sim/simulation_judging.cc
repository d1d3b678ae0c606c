// The end of a run: all faults cease, and everything that the store has answered and holds in its memory is checked.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/sim/simulation_core.h"

namespace surgekv_sim {
namespace {

constexpr int64_t kLongestLingerNs = kSecond;
constexpr int64_t kGiveBackNs = 2 * kSecond;  // clients look every half millisecond, or a quarter of a lease

}  // namespace

void Simulation::Drain() {
  world_.set_chaos({});
  slow_until_ns_ = 0;
  tempo_ns_ = kUs;
  const int64_t begun_ns = progress_ns_ = world_.now_ns();
  ambushes_.clear();
  for (auto& [node, until_ns] : hidden_) {
    until_ns = begun_ns;
    world_.CutOff(node, 0);
    world_.Freeze(node, 0);
  }
  for (ClientState& state : clients_) {
    state.paused_until_ns = 0;
    state.next_poll_ns = std::min(state.next_poll_ns, begun_ns);
  }
  while (Fine() && Busy()) {
    Step();
    if (world_.now_ns() - begun_ns > kHangNs) {
      Violation("hang", "not finished " + std::to_string(kHangNs / kSecond) +
                            " virtual seconds after the last fault\n" + InFlight());
    }
  }
  // By now, what the dead posted has executed or never will.
  world_.RunUntil(world_.now_ns() + kLongestLingerNs);
}

bool Simulation::Busy() const {
  const bool draining = std::ranges::any_of(
      drainers_, [](const auto& drain) { return drain.second != nullptr && drain.second->alive(); });
  return draining || std::any_of(clients_.begin(), clients_.end(),
                                 [](const ClientState& state) { return state.alive() && state.in_flight > 0; });
}

void Simulation::ReadAll() {
  Process* process = StartProcess();
  if (process == nullptr) return Violation("status", "a fresh process cannot connect in peace");
  ClientState* reader = StartClient(*process, 16);
  if (reader == nullptr) return Violation("status", "a fresh client cannot connect in peace");
  tempo_ns_ = kUs;
  progress_ns_ = world_.now_ns();
  StartScan(*reader, {.count = 10}, UINT32_MAX);
  for (uint32_t key = 0; Fine() && (key < plan_.keys || Busy());) {
    while (key < plan_.keys && reader->in_flight < reader->lanes)
      final_reads_.push_back(Start(*reader, OpKind::kGet, key++));
    Step();
  }
  for (const uint32_t index : final_reads_) {
    const StatusCode status = history_[index].status;
    if (Fine() && status != StatusCode::kOk && status != StatusCode::kNotFound) {
      Violation("status", "in peace, Get of " + history_.NameOf(history_[index].key) + ": " +
                              std::string(StatusCodeName(status)));
    }
  }
}

// The living clients of a process give back the entries that its ended clients could not.
void Simulation::CheckEntries() {
  const int64_t begun_ns = world_.now_ns();
  while (Fine() && HasStrayEntry()) {
    Step();
    if (world_.now_ns() - begun_ns > kGiveBackNs)
      Violation("entry", "a living process has more or fewer entries than clients");
  }
}

bool Simulation::HasStrayEntry() const {
  return std::any_of(processes_.begin(), processes_.end(), [this](const Process& process) {
    const auto clients = std::count_if(clients_.begin(), clients_.end(), [&process](const ClientState& state) {
      return state.process == &process && state.alive();
    });
    return !process.dead && clients > 0 && std::ssize(EntriesOf(process)) != clients;
  });
}

void Simulation::CheckHistory() {
  uint32_t gave_up = 0;
  const std::vector<uint32_t> wrong = history_.Violations(&gave_up);
  result_.counts.gave_up = gave_up;
  if (wrong.empty()) return;
  Violation("history", std::to_string(wrong.size()) + " keys have a history that is not linearizable\n" +
                           history_.Describe(wrong.front()));
}

void Simulation::CloseSurvivors() {
  closing_ = true;
  housekeeper_.reset();
  housekeepers_store_.reset();
  for (Joiner& joiner : joiners_) {
    if (joiner.alive()) joiner.keeper.reset();
  }
  for (ClientState& state : clients_) {
    if (state.alive()) Close(state);
  }
  for (Process& process : processes_) {
    if (!process.dead) process.store.reset();
  }
}

surgekv_test::PoolReport Simulation::MemoryReport(uint32_t from_tail) const {
  surgekv_test::PoolReport report = CheckPools(memory_nodes_.Images(from_tail), {.after_deaths = true});
  for (const surgekv_test::Leftover& left : report.leftovers) {
    if (!MayBeLeft(left)) report.problems.push_back(left.what);
  }
  return report;
}

// An expelled client takes back what it has staged, and posts nothing more of that registration (docs/protocol.md,
// "Fencing"). A client that is killed posts nothing either. So what such a client had begun may stay until somebody
// needs it out of the way. Its lock may stay, which only avoids double work. With it the split or merge may stay:
// whoever takes the lock over may repeat every step (docs/protocol.md, Split, Merge). The INS of its current operation
// may stay, too: nobody reads it as a value and anybody may clear it. The lock may even be taken after the expulsion,
// by a CAS whose doorbell rings late; the unlock then belongs to a registration that is over. The operation begins
// again with another block, and meets its INS only if it has to insert once more in the same table: not if another
// client has put the key meanwhile. All other clients end what they have begun.
bool Simulation::MayBeLeft(const surgekv_test::Leftover& left) const {
  // The verb that would have ended it may have failed, whoever posted it.
  if (world_.stats().broken > 0 || any_gave_up_ || (!memory_nodes_.mirrored() && AnyNodeFailed())) return true;
  if (left.kind == surgekv_test::Leftover::Kind::kTentative) {
    uint32_t id = 0;
    if (!IdOf(left.value, &id) || id == 0 || id > history_.size()) return false;
    const OpRecord& insert = history_[id - 1];
    if (left.key != history_.NameOf(insert.key)) return false;
    const ClientState& owner = clients_[insert.client - 1];
    if (insert.end == 0) return owner.process->dead;
    // All replicas of its time have left, and it has gone on with another block.
    if (insert.start_ns <= promoted_ns_ && AnyNodeFailed()) return true;
    return std::any_of(owner.expelled_ns.begin(), owner.expelled_ns.end(),
                       [&insert](int64_t ns) { return insert.start_ns <= ns && ns <= insert.end_ns; });
  }
  // A lock is a hint, and is free by the same word each time. So a late CAS of a client that did not get it may lock it
  // again at a later replica (docs/replication.md). Who takes it over puts that right.
  if (memory_nodes_.mirrored() && left.kind == surgekv_test::Leftover::Kind::kLock) return true;
  // A client that took it over, and found no memory for the new table, has given the lock back.
  const bool given_up = left.lock == 0 && may_be_full();
  return std::any_of(clients_.begin(), clients_.end(), [&](const ClientState& client) {
    const bool stopped = !client.expelled_ns.empty() || (client.process->dead && client.client != nullptr);
    return stopped && (given_up || left.lock >> 32 == client.entry + 1);
  });
}

void Simulation::CheckPool() {
  const surgekv_test::PoolReport report = MemoryReport();
  if (!report.ok()) return Violation("pool", report.ToString());
  for (const uint32_t index : final_reads_) {
    const OpRecord& read = history_[index];
    const auto found = report.contents.find(history_.NameOf(read.key));
    const bool there = found != report.contents.end();
    uint32_t id = 0;
    if (there && !IdOf(found->second, &id))
      Violation("pool", history_.NameOf(read.key) + ": a value that nobody wrote");
    if (there == (read.status == StatusCode::kOk) && (!there || id == read.value)) continue;
    // A scan, a client's or the housekeeper's, may have found since that it has expired.
    const uint64_t expiry = read.status == StatusCode::kOk ? history_.ExpiryOf(read.value) : 0;
    if (!there && expiry != 0 && history_.MayExpireNs(expiry) <= world_.now_ns()) continue;
    // A scan since then that met a value which has expired has brought to the tail what a dead client had written at
    // the head.
    const bool unanswered = there && id > 0 && id <= history_.size() && history_[id - 1].end == 0;
    if (unanswered && memory_nodes_.mirrored()) continue;
    Violation("pool", history_.NameOf(read.key) + ": a client read " +
                          (read.status == StatusCode::kOk ? "value " + std::to_string(read.value) : "nothing") +
                          ", the memory holds " + (there ? "value " + std::to_string(id) : "nothing") + "\n" +
                          history_.Describe(read.key));
  }
  if (memory_nodes_.mirrored()) CheckReplicas(report);
}

// A CAS goes from the head to the tail. If its client stopped before the end, or a queue broke, the word is behind at
// the tail until somebody tries to change it, who then helps.
bool Simulation::MayLag() const {
  return world_.stats().broken > 0 || any_gave_up_ || std::ranges::any_of(clients_, [](const ClientState& client) {
           return !client.expelled_ns.empty() || (client.process->dead && client.client != nullptr);
         });
}

void Simulation::CheckReplicas(const surgekv_test::PoolReport& tails) {
  for (uint32_t from_tail = 1; Fine() && from_tail < memory_nodes_.LongestChain(); ++from_tail) {
    const std::string name = "the replicas " + std::to_string(from_tail) + " before the tail";
    const surgekv_test::PoolReport report = MemoryReport(from_tail);
    if (!report.ok()) return Violation("replica", name + ":\n" + report.ToString());
    if (MayLag()) continue;
    ++result_.counts.replicas_compared;
    if (report.contents == tails.contents) continue;
    for (const auto& [key, value] : tails.contents) {
      const auto found = report.contents.find(key);
      if (found == report.contents.end()) return Violation("replica", std::string(name).append(" lack ").append(key));
      if (found->second != value)
        return Violation("replica", std::string(name).append(" have another value of ").append(key));
    }
    return Violation("replica", name + " have more keys than the tails");
  }
  if (!Fine() || !Undisturbed()) return;
  ++result_.counts.equal_replicas;
  CheckBytes();
}

bool Simulation::Undisturbed() const { return !MayLag() && !AnyNodeFailed() && joiners_.empty(); }

void Simulation::CheckBytes() {
  const kvs::SubtableGeometry geometry{.groups = plan_.groups};
  for (NodeId pool = 1; pool <= plan_.memory_nodes; ++pool) {
    const std::vector<NodeId> chain = memory_nodes_.ChainOf(pool);
    const std::span<const std::byte> tail = memory_nodes_.TailOf(pool);
    const auto is_hint = [&](size_t at) {
      const size_t in_chunk = at % plan_.chunk_bytes;
      kvs::ChunkWord chunk;
      std::memcpy(&chunk, &tail[kvs::ChunkWordOffset(at / plan_.chunk_bytes)], sizeof(chunk));
      return at == kvs::kMoverOffset || (chunk.kind() == kvs::ChunkKind::kTables &&
                                         in_chunk % geometry.bytes() == offsetof(kvs::SubtableHeader, lock));
    };
    for (const NodeId node : chain) {
      const std::span<const std::byte> memory = memory_nodes_.BytesOf(node, pool);
      // The superblock tells whose it is, and has hints.
      for (size_t at = sizeof(kvs::Superblock); at < tail.size(); at += sizeof(uint64_t)) {
        if (std::memcmp(&memory[at], &tail[at], sizeof(uint64_t)) == 0 || is_hint(at)) continue;
        return Violation("replica", "memory node " + std::to_string(node) + " differs from the tail, " +
                                        std::to_string(chain.back()) + ", at " + std::to_string(at));
      }
    }
  }
}

void Simulation::CloseTheDead() {
  for (ClientState& state : clients_) {
    if (state.client != nullptr) Trace("client %u, of a dead process, is closed", state.number);
    state.client.reset();
  }
  joiners_.clear();
  for (Process& process : processes_) process.store.reset();
  memory_nodes_.Close();
  if (kvs::internal::LiveFrames() != 0) {
    Violation("leak", std::to_string(kvs::internal::LiveFrames()) + " coroutine frames are left");
  }
}

void Simulation::Count() {
  Counts& counts = result_.counts;
  counts.operations = history_.size();
  if (housekeeper_) {
    counts.sweeps = housekeeper_->stats().sweeps;
    counts.swept_chunks = housekeeper_->stats().chunks_freed;
    counts.swept_expired = housekeeper_->stats().expired;
  }
  for (uint32_t i = 0; i < history_.size(); ++i) counts.unanswered += history_[i].end == 0;
  for (const ClientState& state : clients_) {
    if (!state.client) continue;
    const kvs::ClientStats& stats = state.client->stats();
    counts.combined_operations += stats.combined_operations;
    counts.cache_speculations += stats.cache_speculations;
    counts.cache_hits += stats.cache_hits;
    counts.splits += stats.splits;
    counts.slots_migrated += stats.slots_migrated;
    counts.split_takeovers += stats.split_takeovers;
    counts.expulsions += stats.expulsions;
    counts.fenced += stats.fenced;
    counts.fenced_restarts += stats.fenced_restarts;
    counts.rc_connects += stats.rc_connects;
    counts.rc_reclaims += stats.rc_reclaims;
    counts.merges += stats.merges;
    counts.merge_takeovers += stats.merge_takeovers;
    counts.table_replacements += stats.table_replacements;
    counts.stale_directory_hits += stats.stale_directory_hits;
    counts.cas_failures += stats.cas_failures;
    counts.restarts += stats.restarts;
    counts.expired += stats.expired;
    counts.checksum_retries += stats.checksum_retries;
    counts.blocks_retired += stats.blocks_retired;
    counts.blocks_reused += stats.blocks_reused;
  }
  if (!memory_nodes_.closed()) {
    counts.epochs = memory_nodes_.Home().epoch;
    if (memory_nodes_.mirrored()) {
      ++counts.mirrored_runs;
      for (const auto& [node, until_ns] : hidden_) {
        counts.removed_alive += !memory_nodes_.IsDead(node) && memory_nodes_.PoolOf(node) == krcore::kNoNode;
      }
      counts.views = memory_nodes_.configuration().number - 1;
    }
  }
  const krcore::rnic::sim::WorldStats& stats = world_.stats();
  counts.verbs = stats.verbs;
  counts.torn = stats.torn;
  counts.delayed = stats.delayed;
  counts.broken = stats.broken;
  counts.killed_devices = stats.killed_devices;
  counts.zombie_verbs = stats.zombie_verbs;
}

}  // namespace surgekv_sim
