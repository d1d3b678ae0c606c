// A store for tests: memory nodes in this process, on a fabric of its own, with a table geometry of the test's
// choice. Tiny subtables split all the time.
#ifndef TESTS_KVS_TEST_STORE_H_
#define TESTS_KVS_TEST_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/hash.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_test {

// Of stores whose tests choose keys by their hashes.
inline constexpr kvs::HashSeed kTestSeed{.low = 1, .high = 2};
inline kvs::KeyHash HashKey(std::string_view key) {
  static const kvs::Hasher hasher(kTestSeed);
  return hasher(key);
}

struct TestStoreOptions {
  std::string fabric = {};  // empty: private to the process
  uint32_t groups = 2;      // of a subtable, 21 slots each
  uint32_t initial_depth = 0;
  size_t memory_bytes = size_t{64} << 20;
  int64_t operation_timeout_ms = 60'000;  // so long that only a hanging operation meets it
  krcore::Clock* clock = nullptr;         // the clients' clock, with "sim" everybody's; null: the host's
  uint32_t memory_nodes = 1;              // of memory_bytes each
  uint64_t chunk_bytes = kvs::kDefaultChunkBytes;
  int64_t lease_ns = kvs::kDefaultLeaseNs;
  std::string control_plane = "krcore";  // of clients
  std::optional<kvs::HashSeed> hash_seed = kTestSeed;
  std::string rnic = "sw";  // "sim": `fabric` is a World
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
  // One more memory node joins, or one that was stopped, with empty memory.
  void AddMemoryNode();
  void StartMemoryNode(krcore::NodeId node, size_t memory_bytes = 0);  // 0: as the others
  // Its memory is gone. Not the first one.
  void StopMemoryNode(krcore::NodeId node);
  // Its pool; it has not been stopped.
  std::span<std::byte> memory_of(krcore::NodeId node) const { return pools_[node - 1]->bytes(); }

  // With "verbs" and "lite". The memory nodes' CPU: clients of store() run it while they wait to be connected, so that
  // no thread is needed; who waits for a client of another process calls it again and again.
  void ServeConnections();
  // Those that the memory nodes have with living clients.
  size_t Connections();

 private:
  class ServingClock final : public krcore::Clock {
   public:
    ServingClock(TestStore& store, krcore::Clock& inner) : store_(store), inner_(inner) {}
    int64_t NowNs() override { return inner_.NowNs(); }
    int64_t CoarseNowNs() override { return inner_.CoarseNowNs(); }
    void Relax(uint32_t spins) override {
      store_.ServeConnections();
      inner_.Relax(spins);
    }

   private:
    TestStore& store_;
    krcore::Clock& inner_;
  };

  const TestStoreOptions options_;
  std::string fabric_;
  std::vector<std::unique_ptr<krcore::Node>> nodes_;  // by id, from 1 on, which is the home; null: stopped
  std::vector<std::unique_ptr<krcore::Region>> pools_;
  std::mutex acceptors_mutex_;
  std::vector<std::unique_ptr<krcore::Acceptor>> acceptors_;  // guarded by acceptors_mutex_
  ServingClock serving_clock_;
  std::unique_ptr<kvs::Store> store_;
};

// A name that no other test uses at the same time.
std::string UniqueFabric();

}  // namespace surgekv_test

#endif  // TESTS_KVS_TEST_STORE_H_
