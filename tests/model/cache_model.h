// The address cache model: in one round trip, a Get READs the slot and the block that its client remembers.
//
// There is one key in one slot. A writer updates it, with blocks that are reused when nobody may read them any more. A
// reader remembers the slot's word and value. Slot words have no version here: the same block makes the same word.
#ifndef TESTS_MODEL_CACHE_MODEL_H_
#define TESTS_MODEL_CACHE_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tests/model/engine.h"
#include "tests/model/monitor.h"

namespace model {

// A protection that the model does without.
enum class CacheMutation : uint8_t {
  kUnordered,         // the block's READ is not ordered after the slot's (another queue, another node)
  kTrustWithoutSlot,  // the cached block's content is returned whatever the slot says
  kNoGrace,           // a block is used again while a Get that began earlier is under way
  kCount,
};
const char* Name(CacheMutation mutation);

struct CacheConfig {
  int updates = 4, gets = 3;
  int blocks = 2;
  std::set<CacheMutation> mutations;
};

class CacheModel {
 public:
  static constexpr int kBlocks = 3;
  struct Block {
    uint8_t value;  // stays until the block is written again
    uint8_t busy;   // the slot names it, or the writer holds it
    uint8_t held;   // unlinked while the reader's Get was under way
  };
  struct Body {
    uint8_t slot;
    Block blocks[kBlocks];
    uint8_t writer_step, writer_block, updates;
    uint8_t reader_step, gets, cached, slot_read, block_read, seen_slot, seen_value;
  };
  struct State {
    Body body;
    Monitor monitor;
  };
  using Emit = std::function<void(int process, const char* step, const State& next)>;

  explicit CacheModel(CacheConfig config) : config_(std::move(config)) {}
  State Initial() const;
  void Hash(const State& state, Hasher* hasher) const {
    hasher->AddBytes(state.body);
    state.monitor.Hash(hasher);
  }
  void Successors(const State& state, const Emit& emit) const;
  std::string Violation(const State& state) const;
  std::string Describe(const State& state) const;

 private:
  bool Mutated(CacheMutation mutation) const { return config_.mutations.contains(mutation); }
  Monitor::InFlight InFlight(const Body& body) const;
  void Writer(const State& before, const Emit& emit) const;
  void Reader(const State& before, const Emit& emit) const;

  CacheConfig config_;
};

}  // namespace model

#endif  // TESTS_MODEL_CACHE_MODEL_H_
