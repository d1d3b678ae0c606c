// What a store, its clients and their operations do when their process forks. The parent goes on as if it had not. In
// the child, what the parent opened reports the fork. A child that opens its own store is a process like any other.
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/kvs/child.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;
using kvs::Store;

// It is global so that the child's destructors and exit() find it, as they find a program's globals.
std::unique_ptr<Store> the_store;
std::unique_ptr<Client> the_client;

class Fork : public ::testing::TestWithParam<std::string> {
 protected:
  Fork() {
    options_.fabric = UniqueFabric();
    options_.lease_ns = 50'000'000;
    options_.control_plane = GetParam();
    memory_ = std::make_unique<TestStore>(options_);
    served_ = std::thread([this] {
      for (uint32_t spins = 0; !stop_; ++spins) {
        memory_->ServeConnections();
        krcore::RealClock()->Relax(spins);
      }
    });
    the_store = TestStore::Attach(options_.fabric, options_);
    the_client = the_store->NewClient().value();
    EXPECT_TRUE(the_client->Put("before", "the fork").ok());
  }
  ~Fork() override {
    the_client.reset();
    the_store.reset();
    stop_ = true;
    served_.join();
    memory_.reset();
    EXPECT_EQ(Files(), std::set<std::string>());
  }

  // Returns the fabric's files in /dev/shm.
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = file.path().filename();
      if (name.find(options_.fabric + ".") != std::string::npos) names.insert(name);
    }
    return names;
  }
  const kvs::HomeArea& home() const {
    return *reinterpret_cast<const kvs::HomeArea*>(memory_->memory().data() + kvs::kHomeAreaOffset);
  }
  // Counts the entries of living clients, and of dead ones that nobody has found.
  size_t Entries() const {
    size_t entries = 0;
    for (const kvs::ClientEntry& entry : home().clients)
      entries += kvs::OwnerWord(std::atomic_ref(entry.owner).load()).held();
    return entries;
  }
  // Expects that what the parent had still works, and that others find it.
  void ExpectParentGoesOn() {
    std::string value;
    EXPECT_TRUE(the_client->Get("before", &value).ok());
    EXPECT_EQ(value, "the fork");
    EXPECT_TRUE(the_client->Put("after", "the fork").ok());
    auto other = TestStore::Attach(options_.fabric, options_);
    auto reader = other->NewClient().value();
    EXPECT_TRUE(reader->Get("after", &value).ok());
    EXPECT_FALSE(other->node().IsConfirmedDead(the_store->node().id(), the_store->node().incarnation()));
  }

  TestStoreOptions options_;
  std::unique_ptr<TestStore> memory_;
  std::atomic<bool> stop_{false};
  std::thread served_;
};
INSTANTIATE_TEST_SUITE_P(ControlPlanes, Fork, ::testing::Values("krcore", "lite", "verbs"),
                         [](const auto& plane) { return plane.param; });

void ExpectRefused(const Status& status, const char* call) {
  EXPECT_EQ(status.code(), StatusCode::kBadState) << call;
  EXPECT_NE(status.message().find("after fork"), std::string::npos) << call << ": " << status.ToString();
}

kvs::Task<void> GetInto(Client& client, Status* status) {
  std::string value;
  *status = co_await client.GetAsync("before", &value);
}

template <typename T>
T Started(kvs::Task<T> task) {
  task.Start();
  EXPECT_TRUE(task.done());
  return task.Take();
}

void ExpectEveryCallRefused(Store& store, Client& client) {
  std::string value;
  ExpectRefused(client.Get("before", &value), "Get");
  ExpectRefused(client.Put("k", "v"), "Put");
  ExpectRefused(client.Insert("k", "v"), "Insert");
  ExpectRefused(client.Update("before", "v"), "Update");
  ExpectRefused(client.Delete("before"), "Delete");
  const kvs::ModifyFunction keep = [](std::optional<std::string_view>) { return kvs::Modification::Keep(); };
  ExpectRefused(client.Modify("before", keep), "Modify");
  ExpectRefused(client.CompareAndSet("before", "a", "b"), "CompareAndSet");
  uint64_t cursor = 0;
  std::vector<kvs::ScanRecord> records(1);
  ExpectRefused(client.Scan(&cursor, &records), "Scan");
  EXPECT_TRUE(records.empty());
  ExpectRefused(client.Compact(), "Compact");
  ExpectRefused(client.DrainNode(1), "DrainNode");
  ExpectRefused(client.UndrainNode(1), "UndrainNode");
  std::vector<std::string_view> keys{"before", "k"};
  std::vector<std::string> values(2);
  std::vector<Status> statuses(2);
  client.MultiGet(keys, values, statuses);
  for (const Status& status : statuses) ExpectRefused(status, "MultiGet");
  std::vector<kvs::WriteRequest> writes{{.key = "before", .value = "v"}, {.key = "k", .value = "v"}};
  client.MultiWrite(writes);
  for (const kvs::WriteRequest& write : writes) ExpectRefused(write.status, "MultiWrite");

  ExpectRefused(Started(client.GetAsync("before", &value)), "GetAsync");
  ExpectRefused(Started(client.PutAsync("k", "v")), "PutAsync");
  ExpectRefused(Started(client.InsertAsync("k", "v")), "InsertAsync");
  ExpectRefused(Started(client.UpdateAsync("before", "v")), "UpdateAsync");
  ExpectRefused(Started(client.DeleteAsync("before")), "DeleteAsync");
  ExpectRefused(Started(client.ModifyAsync("before", &keep)), "ModifyAsync");
  ExpectRefused(Started(client.ScanAsync(&cursor, &records, {})), "ScanAsync");
  kvs::CompactReport compaction;
  ExpectRefused(Started(client.CompactAsync({}, &compaction)), "CompactAsync");
  kvs::DrainReport draining;
  ExpectRefused(Started(client.DrainNodeAsync(1, {}, &draining)), "DrainNodeAsync");
  ExpectRefused(Started(client.UndrainNodeAsync(1)), "UndrainNodeAsync");
  Status spawned;
  client.Spawn(GetInto(client, &spawned));
  ExpectRefused(spawned, "Spawn");
  ExpectRefused(client.ReadTableStats().status(), "ReadTableStats");
  EXPECT_EQ(client.Poll(), 0U);
  EXPECT_EQ(client.spawned(), 0U);
  EXPECT_EQ(client.IdleUntil(), INT64_MIN);
  client.Drain();
  (void)client.stats();
  (void)client.times();
  (void)client.connection_bytes();

  ExpectRefused(store.NewClient().status(), "NewClient");
  ExpectRefused(store.PrepareClient(), "PrepareClient");
  EXPECT_FALSE(store.software_dc().has_value());
  ExpectRefused(store.node().Publish(krcore::Deadline::Never()), "Node::Publish");
}

TEST_P(Fork, EveryCallOnWhatWasOpenedBeforeSaysInTheChildThatItMustOpenItsOwn) {
  Status in_flight;
  the_client->Spawn(GetInto(*the_client, &in_flight));
  Child child([] {
    ExpectEveryCallRefused(*the_store, *the_client);
    the_client.reset();
    the_store.reset();
  });
  EXPECT_EQ(child.Wait(), 0);
  the_client->Drain();
  EXPECT_TRUE(in_flight.ok());
  ExpectParentGoesOn();
}

TEST_P(Fork, TheParentLosesNoAcknowledgedKeyWhenItsChildGoesOnWithItsClientToo) {
  constexpr int kKeys = 6'000;
  const auto key = [](const char* who, int i) { return who + std::to_string(i); };
  Child child([&] {
    for (int i = 0; i < kKeys; ++i) EXPECT_EQ(the_client->Put(key("child", i), "c"), StatusCode::kBadState);
  });
  for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(the_client->Put(key("parent", i), std::to_string(i)).ok());
  EXPECT_EQ(child.Wait(), 0);
  auto other = TestStore::Attach(options_.fabric, options_);
  auto reader = other->NewClient().value();
  int missing = 0, wrong = 0, of_child = 0;
  for (int i = 0; i < kKeys; ++i) {
    std::string value;
    const Status got = reader->Get(key("parent", i), &value);
    missing += got == StatusCode::kNotFound;
    wrong += got.ok() && value != std::to_string(i);
    of_child += reader->Get(key("child", i), &value).ok();
  }
  EXPECT_EQ(missing, 0) << "of " << kKeys;
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(of_child, 0);
}

TEST_P(Fork, HoweverAChildEndsTheParentsClientEntriesAndFilesStay) {
  const std::vector<std::function<void()>> ends = {
      [] { exit(0); },  // as a return from main: destructors of statics run
      [] {
        the_client.reset();
        exit(0);
      },
      [] { _exit(0); },
      [] { raise(SIGKILL); },
  };
  const std::set<std::string> files = Files();
  const size_t entries = Entries();
  for (const auto& end : ends) {
    Child child(end);
    (void)child.Wait();
    EXPECT_EQ(Files(), files);
    EXPECT_EQ(Entries(), entries);
    ExpectParentGoesOn();
  }
}

TEST_P(Fork, AKilledChildWithAStoreOfItsOwnIsFoundAndItsEntryIsFreed) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const size_t entries = Entries();
  const std::vector<krcore::NodeId> own{the_store->node().id()};
  Child child([&] {
    auto store = TestStore::Attach(options_.fabric, options_);
    auto client = store->NewClient().value();
    EXPECT_TRUE(client->Put("child", "lives").ok());
    EXPECT_NE(store->node().id(), own[0]);
    if (testing::Test::HasFailure() || write(ready[1], "", 1) != 1) _exit(1);
    for (;;) (void)client->Poll();
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(Entries(), entries + 1);
  child.Kill();
  // The dead client holds back reclamation, and whoever wants memory looks for the reason.
  const krcore::Deadline deadline = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
  for (int i = 0; Entries() > entries && !deadline.Passed(*krcore::RealClock()); ++i)
    ASSERT_TRUE(the_client->Put("again", std::to_string(i)).ok());
  EXPECT_EQ(Entries(), entries);
  EXPECT_EQ(the_client->stats().dead_clients_found, 1U);
  std::string value;
  EXPECT_TRUE(the_client->Get("child", &value).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_P(Fork, WhileAnotherThreadIsInAnOperationAndTheChildOpensItsOwnStore) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> done{0};
  auto client = the_store->NewClient().value();
  std::thread other([&] {
    for (uint64_t i = 0; !stop; ++i) {
      EXPECT_TRUE(client->Put("busy" + std::to_string(i % 100), std::to_string(i)).ok());
      // Opening and closing take the process-wide locks.
      auto another = the_store->NewClient().value();
      ++done;
    }
  });
  for (int round = 0; round < 20; ++round) {
    for (const uint64_t seen = done; done == seen;) std::this_thread::yield();
    Child child([&] {
      ExpectRefused(client->Put("busy", "child"), "Put");
      auto store = TestStore::Attach(options_.fabric, options_);
      auto own = store->NewClient().value();
      EXPECT_TRUE(own->Put("child", "goes on").ok());
      auto embedded = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20}).value();
      EXPECT_TRUE(embedded->NewClient().value()->Put("private", "to the child").ok());
    });
    EXPECT_EQ(child.Wait(), 0);
  }
  stop = true;
  other.join();
  client.reset();
  ExpectParentGoesOn();
}

TEST_P(Fork, AGrandchildMayUseNeitherItsParentsStoreNorThatOfTheProcessBefore) {
  Child child([&] {
    auto store = TestStore::Attach(options_.fabric, options_);
    auto client = store->NewClient().value();
    EXPECT_TRUE(client->Put("child", "lives").ok());
    Child grandchild([&] {
      ExpectRefused(the_client->Put("k", "v"), "Put with the grandparent's");
      ExpectRefused(client->Put("k", "v"), "Put with the parent's");
      client.reset();
      store.reset();
      auto own = TestStore::Attach(options_.fabric, options_);
      EXPECT_TRUE(own->NewClient().value()->Put("grandchild", "lives").ok());
    });
    EXPECT_EQ(grandchild.Wait(), 0);
    EXPECT_TRUE(client->Put("child", "goes on").ok());
    ExpectRefused(the_client->Put("k", "v"), "Put with the parent's");
  });
  EXPECT_EQ(child.Wait(), 0);
  ExpectParentGoesOn();
}

// A bare clone runs none of the handlers of fork.
TEST_P(Fork, ABareCloneIsNoticed) {
  const std::vector<std::function<long()>> clones = {
      [] { return syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr); },
      [] {
        clone_args arguments{};
        arguments.exit_signal = SIGCHLD;
        return syscall(SYS_clone3, &arguments, sizeof(arguments));
      },
  };
  for (const auto& clone : clones) {
    const long pid = clone();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ExpectRefused(the_client->Put("k", "v"), "Put");
      the_client.reset();
      the_store.reset();
      auto store = TestStore::Attach(options_.fabric, options_);
      EXPECT_TRUE(store->NewClient().value()->Put("clone", "lives").ok());
      store.reset();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(static_cast<pid_t>(pid), &status, 0), pid);
    EXPECT_EQ(status, 0);
    ExpectParentGoesOn();
  }
}

// The coroutine owns `in_child`: the caller's objects may be gone by then.
kvs::Task<void> ForkInside(Client& client, std::function<void()> in_child, int* status) {
  std::string value;
  EXPECT_TRUE((co_await client.GetAsync("before", &value)).ok());
  Child child(in_child);
  *status = child.Wait();
}

kvs::Task<void> CountAfterGet(Client& client, int* count) {
  std::string value;
  EXPECT_TRUE((co_await client.GetAsync("before", &value)).ok());
  ++*count;
}

TEST_P(Fork, TheParentsOperationsEndInTheParentAloneWhenACoroutineForks) {
  int status = -1, ended = 0;
  for (int i = 0; i < 8; ++i) the_client->Spawn(CountAfterGet(*the_client, &ended));
  the_client->Spawn(ForkInside(
      *the_client,
      [&] {
        const int before = ended;
        auto store = TestStore::Attach(options_.fabric, options_);
        auto client = store->NewClient().value();
        EXPECT_TRUE(client->Put("child", "lives").ok());
        EXPECT_EQ(ended, before);
      },
      &status));
  for (int i = 0; i < 8; ++i) the_client->Spawn(CountAfterGet(*the_client, &ended));
  the_client->Drain();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ended, 16);
  ExpectParentGoesOn();
}

TEST(ForkEmbedded, TheChildOfAnEmbeddedStoresProcessHasNoneAndMayOpenOne) {
  auto store = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20}).value();
  auto client = store->NewClient().value();
  ASSERT_TRUE(client->Put("before", "the fork").ok());
  Child child([&] {
    ExpectEveryCallRefused(*store, *client);
    client.reset();
    store.reset();
    auto own = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20}).value();
    EXPECT_TRUE(own->NewClient().value()->Put("own", "v").ok());
  });
  EXPECT_EQ(child.Wait(), 0);
  std::string value;
  EXPECT_TRUE(client->Get("before", &value).ok());
}

}  // namespace
}  // namespace surgekv_test
