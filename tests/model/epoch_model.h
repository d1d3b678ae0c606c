// The epoch model: is a block, or a subtable that a directory cache names, reused while somebody may still read it?
//
// One client R reads what a shared word names. One client W replaces it, retires the old one and reuses it when the
// epochs allow. Both run maintenance while they do operations, one verb a step. R may be expelled at any time: what it
// had posted by then still executes.
#ifndef TESTS_MODEL_EPOCH_MODEL_H_
#define TESTS_MODEL_EPOCH_MODEL_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tests/model/engine.h"

namespace model {

// A protection that the model does without.
enum class EpochMutation : uint8_t {
  kFreeAtOnce,          // no grace period
  kFreeAtStamp,         // a block is free once all have announced its stamp itself, not a later epoch
  kStampBeforeUnlink,   // the stamp is an epoch that was read before the unlinking
  kAnnounceNewest,      // R announces the epoch it has read, whatever it has in flight
  kNoQuarantine,        // an expelled client holds nothing back
  kQuarantineTooShort,  // it holds back only what was born up to its announcement z, not z + 1
  kAdvanceAlone,        // the epoch advances although not all have announced it
  kKeepCache,           // R does not forget its cache when the counter has changed
  kCounterBeforeEpoch,  // R reads the counter before the epoch
  kCountLate,           // W counts a retired subtable only when its grace period has begun
  kCacheLateEntry,      // R caches an entry whose READ was posted before it forgot its cache
  kCount,
};
const char* Name(EpochMutation mutation);

struct EpochConfig {
  bool cached = false;  // the word is a directory entry: R keeps a copy and reads the subtable with no look at the word
  bool expel = false;   // R may be expelled
  int blocks = 3;
  int epochs = 6;  // the search ends there
  std::set<EpochMutation> mutations;
};

class EpochModel {
 public:
  static constexpr int kBlocks = 4;

  enum class BlockState : uint8_t { kFree, kLinked, kUnlinked, kStamped };
  struct Block {
    BlockState state;
    uint8_t life;   // how often it was reused
    uint8_t birth;  // the epoch that its owner knew then
    uint8_t stamp;
    uint8_t counted;  // the counter of retired subtables includes it
  };
  struct Reader {
    uint8_t step, block, life, epoch;  // the operation in flight: what it knows, and since when
    uint8_t flushes_seen;              // at the time when it posted the READ of the word
    uint8_t view, announced, expelled;
    uint8_t cached, cached_block, cached_life, flushes, counter_seen;
    uint8_t round, round_epoch, round_counter;  // maintenance
  };
  struct Writer {
    uint8_t view, announced;
    uint8_t replaced;  // the block just unlinked, + 1; it must be counted next
    uint8_t round, round_epoch, round_marked, reader_announced, reader_expelled;
  };
  struct State {
    uint8_t epoch, word, counter;
    uint8_t reused_under_reader;
    Block blocks[kBlocks];
    Reader reader;
    Writer writer;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit EpochModel(EpochConfig config) : config_(std::move(config)) {}
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const { hasher->AddBytes(state); }
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  bool Mutated(EpochMutation mutation) const { return config_.mutations.contains(mutation); }
  void AdvanceEpoch(uint8_t epoch, bool all_announced_it, State* state) const;
  void ReaderOperation(const State& before, const Emit& emit) const;
  void ReaderMaintenance(const State& before, const Emit& emit) const;
  void WriterOperation(const State& before, const Emit& emit) const;
  void WriterMaintenance(const State& before, const Emit& emit) const;

  EpochConfig config_;
};

}  // namespace model

#endif  // TESTS_MODEL_EPOCH_MODEL_H_
