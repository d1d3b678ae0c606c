// The table model: one subtable S is split into S and N, or merged (moved) into N, while Get, Put, Insert, Update,
// Delete and Modify run. It looks at single words: the words of a READ come in any order, and blocks may be reused.
//
// There are two keys: key 1 moves to N, and key 0 stays in S. A process may stop before any step. One that is expelled
// makes one more step at any later time (a verb that was already posted) and none after that. The directory model
// covers what surrounds this: directory words, split after merge, nested splits.
#ifndef TESTS_MODEL_TABLE_MODEL_H_
#define TESTS_MODEL_TABLE_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/model/monitor.h"

namespace model {

// A protection that the model does without.
enum class TableMutation : uint8_t {
  // Insert.
  kInsertDirectly,          // [Write 6a] FREE -> VAL at once
  kConfirmWithoutKill,      // [Write 6e] rivals are ignored
  kConfirmAfterFailedKill,  // [Write 6e] the kill's outcome is ignored
  kExistsOnIns,             // [Write 6e] a rival's INS makes Insert answer kExists
  kFailedConfirmIsDone,     // [Write 6f] the confirm's outcome is ignored
  kConfirmByWrite,          // [Write 6f] WRITE, not CAS
  kRescanIgnoresValues,     // [Write 6d] is left out
  kInsertWithoutHeaders,    // [Write 6b] is left out
  // Get, and what is absent.
  kReturnFrozen,              // a frozen value is returned without a look at the directory
  kMissWithoutHeaders,        // Get 2 is left out
  kUpdateMissWithoutHeaders,  // Write 5 is left out
  kReturnTentative,           // readers see INS
  // Split and merge.
  kClearEarly,         // FRZ is cleared before N is published
  kHeadersLate,        // headers move, or are closed, when N is published
  kCopyWithoutFreeze,  // VAL in S is not frozen before it is copied
  kUpdateFrozen,       // a writer takes FRZ for VAL
  kIgnoreIns,          // INS of a moving key is left in S
  kPublishWithoutCas,  // a late splitter or merger publishes its copy, too
  kLostPutIsDone,      // [Write 2] a Put that loses to another VAL reports success
  // Modify.
  kModifyOfAnyWord,  // [Modify 2] the CAS expects the word that the slot has by then
  // Memory.
  kNoGrace,            // a block is free as soon as it is unlinked
  kNoQuarantine,       // an expelled process holds nothing back
  kNoHoldWhileFrozen,  // a block that a FRZ slot names is not held
  kCount,
};
const char* Name(TableMutation mutation);

struct TableConfig {
  std::vector<Program> programs;  // "X1": split (or merge) S
  bool merge = false;             // S is closed, frozen, copied and replaced by N
  int slots = 2;
  std::array<int, kKeys> initial{-1, -1};  // the slot of key k in S at the beginning; -1: absent
  bool split_before = false;               // everything starts when the split is over
  bool any_order = true;                   // the words of a READ come in any order, else in ascending order
  bool reuse = false;                      // blocks are reused
  int spare_blocks = 0;                    // with reuse: blocks in addition to those of the initial keys
  uint8_t may_be_expelled = 0;             // mask of processes
  std::set<TableMutation> mutations;
};

class TableModel {
 public:
  static constexpr int kSlots = 3, kBuckets = 2, kBlocks = 10;

  struct Block {
    uint8_t key, value;
    uint8_t state;         // free, used, retired
    uint8_t held_by;       // mask of processes that may still know it
    uint8_t born_without;  // mask of processes that were expelled before it was allocated
  };
  struct Process {
    uint8_t step, op;
    uint8_t table;      // the one that it scans: 0 S, 1 N
    uint8_t remaining;  // words of the scan that are still to be read
    uint8_t headers;    // mask of buckets whose header was seen to have moved
    uint8_t slot, block, then;
    uint8_t frozen, frozen_value;  // frozen candidate (slot + 1); in a kill: the next rival (slot + 1)
    uint8_t own, expelled, exists;
    uint8_t unpublished;    // a merge: the directory, read before the scan, did not have the table that replaces S yet
    uint8_t image[kSlots];  // of N
    uint8_t words[kSlots], keys[kSlots], values[kSlots];
  };
  struct Body {
    uint8_t slots[2][kSlots];
    uint8_t moved;      // mask of S's headers that have moved (or are closed)
    uint8_t published;  // N is in the directory
    Block blocks[kBlocks];
    Process processes[kMaxProcesses];
  };
  struct State {
    Body body;
    std::array<Monitor, kKeys> monitors;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit TableModel(TableConfig config);
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const;
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  class Stepper;

  TableConfig config_;
  int blocks_ = 0;
};

}  // namespace model

#endif  // TESTS_MODEL_TABLE_MODEL_H_
