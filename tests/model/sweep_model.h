// The sweep model: may a chunk be given back? A mover empties chunk X while a table splits, one client inserts with a
// block of X that it holds from earlier, and another client reads. Each step is one verb.
//
// The slots are S[0]; N[0], to which the key moves that is there at the beginning (with a block of X); and S[1], where
// the client inserts. A process that stops for ever holds the mover up, so that X is never free. That is no violation.
#ifndef TESTS_MODEL_SWEEP_MODEL_H_
#define TESTS_MODEL_SWEEP_MODEL_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tests/model/engine.h"

namespace model {

// A protection that the model does without.
enum class SweepMutation : uint8_t {
  kScanAtOnce,            // the mover scans before all have seen the evacuation
  kScanIgnoresDirectory,  // a scan counts although references moved during it
  kFreeAtOnce,            // X is free once a scan finds nothing, even while somebody reads
  kScanIgnoresIns,        // tentative references are not removed
  kKeepFreeList,          // clients keep the blocks of X in their free lists
  kSlotsBeforeEpoch,      // maintenance reads the evacuation slots before the epoch
  kKeepOwnBlock,          // an operation that begins again keeps its own block of X
  kTakeOverUnregistered,  // a kept memory state is checked before the client has registered
  kTakeOverUnchecked,     // it is not checked at all
  kScanIgnoresFrozen,     // what a split has frozen is no reference
  kCount,
};
const char* Name(SweepMutation mutation);

struct SweepConfig {
  bool split = false;   // a process splits the table
  bool insert = false;  // a client inserts
  bool late = false;    // the inserter registers while the others run, and takes over a kept memory state
  bool die = false;     // the inserter may die, which is confirmed
  bool read = false;    // a client reads
  int epochs = 4;       // the search ends there
  std::set<SweepMutation> mutations;
};

class SweepModel {
 public:
  // A client's part in the epochs, and its operation in flight.
  struct Client {
    uint8_t registered, view, announced;
    uint8_t step, epoch, block;  // the operation: since when; its own block, or the one that it reads
    uint8_t round, round_epoch, round_evacuating;
    uint8_t has_block_of_x;  // in its free list
    uint8_t knows;           // that X is evacuated
    uint8_t counter_seen;    // of a late client: the count of evacuations that it found
  };
  struct State {
    uint8_t epoch, directory, evacuating, evacuations, chunk_free, error;
    uint8_t slots[3];  // S[0], N[0], S[1]
    uint8_t mover, mover_epoch, mover_directory, mover_found, mover_scanned;
    uint8_t splitter, splitter_word;
    Client inserter, reader;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit SweepModel(SweepConfig config) : config_(std::move(config)) {}
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const { hasher->AddBytes(state); }
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  bool Mutated(SweepMutation mutation) const { return config_.mutations.contains(mutation); }
  void Mover(const State& before, const Emit& emit) const;
  void Splitter(const State& before, const Emit& emit) const;
  void Inserter(const State& before, const Emit& emit) const;
  void TakeOver(const State& before, const Emit& emit) const;
  void Reader(const State& before, const Emit& emit) const;
  void Maintenance(const State& before, bool inserter, const Emit& emit) const;

  SweepConfig config_;
};

}  // namespace model

#endif  // TESTS_MODEL_SWEEP_MODEL_H_
