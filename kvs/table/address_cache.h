// AddressCache: where a client last saw the values of keys, so that a Get takes one round trip instead of two. After
// the READs of the key's buckets, on the same queue, the client posts a READ of the block that the key's slot named
// last time. The slots decide: the block counts only if its very word is still among the key's candidates. Then it is
// what a READ that waited for the slots would have brought, because it executed after theirs. So a wrong entry costs
// bytes, never correctness, and a key's entry outlives the split that moves it.
//
// Whether that pays depends on the load and on the network. On shared memory a round trip is only a cache miss; with
// uniform keys nothing is known; with many updates by others everything is stale. So the cache measures. It warms up,
// then times windows of operations with and without it in turn. By the result it stays on or goes off for a while. A
// cache that is off costs only a counter.
//
// An entry takes 16 bytes. The cache is allocated when the first entry is stored. Thread safety: the client's thread.
#ifndef KVS_TABLE_ADDRESS_CACHE_H_
#define KVS_TABLE_ADDRESS_CACHE_H_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "krcore/clock.h"
#include "kvs/client.h"
#include "kvs/layout/subtable.h"

namespace kvs {

class AddressCache {
 public:
  explicit AddressCache(ClientStats& stats) : stats_(stats) {}
  // `entries` is rounded up to a power of two; 0: never on.
  void SetSize(uint32_t entries);
  // Allocates the cache in advance, before the first entry is stored.
  void MakeTable();

  // An operation begins.
  void Count(krcore::Clock& clock) {
    if (--left_ == 0) [[unlikely]]
      EndWindow(clock.NowNs());
  }
  // The VAL word that the key's slot held last time, FREE if nothing is known. `hash`: KeyHash::h1.
  Slot Lookup(uint64_t hash) {
    if (!speculating_) return {};
    return Find(hash);
  }
  // A reader found this value.
  void Learn(uint64_t hash, Slot value) {
    if (speculating_) Store(hash, value);
  }
  // A writer changed the slot to this value; FREE: deleted.
  void Refresh(uint64_t hash, Slot value) {
    if (learning_) Store(hash, value);
  }
  void CountHit() {
    ++stats_.cache_hits;
    ++hits_;
  }

  bool on() const { return speculating_; }

 private:
  static constexpr uint32_t kWays = 4;
  // Most recently useful first.
  struct alignas(64) Set {
    struct Entry {
      uint64_t hash;
      uint64_t word;
    };
    std::array<Entry, kWays> entries;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  enum class Phase : uint8_t { kWarming, kTrial, kOn, kOff };
  static constexpr uint32_t kWindow = 2'048;  // operations
  static constexpr uint32_t kTrialWindows = 10;
  static constexpr uint32_t kFirstPeriod =
      128;  // windows until the next trial; more each time the verdict stays the same
  static constexpr uint32_t kLastPeriod = 8'192;
  static constexpr uint32_t kPeriodGrowth = 4;

  Slot Find(uint64_t hash);
  void Store(uint64_t hash, Slot value);
  void EndWindow(int64_t now_ns);
  void Warm();
  void Decide(bool on);

  ClientStats& stats_;
  bool speculating_ = false;              // lookups answer
  bool learning_ = false;                 // writers' changes are followed
  uint64_t left_ = 0;                     // operations still to come in this window
  uint32_t hits_ = 0, speculations_ = 0;  // in this window

  Phase phase_ = Phase::kOff;
  bool verdict_ = true;
  uint32_t period_ = kFirstPeriod;
  uint32_t windows_ = 0;  // of this phase so far
  int64_t window_from_ns_ = 0;
  std::array<int64_t, kTrialWindows> trial_ns_{};

  uint32_t sets_ = 0;  // a power of two, or 0
  std::unique_ptr<void, Free> memory_;
  Set* table_ = nullptr;
};

inline Slot AddressCache::Find(uint64_t hash) {
  if (table_ == nullptr) return {};
  auto& entries = table_[hash >> 20 & (sets_ - 1)].entries;
  for (uint32_t i = 0; i < kWays; ++i) {
    if (entries[i].hash != hash) continue;
    const Slot found(entries[i].word);
    if (i > 0) std::swap(entries[i], entries[i - 1]);
    if (!found.free()) {
      ++speculations_;
      ++stats_.cache_speculations;
      return found;
    }
    break;
  }
  ++stats_.cache_misses;
  return {};
}

}  // namespace kvs

#endif  // KVS_TABLE_ADDRESS_CACHE_H_
