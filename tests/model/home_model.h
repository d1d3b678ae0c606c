// The home model: one word of the home that clients without a lease change, too, while the home itself gets new views.
//
// The word is a counter, which goes from n to n + 1, or (`claims`) one in which each writer writes a word of its own.
// Clients with a lease take no completion for true once their lease has ended. Clients without one READ the word
// `configuration` behind their verb, at the same replica. Nobody waits for these, nor learns of their deaths. A verb
// may execute arbitrarily late. A replica that has left may live on, cut off from those who know.
//
// Time is modelled by one event: 1.5 leases have passed. It ends the leases whose heartbeats were posted before the
// number of the new view was written, and no others.
//
// Checked: of a counter, nobody is told a number that another was told; of a claim, nobody is told that it was done who
// has been passed by; what was told or read is never gone, neither for a later reader nor at any replica of an active
// view; a replica is never ahead of its predecessor.
#ifndef TESTS_MODEL_HOME_MODEL_H_
#define TESTS_MODEL_HOME_MODEL_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/model/chain_views.h"
#include "tests/model/engine.h"
#include "tests/model/monitor.h"

namespace model {

// A protection that the model does without.
enum class HomeMutation : uint8_t {
  // Clients without a lease.
  kUnchecked,          // they do not READ `configuration`
  kCheckedAtHead,      // they READ it behind the CAS at the head alone
  kCheckedAtTail,      // they READ it behind the hop at the tail alone
  kCheckedAtEnds,      // they READ it at the head and the tail alone
  kReadUnchecked,      // they do not READ it behind a READ of the word
  kReadCheckedAtTail,  // where the word is what they report, they READ it at the tail alone
  kAdoptsPending,      // they use a view that is not active yet
  kFoundIsMine,        // n + 1, found where the own CAS may have been won before, is taken for the own
  // The last sweep of a promotion.
  kNoLastSweep,        // there is no last sweep
  kSweepBeforeNumber,  // it begins before `configuration` is written
  kSweepBeforeAcks,    // it begins while clients with a lease still use the old view
  // Leases.
  kNoNumber,           // `configuration` is not written before the view is active
  kNumberAtOne,        // it is written to one of the replicas that stay
  kActivateAtOnce,     // activation does not wait for leases
  kWaitFromDecision,   // the 1.5 leases count from the decision
  kLeaseFromAnswer,    // a lease counts from the heartbeat's answer
  kBeatsAtHead,        // a heartbeat looks at `configuration` at the head alone
  kBeatsAtTail,        // a heartbeat looks at it at the tail alone
  kQuietSeenEarly,     // whoever activates a view looks for quiet clients before the number is written
  kQuietSeenAnywhere,  // they look at any replica of the old view
  kQuietPosts,         // a client that was quiet posts without a heartbeat
  // Not needed.
  kSweepIgnoresHead,  // the last sweep looks at the tail alone
  kNoFirstSweep,      // there is no pass before the promotion is decided
  kCheckedOnce,       // instead of behind each hop, `configuration` is READ at all replicas when the CAS is over
  kSkipLearner,       // clients without a lease do not push to the learner
  kCount,
};
const char* Name(HomeMutation mutation);

struct HomeConfig {
  std::vector<Program> programs;  // N0 increments, or claims; R0 reads
  std::vector<ChainView> views;
  uint8_t leaseless = 0;  // mask of clients that have no lease
  bool claims = false;    // each writer's words are its own
  int ghosts = 0;         // so often a client gives an outstanding CAS up, which may still execute
  std::set<HomeMutation> mutations;
};

enum class HomeError : uint8_t { kNone, kTwice, kGone, kBackwards };

class HomeModel {
 public:
  static constexpr int kClients = 3, kSweeper = kClients, kAttempts = 4;
  static constexpr int kIncrements = 3, kNumbers = kIncrements * kAttempts + 1;
  static constexpr uint8_t kUncopied = 0xff;

  struct Client {
    uint8_t step, view, op, attempt;
    uint8_t lease, beat, beat_lease;  // which lease it has; hops of its heartbeat + 1; what that will grant
    uint8_t live;                     // mask of replicas whose word of the client does not say that it is quiet
    uint8_t floor;                    // what had been told or read when the operation began
    uint8_t old, mine, target, hop, won;
    uint8_t tail, learner;                // a word that the tail has had; the learner's
    uint8_t ghost, ghost_from, ghost_to;  // a CAS that was given up: its replica + 1
  };
  struct State {
    uint8_t words[kMaxReplicas], numbers[kMaxReplicas];  // `configuration` has the number of a view
    uint8_t decided, active;
    uint8_t waited;          // 1.5 leases have passed since the number was written
    uint8_t quiet;           // mask of clients that were seen to be quiet since then
    uint8_t sweep, ghosts;   // how far the sweeps are
    uint8_t top;             // the highest number that was told or read
    uint8_t told[kNumbers];  // of a counter, to whom; of a claim, the writer whose word has that number
    HomeError error;
    Client clients[kClients + 1];
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit HomeModel(HomeConfig config) : config_(std::move(config)) {}
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const { hasher->AddBytes(state); }
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  class Stepper;
  static constexpr int kEnvironment = 9;  // the process that the trace names for what no client does

  bool Mutated(HomeMutation mutation) const { return config_.mutations.contains(mutation); }
  bool IsLeaseless(int client) const { return (config_.leaseless >> client & 1) != 0; }
  bool NumberIsWritten(const State& state) const;
  bool LeasesAreOver(const State& state) const;
  void WriteNumber(const State& before, const Emit& emit) const;
  void LookForQuiet(const State& before, const Emit& emit) const;
  void Wait(const State& before, const Emit& emit) const;
  void Decide(const State& before, const Emit& emit) const;
  void Activate(const State& before, const Emit& emit) const;
  void Ghost(const State& before, int client, const Emit& emit) const;

  HomeConfig config_;
};

}  // namespace model

#endif  // TESTS_MODEL_HOME_MODEL_H_
