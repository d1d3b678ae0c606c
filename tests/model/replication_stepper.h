// One client of the replication model: the verb that it has outstanding executes, and its completion is looked at.
#ifndef TESTS_MODEL_REPLICATION_STEPPER_H_
#define TESTS_MODEL_REPLICATION_STEPPER_H_

#include "tests/model/replication_model.h"
#include "tests/model/slot_words.h"

namespace model {

enum class ReplicationStep : uint8_t {
  kIdle,     // between two operations
  kOver,     // its program is over
  kUnknown,  // it has stopped: the outcome of its last operation is unknown
  kScan,
  kRescan,
  kHead,
  kHop,
  kLearn,
  kLearnRead,
  kLearnFix,
};

class ReplicationModel::Stepper {
 public:
  using Step = ReplicationStep;
  using M = ReplicationMutation;

  // `seen`: the client learns of the completion. It changes *state.
  Stepper(const ReplicationModel& model, State* state, int client, bool seen = true)
      : model_(model), config_(model.config_), state_(*state), b_(state->body), id_(client), seen_(seen) {}

  void Steps(const Emit& emit) const;  // all that this client may do next
  bool InOperation() const { return p().step >= static_cast<uint8_t>(Step::kScan); }
  bool IsZombie() const { return p().expelled == 1 && InOperation(); }
  bool MayPost() const;
  bool Reachable() const { return (b_.dead >> Replica() & 1) == 0; }
  int Replica() const;  // to which the outstanding verb goes
  void Execute();       // that verb, and what the client does behind it
  const char* StepName() const;

 private:
  enum class Purpose : uint8_t { kReplace, kTentative, kConfirm, kKill, kTakeBack, kStarved, kFreeze, kSweep };

  Client& p() { return b_.clients[id_]; }
  const Client& p() const { return b_.clients[id_]; }
  const ChainView& view() const { return config_.views[p().view]; }
  const Op& op() const { return config_.programs[id_][p().op]; }
  bool IsSweep() const { return op().structural == 'S'; }
  bool IsFreeze() const { return op().structural == 'F'; }
  bool Writes() const { return op().Writes(); }
  bool Modifies() const { return op().kind == OpKind::kModify; }
  // What a Modify has replaced: the value of the word that it expected; nothing if it has inserted.
  int Replaced() const { return purpose() == Purpose::kReplace ? model_.ValueOfBlock(BlockOf(p().old)) : 0; }
  bool Mutated(M mutation) const { return model_.Mutated(mutation); }
  void Go(Step step) { p().step = static_cast<uint8_t>(step); }
  Step step() const { return static_cast<Step>(p().step); }
  Purpose purpose() const { return static_cast<Purpose>(p().purpose); }
  void Clear();
  void Fail(ReplicationError error);
  void FailIfSeen(ReplicationError error) {
    if (seen_) Fail(error);
  }

  // Operations: replication_operations.cc.
  void Begin();
  void Acknowledge();
  void WriteBlock();
  void CopyBlock(uint8_t word);
  uint8_t FreeWord(uint8_t from) const;
  void BeginScan();
  void Again();
  void Rescan(bool lost);
  void Scan();
  bool LookAtBoth();
  void EndScan();
  void EndRescan();
  void EndOperation(int result);
  void LateVerb(const Emit& emit) const;

  // The CAS along the chain: replication_cas.cc.
  int ReadReplica() const { return Mutated(M::kReadHead) ? view().head() : view().tail(); }
  int Order(int hop) const;
  int Index(int slot, uint8_t word) const;
  uint8_t Swap(int replica, int slot, uint8_t from, uint8_t to);
  void Record(int replica, int slot, uint8_t from, uint8_t to);
  uint8_t Read(int slot);
  void BeginCas(Purpose purpose, int slot, uint8_t old, uint8_t desired);
  void AtHead();
  void Hop();
  void NextHop();
  void Learn();
  void LearnRead();
  void LearnFix();
  void CheckReport(bool done);
  void EndCas(bool done);
  void OutcomeUnknown();
  void ContinueCas(bool ended);

  friend class ReplicationModel;

  static constexpr int kNoEffect = -1;  // a result: the operation says that it has done nothing
  const ReplicationModel& model_;
  const ReplicationConfig& config_;
  State& state_;
  Body& b_;
  const int id_;
  const bool seen_;
};

}  // namespace model

#endif  // TESTS_MODEL_REPLICATION_STEPPER_H_
