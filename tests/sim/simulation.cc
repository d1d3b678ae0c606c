#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kvs/layout/subtable.h"
#include "tests/sim/simulation_core.h"

namespace surgekv_sim {
namespace {

constexpr uint32_t kIdlePolls = 64;  // the same number as in the client
constexpr char kFabric[] = "kvs_sim";

kvs::HashSeed HashSeedOf(const Plan& plan) { return {.low = plan.seed}; }

// Most keys are in one part of the table, so that it splits again and again there: child after child, or one parent.
std::vector<std::string> NamesOfKeys(const Plan& plan) {
  std::vector<std::string> names;
  const uint64_t mask = (uint64_t{1} << plan.suffix_bits) - 1;
  const kvs::Hasher hasher(HashSeedOf(plan));
  for (uint32_t n = 0; names.size() < plan.keys; ++n) {
    std::string name = "key-" + std::to_string(n);
    const kvs::KeyHash hash = hasher(name);
    if (hash.fingerprint() % 64 >= (plan.fingerprints + 3) / 4) continue;
    if ((hash.h1 & mask) == plan.suffix || n % 8 == 0) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

Simulation::Simulation(const Plan& plan, bool trace)
    : plan_(plan),
      trace_(trace),
      world_({.fabric = kFabric, .seed = plan.seed, .cost = {}, .chaos = {}}),
      random_(plan.seed * 7919 + 17),
      history_(NamesOfKeys(plan)),
      memory_nodes_(world_) {
  history_.set_may_expire([&plan](uint64_t expires_at_ms) {
    return (static_cast<int64_t>(expires_at_ms - DayClock::kBeginMs) - plan.clocks_differ_ms / 2) * kMs;
  });
}

RunResult Simulation::Run() {
  if (std::getenv("KVS_SIM_VERBS") != nullptr) world_.set_trace(stderr);
  StartMemoryNodes();
  if (Fine()) StartClients();
  if (Fine()) Load();
  if (Fine()) Drain();
  if (Fine()) AwaitReplicas();
  if (Fine()) ReadAll();
  if (Fine()) CheckEntries();
  Count();
  if (Fine()) CheckHistory();
  if (Fine()) CloseSurvivors();
  if (Fine()) CheckPool();
  if (Fine()) CloseTheDead();
  result_.digest = history_.Digest() * 31 + world_.stats().verbs * 7 + static_cast<uint64_t>(world_.now_ns());
  if (result_.violation == "hang") result_.text += "the memory as it is:\n" + MemoryReport().ToString();
  if (!Fine()) result_.text = plan_.ToString() + result_.text;
  return std::move(result_);
}

void Simulation::Violation(const char* kind, const std::string& text) {
  if (!Fine()) return;
  result_.violation = kind;
  result_.text = text + "\n";
  Trace("VIOLATION %s: %s", kind, text.c_str());
}

void Simulation::Trace(const char* format, ...) {
  if (!trace_) return;
  std::fprintf(stderr, "%14.2f us  ", static_cast<double>(world_.now_ns()) / 1e3);
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
}

void Simulation::StartMemoryNodes() {
  MemoryNodesOptions options;
  options.fabric = kFabric;
  options.pools = plan_.memory_nodes;
  options.replicas = plan_.replicas;
  options.home_bytes = plan_.pool_bytes;
  options.other_bytes = plan_.uneven ? plan_.pool_bytes + (size_t{16} << 20) : plan_.pool_bytes;
  options.rc_peers = plan_.rc_peers;
  options.home.geometry.groups = plan_.groups;
  options.home.initial_depth = plan_.initial_depth;
  options.home.chunk_bytes = plan_.chunk_bytes;
  options.home.hash_seed = HashSeedOf(plan_);
  if (const Status started = memory_nodes_.Start(options); !started.ok()) Violation("setup", started.ToString());
}

void Simulation::StartClients() {
  for (const uint32_t clients : plan_.processes) {
    Process* process = StartProcess();
    for (uint32_t c = 0; c < clients && process != nullptr; ++c) {
      StartClient(*process, plan_.storm != Storm::kNone && processes_.size() == 1 ? 32 : plan_.lanes);
    }
  }
  if (plan_.housekeeper) {
    auto store = OpenStore();
    if (!store.ok()) return Violation("setup", "the housekeeper's store: " + store.status().ToString());
    housekeepers_store_ = *std::move(store);
    housekeeper_ = kvs::Housekeeper::Create(*housekeepers_store_).value();
  }
  world_.set_chaos(plan_.chaos);
  if (plan_.storm != Storm::kNone && !processes_.empty()) {
    processes_.front().slow = true;
    world_.set_chaos(processes_.front().store->node().id(), plan_.slow);
  }
}

krcore::Result<std::unique_ptr<kvs::Store>> Simulation::OpenStore(int64_t timeout_ns) {
  kvs::StoreOptions options;
  options.rnic = "sim";
  options.fabric = kFabric;
  options.operation_timeout_ms = timeout_ns / kMs;
  options.open_timeout_ms = timeout_ns / kMs;
  const auto differ_ms = static_cast<int64_t>(plan_.clocks_differ_ms);
  clocks_.emplace_back(world_.clock(),
                       static_cast<int64_t>(Below(static_cast<uint64_t>(differ_ms) + 1)) - differ_ms / 2);
  options.clock = &clocks_.back();
  return kvs::Store::Open(options);
}

Process* Simulation::StartProcess(int64_t timeout_ns) {
  auto store = OpenStore(timeout_ns);
  if (!store.ok()) {
    if (!plan_.queues_break) Violation("status", "opening the store: " + store.status().ToString());
    return nullptr;
  }
  processes_.push_back({});
  Process& process = processes_.back();
  process.number = static_cast<uint32_t>(processes_.size());
  process.clock = &clocks_.back();
  process.store = std::move(*store);
  return &process;
}

ClientState* Simulation::StartClient(Process& process, uint32_t lanes) {
  kvs::ClientOptions options;
  options.max_in_flight = lanes > 1 ? lanes - 1 : 1;
  options.queues.max_rc_queues = plan_.rc_queues;
  options.queues.rc_hot_wrs = plan_.rc_hot_wrs;
  options.queues.rc_patience_ns = 0;  // virtual time is short: allow as many moves as possible
  const std::vector<uint32_t> taken = EntriesOf(process);
  auto client = process.store->NewClient(options);
  if (!client.ok()) {
    if (world_.IsDead(process.store->node().id())) {
      Died(process);
    } else if (!plan_.queues_break) {
      Violation("status", "a new client: " + client.status().ToString());
    }
    return nullptr;
  }
  clients_.push_back({});
  ClientState& state = clients_.back();
  state.number = static_cast<uint32_t>(clients_.size());
  state.process = &process;
  state.client = std::move(*client);
  for (const uint32_t entry : EntriesOf(process)) {
    if (!std::binary_search(taken.begin(), taken.end(), entry)) state.entry = entry;
  }
  state.lanes = lanes;
  state.speed = static_cast<double>(LogUniform(random_, 300, 4'000)) / 1e3;
  state.next_poll_ns = state.posted_after_ns = world_.now_ns();
  state.seen_ns.fill(world_.now_ns());
  Trace("client %u begins in process %u", state.number, process.number);
  return &state;
}

kvs::ClientEntry Simulation::EntryAt(uint32_t index) const { return memory_nodes_.Home().clients[index]; }

std::vector<uint32_t> Simulation::EntriesOf(const Process& process) const {
  const krcore::Node& node = process.store->node();
  std::vector<uint32_t> entries;
  const kvs::HomeArea home = memory_nodes_.Home();
  for (uint32_t i = 0; i < kvs::kMaxClients; ++i) {
    const kvs::OwnerWord owner(home.clients[i].owner);
    if (owner.held() && owner.node() == node.id() && owner.incarnation() == node.incarnation()) entries.push_back(i);
  }
  return entries;
}

void Simulation::Load() {
  uint32_t last_tempo = 0;
  while (Fine() && history_.size() < plan_.operations) {
    const auto begun = static_cast<uint32_t>(history_.size());
    while (next_fault_ < plan_.faults.size() && plan_.faults[next_fault_].at_operation <= begun) {
      Inject(plan_.faults[next_fault_++]);
    }
    if (begun >= last_tempo) {
      last_tempo = begun + 50 + Below(250);
      tempo_ns_ = Chance(0.85) ? LogUniform(random_, 100, 20 * kUs) : LogUniform(random_, 20 * kUs, 200 * kUs);
      for (uint32_t& key : hot_) key = Below(plan_.keys);
      hot_count_ = 1 + Below(hot_.size());
    }
    phase_ =
        plan_.phases[std::min<size_t>(size_t{begun} * plan_.phases.size() / plan_.operations, plan_.phases.size() - 1)];
    accepting_ = true;
    Step();
  }
  accepting_ = false;
}

void Simulation::Step() {
  ClientState* next = nullptr;
  for (ClientState& state : clients_) {
    if (state.alive() && (next == nullptr || state.next_poll_ns < next->next_poll_ns)) next = &state;
  }
  if (!deferred_.empty() && !PromotionPending()) {
    const Fault fault = deferred_.front();
    deferred_.pop_front();
    Inject(fault);
    return;
  }
  if (next == nullptr && PromotionPending()) return StepJoiner(*NextJoiner());
  if (next == nullptr) {
    // All clients have left, so a new one comes.
    Arrive();
    return;
  }
  if (Joiner* const joiner = NextJoiner(); joiner != nullptr && joiner->step_at_ns < next->next_poll_ns) {
    return StepJoiner(*joiner);
  }
  world_.RunUntil(std::max(world_.now_ns(), next->next_poll_ns));
  PollMemoryNodes();
  Housekeep();
  PollClient(*next);
  if (world_.now_ns() - progress_ns_ > kHangNs) {
    Violation("hang", "nothing has ended for " + std::to_string(kHangNs / kSecond) + " virtual seconds\n" + InFlight());
  }
}

void Simulation::PollMemoryNodes() {
  if (plan_.rc_peers == 0 || world_.now_ns() < poll_memory_nodes_at_ns_) return;
  memory_nodes_.PollConnections();
  poll_memory_nodes_at_ns_ = world_.now_ns() + plan_.rc_poll_ns;
}

void Simulation::Housekeep() {
  if (housekeeper_ == nullptr || world_.now_ns() < housekeep_at_ns_) return;
  const int64_t next_ns = housekeeper_->Step();
  housekeep_at_ns_ = world_.now_ns() + next_ns;
}

void Simulation::PollClient(ClientState& state) {
  if (accepting_ && !state.leaving && state.rests_until_ns <= world_.now_ns()) {
    while (state.in_flight < state.lanes && Chance(0.7)) StartOperation(state);
  }
  const int64_t begun_ns = world_.now_ns();
  // A lease counts from the post of a heartbeat. Two may be under way at once (Registrar::Announce, and a renewal).
  if (begun_ns - state.posted_after_ns > kLeaseNs - kLeaseNs / 4) state.lapsed_ns = begun_ns;
  uint32_t polls = 1;
  // Polls in vain cost more CPU than they show while a memory node copies, which takes long.
  const bool copies = waits_for_replicas_ || (!joiners_.empty() && world_.now_ns() < slow_until_ns_);
  if (!copies && Chance(plan_.spin)) polls = static_cast<uint32_t>(LogUniform(random_, 2, 1'500));
  // Time stands still meanwhile. After this many polls without a completion, one of which looked at the clock, another
  // poll does nothing.
  for (uint32_t idle = 0; polls > 0 && idle <= kIdlePolls && !CheckDeath(*state.process); --polls) {
    idle = state.client->Poll() == 0 ? idle + 1 : 0;
  }
  if (CheckDeath(*state.process)) return;
  if (state.client->stats().fenced != state.fenced) {
    state.fenced = state.client->stats().fenced;
    state.expelled_ns.push_back(begun_ns);
  }
  if (state.client->stats().heartbeats != state.heartbeats) {
    state.heartbeats = state.client->stats().heartbeats;
    state.posted_after_ns = std::exchange(state.seen_ns[1], std::exchange(state.seen_ns[0], begun_ns));
  }
  Ambush(state);
  if (state.leaving && state.in_flight == 0 && !PromotionPending()) {
    Trace("client %u leaves", state.number);
    Close(state);
    ++result_.counts.departures;
    (void)CheckDeath(*state.process);
    return;
  }
  int64_t tempo = world_.now_ns() < slow_until_ns_ ? std::max(tempo_ns_, slow_tempo_ns_) : tempo_ns_;
  // When all wait, for a dead client's lock or for a delayed verb, there is no need to look a million times.
  tempo = std::max(tempo, std::min<int64_t>(100 * kUs, (world_.now_ns() - progress_ns_) / 300));
  const double gap = static_cast<double>(tempo) * state.speed * (0.1 + 2 * static_cast<double>(Below(1'000)) / 1e3);
  state.next_poll_ns = std::max(state.paused_until_ns, world_.now_ns() + 50 + static_cast<int64_t>(gap));
}

void Simulation::Close(ClientState& state) {
  const auto is_expelled = [&] {
    return kvs::ClientWord(EntryAt(state.entry).word).state() == kvs::ClientState::kExpelled;
  };
  const bool expelled = is_expelled();
  state.client.reset();
  if (expelled || is_expelled()) state.expelled_ns.push_back(world_.now_ns());
}

void Simulation::Ambush(ClientState& state) {
  const kvs::ClientStats& stats = state.client->stats();
  if (stats.splits != state.splits || stats.slots_migrated < state.slots_migrated) {
    state.slots_migrated = stats.slots_migrated;
  }
  state.splits = stats.splits;
  // At some moment from when values are frozen until they are cleared.
  const bool in_split = stats.slots_migrated >= state.slots_migrated + 10;
  if (!in_split || ambushes_.empty() || !Chance(0.2)) return;
  const int64_t duration_ns = ambushes_.back();
  ambushes_.pop_back();
  Trace("client %u is paused in a split", state.number);
  state.paused_until_ns = world_.now_ns() + duration_ns;
  SlowDown(duration_ns);
  CountPause(duration_ns);
  ++result_.counts.paused_splits;
}

bool Simulation::CheckDeath(Process& process) {
  if (!process.dead && world_.IsDead(process.store->node().id())) Died(process);
  return process.dead;
}

void Simulation::Died(Process& process) {
  process.dead = true;
  Trace("process %u is dead", process.number);
  if (process.memory_node != krcore::kNoNode) JoinerDied(process);
}

void Simulation::Arrive() {
  Process* process = Chance(0.5) ? AnyProcess(false, false) : nullptr;
  if (process == nullptr) process = StartProcess();
  if (process == nullptr) return;
  if (StartClient(*process, plan_.lanes) != nullptr) ++result_.counts.arrivals;
}

RunResult RunSimulation(const Plan& plan, bool trace) {
  auto simulation = std::make_unique<Simulation>(plan, trace);
  RunResult result = simulation->Run();
  if (!result.violation.empty()) (void)simulation.release();  // whatever is wrong with it, it cannot be closed in order
  return result;
}

}  // namespace surgekv_sim
