// Mirrored pools: what a batch asks for, as it goes along the replicas of a pool, and a client's view of those replicas
// (docs/replication.md). Connections and Views use this; nothing above kvs/memory knows it.
#ifndef KVS_MEMORY_MIRROR_H_
#define KVS_MEMORY_MIRROR_H_

#include <array>
#include <cstdint>
#include <span>

#include "krcore/types.h"
#include "kvs/layout/configuration.h"
#include "kvs/memory/outbox.h"

namespace kvs {

// Whose the word is that a CAS puts in place. It matters when a CAS may have been done at a head that has left, and the
// word is found at the next one. Then a word of one's own, which nobody else writes, is proof. Another word is none, and
// the CAS counts as lost, with that word there. A hint is one's own, but nobody has to know whether it ever was in place:
// the CAS counts as lost, too.
enum class Word : uint8_t { kAnyones, kOwn, kHint };

// A client's view of a mirrored pool.
struct PoolChain {
  std::array<Replica, kMaxReplicas> replicas;
  uint32_t length = 0;   // 0: there is no such pool
  uint64_t bytes = 0;    // of the pool
  uint64_t since = 0;    // the number of the first configuration with this chain
  bool closed = false;   // nothing is posted: a replica is suspected, or a new view is not active yet
  bool changes = false;  // a configuration is known in which it has another chain

  std::span<const Replica> all() const& { return std::span(replicas).first(length); }
  std::span<const Replica> all() const&& = delete;
  const Replica& tail() const { return replicas[length - 1]; }
};

// A verb of a batch. A READ goes to the tail, a WRITE to all replicas at once. A CAS goes along the chain, one hop a
// round trip: first expected -> desired at the head, then at each further replica expected -> what the head has now.
struct MirroredVerb {
  enum class State : uint8_t {
    kOpen,    // something is left to post
    kPosted,  // its completions are awaited
    kDone,
    kLost,  // its outcome is unknown, or will not be known
  };
  Verb verb;
  krcore::NodeId pool;
  Word whose = Word::kAnyones;
  uint64_t* numbers = nullptr;  // if any: behind each hop the replica's `configuration` is read, registered, one a hop
  State state = State::kOpen;
  bool posted_once = false;  // it may have changed something
  uint64_t since = 0;        // of the chain that it goes along
  uint32_t hop = 0;
  bool won = false;     // `desired` is, or was, at a head
  bool maybe = false;   // ... or it may be, which nobody can tell
  uint64_t target = 0;  // what the head has; the next replicas get it
  uint64_t there = 0;   // what the last replica had after its hop
  std::array<Replica, kMaxReplicas> known{};  // those that have left `expected`, as far as this CAS knows
  uint32_t known_count = 0;

  uint64_t& result() const { return *reinterpret_cast<uint64_t*>(verb.local.addr); }
  bool is_cas() const { return verb.opcode == krcore::Opcode::kCompareSwap; }
  // Takes what the CAS of this hop found.
  void Hopped(const Replica& replica, uint32_t chain_length);
  // The verb of this hop may have executed or not.
  void HopFailed() { maybe |= hop == 0; }
  // Ends a CAS that has gone along the whole chain.
  void End(uint32_t chain_length);
  // The pool has another chain now.
  void GoOnAlong(const PoolChain& chain);
};

}  // namespace kvs

#endif  // KVS_MEMORY_MIRROR_H_
