// Memory that is used again and again: a small store under many more updates than it has room for never runs out of
// memory and never returns a wrong value.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "krcore/node.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"
#include "tests/support/kill_process.h"

namespace surgekv_test {
namespace {

constexpr uint32_t kKeys = 2'000;
#if SURGEKV_TEST_SECONDS > 0
constexpr uint32_t kUpdates = 2'000'000 / kSlowdown;
#else
constexpr uint32_t kUpdates = 400'000 / kSlowdown;
#endif

class Reuse : public ::testing::Test {
 protected:
  Reuse() {
    options_.groups = 128;
    options_.memory_bytes = size_t{16} << 20;
    options_.operation_timeout_ms = 20'000;
  }
  TestStoreOptions options_;
};

std::string KeyOf(uint32_t key) { return "key-" + std::to_string(key); }

struct Shared {
  std::atomic<bool> failed{false};
};

void CheckStatus(const kvs::Status& status, const char* what, Shared* shared) {
  if (status.ok()) return;
  shared->failed.store(true);
  ADD_FAILURE() << what << ": " << status.ToString();
}

// Updates and reads keys. A value must have been written for this very key: ids are key + kKeys * n.
kvs::Task<void> Lane(kvs::Client& client, uint32_t seed, uint32_t updates, Shared* shared) {
  std::mt19937 random(seed);
  for (uint32_t i = 0; i < updates && !shared->failed.load(); ++i) {
    const uint32_t key = random() % kKeys;
    const std::string name = KeyOf(key);
    const std::string value = ValueOf(key + kKeys * (random() % 1'000'000));
    const kvs::Status updated = co_await client.UpdateAsync(name, value);
    CheckStatus(updated, "Update", shared);
    const uint32_t other = random() % kKeys;
    const std::string other_name = KeyOf(other);
    std::string read;
    const kvs::Status got = co_await client.GetAsync(other_name, &read);
    CheckStatus(got, "Get", shared);
    uint32_t id = 0;
    if (got.ok() && (!IdOf(read, &id) || id % kKeys != other)) {
      shared->failed.store(true);
      ADD_FAILURE() << "Get of " << other_name << " returned a value of key " << id % kKeys;
    }
  }
}

void Load(kvs::Client& client) {
  for (uint32_t key = 0; key < kKeys; ++key) {
    const kvs::Status inserted = client.Insert(KeyOf(key), ValueOf(key));
    ASSERT_TRUE(inserted.ok()) << inserted.ToString();
  }
}

void Update(kvs::Client& client, uint32_t seed, uint32_t updates, Shared* shared) {
  constexpr uint32_t kLanes = 16;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    client.Spawn(Lane(client, seed * 100 + lane, updates / kLanes, shared));
  }
  client.Drain();
}

TEST_F(Reuse, OneClient) {
  Repeat([&](uint32_t seed) {
    TestStore store(options_);
    auto client = store.NewClient();
    Load(*client);
    Shared shared;
    Update(*client, seed, kUpdates, &shared);
    EXPECT_GT(client->stats().blocks_reused, kUpdates / 4);
  });
}

TEST_F(Reuse, TwoWritersAndAReaderThatIsIdleButPolled) {
  Repeat([&](uint32_t seed) {
    TestStore store(options_);
    auto loader = store.NewClient();
    Load(*loader);
    loader.reset();
    Shared shared;
    std::atomic<uint32_t> left{2};
    kvs::Store& attached = store.store();
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < 2; ++w) {
      threads.emplace_back([&, w] {
        auto client = attached.NewClient().value();
        Update(*client, seed * 10 + w, kUpdates / 2, &shared);
        // It is idle, but polled, while the other client works.
        left.fetch_sub(1);
        for (uint32_t idle = 0; left.load() > 0; ++idle) {
          (void)client->Poll();
          krcore::RealClock()->Relax(idle);
        }
      });
    }
    auto idle_client = attached.NewClient().value();
    for (uint32_t idle = 0; left.load() > 0; ++idle) {
      (void)idle_client->Poll();
      krcore::RealClock()->Relax(idle);
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(Reuse, AClientThatDied) {
  Repeat([&](uint32_t seed) {
    options_.fabric = UniqueFabric();
    TestStore store(options_);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      auto attached = TestStore::Attach(options_.fabric, options_);
      auto client = attached->NewClient().value();
      Load(*client);
      // It dies with operations in flight, which pin the epoch.
      Shared shared;
      client->Spawn(Lane(*client, seed, kUpdates, &shared));
      for (uint32_t i = 0; i < 1'000 + seed % 100; ++i) (void)client->Poll();
      const bool told = write(ready[1], "", 1) == 1;
      for (;;) {
        if (!told) _exit(1);
        pause();
      }
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    (void)testing_support::KillProcess(pid);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    close(ready[0]);
    close(ready[1]);
    Shared shared;
    auto client = store.NewClient();
    Update(*client, seed, kUpdates, &shared);
    client.reset();
  });
  (void)krcore::CleanStaleFabrics("sw", options_.fabric, true);
}

TEST_F(Reuse, ClientsThatComeAndGoInheritMemory) {
  TestStore store(options_);
  auto loader = store.NewClient();
  Load(*loader);
  loader.reset();
  Shared shared;
  for (uint32_t i = 0; i < 40; ++i) {
    auto client = store.NewClient();
    Update(*client, i, 400'000 / 40 / kSlowdown, &shared);
    ASSERT_FALSE(shared.failed.load());
  }
}

}  // namespace
}  // namespace surgekv_test
