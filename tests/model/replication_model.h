// The replication model: the slots of one key, mirrored by a chain of replicas that the clients themselves keep, under
// new views, replicas that die or join, clients that are expelled, and verbs that execute arbitrarily late.
//
// One step of a client: its outstanding verb executes, the client looks at the completion and posts the next verb. A
// client that stops needs no step of its own, except where the others must not wait for it: there it is expelled.
//
// Checked in every state: the history of the key is linearizable; each replica's word is at or before its predecessor's
// in the history of the word, and never goes back; no word names a block that its replica lacks; a CAS that is reported
// as done has reached the tail, and one that is reported as lost finds the tail beyond the word it expected; when
// nothing is in flight, every replica of the chain, alone, holds what some linearization leaves.
#ifndef TESTS_MODEL_REPLICATION_MODEL_H_
#define TESTS_MODEL_REPLICATION_MODEL_H_

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
enum class ReplicationMutation : uint8_t {
  // The CAS along the chain.
  kTailFirst,         // it goes from the tail to the head
  kTailBeforeMiddle,  // of three replicas, the tail comes before the middle one
  kReadHead,          // READs go to the head
  kNoHelp,            // a CAS that is lost at the head ends there
  kHopFailureIsLoss,  // a CAS that is lost at a later replica is taken for lost
  kHelpBackwards,     // a helper replaces whatever it finds by the word that it helps with
  kInsAtHeadOnly,     // INS goes to the head alone
  // Words that come back.
  kFreeRecursByDelete,  // a Delete writes a FREE without a nonce
  kFreeRecursByKill,    // whoever kills INS writes a FREE without a nonce
  kReuseInsBlock,       // an Insert that begins again uses its block again
  // A view changes.
  kActivateAtOnce,       // a view is active when it is decided
  kActBeforeActive,      // a client posts in a view that is not active yet
  kReportBeforeActive,   // it reports a result before the new view is active
  kNewWordAtNewHead,     // a CAS that may have been won at a head that left is done again with another word
  kUnknownIsLost,        // a CAS that may have been won at a head that left is taken for lost
  kExpelledReadReturns,  // a READ counts though the lease has ended
  kQuietPosts,           // a client that was quiet posts in the view that it knew
  kQuietWithVerb,        // a client says that it is quiet though its verb is outstanding
  kAckPerPool,           // a CAS of a word does not hold up the views of the pool whose block the word names
  kExpelledHopCounts,    // a hop counts though the lease has ended
  // A replica joins.
  kPromoteUncopied,     // it becomes a member without copy and sweep
  kIgnoreLearner,       // clients do not push to it
  kSkipUncopied,        // they pass by a word that was not copied yet
  kLearnerOwnWord,      // they push their own word, whatever the tail has by then
  kLearnerUnseenWord,   // they push a word that the tail may not have had
  kSyncWithoutBlock,    // the copier does not copy the block
  kHelpWithoutBlock,    // a helper does not copy the block that another client has written
  kBlockNotRewritten,   // a client's own block is not written to a replica that is new
  kAckMidway,           // a client acknowledges the promotion though its CAS has left the head
  kPromoteDespiteLoss,  // the sweep counts though a client was lost after it
  kPromoteWithZombies,  // it counts though a late verb may still execute
  kSweepIgnoresHead,    // it looks at the tail alone
  kHandoverReadsTail,   // in a handover READs look at the tail alone
  // Not needed.
  kHelpedNotRewritten,  // the block of a word that is being pushed is not copied when the view changes
  kSyncOutlivesView,    // the sweep counts in a later view, too
  kCount,
};
const char* Name(ReplicationMutation mutation);

struct ReplicationConfig {
  // G, U, D, I of key 0; F0 freezes slot 0, or kills INS there; S0 is one pass of copy or sweep over all slots.
  std::vector<Program> programs;
  std::vector<ChainView> views;
  // If not empty: the blocks are in another pool, with these views. Its replicas neither die nor leave.
  std::vector<ChainView> block_views;
  uint8_t mortal = 0;   // mask of replicas that may die
  uint8_t suspect = 0;  // mask of replicas that may be removed though they live
  int slots = 1;
  int expel = 0;        // so many clients may be expelled, or die
  bool present = true;  // the key is there at the beginning, in slot 0
  bool solo = false;    // check in every state that each client, running alone, comes to its end
  std::set<ReplicationMutation> mutations;
};

enum class ReplicationError : uint8_t {
  kNone,
  kNoBlock,
  kReadsNoBlock,
  kComesBack,
  kBackwards,
  kDoneTooEarly,
  kLostTooEarly,
};

class ReplicationModel {
 public:
  static constexpr int kClients = 3, kSlots = 2, kOperations = 2, kAttempts = 4;
  // Blocks, and the nonces of FREE: one for each attempt of each operation, and those of the beginning.
  static constexpr int kFirstId = kClients * kOperations * kAttempts, kIds = kFirstId + kSlots;
  static constexpr int kHistory = 14;
  static constexpr uint8_t kUncopied = 0xff;  // a learner's word that nobody has copied

  struct Client {
    uint8_t step, view, op, attempt;
    uint8_t expelled;  // 1: its last verb may still execute; 2: not any more
    // The rest is of the operation under way.
    uint8_t maybe;                     // the CAS may have been won at a head that has left
    uint8_t purpose;                   // of the CAS
    uint8_t broken;                    // its verb has executed, and the replica has died before it answered
    uint8_t slot, at, old, hop_old;    // of the CAS; of the scan; what the CAS expects, at the head and behind it
    uint8_t desired, target, hop;      // its own word; what it pushes; to which replica of the chain
    uint8_t known, won;                // mask of replicas that have had `target`; `target` is its own word
    uint8_t seen[kSlots];              // of a scan: the slots. In a CAS: the tail's word now; one that it has had
    uint8_t learner, own_slot, block;  // the learner's word; slot of the own INS; the block that it writes
  };
  struct Body {
    uint8_t words[kMaxReplicas][kSlots];
    uint8_t history[kSlots][kHistory], length[kSlots];  // of the words of the newest view's head
    uint8_t holders[kIds];                              // of each block: mask of the replicas that have it
    uint8_t decided, active;                            // the newest view; the newest that is active
    uint8_t dead, expelled, sync;                       // sync: 0 no pass that counts, 1 under way, 2 complete
    ReplicationError error;
    Client clients[kClients];
  };
  struct State {
    Body body;
    Monitor monitor;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit ReplicationModel(ReplicationConfig config);
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const;
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  class Stepper;
  static constexpr int kEnvironment = 9;  // the process that the trace names for what no client does

  bool Mutated(ReplicationMutation mutation) const { return config_.mutations.contains(mutation); }
  uint8_t ValueOfBlock(int block) const;
  uint8_t ValueAt(const Body& body, int replica) const;
  std::string OrderViolation(const Body& body) const;

  bool ExecuteUnseen(State* state, int client) const;
  void Deaths(const State& before, const Emit& emit) const;
  void Expel(const State& before, int client, const Emit& emit) const;
  void Decide(const State& before, const Emit& emit) const;
  bool TwoPools() const { return !config_.block_views.empty(); }
  const ChainView& BlockView(int view) const { return TwoPools() ? config_.block_views[view] : config_.views[view]; }
  bool HasLearner(int view) const { return config_.views[view].learner >= 0 || BlockView(view).learner >= 0; }
  bool PromotesLearner(int view) const;
  std::string BlockViolation(const Body& body) const;
  bool MayDecideNext(const Body& body) const;
  bool MayActivate(const Body& body) const;
  void Activate(Body* body) const;
  bool ComesToItsEnd(State state, int client) const;

  ReplicationConfig config_;
  bool checks_order_ = true, handover_ = false;
};

}  // namespace model

#endif  // TESTS_MODEL_REPLICATION_MODEL_H_
