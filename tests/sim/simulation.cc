#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "kvs/client.h"
#include "kvs/layout/hash.h"
#include "kvs/layout/join.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/pool_check.h"
#include "tests/sim/history.h"

namespace surgekv_sim {
namespace {

using krcore::NodeId;
using krcore::Status;
using krcore::StatusCode;
using krcore::rnic::sim::World;

constexpr int64_t kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;
constexpr int64_t kTakeoverNs = 100 * kMs, kLeaseNs = kSecond;
// An operation that takes so long in virtual time, whatever happens to the others, hangs.
constexpr int64_t kOperationTimeoutNs = 60 * kSecond;
constexpr int64_t kHangNs = 3 * kOperationTimeoutNs;
constexpr int64_t kLongestLingerNs = kSecond;
constexpr uint32_t kIdlePolls = 64;  // as the client has it
constexpr char kFabric[] = "kvs_sim";

struct Process {
  uint32_t number = 0;
  std::unique_ptr<kvs::Store> store;
  bool doomed = false;  // it is to be killed
  bool dead = false;
  bool slow = false;
};

struct ClientState {
  uint32_t number = 0;
  Process* process = nullptr;
  std::unique_ptr<kvs::Client> client;
  uint32_t lanes = 0;
  uint32_t in_flight = 0;
  int64_t next_poll_ns = 0;
  double speed = 1;
  bool leaving = false;
  int64_t paused_until_ns = 0;
  uint32_t entry = 0;                                   // its place in the store's table of clients
  uint64_t slots_migrated = 0, splits = 0, fenced = 0;  // as of its last poll
  std::vector<int64_t> expelled_ns;                     // when the polls began at which it found itself expelled
  int64_t rests_until_ns = 0;                           // what it begins fails anyway

  bool alive() const { return client != nullptr && !process->dead; }
};

// Most of them in one part of the table, so that it splits again and again there, child after child or one parent.
std::vector<std::string> NamesOfKeys(const Plan& plan) {
  std::vector<std::string> names;
  const uint64_t mask = (uint64_t{1} << plan.suffix_bits) - 1;
  for (uint32_t n = 0; names.size() < plan.keys; ++n) {
    std::string name = "key-" + std::to_string(n);
    if (kvs::HashKey(name).fingerprint() % 64 >= (plan.fingerprints + 3) / 4) continue;
    if ((kvs::HashKey(name).h1 & mask) == plan.suffix || n % 8 == 0) names.push_back(std::move(name));
  }
  return names;
}

class Simulation {
 public:
  Simulation(const Plan& plan, bool trace)
      : plan_(plan),
        trace_(trace),
        world_({.fabric = kFabric, .seed = plan.seed, .cost = {}, .chaos = {}}),
        random_(plan.seed * 7919 + 17),
        history_(NamesOfKeys(plan)) {}

  RunResult Run() {
    if (std::getenv("KVS_SIM_VERBS") != nullptr) world_.set_trace(stderr);
    StartMemoryNodes();
    if (Fine()) StartClients();
    if (Fine()) Load();
    if (Fine()) Drain();
    if (Fine()) ReadAll();
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

 private:
  // ---- small things

  bool Fine() const { return result_.violation.empty(); }
  void Violation(const char* kind, const std::string& text) {
    if (!Fine()) return;
    result_.violation = kind;
    result_.text = text + "\n";
    Trace("VIOLATION %s: %s", kind, text.c_str());
  }
  __attribute__((format(printf, 2, 3))) void Trace(const char* format, ...) {
    if (!trace_) return;
    std::fprintf(stderr, "%14.2f us  ", static_cast<double>(world_.now_ns()) / 1e3);
    va_list args;
    va_start(args, format);
    std::vfprintf(stderr, format, args);
    va_end(args);
    std::fputc('\n', stderr);
  }
  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }
  bool Chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  bool tiny() const { return plan_.tiny; }

  // ---- beginning

  void StartMemoryNodes() {
    for (NodeId id = 1; id <= plan_.memory_nodes; ++id) {
      krcore::NodeOptions options;
      options.rnic = "sim";
      options.fabric = kFabric;
      options.node = id;
      options.create_fabric = id == 1;
      options.clock = &world_.clock();
      options.rc_peers = plan_.rc_peers;
      auto node = krcore::Node::Open(options);
      if (!node.ok()) return Violation("setup", "a memory node: " + node.status().ToString());
      krcore::RegionOptions region;
      region.length = id == 1 || !plan_.uneven ? plan_.pool_bytes : plan_.pool_bytes + (size_t{16} << 20);
      region.remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite | krcore::kRemoteAtomic;
      region.tag = kvs::kPoolRegionTag;
      auto pool = (*node)->CreateRegion(region);
      if (!pool.ok()) return Violation("setup", "a pool: " + pool.status().ToString());
      if (id == 1) {
        if (Status hosted = (*node)->HostMetaServer(64); !hosted.ok()) return Violation("setup", hosted.ToString());
      }
      kvs::HomeOptions home;
      home.geometry.groups = plan_.groups;
      home.initial_depth = plan_.initial_depth;
      home.chunk_bytes = plan_.chunk_bytes;
      const auto joined = JoinStore(**node, **pool, home, krcore::Deadline::After(world_.clock(), 10 * kSecond));
      if (!joined.ok()) return Violation("setup", "joining: " + joined.status().ToString());
      memory_nodes_.push_back(std::move(*node));
      pools_.push_back(std::move(*pool));
    }
  }

  void StartClients() {
    for (const uint32_t clients : plan_.processes) {
      Process* process = StartProcess();
      for (uint32_t c = 0; c < clients && process != nullptr; ++c) {
        StartClient(*process, plan_.storm != Storm::kNone && processes_.size() == 1 ? 32 : plan_.lanes);
      }
    }
    world_.set_chaos(plan_.chaos);
    if (plan_.storm != Storm::kNone && !processes_.empty()) {
      processes_.front().slow = true;
      world_.set_chaos(processes_.front().store->node().id(), plan_.slow);
    }
  }

  // Null if it could not connect, which only broken queues excuse.
  Process* StartProcess() {
    kvs::StoreOptions options;
    options.rnic = "sim";
    options.fabric = kFabric;
    options.operation_timeout_ms = kOperationTimeoutNs / kMs;
    options.open_timeout_ms = kOperationTimeoutNs / kMs;
    options.clock = &world_.clock();
    auto store = kvs::Store::Open(options);
    if (!store.ok()) {
      if (!plan_.queues_break) Violation("status", "opening the store: " + store.status().ToString());
      return nullptr;
    }
    processes_.push_back({});
    Process& process = processes_.back();
    process.number = static_cast<uint32_t>(processes_.size());
    process.store = std::move(*store);
    return &process;
  }

  ClientState* StartClient(Process& process, uint32_t lanes) {
    kvs::ClientOptions options;
    options.max_in_flight = lanes > 1 ? lanes - 1 : 1;
    options.queues.max_rc_queues = plan_.rc_queues;
    options.queues.rc_hot_wrs = plan_.rc_hot_wrs;
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
    state.next_poll_ns = world_.now_ns();
    Trace("client %u begins in process %u", state.number, process.number);
    return &state;
  }

  kvs::ClientEntry EntryAt(uint32_t index) const {
    kvs::ClientEntry entry;
    const size_t offset = kvs::kHomeAreaOffset + offsetof(kvs::HomeArea, clients) + index * sizeof(entry);
    std::memcpy(&entry, pools_.front()->bytes().data() + offset, sizeof(entry));
    return entry;
  }

  // Those of the process's clients in the store's table, in order.
  std::vector<uint32_t> EntriesOf(const Process& process) const {
    const krcore::Node& node = process.store->node();
    std::vector<uint32_t> entries;
    for (uint32_t i = 0; i < kvs::kMaxClients; ++i) {
      if (EntryAt(i).owner == (uint64_t{node.id()} << 32 | node.incarnation())) entries.push_back(i);
    }
    return entries;
  }

  // ---- the load

  void Load() {
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
      phase_ = plan_.phases[std::min<size_t>(size_t{begun} * plan_.phases.size() / plan_.operations,
                                             plan_.phases.size() - 1)];
      accepting_ = true;
      Step();
    }
    accepting_ = false;
  }

  // Lets time pass until the next client is due, and polls it.
  void Step() {
    ClientState* next = nullptr;
    for (ClientState& state : clients_) {
      if (state.alive() && (next == nullptr || state.next_poll_ns < next->next_poll_ns)) next = &state;
    }
    if (next == nullptr) {
      // All have left. Somebody comes.
      Arrive();
      return;
    }
    world_.RunUntil(std::max(world_.now_ns(), next->next_poll_ns));
    PollMemoryNodes();
    PollClient(*next);
    if (world_.now_ns() - progress_ns_ > kHangNs) {
      Violation("hang",
                "nothing has ended for " + std::to_string(kHangNs / kSecond) + " virtual seconds\n" + InFlight());
    }
  }

  // They answer who asks for RC queues, and do nothing else.
  void PollMemoryNodes() {
    if (plan_.rc_peers == 0 || world_.now_ns() < poll_memory_nodes_at_ns_) return;
    for (const auto& node : memory_nodes_) (void)node->PollConnections();
    poll_memory_nodes_at_ns_ = world_.now_ns() + plan_.rc_poll_ns;
  }

  void PollClient(ClientState& state) {
    if (accepting_ && !state.leaving && state.rests_until_ns <= world_.now_ns()) {
      while (state.in_flight < state.lanes && Chance(0.7)) StartOperation(state);
    }
    const int64_t begun_ns = world_.now_ns();
    uint32_t polls = 1;
    if (Chance(plan_.spin)) polls = static_cast<uint32_t>(LogUniform(random_, 2, 1'500));
    // Time stands still meanwhile: after so many polls without a completion, of which one looked at the clock, no other
    // one does anything.
    for (uint32_t idle = 0; polls > 0 && idle <= kIdlePolls && !CheckDeath(*state.process); --polls) {
      idle = state.client->Poll() == 0 ? idle + 1 : 0;
    }
    if (CheckDeath(*state.process)) return;
    if (state.client->stats().fenced != state.fenced) {
      state.fenced = state.client->stats().fenced;
      state.expelled_ns.push_back(begun_ns);
    }
    Ambush(state);
    if (state.leaving && state.in_flight == 0) {
      Trace("client %u leaves", state.number);
      Close(state);
      ++result_.counts.departures;
      (void)CheckDeath(*state.process);
      return;
    }
    int64_t tempo = world_.now_ns() < slow_until_ns_ ? std::max(tempo_ns_, slow_tempo_ns_) : tempo_ns_;
    // Where all wait, for a dead client's lock or for a delayed verb, there is no need to look a million times.
    tempo = std::max(tempo, std::min<int64_t>(100 * kUs, (world_.now_ns() - progress_ns_) / 300));
    const double gap = static_cast<double>(tempo) * state.speed * (0.1 + 2 * static_cast<double>(Below(1'000)) / 1e3);
    state.next_poll_ns = std::max(state.paused_until_ns, world_.now_ns() + 50 + static_cast<int64_t>(gap));
  }

  void Close(ClientState& state) {
    const auto is_expelled = [&] {
      return kvs::ClientWord(EntryAt(state.entry).word).state() == kvs::ClientState::kExpelled;
    };
    const bool expelled = is_expelled();
    state.client.reset();
    if (expelled || is_expelled()) state.expelled_ns.push_back(world_.now_ns());
  }

  // Has this client just decided the slots of a split, with the rest of it still to be done?
  void Ambush(ClientState& state) {
    const kvs::ClientStats& stats = state.client->stats();
    const bool in_split = stats.slots_migrated >= state.slots_migrated + 20 && stats.splits == state.splits;
    state.slots_migrated = stats.slots_migrated;
    state.splits = stats.splits;
    if (!in_split || ambushes_.empty()) return;
    const int64_t duration_ns = ambushes_.back();
    ambushes_.pop_back();
    Trace("client %u is paused in a split", state.number);
    state.paused_until_ns = world_.now_ns() + duration_ns;
    SlowDown(duration_ns);
    CountPause(duration_ns);
    ++result_.counts.paused_splits;
  }

  bool CheckDeath(Process& process) {
    if (!process.dead && world_.IsDead(process.store->node().id())) Died(process);
    return process.dead;
  }

  void Died(Process& process) {
    process.dead = true;
    Trace("process %u is dead", process.number);
  }

  void StartOperation(ClientState& state) {
    static constexpr OpKind kRead[] = {OpKind::kGet, OpKind::kGet, OpKind::kGet,
                                       OpKind::kGet, OpKind::kGet, OpKind::kUpdate};
    static constexpr OpKind kAll[] = {OpKind::kGet,    OpKind::kGet,    OpKind::kGet,    OpKind::kPut,
                                      OpKind::kPut,    OpKind::kInsert, OpKind::kInsert, OpKind::kUpdate,
                                      OpKind::kUpdate, OpKind::kDelete};
    static constexpr OpKind kGrow[] = {OpKind::kInsert, OpKind::kInsert, OpKind::kPut,
                                       OpKind::kGet,    OpKind::kGet,    OpKind::kUpdate};
    static constexpr OpKind kShrink[] = {OpKind::kDelete, OpKind::kDelete, OpKind::kDelete, OpKind::kDelete,
                                         OpKind::kGet};
    static constexpr OpKind kChurn[] = {OpKind::kUpdate, OpKind::kPut, OpKind::kGet};
    static constexpr OpKind kStormyGrow[] = {OpKind::kInsert, OpKind::kInsert, OpKind::kUpdate, OpKind::kUpdate,
                                             OpKind::kGet,    OpKind::kGet,    OpKind::kGet,    OpKind::kGet};
    const auto any = [this](const auto& kinds) { return kinds[Below(std::size(kinds))]; };
    OpKind kind = any(kAll);
    uint32_t key = hot_[Below(hot_count_)];
    const bool hot = phase_ == Phase::kHot ? Chance(0.9)
                                           : Chance(plan_.storm == Storm::kNone     ? 0.25
                                                    : plan_.storm == Storm::kSplits ? 0.1
                                                                                    : 0.0);
    if (!hot || state.process->slow) {
      key = Below(plan_.keys);
      switch (phase_) {
        case Phase::kGrowth:
          kind = plan_.storm == Storm::kSplits ? any(kStormyGrow) : any(kGrow);
          if (state.process->slow) kind = any(kRead);
          // One key after the other, and the others are those that are there: who does not find one is wrong.
          if (plan_.storm == Storm::kSplits)
            key = kind == OpKind::kInsert ? grow_cursor_++ % plan_.keys : Below(std::min(grow_cursor_ + 1, plan_.keys));
          break;
        case Phase::kDelete: kind = any(kShrink); break;
        case Phase::kChurn:
          kind = state.process->slow ? any(kRead) : any(kChurn);
          if (plan_.storm == Storm::kNone) key %= 30;
          break;
        case Phase::kHot:
        case Phase::kMixed: break;
      }
      if (phase_ == Phase::kDelete && Chance(0.8)) key = delete_cursor_++ % plan_.keys;
    }
    Start(state, kind, key);
  }

  uint32_t Start(ClientState& state, OpKind kind, uint32_t key) {
    const uint32_t index = history_.Begin(key, kind, state.number, world_.now_ns());
    ++state.in_flight;
    Trace("client %u begins %u: %s of %s, value %u", state.number, index, KindName(kind), history_.NameOf(key).c_str(),
          history_[index].value);
    state.client->Spawn(RunOperation(&state, index));
    return index;
  }

  static const char* KindName(OpKind kind) {
    static constexpr const char* kNames[] = {"Get", "Put", "Insert", "Update", "Delete"};
    return kNames[static_cast<int>(kind)];
  }

  kvs::Task<void> RunOperation(ClientState* state, uint32_t index) {
    const OpRecord record = history_[index];
    const std::string key = history_.NameOf(record.key);
    std::string value;
    if (record.value != 0) value = ValueOf(record.value);
    std::string read;
    Status status;
    switch (record.kind) {
      case OpKind::kGet: status = co_await state->client->GetAsync(key, &read); break;
      case OpKind::kPut: status = co_await state->client->PutAsync(key, value); break;
      case OpKind::kInsert: status = co_await state->client->InsertAsync(key, value); break;
      case OpKind::kUpdate: status = co_await state->client->UpdateAsync(key, value); break;
      case OpKind::kDelete: status = co_await state->client->DeleteAsync(key); break;
    }
    --state->in_flight;
    if (closing_ || world_.IsDead(state->process->store->node().id())) co_return;  // nobody got this answer
    End(index, status, read);
  }

  void End(uint32_t index, const Status& status, const std::string& read) {
    const OpRecord record = history_[index];
    progress_ns_ = world_.now_ns();
    uint32_t value = 0;
    const std::string what = std::string(KindName(record.kind)) + " of " + history_.NameOf(record.key) + " by client " +
                             std::to_string(record.client) + ": " + status.ToString();
    if (record.kind == OpKind::kGet && status.ok() && !IdOf(read, &value)) {
      Violation("value", what + ": a value of " + std::to_string(read.size()) + " bytes that nobody wrote");
    }
    history_.End(index, status.code(), value, world_.now_ns());
    Trace("client %u ends %u: %s of %s %s, value %u", record.client, index, KindName(record.kind),
          history_.NameOf(record.key).c_str(), status.ToString().c_str(), history_[index].value);
    Counts& counts = result_.counts;
    ++counts.checked;
    if (record.value != 0 && record.value % 67 == 0) ++counts.large_values;
    bool allowed = false;
    switch (status.code()) {
      case StatusCode::kOk: allowed = true; break;
      case StatusCode::kNotFound: allowed = record.kind != OpKind::kPut && record.kind != OpKind::kInsert; break;
      case StatusCode::kExists: allowed = record.kind == OpKind::kInsert; break;
      case StatusCode::kUnknown:
        allowed = plan_.queues_break && record.kind != OpKind::kGet;
        ++counts.unknown;
        break;
      case StatusCode::kUnavailable:
        allowed = plan_.queues_break;
        ++counts.unavailable;
        // It does not try to reach the node for a while; so others go on, and time passes.
        clients_[record.client - 1].rests_until_ns = world_.now_ns() + LogUniform(random_, 20 * kUs, 60 * kMs);
        if (Chance(0.2)) SlowDown(60 * kMs);
        break;
      case StatusCode::kOutOfMemory:
        allowed = tiny();
        ++counts.out_of_memory;
        break;
      case StatusCode::kTimeout: Violation("hang", what + "\n" + history_.Describe(record.key)); break;
      default: break;
    }
    if (!allowed) Violation("status", what + "\n" + history_.Describe(record.key));
  }

  std::string InFlight() const {
    std::string text;
    for (uint32_t i = 0; i < history_.size(); ++i) {
      const OpRecord& record = history_[i];
      const ClientState& state = clients_[record.client - 1];
      if (record.end == 0 && state.alive()) {
        text += std::string("in flight: ") + KindName(record.kind) + " of " + history_.NameOf(record.key) +
                " by client " + std::to_string(record.client) + " since " + std::to_string(record.start_ns / kUs) +
                " us\n";
      }
    }
    for (const ClientState& state : clients_) {
      if (!state.alive()) continue;
      const kvs::ClientStats& stats = state.client->stats();
      text += "client " + std::to_string(state.number) + ": " + std::to_string(state.in_flight) + " in flight, " +
              std::to_string(stats.round_trips) + " round trips, " + std::to_string(stats.restarts) + " restarts, " +
              std::to_string(stats.reads) + " reads, next poll " + std::to_string(state.next_poll_ns / kUs) + " us" +
              (world_.HasCompletions(state.process->store->node().id()) ? ", has completions" : "") + "\n";
    }
    return text + "now " + std::to_string(world_.now_ns() / kUs) + " us, next event " +
           std::to_string(world_.next_event_ns() / kUs) + "\n";
  }

  // ---- faults

  Process* AnyProcess(bool may_be_doomed) {
    std::vector<Process*> living;
    for (Process& process : processes_) {
      if (!process.dead && (may_be_doomed || !process.doomed)) living.push_back(&process);
    }
    return living.empty() ? nullptr : living[Below(living.size())];
  }

  ClientState* AnyClient() {
    std::vector<ClientState*> living;
    for (ClientState& state : clients_) {
      if (state.alive() && !state.leaving) living.push_back(&state);
    }
    return living.empty() ? nullptr : living[Below(living.size())];
  }

  // While somebody sleeps for so long the others do not do a million operations: they are slow too.
  void SlowDown(int64_t duration_ns) {
    slow_until_ns_ = std::max(slow_until_ns_, world_.now_ns() + duration_ns);
    slow_tempo_ns_ = std::max(duration_ns / 100, kUs);
  }

  void CountPause(int64_t duration_ns) {
    ++result_.counts.pauses;
    if (duration_ns > kTakeoverNs) ++result_.counts.long_pauses;
    if (duration_ns > kLeaseNs) ++result_.counts.longer_pauses;
  }

  void Inject(const Fault& fault) {
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

  kvs::Task<void> RunCompaction(kvs::Client* client, bool thorough) {
    kvs::CompactReport report;
    (void)co_await client->CompactAsync({.thorough = thorough, .timeout_ms = 400}, &report);
    result_.counts.chunks_freed += report.chunks_freed;
    result_.counts.blocks_moved += report.blocks_moved;
  }

  void Arrive() {
    Process* process = Chance(0.5) ? AnyProcess(false) : nullptr;
    if (process == nullptr) process = StartProcess();
    if (process == nullptr) return;
    if (StartClient(*process, plan_.lanes) != nullptr) ++result_.counts.arrivals;
  }

  // ---- the end

  // In peace, everybody alive finishes.
  void Drain() {
    world_.set_chaos({});
    slow_until_ns_ = 0;
    tempo_ns_ = kUs;
    const int64_t begun_ns = progress_ns_ = world_.now_ns();
    ambushes_.clear();
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
    // What the dead posted has executed by now, or never will.
    world_.RunUntil(world_.now_ns() + kLongestLingerNs);
  }

  bool Busy() const {
    return std::any_of(clients_.begin(), clients_.end(),
                       [](const ClientState& state) { return state.alive() && state.in_flight > 0; });
  }

  // A client that has seen nothing reads every key.
  void ReadAll() {
    Process* process = StartProcess();
    if (process == nullptr) return Violation("status", "a fresh process cannot connect in peace");
    ClientState* reader = StartClient(*process, 16);
    if (reader == nullptr) return Violation("status", "a fresh client cannot connect in peace");
    tempo_ns_ = kUs;
    progress_ns_ = world_.now_ns();
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

  void CheckHistory() {
    uint32_t gave_up = 0;
    const std::vector<uint32_t> wrong = history_.Violations(&gave_up);
    result_.counts.gave_up = gave_up;
    if (wrong.empty()) return;
    Violation("history", std::to_string(wrong.size()) + " keys have a history that is not linearizable\n" +
                             history_.Describe(wrong.front()));
  }

  void CloseSurvivors() {
    closing_ = true;
    for (ClientState& state : clients_) {
      if (state.alive()) Close(state);
    }
    for (Process& process : processes_) {
      if (!process.dead) process.store.reset();
    }
  }

  surgekv_test::PoolReport MemoryReport() const {
    std::vector<surgekv_test::PoolImage> images;
    for (size_t i = 0; i < pools_.size(); ++i) images.push_back({memory_nodes_[i]->id(), pools_[i]->bytes()});
    surgekv_test::PoolReport report = CheckPools(images, {.after_deaths = true});
    for (const surgekv_test::Leftover& left : report.leftovers) {
      if (!MayBeLeft(left)) report.problems.push_back(left.what);
    }
    return report;
  }

  // Who is expelled takes back what it has staged, and what belongs to that registration is posted no more
  // (docs/memory.md, "Fencing"); who is killed posts nothing either. So what such a client had begun may stay, until
  // somebody needs it out of the way: its lock, which only avoids double work, and with it the split or merge, every
  // step of which whoever takes the lock over may repeat (docs/kvs.md, "Split", "Merge"); and the INS of an operation
  // that it was in just then, which nobody reads as a value and anybody may clear. The operation begins again with
  // another block, and meets that INS only if it has to insert once more in the same table. All others end what they
  // have begun.
  bool MayBeLeft(const surgekv_test::Leftover& left) const {
    if (plan_.queues_break) return true;  // the verb that would have ended it may have broken, whosesoever it is
    if (left.kind == surgekv_test::Leftover::Kind::kTentative) {
      uint32_t id = 0;
      if (!IdOf(left.value, &id) || id == 0 || id > history_.size()) return false;
      const OpRecord& insert = history_[id - 1];
      const ClientState& owner = clients_[insert.client - 1];
      if (insert.end == 0) return owner.process->dead;
      return std::any_of(owner.expelled_ns.begin(), owner.expelled_ns.end(),
                         [&insert](int64_t ns) { return insert.start_ns <= ns && ns <= insert.end_ns; });
    }
    // Who took it over, and found no memory for the new table, has given the lock back.
    const bool given_up = left.lock == 0 && tiny();
    return std::any_of(clients_.begin(), clients_.end(), [&](const ClientState& client) {
      const bool stopped = !client.expelled_ns.empty() || (client.process->dead && client.client != nullptr);
      return stopped && (given_up || left.lock >> 32 == client.entry + 1);
    });
  }

  void CheckPool() {
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
      Violation("pool", history_.NameOf(read.key) + ": a client read " +
                            (read.status == StatusCode::kOk ? "value " + std::to_string(read.value) : "nothing") +
                            ", the memory holds " + (there ? "value " + std::to_string(id) : "nothing") + "\n" +
                            history_.Describe(read.key));
    }
  }

  void CloseTheDead() {
    for (ClientState& state : clients_) state.client.reset();
    for (Process& process : processes_) process.store.reset();
    pools_.clear();
    memory_nodes_.clear();
    if (kvs::internal::LiveFrames() != 0) {
      Violation("leak", std::to_string(kvs::internal::LiveFrames()) + " coroutine frames are left");
    }
  }

  void Count() {
    Counts& counts = result_.counts;
    counts.operations = history_.size();
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
      counts.checksum_retries += stats.checksum_retries;
      counts.blocks_retired += stats.blocks_retired;
      counts.blocks_reused += stats.blocks_reused;
    }
    if (!pools_.empty()) {
      kvs::HomeArea home;
      std::memcpy(&home, pools_.front()->bytes().data() + kvs::kHomeAreaOffset, sizeof(home));
      counts.epochs = home.epoch;
    }
    const krcore::rnic::sim::WorldStats& stats = world_.stats();
    counts.verbs = stats.verbs;
    counts.torn = stats.torn;
    counts.delayed = stats.delayed;
    counts.broken = stats.broken;
    counts.killed_devices = stats.killed_devices;
    counts.zombie_verbs = stats.zombie_verbs;
  }

  const Plan& plan_;
  const bool trace_;
  World world_;
  std::mt19937_64 random_;
  History history_;
  RunResult result_;
  std::vector<std::unique_ptr<krcore::Node>> memory_nodes_;
  std::vector<std::unique_ptr<krcore::Region>> pools_;  // destroyed before their nodes
  std::deque<Process> processes_;
  std::deque<ClientState> clients_;
  std::vector<uint32_t> final_reads_;

  size_t next_fault_ = 0;
  std::vector<int64_t> ambushes_;  // how long the next splitters are to be paused
  Phase phase_ = Phase::kGrowth;
  bool accepting_ = false;  // operations are begun
  bool closing_ = false;
  std::array<uint32_t, 6> hot_{};
  uint32_t hot_count_ = 1;
  uint32_t delete_cursor_ = 0, grow_cursor_ = 0;
  int64_t tempo_ns_ = kUs;  // about the time between two polls of a client
  int64_t slow_until_ns_ = 0, slow_tempo_ns_ = 0;
  int64_t poll_memory_nodes_at_ns_ = 0;
  int64_t progress_ns_ = 0;  // when an operation ended last
};

}  // namespace

RunResult RunSimulation(const Plan& plan, bool trace) {
  auto simulation = std::make_unique<Simulation>(plan, trace);
  RunResult result = simulation->Run();
  if (!result.violation.empty()) (void)simulation.release();  // whatever is wrong with it, it cannot be closed in order
  return result;
}

}  // namespace surgekv_sim
