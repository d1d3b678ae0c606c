// Mirrored pools: what a batch asks for, as it goes along the replicas of a pool, and a client's view of those replicas
// (docs/replication.md). Of this, the layers above say what words they CAS (Word), and the replicator where it READs.
#ifndef KVS_MEMORY_MIRROR_H_
#define KVS_MEMORY_MIRROR_H_

#include <array>
#include <cstdint>
#include <span>

#include "krcore/types.h"
#include "kvs/layout/configuration.h"
#include "kvs/memory/outbox.h"

namespace kvs {

// What a CAS puts in place: whose word it is, and what the word names.
//
// It matters whose it is when a CAS may have been done at a head that has left, and the word is found at the next one.
// Then a word of one's own, which nobody else writes, is proof. Another word is none, and the CAS counts as lost, with
// that word there. A hint is one's own, but nobody has to know whether it was ever in place: the CAS counts as lost,
// too.
//
// What the word names must be at a learner before the word is: who pushes a slot's word that another client has put in
// place copies its block, and who puts a word of its own in place whatever that names. The latter was perhaps written
// before there was the learner, which may be the tail by now: so it is copied to all replicas that have come since.
enum class Word : uint8_t { kAnyones, kHint, kOwn, kAnyonesSlot, kOwnSlot, kOwnEntry };
constexpr bool IsOwn(Word word) { return word == Word::kOwn || word == Word::kOwnSlot || word == Word::kOwnEntry; }
constexpr bool IsSlot(Word word) { return word == Word::kAnyonesSlot || word == Word::kOwnSlot; }

// Where a READ goes. All but the replicator's and the mover's go to the tail.
enum class ReadAt : uint8_t { kTail, kHead, kLearner };

// A client's view of a mirrored pool.
struct PoolChain {
  std::array<Replica, kMaxChain> replicas;
  uint32_t length = 0;  // 0: there is no such pool
  uint64_t bytes = 0;   // of the pool
  Replica learner;
  uint64_t learner_since = 0;                       // the number of the first configuration with this learner
  std::array<uint64_t, kMaxChain> replica_since{};  // by replica: that of the first one with it, as a learner or not
  uint64_t since = 0;                               // the number of the first configuration with this chain and learner
  bool closed = false;   // nothing is posted: a replica is suspected, or a new view is not active yet
  bool changes = false;  // a configuration is known in which it has another chain or learner

  std::span<const Replica> all() const& { return std::span(replicas).first(length); }
  std::span<const Replica> all() const&& = delete;
  const Replica& tail() const { return replicas[length - 1]; }
};

// Memory of a pool that a word names.
struct NamedMemory {
  GlobalAddress address;
  uint64_t bytes = 0;     // 0: nothing
  bool is_large = false;  // a block whose header has its length; `bytes` are what can be read before that is known
};

// A verb of a batch. A READ goes to the tail, a WRITE to all replicas and the learner at once. A CAS goes along the
// chain, one hop a round trip: first expected -> desired at the head, then at each further replica expected -> what the
// head has now. Then it goes to the learner, if there is one, which may be further behind than one word.
struct MirroredVerb {
  enum class State : uint8_t {
    kOpen,    // something is left to post
    kPosted,  // its completions are awaited
    kDone,
    kLost,  // its outcome is unknown, or will not be known
  };
  // What a CAS does next.
  enum class Phase : uint8_t {
    kHop,
    kPush,       // CAS the learner: expected -> there
    kReadTail,   // the learner has another word: READ the tail's again
    kPushAgain,  // CAS the learner: what it has -> what the tail had
    kCopyRead,   // READ a piece of what a word names, and then
    kCopyWrite,  // WRITE it to the learner
  };
  Verb verb;
  krcore::NodeId pool;
  Word whose = Word::kAnyones;
  uint64_t* numbers = nullptr;  // if any: behind each hop the replica's `configuration` is read, registered, one a hop
  ReadAt at = ReadAt::kTail;
  State state = State::kOpen;
  Phase phase = Phase::kHop;
  bool posted_once = false;                        // it may have changed something
  std::array<Replica, kMaxChain + 1> posted_at{};  // where it was posted last
  uint32_t posted_count = 0;
  bool under_way = false;  // it has left `expected` at the head, or may have, and is not done
  uint64_t began = 0;      // the number of the configuration in use when the operation began
  uint64_t since = 0;      // of the chain that it goes along
  uint32_t hop = 0;
  bool won = false;                        // `desired` is, or was, at a head
  bool maybe = false;                      // ... or it may be, which nobody can tell
  uint64_t target = 0;                     // what the head has; the next replicas get it
  uint64_t there = 0;                      // what the last replica had after its hop
  uint64_t learnt = 0;                     // what the learner has
  uint64_t latest = 0;                     // what the tail had when it was read again
  std::array<Replica, kMaxChain> known{};  // those that have left `expected`, as far as this CAS knows
  uint32_t known_count = 0;
  // What is being copied to its learner, and how far that has come.
  NamedMemory copy;
  uint64_t copied_bytes = 0;
  bool copies_own = false;   // it is memory of one's own word
  int copy_buffer = -1;      // of Connections; -1: it has none
  uint64_t copy_since = 0;   // of the chain to which it is copied
  uint64_t copied_word = 0;  // what this word names has been copied; 0, which names nothing: no word
  Phase behind_copy = Phase::kHop;

  uint64_t& result() const { return *reinterpret_cast<uint64_t*>(verb.local.addr); }
  bool is_cas() const { return verb.opcode == krcore::Opcode::kCompareSwap; }
  // Takes what the CAS of this hop found. `chain_length`: of the chain.
  void Hopped(const Replica& replica, uint32_t chain_length);
  // Takes what the learner had, or the tail.
  void Pushed();
  void ReadTail();
  // The verb of this hop may have executed or not.
  void HopFailed() { maybe |= hop == 0; }
  // Ends a CAS that has gone along the whole chain, or sends it to the learner.
  void EndHops(const PoolChain& chain);
  void End();
  // The pool has another chain now.
  void GoOnAlong(const PoolChain& chain);
  // Returns the word that the next verb of the CAS puts in place.
  uint64_t NextWord() const;
};

}  // namespace kvs

#endif  // KVS_MEMORY_MIRROR_H_
