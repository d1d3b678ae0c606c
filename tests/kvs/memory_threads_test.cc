// Memory given back while another thread's client writes.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "kvs/client.h"
#include "tests/kvs/given_back.h"

namespace surgekv_test {
namespace {

TEST(GivenBack, WhileAnotherClientWritesAndTablesSplitAndMerge) {
  constexpr uint32_t kRecords = 6'000;
  TestStore store({.groups = 2, .memory_bytes = size_t{64} << 20, .chunk_bytes = kSmallChunk});
  auto mover = store.NewClient();
  InLanes(*mover, kRecords, PutRange);
  std::atomic<bool> stop{false};
  kvs::Store& attached = store.store();
  std::thread writer([&] {
    auto client = attached.NewClient().value();
    std::map<std::string, std::string> mine;
    std::mt19937 random(1);
    for (uint32_t i = 0; !stop.load(); ++i) {
      const std::string key = "mine-" + std::to_string(random() % 3'000);
      if (i / 4'000 % 2 == 1 && mine.contains(key)) {
        ASSERT_TRUE(client->Delete(key).ok());
        mine.erase(key);
      } else {
        mine[key] = std::string(random() % 900, 'w') + std::to_string(i);
        const kvs::Status put = client->Put(key, mine[key]);
        ASSERT_TRUE(put.ok()) << put.ToString();
      }
      const std::string other = "mine-" + std::to_string(random() % 3'000);
      std::string value;
      const kvs::Status got = client->Get(other, &value);
      ASSERT_EQ(got.ok(), mine.contains(other)) << other << ": " << got.ToString();
      if (got.ok()) {
        ASSERT_EQ(value, mine[other]);
      }
    }
  });
  InLanes(*mover, kRecords, DeleteRange);
  uint64_t freed = 0, moved = 0;
  // The writer's deletes produce what there is to free, as fast as the writer runs.
  for (int i = 0; i < 10 || (i < 500 && (freed <= 20 || moved <= 100)); ++i) {
    kvs::CompactReport report;
    const kvs::Status compacted = mover->Compact({.thorough = i % 2 == 1}, &report);
    EXPECT_TRUE(compacted.ok()) << compacted.ToString();
    freed += report.chunks_freed;
    moved += report.blocks_moved;
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(freed, 20u);
  EXPECT_GT(moved, 100u);
  CheckTenth(*mover, kRecords);
  CheckPools(store);
}

}  // namespace
}  // namespace surgekv_test
