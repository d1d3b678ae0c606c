// Simulation: a run, from its plan to its judgement. Each part has a file of its own: the beginning and the driving of
// the clients, their operations, the faults, and the judging at the end.
//
// Thread safety: one thread.
#ifndef TESTS_SIM_SIMULATION_CORE_H_
#define TESTS_SIM_SIMULATION_CORE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "kvs/client.h"
#include "kvs/housekeeper.h"
#include "kvs/layout/pool.h"
#include "kvs/replica_keeper.h"
#include "tests/kvs/pool_check.h"
#include "tests/sim/history.h"
#include "tests/sim/memory_nodes.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulation.h"

namespace surgekv_sim {

using krcore::NodeId;
using krcore::Status;
using krcore::StatusCode;

constexpr int64_t kLeaseNs = kvs::kDefaultLeaseNs;
// An operation that takes this long in virtual time, whatever happens to the others, hangs.
constexpr int64_t kOperationTimeoutNs = 60 * kSecond;
constexpr int64_t kHangNs = 3 * kOperationTimeoutNs;

// The clock of a process, whose time of day is its own.
class DayClock final : public krcore::Clock {
 public:
  static constexpr uint64_t kBeginMs = 1'700'000'000'000;  // the time of day when the virtual time is 0

  DayClock(krcore::Clock& clock, int64_t ahead_ms) : clock_(clock), ahead_ms_(ahead_ms) {}
  int64_t NowNs() override { return clock_.NowNs(); }
  void Relax(uint32_t spins) override { clock_.Relax(spins); }
  uint64_t UnixMs() override { return kBeginMs + static_cast<uint64_t>(ahead_ms_ + NowNs() / kMs); }

 private:
  krcore::Clock& clock_;
  const int64_t ahead_ms_;
};

struct Process {
  uint32_t number = 0;
  DayClock* clock = nullptr;
  std::unique_ptr<kvs::Store> store;
  bool doomed = false;  // it is to be killed
  bool dead = false;
  bool slow = false;
  NodeId memory_node = krcore::kNoNode;  // that it serves, and has no clients but its keeper's
};

// A memory node that has joined, and its process.
struct Joiner {
  Process* process = nullptr;
  std::unique_ptr<kvs::ReplicaKeeper> keeper;
  size_t bytes = 0;
  int64_t step_at_ns = 0;
  double speed = 1;
  kvs::ReplicaState state = kvs::ReplicaState::kSpare;  // as of its last step, as are these:
  uint64_t passes = 0, words_pushed = 0;
  bool passed = false;  // it has begun a pass since it became a learner

  bool alive() const { return !process->dead; }
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
  uint32_t entry = 0;                // its place in the store's table of clients
  uint64_t slots_migrated = 0;       // when its last split ended
  uint64_t splits = 0, fenced = 0;   // as of its last poll
  std::vector<int64_t> expelled_ns;  // start times of the polls at which it found itself expelled
  int64_t rests_until_ns = 0;        // what it begins before then fails anyway
  uint64_t heartbeats = 0;           // as of its last poll
  std::array<int64_t, 2> seen_ns{};  // when that was seen to grow: last, and the time before
  int64_t posted_after_ns = 0;       // ... and the time before that. The last heartbeat was posted later
  int64_t lapsed_ns = -1;            // when its lease was last over, or nearly
  KeyScan scan;                      // it takes some steps of it now and then

  bool alive() const { return client != nullptr && !process->dead; }
};

class Simulation {
 public:
  Simulation(const Plan& plan, bool trace);

  RunResult Run();

 private:
  // ---- small things

  bool Fine() const { return result_.violation.empty(); }
  void Violation(const char* kind, const std::string& text);
  __attribute__((format(printf, 2, 3))) void Trace(const char* format, ...);
  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(random_() % n); }
  bool Chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  bool may_be_full() const { return plan_.tiny || plan_.drains; }

  // ---- beginning (simulation.cc)

  void StartMemoryNodes();
  void StartClients();
  // Makes a clock for the store, the last one of clocks_.
  krcore::Result<std::unique_ptr<kvs::Store>> OpenStore(int64_t timeout_ns = kOperationTimeoutNs);
  // Returns null if it could not connect, which only broken queues excuse.
  Process* StartProcess(int64_t timeout_ns = kOperationTimeoutNs);
  ClientState* StartClient(Process& process, uint32_t lanes);
  kvs::ClientEntry EntryAt(uint32_t index) const;
  // Returns the entries of the process's clients in the store's table, in order.
  std::vector<uint32_t> EntriesOf(const Process& process) const;

  // ---- driving (simulation.cc)

  void Load();
  // Lets time pass until the next client is due, and polls it.
  void Step();
  // Memory nodes answer requests for RC queues, and do nothing else.
  void PollMemoryNodes();
  void PollClient(ClientState& state);
  void Housekeep();
  // Starts a new client, in an existing process or in a new one.
  void Arrive();
  void Close(ClientState& state);
  // If an ambush is due, pauses a client that has frozen values for a split which it has not ended.
  void Ambush(ClientState& state);
  bool CheckDeath(Process& process);
  void Died(Process& process);

  // ---- operations (simulation_operations.cc)

  void StartOperation(ClientState& state);
  uint32_t Start(ClientState& state, OpKind kind, uint32_t key);
  // Begins a MultiGet that reads this key and others.
  void StartMultiGet(ClientState& state, uint32_t key);
  // Begins a MultiWrite of this key and others.
  void StartMultiWrite(ClientState& state, OpKind kind, uint32_t key);
  // Returns one of the further keys of a call with several keys.
  uint32_t AnotherKey();
  uint32_t Begin(ClientState& state, OpKind kind, uint32_t key);
  static const char* KindName(OpKind kind);
  // The client was given a value that has expired by its own clock, or that is to expire at another time than it does.
  // `expires_at_ms`: what the client was told; 0: nothing.
  void CheckExpiry(const OpRecord& record, int64_t at_ns, uint32_t value, std::optional<uint64_t> expires_at_ms);
  // Returns the function of a Modify, which notes in the history what it sees and decides.
  kvs::ModifyFunction FunctionOf(uint32_t index);
  kvs::Task<void> RunOperation(ClientState* state, uint32_t index);
  kvs::Task<void> RunMultiGet(ClientState* state, std::vector<uint32_t> indexes);
  kvs::Task<void> RunMultiWrite(ClientState* state, std::vector<uint32_t> indexes);
  void End(uint32_t index, const Status& status, const std::string& read);
  // Begins so many steps of the client's scan over all keys. They end sooner with its end.
  void StartScan(ClientState& state, const kvs::ScanOptions& options, uint32_t steps);
  kvs::Task<void> RunScan(ClientState* state, kvs::ScanOptions options, uint32_t steps);
  // It failed: the client rests, so that others go on and time passes.
  void Rest(const OpRecord& record);
  // Whether the operation may have waited for other views until it gave up.
  bool MayHaveWaited(const OpRecord& record) const;
  // Whether the outcome of the operation may be unknown though no queue broke.
  bool MayLoseAnswer(const OpRecord& record) const;
  std::string InFlight() const;

  // ---- faults (simulation_faults.cc)

  Process* AnyProcess(bool may_be_doomed, bool may_join = true);
  // Of those that may die.
  Process* AnyVictim();
  ClientState* AnyClient();
  // While a client sleeps for so long, the others must not do a million operations: they are slowed down, too.
  void SlowDown(int64_t duration_ns);
  void CountPause(int64_t duration_ns);
  void Inject(const Fault& fault);
  kvs::Task<void> RunCompaction(kvs::Client* client, bool thorough);
  void BeginDrain(int64_t duration_ns);
  kvs::Task<void> RunDrain(ClientState* state, NodeId node, int64_t timeout_ms, bool give_back);
  // Where pools are mirrored: the memory node has been drained. Stops it, or returns false.
  bool EndDrained(NodeId node, bool was_replica);
  // Where they are not, nothing of the drained memory node may be in use. Destroys what it holds.
  void LoseMemory(NodeId node);
  // Returns the node of any replica of any pool.
  NodeId AnyMemoryNode();
  // Returns the memory nodes that are about to die, cut off or stopped.
  std::vector<NodeId> Away() const;
  // Cuts off, or stops, a memory node without which every pool still has a replica.
  void Hide(const Fault& fault);
  // Whether a memory node was away at that time or later, or views may have changed since because of that, or because a
  // replica left alive.
  bool AnyNodeFailed(int64_t since_ns = 0) const;
  // Kills a memory node without which every pool still has a replica.
  void KillMemoryNode(int64_t linger_ns);

  // ---- memory nodes that join (simulation_joins.cc)

  // One of these comes.
  void Join(const Fault& fault);
  // Returns the one that is due first; null: there is none.
  Joiner* NextJoiner();
  void StepJoiner(Joiner& joiner);
  Joiner* AnyJoiner();
  // Its process or its memory node is dead: so is the other one.
  void JoinerDied(Process& process);
  // The memory node of a process that is going to be killed.
  NodeId DoomedMemoryNode() const;
  // Whether a learner is about to become the tail, which its process alone can decide. Whoever opens the store waits
  // for that, and while a call blocks nobody else does anything.
  bool PromotionPending() const;
  // Notices a promotion that was given up.
  void WatchViews();
  // In peace, waits until each pool in use has all the replicas that it can have.
  void AwaitReplicas();
  // Returns whom the pools wait for; empty: nobody.
  std::string Lacking() const;

  // ---- judging (simulation_judging.cc)

  // Ends the faults and lets every living client finish.
  void Drain();
  bool Busy() const;
  // A client that has seen nothing yet reads every key.
  void ReadAll();
  void CheckEntries();
  bool HasStrayEntry() const;
  void CheckHistory();
  void CloseSurvivors();
  // Of the memory that READs see, or, in a mirrored store, of what is `from_tail` places before that.
  surgekv_test::PoolReport MemoryReport(uint32_t from_tail = 0) const;
  // Returns whether this was left by a client that was stopped, and is allowed by the protocol.
  bool MayBeLeft(const surgekv_test::Leftover& left) const;
  void CheckPool();
  // The memory of the other replicas is sound, and holds what the tails do.
  void CheckReplicas(const surgekv_test::PoolReport& tails);
  // Whether anything stopped that may have left a word at the head of a chain and not at its tail.
  bool MayLag() const;
  // Whether nothing happened for which two replicas may differ in any byte.
  bool Undisturbed() const;
  // The replicas of each pool are the same.
  void CheckBytes();
  void CloseTheDead();
  void Count();

  const Plan& plan_;
  const bool trace_;
  krcore::rnic::sim::World world_;
  std::mt19937_64 random_;
  History history_;
  RunResult result_;
  MemoryNodes memory_nodes_;
  std::deque<DayClock> clocks_;
  std::unique_ptr<kvs::Store> housekeepers_store_;
  std::unique_ptr<kvs::Housekeeper> housekeeper_;
  int64_t housekeep_at_ns_ = 0;
  std::deque<Process> processes_;
  std::deque<ClientState> clients_;
  std::deque<Joiner> joiners_;
  bool waits_for_replicas_ = false;
  int64_t promoted_ns_ = -1;               // when a learner last became a tail
  int64_t left_alive_ns_ = INT64_MIN / 2;  // when a replica that lives last left its chain
  bool any_gave_up_ = false;               // waiting for another view: what it had begun stays as it is
  std::deque<Fault> deferred_;             // arrivals, until no promotion is pending
  kvs::Configuration watched_;
  int64_t watched_ns_ = 0;            // when that was another one
  std::set<NodeId> drained_;          // memory nodes that no pool may have
  std::map<NodeId, int64_t> hidden_;  // memory nodes that were cut off or stopped, and until when
  std::vector<uint32_t> final_reads_;

  size_t next_fault_ = 0;
  std::map<NodeId, const ClientState*> drainers_;  // by memory node: the client that empties it
  std::vector<int64_t> ambushes_;                  // how long the next splitters are to be paused
  Phase phase_ = Phase::kGrowth;
  bool accepting_ = false;  // operations may begin
  bool closing_ = false;
  std::array<uint32_t, 6> hot_{};
  uint32_t hot_count_ = 1;
  uint32_t delete_cursor_ = 0, grow_cursor_ = 0;
  int64_t tempo_ns_ = kUs;  // about the time between two polls of a client
  int64_t slow_until_ns_ = 0, slow_tempo_ns_ = 0;
  int64_t poll_memory_nodes_at_ns_ = 0;
  int64_t progress_ns_ = 0;  // when an operation last ended
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SIMULATION_CORE_H_
