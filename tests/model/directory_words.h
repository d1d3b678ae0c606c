// Words and steps of the directory model.
#ifndef TESTS_MODEL_DIRECTORY_WORDS_H_
#define TESTS_MODEL_DIRECTORY_WORDS_H_

#include <bit>
#include <cstdint>

namespace model {

inline constexpr uint8_t kClosed = 7;  // a bucket header; the others are depths

enum class EntryState : uint8_t { kAbsent, kMigrating, kNormal, kSplitting, kMerging };

// A directory word: target (a table, or the merge record) 4 | depth 2 | state 3 | generation 7.
class Entry {
 public:
  explicit Entry(uint16_t word) : word_(word) {}
  Entry(uint8_t target, int depth, EntryState state, int generation)
      : word_(static_cast<uint16_t>(target << 12 | depth << 10 | static_cast<int>(state) << 7 | (generation & 127))) {}
  uint16_t word() const { return word_; }
  uint8_t target() const { return static_cast<uint8_t>(word_ >> 12); }
  int depth() const { return word_ >> 10 & 3; }
  EntryState state() const { return static_cast<EntryState>(word_ >> 7 & 7); }
  bool present() const { return state() != EntryState::kAbsent; }
  bool Is(EntryState state) const { return this->state() == state; }
  // Returns the word by which a CAS replaces this one: the generation goes up every time.
  Entry Next(uint8_t target, int depth, EntryState state) const {
    return Entry(target, depth, state, (word_ & 127) + 1);
  }

 private:
  uint16_t word_;
};

enum MergeStatus : uint8_t { kUndecided, kEngaged, kAbandoned, kReplace, kJoin };

inline uint8_t ParentIndex(uint8_t index) { return index & static_cast<uint8_t>(~std::bit_floor(index)); }
inline uint8_t LowBits(uint8_t hash, int depth) { return hash & static_cast<uint8_t>((1 << depth) - 1); }

// The steps, in the order of docs/protocol.md.
enum class DirectoryStep : uint8_t {
  kIdle,
  kDone,
  // Finding the table, and reading it.
  kResolve,
  kReadStatus,
  kScan,
  kCheckHeaders,
  // Writers.
  kSwap,
  kTentative,
  kKillRival,
  kConfirm,
  kAbort,
  // Split.
  kSplitReadParent,
  kSplitMark,
  kSplitReadChild,
  kSplitRereadParent,
  kSplitRemoveOld,
  kMoveHeader,
  kLookAtParent,
  kFreeze,
  kKillTentative,
  kSplitPublish,
  kFinishReadChild,
  kFinishReadParent,
  kFinishRereadChild,
  kReadImage,
  kRereadChild,
  kClearSlot,
  kChildDone,
  kParentDone,
  // Merge.
  kMergeReadParent,
  kMergeReadChild,
  kMergeReadStatus,
  kEngageParent,
  kEngageChild,
  kDecideRecord,
  kUndoParent,
  kUndoChild,
  kClose,
  kFreezeLook,
  kFreezeSlot,
  kBuild,
  kChooseOutcome,
  kPublishMerged,
  kRemoveChild,
  kReplaceParent,
  kReplaceChild,
};

// The purpose of a scan, a look into the directory or a check of headers.
enum class Purpose : uint8_t {
  kBegin,      // resolve: to begin at the table found
  kFirst,      // scan: the first one of an operation
  kSplitting,  // resolve: a reader at a table that splits
  kInserter,   // scan: 6a
  kHelpSplit,  // resolve: a writer at a table that splits
  kHelpMerge,  // resolve: a writer at a closed table
};

// Where a process goes on after helping.
enum class Then : uint8_t { kOperation, kEnd };

enum ModelError : uint8_t { kNoError, kOutOfTables, kOutOfRecords };

}  // namespace model

#endif  // TESTS_MODEL_DIRECTORY_WORDS_H_
