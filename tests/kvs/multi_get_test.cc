// MultiGet: each key gets what GetAsync would have brought, whatever its neighbours are, and in the expected number of
// round trips. The simulator (tests/sim) shows that the answers are linearizable.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

struct Answers {
  std::vector<std::string> names, values;
  std::vector<Status> statuses;
  std::vector<std::string_view> keys;

  explicit Answers(std::vector<std::string> asked)
      : names(std::move(asked)), values(names.size(), "untouched"), statuses(names.size(), StatusCode::kBadState) {
    keys.assign(names.begin(), names.end());
  }
  Task<void> Ask(Client& client) { return client.MultiGetAsync(keys, values, statuses); }
};

class MultiGet : public ::testing::Test {
 protected:
  static TestStoreOptions Options(krcore::Clock* clock, uint32_t memory_nodes) {
    TestStoreOptions options;
    options.memory_nodes = memory_nodes;
    options.operation_timeout_ms = 1'000;
    options.clock = clock;
    return options;
  }
  void Put(Client& client, const std::string& key, const std::string& value) {
    ASSERT_TRUE(client.Put(key, value).ok()) << key;
    model_[key] = value;
  }
  void Check(const Answers& answers) {
    for (size_t i = 0; i < answers.names.size(); ++i) {
      const auto known = model_.find(answers.names[i]);
      if (known == model_.end()) {
        EXPECT_EQ(answers.statuses[i], StatusCode::kNotFound) << answers.names[i];
        EXPECT_EQ(answers.values[i], "untouched");
      } else {
        ASSERT_TRUE(answers.statuses[i].ok()) << answers.names[i] << ": " << answers.statuses[i].ToString();
        EXPECT_TRUE(answers.values[i] == known->second) << answers.names[i];
      }
    }
  }
  static uint64_t TripsOf(Client& client, Answers& answers) {
    const uint64_t before = client.stats().operation_round_trips;
    client.MultiGet(answers.keys, answers.values, answers.statuses);
    return client.stats().operation_round_trips - before;
  }

  ManualClock clock_;
  TestStore store_{Options(&clock_, 3)};
  std::map<std::string, std::string> model_;
};

TEST_F(MultiGet, OfNoKeysDoesNothing) {
  auto client = store_.NewClient();
  Answers none({});
  EXPECT_EQ(TripsOf(*client, none), 0u);
}

// Small tables over three memory nodes split all the time. Keys are present or absent, some values need more than one
// READ, and a key may occur twice.
TEST_F(MultiGet, BringsWhatGetsBring) {
  auto writer = store_.NewClient();
  auto knowing = store_.NewClient(8);
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 20; ++i) {
      const size_t length = random() % 10 == 0 ? 3'000 + random() % 4'000 : random() % 300;
      Put(*writer, "key" + std::to_string(random() % 800), std::string(length, static_cast<char>('a' + random() % 26)));
    }
    auto fresh = store_.NewClient(1 + random() % 70);
    for (Client* client : {fresh.get(), knowing.get(), writer.get()}) {
      std::vector<std::string> names;
      for (size_t i = random() % 100; i > 0; --i) names.push_back("key" + std::to_string(random() % 800));
      Answers answers(std::move(names));
      client->MultiGet(answers.keys, answers.values, answers.statuses);
      Check(answers);
    }
  }
  EXPECT_GT(writer->stats().splits, 10u);
}

TEST_F(MultiGet, AKeyThatIsNoneIsRefusedAndTheOthersAreAnswered) {
  auto client = store_.NewClient();
  Put(*client, "a", "1");
  Put(*client, "b", "2");
  Answers answers({"", "a", std::string(kvs::kMaxKeyBytes + 1, 'k'), "b", ""});
  client->MultiGet(answers.keys, answers.values, answers.statuses);
  for (const size_t bad : {0, 2, 4}) EXPECT_EQ(answers.statuses[bad], StatusCode::kInvalidArgument);
  EXPECT_EQ(answers.values[1], "1");
  EXPECT_EQ(answers.values[3], "2");
}

TEST_F(MultiGet, TakesTwoRoundTripsForAsManyKeysAsMayBeInFlight) {
  TestStoreOptions options = Options(&clock_, 1);
  options.groups = 128;
  TestStore store(options);
  auto client = store.store().NewClient({.max_in_flight = 50, .address_cache_entries = 0}).value();
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) {
    names.push_back("key" + std::to_string(i));
    Put(*client, names.back(), std::string(500, static_cast<char>('a' + i % 26)));
  }
  Answers answers(names);
  const uint64_t operations = client->stats().operations;
  EXPECT_EQ(TripsOf(*client, answers), 4u);  // two round trips for each of two groups
  EXPECT_EQ(client->stats().operations, operations + 100);
  Check(answers);
}

// The headers are read along with the blocks of other keys, or after these blocks where fingerprints mislead.
TEST_F(MultiGet, TakesTwoRoundTripsOrThreeForKeysThatAreAbsent) {
  TestStoreOptions options = Options(&clock_, 1);
  options.groups = 128;
  TestStore store(options);
  auto client = store.store().NewClient({.address_cache_entries = 0}).value();
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) {
    names.push_back("key" + std::to_string(i));
    if (i % 2 == 0) Put(*client, names.back(), names.back());
  }
  Answers few({"key0", "key1"}), all(names);
  EXPECT_EQ(TripsOf(*client, few), 2u);
  Check(few);
  EXPECT_LE(TripsOf(*client, all), 3u);
  Check(all);
}

TEST_F(MultiGet, TakesOneRoundTripForKeysInTheAddressCache) {
  TestStoreOptions options = Options(&clock_, 1);
  options.groups = 128;
  TestStore store(options);
  auto client = store.store().NewClient({.address_cache_entries = 1'024}).value();
  std::vector<std::string> names;
  for (int i = 0; i < 9; ++i) {
    names.push_back("key" + std::to_string(i));
    Put(*client, names.back(), names.back());
  }
  Answers first(names), second(names);
  EXPECT_LE(TripsOf(*client, first), 2u);
  EXPECT_EQ(TripsOf(*client, second), 1u);
  Check(second);
  // A key that another client has changed is read as if nothing were known of it.
  auto other = store.NewClient();
  Put(*other, "key7", "changed");
  Answers third(names);
  EXPECT_EQ(TripsOf(*client, third), 2u);
  Check(third);
}

// No operation that holds a place in flight waits for another place.
TEST_F(MultiGet, ManyAtOnceOfAClientWithFewInFlightAllEnd) {
  auto client = store_.NewClient(5);
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back("key" + std::to_string(i));
    if (i % 4 != 0) Put(*client, names.back(), std::to_string(i));
  }
  std::vector<Answers> all(12, Answers(names));
  int ended = 0;
  const auto ask = [](Client& of, Answers* answers, int* count) -> Task<void> {
    answers->keys.assign(answers->names.begin(), answers->names.end());
    co_await answers->Ask(of);
    ++*count;
  };
  for (Answers& answers : all) client->Spawn(ask(*client, &answers, &ended));
  client->Drain();
  EXPECT_EQ(ended, 12);
  for (const Answers& answers : all) Check(answers);
}

// A block that is torn once is read again; this one stays damaged.
TEST_F(MultiGet, ABlockThatDoesNotMatchItsChecksumIsNotBelieved) {
  const auto writer = store_.NewClient();
  for (const char* key : {"key0", "key1", "key2"}) Put(*writer, key, std::string("what is searched for: ") + key);
  std::byte* byte = nullptr;
  for (krcore::NodeId node = 1; node <= 3 && byte == nullptr; ++node) {
    const std::span<std::byte> memory = store_.memory_of(node);
    const std::string_view value = model_["key1"];
    byte = static_cast<std::byte*>(memmem(memory.data(), memory.size(), value.data(), value.size()));
  }
  ASSERT_NE(byte, nullptr);
  *byte ^= std::byte{1};
  // A client that knows the table and has not met the key reads what the slots say.
  const auto getter = store_.NewClient(), many_getter = store_.NewClient();
  std::string value;
  for (const auto& reader : {getter.get(), many_getter.get()}) ASSERT_TRUE(reader->Get("key0", &value).ok());
  value = "untouched";
  EXPECT_EQ(getter->Get("key1", &value), StatusCode::kCorrupt);
  EXPECT_EQ(value, "untouched");
  Answers answers({"key0", "key1", "key2"});
  many_getter->MultiGet(answers.keys, answers.values, answers.statuses);
  EXPECT_EQ(answers.statuses[1], StatusCode::kCorrupt);
  EXPECT_EQ(answers.values[1], "untouched");
  EXPECT_TRUE(answers.statuses[0].ok() && answers.statuses[2].ok());
  *byte ^= std::byte{1};
  Answers again({"key0", "key1", "key2"});
  many_getter->MultiGet(again.keys, again.values, again.statuses);
  Check(again);
}

TEST_F(MultiGet, KeysOfADeadMemoryNodeAreUnavailableAndTheOthersAreAnswered) {
  auto client = store_.NewClient();
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) {
    names.push_back("key" + std::to_string(i));
    Put(*client, names.back(), std::to_string(i));
  }
  Answers before(names);
  client->MultiGet(before.keys, before.values, before.statuses);
  Check(before);
  store_.StopMemoryNode(3);
  Answers answers(names);
  client->MultiGet(answers.keys, answers.values, answers.statuses);
  int answered = 0, unavailable = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (answers.statuses[i].ok()) {
      EXPECT_EQ(answers.values[i], model_[names[i]]);
      ++answered;
    } else {
      EXPECT_EQ(answers.statuses[i], StatusCode::kUnavailable) << answers.statuses[i].ToString();
      ++unavailable;
    }
  }
  EXPECT_GT(answered, 0);
  EXPECT_GT(unavailable, 0);
  // And so they stay: what was in flight when the node died has spoilt nothing.
  Answers again(names);
  client->MultiGet(again.keys, again.values, again.statuses);
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(again.statuses[i], answers.statuses[i].code()) << names[i];
}

}  // namespace
}  // namespace surgekv_test
