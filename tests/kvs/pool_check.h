// A checker of a store at rest: no verb is under way, and the raw memory of every memory node is at hand. It walks the
// directory, the subtables, their slots and blocks, and the chunks. It reports all that differs from docs/protocol.md.
// It shares the layout's definitions with the store and none of its code.
//
// Thread safety: pure function.
#ifndef TESTS_KVS_POOL_CHECK_H_
#define TESTS_KVS_POOL_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "krcore/types.h"
#include "kvs/layout/subtable.h"

namespace surgekv_test {

// The pool of one memory node, or one replica of a mirrored pool.
struct PoolImage {
  krcore::NodeId node = krcore::kNoNode;  // the id that addresses name
  std::span<const std::byte> bytes;
};

struct PoolCheckOptions {
  // Clients were killed, and nobody has cleaned up after all of them. Tentative slots, lock words, and splits and
  // merges under way may be left, see PoolReport::leftovers. Their invariants are checked all the same.
  bool after_deaths = false;
  // Extents that living clients hold, e.g. in free lists. They are no leak, and must lie in taken chunks and overlap
  // nothing.
  struct Known {
    kvs::GlobalAddress address;
    uint64_t bytes = 0;
    bool table = false;
  };
  std::vector<Known> known;
  size_t max_problems = 50;  // further ones are counted and not described
};

// What a client had begun with a table and nobody has finished.
struct Leftover {
  enum class Kind : uint8_t { kLock, kTentative, kSplit, kMerge };
  Kind kind = Kind::kLock;
  uint64_t lock = 0;       // the lock word in the table, or in the parent of that split or merge
  std::string key, value;  // kTentative: those of the slot's block
  std::string what;        // for people to read
};

struct PoolReport {
  std::vector<std::string> problems;            // empty: the store is sound
  std::vector<Leftover> leftovers;              // these are also problems, unless there were deaths
  std::map<std::string, std::string> contents;  // what a reader finds now
  uint64_t live_blocks = 0, live_bytes = 0;     // named by VAL or FRZ
  uint64_t tentative_slots = 0, frozen_slots = 0;
  uint64_t entries_splitting = 0, entries_merging = 0;  // directory entries in that state
  uint64_t subtables = 0, table_bytes = 0, slots = 0;
  uint32_t global_depth = 0;
  uint64_t chunks = 0, chunks_taken = 0;
  uint64_t leaked_bytes = 0;  // in taken chunks, neither live, nor a subtable, nor known
  uint64_t clients = 0;       // registered

  bool ok() const { return problems.empty(); }
  std::string ToString() const;
};

PoolReport CheckPools(std::span<const PoolImage> pools, const PoolCheckOptions& options = {});

}  // namespace surgekv_test

#endif  // TESTS_KVS_POOL_CHECK_H_
