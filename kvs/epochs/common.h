// What all parts of a client use and none of them owns.
#ifndef KVS_EPOCHS_COMMON_H_
#define KVS_EPOCHS_COMMON_H_

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/types.h"
#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"
#include "kvs/memory/mutation.h"
#include "kvs/task.h"

namespace kvs {

// ChunkAges: the age of chunks, as far as the clients of one Store have seen it. A chunk that was FREE in some epoch
// and still has the same generation was taken after that, so all that it holds is younger. A client that was expelled
// before knows nothing of it (docs/protocol.md, E4).
//
// Thread safety: all methods from any thread.
class ChunkAges {
 public:
  // Notes the words of chunks from `first` on. They were read when the epoch was at least `epoch`.
  void Saw(krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    std::vector<Seen>& seen = seen_[node];
    if (seen.size() < first + words.size()) seen.resize(first + words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i].kind() == ChunkKind::kFree) seen[first + i] = {words[i].generation(), epoch};
    }
  }
  // Notes that a mover has given the chunk up: it holds what it held, under another generation.
  void Renamed(krcore::NodeId node, uint64_t chunk, ChunkWord from, ChunkWord to) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return;
    Seen& seen = seen_[node][chunk];
    if (seen.generation == from.generation()) seen.generation = to.generation();
  }
  // Returns whether the chunk was FREE in this epoch or a later one, before it became what the word says. False:
  // unknown.
  bool IsYounger(krcore::NodeId node, uint64_t chunk, ChunkWord word, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return false;
    const Seen& seen = seen_[node][chunk];
    return seen.generation == word.generation() && seen.epoch >= epoch;
  }

 private:
  struct Seen {
    uint64_t generation = 0;
    uint64_t epoch = 0;  // 0: never
  };
  std::mutex mutex_;
  std::array<std::vector<Seen>, krcore::kMaxMemoryNode + 1> seen_;  // guarded by mutex_
};

// Nonces: what tells words apart that would come back otherwise: those of FREE slots, and of empty evacuation slots. It
// is SplitMix64 (Steele, Lea, Flood, OOPSLA'14). Each client has a sequence of its own, which follows from its process,
// named by node and incarnation, and its number among the clients of its Store.
//
// A slot that becomes FREE gets the very word that somebody still expects there with a probability of 2^-53. If slots
// became FREE a million times a second while somebody expects an earlier word of them, that would happen once in 285
// years.
//
// Thread safety: the client's thread.
class Nonces {
 public:
  Nonces(krcore::NodeId node, uint32_t incarnation, uint64_t client)
      : state_(Mixed(uint64_t{node} << 32 | incarnation) + client), step_(Mixed(~state_) | 1) {}
  // (Not inlined: writes that need no nonce would pay for it.)
  [[gnu::noinline]] uint64_t Next() { return Mixed(state_ += step_); }

 private:
  static constexpr uint64_t Mixed(uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
  }
  uint64_t state_;
  const uint64_t step_;  // odd, so that all 2^64 states come before one comes again
};

// An entry of the home's client table, and the word with which it was claimed.
struct ClaimedEntry {
  uint32_t index = 0;
  OwnerWord owner;
};

// HeldEntries: the entries of the home's client table that clients of one node claim, hold or give back. Two of them
// that claim a free entry write the same word, and the outcome of a CAS may be unknown. So only one client at a time
// acts on an entry, from before the claim until the entry is known to be given back (docs/protocol.md, "Registration").
//
// Thread safety: all methods from any thread.
class HeldEntries {
 public:
  void RemoveFrom(std::vector<uint32_t>* indexes) {
    const std::lock_guard lock(mutex_);
    std::erase_if(*indexes, [this](uint32_t index) { return held_.contains(index); });
  }
  // False: another client acts on it, or it was abandoned.
  bool Hold(uint32_t index) {
    const std::lock_guard lock(mutex_);
    return held_.try_emplace(index).second;
  }
  // Call it when the entry is free, or another node's.
  void LetGo(uint32_t index) {
    const std::lock_guard lock(mutex_);
    held_.erase(index);
  }
  // Call it when the client that held the entry has ended or given up, and the entry is still the node's, or may be.
  // Nobody else can find that out while this process lives. Another of its clients takes the entry and gives it back.
  void Abandon(const ClaimedEntry& entry) {
    const std::lock_guard lock(mutex_);
    held_[entry.index] = {.abandoned_as = entry.owner};
  }
  // Takes an abandoned entry. Only the caller acts on it until it lets it go, or abandons it again. Nothing: there is
  // none that nobody has taken.
  std::optional<ClaimedEntry> TakeAbandoned() {
    const std::lock_guard lock(mutex_);
    for (auto& [index, held] : held_) {
      if (held.abandoned_as && !std::exchange(held.taken, true)) return ClaimedEntry{index, *held.abandoned_as};
    }
    return std::nullopt;
  }
  // Whether the entry is an abandoned one, taken or not. Nothing executes any more that was posted under it.
  bool IsAbandoned(const ClaimedEntry& entry) {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(entry.index);
    return held != held_.end() && held->second.abandoned_as == entry.owner;
  }

 private:
  struct Held {
    std::optional<OwnerWord> abandoned_as;
    bool taken = false;
  };
  std::mutex mutex_;
  std::map<uint32_t, Held> held_;  // by index; guarded by mutex_
};

// What a store is, from its home's superblock and from how it was opened. It does not change.
struct StoreShape {
  krcore::NodeId home = krcore::kNoNode;  // a pool, where pools are mirrored
  SubtableGeometry geometry;
  uint32_t initial_depth = 0;  // of the table when the store began; only Deletes and thorough runs go below
  uint64_t chunk_bytes = kDefaultChunkBytes;
  int64_t lease_ns = kDefaultLeaseNs;
  Hasher hasher{HashSeed{}};
  int64_t operation_timeout_ns = 0;
  int64_t reconnect_budget_ns = 0;  // how long a client may block to connect while it has operations
  bool mirrored = false;            // the pools are
};

// What the clients of one Store share.
struct StoreState {
  StoreIdentity identity;
  HeldEntries held_entries;
  ChunkAges chunk_ages;
  std::atomic<uint64_t> clients = 0;  // made so far; it pairs with nothing: each client only needs another number
};

// Returns whether what expires at that time of day (0: never) has expired by this clock.
inline bool HasExpired(uint64_t expires_at_ms, krcore::Clock& clock) {
  return expires_at_ms != 0 && clock.UnixMs() >= expires_at_ms;
}

struct Common {
  krcore::Node& node;  // the one that posts this client's verbs
  krcore::Clock& clock;
  Connections& connections;
  ClientStats& stats;
  std::minstd_rand& random;
  const StoreShape& shape;
  StoreState& store;
  Nonces& nonces;

  // What a slot that was in use becomes when it becomes FREE.
  Slot NewFree() const { return Slot::Free(Mutated(Mutation::kFreeRepeats) ? 0 : nonces.Next()); }
};

// The base of a client's parts. They refer to each other, so none is copied.
class Part {
 public:
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 protected:
  explicit Part(const Common& common) : common_(common) {}
  ~Part() = default;

  const Common common_;
};

// A part of the client's registered memory.
struct ArenaPart {
  std::byte* memory = nullptr;
  uint32_t lkey = 0;

  ArenaPart After(size_t bytes) const { return {memory + bytes, lkey}; }
};

// When a client does work of its own, and whether it does.
struct OwnWork {
  int64_t maintain_at_ns = 0;      // when the next round of maintenance is due
  bool compaction_wanted = false;  // to find what a client held that has gone
  bool closing = false;            // the client ends: it begins nothing by itself any more
};

// ---- tasks that nobody awaits

// Runs a spawned task to its end. It owns itself.
struct Detached {
  struct promise_type {
    static void* operator new(size_t bytes) { return internal::AllocateFrame(bytes); }
    static void operator delete(void* frame, size_t bytes) { internal::FreeFrame(frame, bytes); }
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

// Runs `task`; *running counts it while it runs.
inline Detached RunDetached(Task<void> task, size_t* running) {
  ++*running;
  co_await std::move(task);
  --*running;
}

}  // namespace kvs

#endif  // KVS_EPOCHS_COMMON_H_
