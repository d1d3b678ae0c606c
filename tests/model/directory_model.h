// The directory model: subtables that split, merge, split again and are replaced, with the directory words and the
// merge record of docs/protocol.md, under operations that may start at any table ever published (stale caches).
//
// A step is one READ of a word or one CAS. Any process may pause before any step for as long as it likes. Two things
// are not modelled here: reuse of memory (every allocation is a new one; the table model and the epoch model cover
// that) and torn blocks.
#ifndef TESTS_MODEL_DIRECTORY_MODEL_H_
#define TESTS_MODEL_DIRECTORY_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/model/monitor.h"

namespace model {

// A protection that the model does without.
enum class DirectoryMutation : uint8_t {
  kReadSplittingUnasked,    // [Get 4] a reader believes a splitting table without a look at the directory
  kResolveParentFirst,      // entries are read from the root down
  kSplitWithoutReread,      // split 3 does not read dir[s] after dir[c]
  kSplitSetsNoState,        // split 2 is left out: dir[s] stays NORMAL until the end
  kAnyMergingIsOld,         // a split takes every MERGING in dir[c] for an earlier merge
  kReadClosedUnasked,       // a reader believes a closed table that it did not reach through the merge record
  kReadClosedParentOnly,    // only dir[s] is asked whether the record counts, though each table may be replaced alone
  kReadForeignRecord,       // a merge record is taken for that of the key's tables, whichever it is
  kReadWrongHalf,           // a reader that uses the record reads dir[s]'s table, whichever half the key belongs to
  kMergeWithoutOutcome,     // M is published on ENGAGED, while another process may choose REPLACE
  kReplaceChildFirst,       // REPLACE publishes dir[c] before dir[s]
  kEngageParentOnly,        // dir[c] is not engaged
  kCloseLate,               // slots are frozen before the headers are closed
  kIgnoreIns,               // INS slots of closed tables are left as they are
  kCopyWithoutFreeze,       // M is built from VAL slots that were not frozen
  kPublishWithoutCas,       // M is published by a WRITE
  kClearWithoutReread,      // split 6 does not read dir[c] after its image
  kKeepMergedChild,         // a dir[c] whose merge is published is taken for a table (liveness)
  kInsertWithoutHeaders,    // [Write 6b] is left out
  kPublishOnLateWord,       // split 5 expects what dir[c] has when the image is made, not what it had before
  kFinishOfAnotherSplit,    // it takes a MIGRATING child seen only once for that of the split it has seen before
  kFinishWithoutFirstLook,  // a process that finishes a split takes a MERGING seen only once for an old one
  kCount,
};
const char* Name(DirectoryMutation mutation);

struct DirectoryConfig {
  // "S0": split dir[0]; "M0": merge dir[0] with its sibling. Both help if another process does so already.
  std::vector<Program> programs;
  std::array<uint8_t, kKeys> hash{0b00, 0b01};
  std::array<int, kKeys> initial{-1, 0};  // the slot of key k at the beginning; -1: absent
  int slots = 2, buckets = 1;
  bool split_before = false;  // begins with dir[0] and dir[1] at depth 1
  bool any_order = true;      // a scan reads its words in any order, else in ascending order
  bool fresh = false;         // operations start at the table that the directory names, not at any
  bool any_outcome = false;   // a merger may find that the keys do not fit, whether they do or not
  bool solo = false;          // check in every state that each process, running alone, reaches its end
  std::set<DirectoryMutation> mutations;
};

class DirectoryModel {
 public:
  static constexpr int kTables = 8, kRecords = 4, kSlots = 3, kBuckets = 2, kIndices = 4, kMaxDepth = 2;

  struct Table {
    uint8_t header[kBuckets];  // depth, or kClosed
    uint8_t slots[kSlots];
    uint8_t index;
    uint8_t published, retired;
  };
  // The merge record D.
  struct Record {
    uint16_t old_parent, old_child;  // directory words
    uint8_t status, parent, child, retired;
  };
  struct Process {
    uint16_t parent_word, child_word;  // directory words that a split or merge works with
    uint16_t entries[kMaxDepth + 1];   // the entries that Resolve has read, by depth
    uint8_t step, op, purpose, then;
    uint8_t table, parent_table, record;
    uint8_t index, cursor, remaining;
    uint8_t moved, closed;  // what the scan has seen in the headers
    uint8_t engaged;        // the directory, read before the scan, showed that this table is closed and counts
    uint8_t frozen_slot;    // the word of a frozen candidate; 0: none
    uint8_t own, victim, expected, waits;
    uint8_t slots[kSlots];  // as scanned
    uint8_t image[kSlots];  // of a new table, or of one that is cleared
  };
  struct Body {
    uint16_t directory[kIndices];
    Record records[kRecords];
    Process processes[kMaxProcesses];
    Table tables[kTables];
    uint8_t tables_used, records_used;
    uint8_t error, spare;
  };
  struct State {
    Body body;
    std::array<Monitor, kKeys> monitors;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit DirectoryModel(DirectoryConfig config);
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const;
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  class Stepper;
  std::string SoloViolation(const State& state) const;

  DirectoryConfig config_;
  std::vector<std::vector<uint8_t>> block_key_;
  std::array<uint8_t, 16> key_of_{};  // by block, which is the value too
};

}  // namespace model

#endif  // TESTS_MODEL_DIRECTORY_MODEL_H_
