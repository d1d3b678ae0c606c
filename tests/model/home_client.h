// One client of the home model, or the sweeper.
#ifndef TESTS_MODEL_HOME_CLIENT_H_
#define TESTS_MODEL_HOME_CLIENT_H_

#include <algorithm>
#include <iterator>

#include "tests/model/home_model.h"

namespace model {

enum class HomeStep : uint8_t {
  kIdle,
  kOver,
  kAgain,  // the operation begins again
  kRead,
  kLook,  // at `configuration`, behind a READ that is reported
  kHead,
  kHop,
  kLearn,
  kLearnRead,
  kLearnFix,
};

class HomeModel::Stepper {
 public:
  using Step = HomeStep;
  using M = HomeMutation;
  // Leases. kOldLease: one that ends when 1.5 leases have passed.
  static constexpr uint8_t kNoLease = 0, kOldLease = 1, kLease = 2;
  // State::sweep.
  static constexpr uint8_t kNotSwept = 0, kPass = 1, kSwept = 2, kLastPass = 3, kLastSwept = 4;

  static constexpr uint8_t MakeWord(int number, int writer) { return static_cast<uint8_t>(number << 2 | writer); }
  static constexpr uint8_t NumberOf(uint8_t word) { return word >> 2; }
  static constexpr uint8_t WriterOf(uint8_t word) { return word & 3; }

  // It changes *state.
  Stepper(const HomeModel& model, State* state, int client)
      : model_(model), config_(model.config_), s_(*state), id_(client) {}

  void Steps(const Emit& emit) const;  // all that it may do next
  bool InOperation() const { return p().step >= static_cast<uint8_t>(Step::kRead); }
  uint8_t Swap(int replica, uint8_t from, uint8_t to);

 private:
  Client& p() { return s_.clients[id_]; }
  const Client& p() const { return s_.clients[id_]; }
  Step step() const { return static_cast<Step>(p().step); }
  const ChainView& view() const { return config_.views[p().view]; }
  const Op& op() const { return config_.programs[id_][p().op]; }
  bool IsSweeper() const { return id_ == kSweeper; }
  bool Mutated(M mutation) const { return model_.Mutated(mutation); }
  void Go(Step step) { p().step = static_cast<uint8_t>(step); }

  int Replica() const;  // to which the outstanding verb goes
  bool Counts() const;
  bool MayPost() const;
  void Fail(HomeError error);
  void Clear();
  void Again(Step step);
  void EndOperation();
  void Tell(uint8_t word, bool done);
  void BeginCas(uint8_t old);
  void EndCas();
  void Report();
  void NextHop();
  void AtHead();
  void Hop();
  void Learn();
  void Read();
  void Look();
  void Execute();
  void Heartbeat(const Emit& emit) const;
  void Idle(const Emit& emit) const;
  void Sweep(const Emit& emit) const;

  const HomeModel& model_;
  const HomeConfig& config_;
  State& s_;
  const int id_;
};

}  // namespace model

#endif  // TESTS_MODEL_HOME_CLIENT_H_
