// The join model: a replica joins while the table is replaced again and again. Do two passes over the tables that the
// directory names bring everything to it?
//
// The pool has a tail and a learner. The directory names one table, of one slot. A mover freezes the slot, writes a new
// table with it, publishes that and clears the old slot, several times. A writer updates. A sweeper passes over what it
// finds in the directory, and once more over what was not there before, while nobody dies (the replication model has
// the deaths). A step is a verb, or a WRITE at both.
#ifndef TESTS_MODEL_JOIN_MODEL_H_
#define TESTS_MODEL_JOIN_MODEL_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tests/model/engine.h"

namespace model {

// A protection that the model does without.
enum class JoinMutation : uint8_t {
  kMoveWithoutBlock,   // the mover does not copy the block of a slot that it freezes
  kTableAtTailOnly,    // it does not write the new table to the learner
  kTableNotRewritten,  // it does not write one to the learner that was written before the learner appeared
  kSweepEarly,         // the pass begins before the view with the learner is active
  kSweepOnce,          // the sweeper does not look at the directory again after its pass
  kNoTables,           // the sweeper looks at the directory alone
  kSweepTrustsSlots,   // it takes a slot that the learner has for one whose block it has
  kPromoteMidway,      // the learner becomes the tail while a CAS is between tail and learner
  kCount,
};
const char* Name(JoinMutation mutation);

struct JoinConfig {
  int moves = 2, updates = 1;
  std::set<JoinMutation> mutations;
};

class JoinModel {
 public:
  static constexpr int kTables = 4, kWords = kTables + 1, kBlocks = 4;  // word 0 is the directory's

  struct Client {
    uint8_t step, knows;  // knows: of the learner
    uint8_t table, old, seen, rest;
  };
  struct State {
    uint8_t tail[kWords], learner[kWords];
    uint8_t copied;  // mask of blocks that the learner has
    uint8_t joins, active, promoted, swept;
    uint8_t moves, updates;
    Client mover, writer, sweeper;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit JoinModel(JoinConfig config) : config_(std::move(config)) {}
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const { hasher->AddBytes(state); }
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  bool Mutated(JoinMutation mutation) const { return config_.mutations.contains(mutation); }
  bool SwapAtTail(State* state, Client* client, int word, uint8_t from, uint8_t to, uint8_t next_step) const;
  bool Push(State* state, Client* client, int word) const;
  void Mover(const State& before, const Emit& emit) const;
  void Writer(const State& before, const Emit& emit) const;
  void Sweeper(const State& before, const Emit& emit) const;
  void Views(const State& before, const Emit& emit) const;

  JoinConfig config_;
};

}  // namespace model

#endif  // TESTS_MODEL_JOIN_MODEL_H_
