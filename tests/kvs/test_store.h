// A store for tests: memory nodes in this process, on a fabric of its own, with a table geometry of the test's
// choice. Tiny subtables split all the time.
#ifndef TESTS_KVS_TEST_STORE_H_
#define TESTS_KVS_TEST_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_test {

struct TestStoreOptions {
  std::string fabric = {};  // empty: private to the process
  uint32_t groups = 2;      // of a subtable, 21 slots each
  uint32_t initial_depth = 0;
  size_t memory_bytes = size_t{64} << 20;
  int64_t operation_timeout_ms = 60'000;  // so long that only a hanging operation meets it
  krcore::Clock* clock = nullptr;         // the clients' clock; null: the host's
  uint32_t memory_nodes = 1;              // of memory_bytes each
  uint64_t chunk_bytes = kvs::kDefaultChunkBytes;
  int64_t lease_ns = kvs::kDefaultLeaseNs;
};

class TestStore {
 public:
  explicit TestStore(const TestStoreOptions& options);
  ~TestStore();

  // Attaches this process, or another one that was forked since, as a client process does.
  static std::unique_ptr<kvs::Store> Attach(const std::string& fabric, const TestStoreOptions& options);

  const std::string& fabric() const { return fabric_; }
  // The memory node's pool, node 1's.
  std::span<std::byte> memory() const { return pools_.front()->bytes(); }
  // dir[index] as it is at this moment.
  kvs::DirectoryEntry DirectoryEntryOf(uint32_t index) const;
  // All of the pools, for CheckPools.
  std::vector<PoolImage> images() const;
  // Made on the first call, so that a process that forks has none yet.
  kvs::Store& store();
  std::unique_ptr<kvs::Client> NewClient(uint32_t max_in_flight = 64);
  // One more memory node joins.
  void AddMemoryNode();

 private:
  const TestStoreOptions options_;
  std::string fabric_;
  std::vector<std::unique_ptr<krcore::Node>> nodes_;  // the first one is the home
  std::vector<std::unique_ptr<krcore::Region>> pools_;
  std::unique_ptr<kvs::Store> store_;
};

// A name that no other test uses at the same time.
std::string UniqueFabric();

}  // namespace surgekv_test

#endif  // TESTS_KVS_TEST_STORE_H_
