// What every operation promises, over every control plane: on an embedded store, and on one that accepts RC
// connections.
#include "kvs/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/control_plane.h"
#include "tests/kvs/test_store.h"

namespace kvs {
namespace {

class ClientTest : public ::testing::TestWithParam<std::string> {
 protected:
  ClientTest() {
    if (GetParam() == "krcore") {
      embedded_ = Store::OpenEmbedded({.memory_bytes = size_t{64} << 20}).value();
      store_ = embedded_.get();
    } else {
      test_store_ = std::make_unique<surgekv_test::TestStore>(
          surgekv_test::TestStoreOptions{.groups = 128, .memory_bytes = size_t{64} << 20, .control_plane = GetParam()});
      store_ = &test_store_->store();
    }
    client_ = store_->NewClient().value();
  }

  std::string MustGet(std::string_view key) {
    std::string value;
    const Status status = client_->Get(key, &value);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return value;
  }

  std::unique_ptr<Store> embedded_;
  std::unique_ptr<surgekv_test::TestStore> test_store_;
  Store* store_ = nullptr;  // one of these two is set
  std::unique_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(ControlPlanes, ClientTest, ::testing::Values("krcore", "verbs", "lite"),
                         [](const auto& info) { return info.param; });

TEST_P(ClientTest, PutThenGet) {
  ASSERT_TRUE(client_->Put("hello", "world").ok());
  EXPECT_EQ(MustGet("hello"), "world");
}

TEST_P(ClientTest, GetOfAnAbsentKeyIsNotFound) {
  std::string value = "untouched";
  EXPECT_EQ(client_->Get("nothing", &value), StatusCode::kNotFound);
  EXPECT_EQ(value, "untouched");
}

TEST_P(ClientTest, InsertRefusesAnExistingKeyAndKeepsItsValue) {
  ASSERT_TRUE(client_->Insert("k", "1").ok());
  EXPECT_EQ(client_->Insert("k", "2"), StatusCode::kExists);
  EXPECT_EQ(MustGet("k"), "1");
}

TEST_P(ClientTest, UpdateAndDeleteNeedTheKey) {
  EXPECT_EQ(client_->Update("k", "1"), StatusCode::kNotFound);
  EXPECT_EQ(client_->Delete("k"), StatusCode::kNotFound);
  ASSERT_TRUE(client_->Put("k", "1").ok());
  ASSERT_TRUE(client_->Update("k", "2").ok());
  EXPECT_EQ(MustGet("k"), "2");
  ASSERT_TRUE(client_->Delete("k").ok());
  std::string value;
  EXPECT_EQ(client_->Get("k", &value), StatusCode::kNotFound);
  EXPECT_EQ(client_->Delete("k"), StatusCode::kNotFound);
  ASSERT_TRUE(client_->Insert("k", "3").ok());
  EXPECT_EQ(MustGet("k"), "3");
}

TEST_P(ClientTest, KeysAndValuesAreBinary) {
  const std::string key("\0\xff\n key", 7), value("\0\0\xfe", 3);
  ASSERT_TRUE(client_->Put(key, value).ok());
  EXPECT_EQ(MustGet(key), value);
  std::string other;
  EXPECT_EQ(client_->Get(std::string_view(key).substr(0, 6), &other), StatusCode::kNotFound);
}

TEST_P(ClientTest, AnEmptyValueIsAValue) {
  ASSERT_TRUE(client_->Put("k", "").ok());
  EXPECT_EQ(MustGet("k"), "");
}

TEST_P(ClientTest, LengthsBeyondTheLimitsAreRefusedAndNamed) {
  std::string value;
  const Status empty = client_->Put("", "v");
  EXPECT_EQ(empty, StatusCode::kInvalidArgument);
  EXPECT_NE(empty.message().find("1 to 65535"), std::string_view::npos) << empty.ToString();
  EXPECT_EQ(client_->Get("", &value), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Put(std::string(kMaxKeyBytes + 1, 'k'), "v"), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Delete(std::string(kMaxKeyBytes + 1, 'k')), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Put("k", std::string(kMaxValueBytes + 1, 'v')), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Get("k", &value), StatusCode::kNotFound);
}

TEST_P(ClientTest, EveryLengthAroundTheBlockLimitsComesBack) {
  for (const size_t length : {1, 15, 16, 17, 100, 4030, 4031, 4032, 4033, 4047, 4048, 4049, 5000, 65536, 1 << 20}) {
    std::string value(length, '\0');
    for (size_t i = 0; i < length; ++i) value[i] = static_cast<char>(i * 31 + length);
    const std::string key = "length" + std::to_string(length);
    ASSERT_TRUE(client_->Put(key, value).ok()) << length;
    ASSERT_TRUE(client_->Update(key, value + "x").ok()) << length;
    EXPECT_EQ(MustGet(key), value + "x") << length;
    ASSERT_TRUE(client_->Delete(key).ok()) << length;
  }
}

TEST_P(ClientTest, TheLargestKeyAndValueComeBack) {
  std::string key(kMaxKeyBytes, 'k'), value(kMaxValueBytes, 'v');
  value[12345678] = 'x';
  ASSERT_TRUE(client_->Insert(key, value).ok());
  EXPECT_TRUE(MustGet(key) == value);
  key.back() = 'l';
  std::string other;
  EXPECT_EQ(client_->Get(key, &other), StatusCode::kNotFound);
}

TEST_P(ClientTest, MultiGetAnswersEachKeyInItsPlace) {
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) {
    names.push_back("key" + std::to_string(i));
    if (i % 3 != 0) {
      ASSERT_TRUE(client_->Put(names.back(), std::to_string(i)).ok());
    }
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<std::string> values(keys.size());
  std::vector<Status> statuses(keys.size());
  client_->MultiGet(keys, values, statuses);
  for (int i = 0; i < 200; ++i) {
    if (i % 3 == 0) {
      EXPECT_EQ(statuses[i], StatusCode::kNotFound) << i;
    } else {
      ASSERT_TRUE(statuses[i].ok()) << i;
      EXPECT_EQ(values[i], std::to_string(i));
    }
  }
}

TEST_P(ClientTest, ManyMoreOperationsThanTheLimitInFlightAllEnd) {
  auto client = store_->NewClient({.max_in_flight = 3}).value();
  int ended = 0;
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(std::to_string(i));
  const auto put = [](Client& c, const std::string& key, int* count) -> Task<void> {
    const Status status = co_await c.PutAsync(key, key);
    *count += status.ok();
  };
  for (const std::string& key : keys) client->Spawn(put(*client, key, &ended));
  EXPECT_EQ(client->spawned(), 100u);
  client->Drain();
  EXPECT_EQ(ended, 100);
  for (const std::string& key : keys) EXPECT_EQ(MustGet(key), key);
}

TEST_P(ClientTest, TheTableGrowsFromOneSubtableAndKeepsEveryKey) {
  constexpr int kKeys = 30'000;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "key" + std::to_string(i);
    ASSERT_TRUE(client_->Insert(key, key + "v").ok()) << i;
  }
  const TableStats stats = client_->ReadTableStats().value();
  EXPECT_GE(stats.subtables, 12u);
  EXPECT_EQ(stats.used_slots, static_cast<uint64_t>(kKeys));
  EXPECT_GT(client_->stats().splits, 0u);
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "key" + std::to_string(i);
    ASSERT_EQ(MustGet(key), key + "v");
  }
}

TEST_P(ClientTest, ASecondClientWithAnEmptyDirectoryCacheFindsEverything) {
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(client_->Put(std::to_string(i), std::to_string(i * 7)).ok());
  auto other = store_->NewClient().value();
  std::string value;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(other->Get(std::to_string(i), &value).ok()) << i;
    ASSERT_EQ(value, std::to_string(i * 7));
  }
}

TEST_P(ClientTest, AStaleDirectoryCacheIsNoticedByTheHeaders) {
  auto stale = store_->NewClient().value();
  ASSERT_TRUE(stale->Put("first", "1").ok());  // knows only the root
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(client_->Put(std::to_string(i), "x").ok());
    stale->Poll();  // keeps its lease; without it, it would forget all that it knows
  }
  std::string value;
  for (int i = 0; i < 20'000; i += 7) {
    ASSERT_TRUE(stale->Get(std::to_string(i), &value).ok()) << i;
    ASSERT_TRUE(stale->Update(std::to_string(i), "y").ok()) << i;
    ASSERT_EQ(stale->Insert(std::to_string(i), "z"), StatusCode::kExists) << i;
  }
  EXPECT_GT(stale->stats().stale_directory_hits, 0u);
}

TEST_P(ClientTest, RandomOperationsAgreeWithAMap) {
  std::mt19937 random(12345);
  std::map<std::string, std::string> model;
  for (int i = 0; i < 60'000; ++i) {
    const std::string key = "k" + std::to_string(random() % 3'000);
    const std::string value(random() % 300, static_cast<char>('a' + random() % 26));
    std::string got;
    const auto known = model.find(key);
    switch (random() % 6) {
      case 0: {
        const Status status = client_->Get(key, &got);
        ASSERT_EQ(status.ok(), known != model.end()) << i;
        if (status.ok()) {
          ASSERT_EQ(got, known->second);
        }
        break;
      }
      case 1:
        ASSERT_TRUE(client_->Put(key, value).ok());
        model[key] = value;
        break;
      case 2:
        ASSERT_EQ(client_->Insert(key, value), known == model.end() ? StatusCode::kOk : StatusCode::kExists);
        model.try_emplace(key, value);
        break;
      case 3:
        ASSERT_EQ(client_->Update(key, value), known != model.end() ? StatusCode::kOk : StatusCode::kNotFound);
        if (known != model.end()) known->second = value;
        break;
      case 4:
        ASSERT_TRUE(client_
                        ->Modify(key,
                                 [&](std::optional<std::string_view> old) {
                                   EXPECT_TRUE(known == model.end() ? !old.has_value() : old == known->second) << i;
                                   return Modification::Set(value);
                                 })
                        .ok());
        model[key] = value;
        break;
      default:
        ASSERT_EQ(client_->Delete(key), known != model.end() ? StatusCode::kOk : StatusCode::kNotFound);
        if (known != model.end()) model.erase(known);
    }
  }
  EXPECT_EQ(client_->ReadTableStats().value().used_slots, model.size());
}

TEST_P(ClientTest, UpdatesReuseMemoryInsteadOfRunningOut) {
  const std::string value(1'000, 'v');
  for (int i = 0; i < 150'000; ++i) {  // 150 MB of blocks through a 64 MiB pool
    const Status status = client_->Put(std::to_string(i % 100), value);
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
  }
  EXPECT_GT(client_->stats().blocks_reused, 100'000u);
}

TEST_P(ClientTest, AFullStoreRefusesWithOutOfMemoryAndKeepsServing) {
  const std::string value(100'000, 'v');
  int stored = 0;
  Status status;
  for (; stored < 2'000; ++stored) {
    status = client_->Put("big" + std::to_string(stored), value);
    if (!status.ok()) break;
  }
  ASSERT_EQ(status, StatusCode::kOutOfMemory) << status.ToString();
  EXPECT_GT(stored, 300);
  for (int i = 0; i < stored; ++i) ASSERT_EQ(MustGet("big" + std::to_string(i)), value);
  ASSERT_TRUE(client_->Delete("big0").ok());  // and gives the memory back
  status = client_->Put("big0", value);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_P(ClientTest, ClientsThatComeAndGoDoNotUseUpTheMemory) {
  client_.reset();
  uint64_t taken = 0;
  for (int i = 0; i < 200; ++i) {
    auto client = store_->NewClient().value();
    ASSERT_TRUE(client->Put(std::to_string(i), "v").ok());
    if (i == 0) taken = client->ReadTableStats().value().memory_nodes.at(0).taken_bytes;
    if (i == 199) {
      EXPECT_EQ(client->ReadTableStats().value().memory_nodes.at(0).taken_bytes, taken);
    }
  }
}

TEST_P(ClientTest, CoroutineFramesDoNotLeak) {
  client_.reset();
  const size_t before = internal::LiveFrames();
  client_ = store_->NewClient().value();
  std::string value;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(client_->Put(std::to_string(i), "v").ok());
    ASSERT_TRUE(client_->Get(std::to_string(i), &value).ok());
  }
  client_.reset();  // maintenance may be under way at any time
  EXPECT_EQ(internal::LiveFrames(), before);
}

TEST(EmbeddedStore, TooLittleMemoryIsRefusedByName) {
  const auto store = Store::OpenEmbedded({.memory_bytes = 1000});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status(), StatusCode::kInvalidArgument);
  EXPECT_NE(store.status().message().find("memory_bytes"), std::string_view::npos);
}

// A table that is too small grows, and one that is too large shrinks, as any other.
TEST(EmbeddedStore, ATableOfTheExpectedSizeDoesNotGrow) {
  const uint64_t records = uint64_t{16} * SubtableGeometry{}.slots() / 4 * 3;  // as many as 16 subtables are to hold
  for (const uint64_t expected : {records, records / 10, records * 10}) {
    const auto store = Store::OpenEmbedded({.memory_bytes = size_t{64} << 20, .expected_records = expected}).value();
    const auto client = store->NewClient().value();
    const uint64_t at_first = client->ReadTableStats().value().subtables;
    EXPECT_GE(at_first * SubtableGeometry{}.slots(), expected);
    for (uint64_t i = 0; i < records; ++i) ASSERT_TRUE(client->Insert(std::to_string(i), "v").ok());
    EXPECT_EQ(client->ReadTableStats().value().used_slots, records);
    if (expected < records) {
      EXPECT_GT(client->stats().splits, 0u);
    } else {
      EXPECT_EQ(client->stats().splits, 0u) << expected;
    }
    if (expected == records) continue;
    for (uint64_t i = 0; i < records; ++i) ASSERT_TRUE(client->Delete(std::to_string(i)).ok());
    EXPECT_LT(client->ReadTableStats().value().subtables, std::max<uint64_t>(at_first, 2)) << expected;
  }
}

TEST(EmbeddedStore, MoreRecordsThanItHasRoomForAreRefused) {
  const auto store = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20, .expected_records = 100'000'000});
  EXPECT_EQ(store.status(), StatusCode::kOutOfMemory);
}

TEST(EmbeddedStore, TwoStoresDoNotSeeEachOther) {
  auto one = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20}).value();
  auto two = Store::OpenEmbedded({.memory_bytes = size_t{16} << 20}).value();
  auto first = one->NewClient().value();
  auto second = two->NewClient().value();
  ASSERT_TRUE(first->Put("k", "1").ok());
  std::string value;
  EXPECT_EQ(second->Get("k", &value), StatusCode::kNotFound);
}

TEST(Store, AMissingFabricIsNotFound) {
  const auto store = Store::Open({.fabric = "no-such-fabric-for-tests", .open_timeout_ms = 10});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status(), StatusCode::kNotFound) << store.status().ToString();
}

Task<void> PutOne(Client& client, uint32_t key, uint32_t* failed) {
  const std::string text = std::to_string(key);
  const Status put = co_await client.PutAsync(text, text);
  if (!put.ok()) ++*failed;
}

TEST_P(ClientTest, MoreOperationsInFlightThanAQueueHasRoomForWaitForRoom) {
  auto client = store_->NewClient({.max_in_flight = 4096}).value();
  uint32_t failed = 0;
  for (uint32_t key = 0; key < 5'000; ++key) client->Spawn(PutOne(*client, key, &failed));
  client->Drain();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(MustGet("4999"), "4999");
}

}  // namespace
}  // namespace kvs
