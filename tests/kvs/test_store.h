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
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_test {

// For stores whose tests choose keys by their hashes.
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
  int64_t operation_timeout_ms = 60'000;  // so long that only an operation that hangs reaches it
  krcore::Clock* clock = nullptr;         // the clients' clock; with "sim" everybody's. null: the host's
  uint32_t memory_nodes = 1;              // each of memory_bytes
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
  // The pool of the memory node with id 1.
  std::span<std::byte> memory() const { return pools_.front()->bytes(); }
  // Returns dir[index] as it is at this moment.
  kvs::DirectoryEntry DirectoryEntryOf(uint32_t index) const;
  // Returns all pools, for CheckPools.
  std::vector<PoolImage> images() const;
  // The store is made on the first call, so that a process that forks has none yet.
  kvs::Store& store();
  std::unique_ptr<kvs::Client> NewClient(uint32_t max_in_flight = 64);
  // Adds a memory node: a new one, or one that was stopped, with empty memory.
  void AddMemoryNode();
  void StartMemoryNode(krcore::NodeId node, size_t memory_bytes = 0);  // 0: as the others
  // The node's memory is lost. It must not be the first node.
  void StopMemoryNode(krcore::NodeId node);
  // Returns the pool of a node that has not been stopped.
  std::span<std::byte> memory_of(krcore::NodeId node) const { return pools_[node - 1]->bytes(); }

  // For "verbs" and "lite": runs the memory nodes' CPU. Clients of store() call it while they wait to be connected, so
  // that no thread is needed. A test that waits for a client of another process calls it again and again.
  void ServeConnections();
  // Counts the connections that the memory nodes have with living clients.
  size_t Connections();

 private:
  class ServingClock final : public krcore::Clock {
   public:
    ServingClock(TestStore& store, krcore::Clock& inner) : store_(store), inner_(inner) {}
    int64_t NowNs() override { return inner_.NowNs(); }
    int64_t CoarseNowNs() override { return inner_.CoarseNowNs(); }
    uint64_t UnixMs() override { return inner_.UnixMs(); }
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
  std::vector<std::unique_ptr<krcore::Node>> nodes_;  // by id, from 1 on; 1 is the home; null: stopped
  std::vector<std::unique_ptr<krcore::Region>> pools_;
  std::mutex acceptors_mutex_;
  std::vector<std::unique_ptr<krcore::Acceptor>> acceptors_;  // guarded by acceptors_mutex_
  ServingClock serving_clock_;
  std::unique_ptr<kvs::Store> store_;
};

// Returns a name that no other test uses at the same time.
std::string UniqueFabric();

}  // namespace surgekv_test

#endif  // TESTS_KVS_TEST_STORE_H_
