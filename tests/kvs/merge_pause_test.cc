// Merges that stop at every possible round trip and go on much later, when others have finished them, have split the
// joined table, or have begun another merge. One thread, no chance involved: a client that is not polled is paused.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kvs/layout/subtable.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Status;
using kvs::StatusCode;

// Time moves only when the test says so, and by polling a little.
class ManualClock final : public krcore::Clock {
 public:
  int64_t NowNs() override { return now_ns_ += 100; }
  void Relax(uint32_t) override { now_ns_ += 1'000; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 1'000'000;
};

constexpr int64_t kLongerThanATakeoverNs = 200'000'000;
// The step between the second client's pauses.
#if SURGEKV_TEST_SECONDS > 0
constexpr uint32_t kStride = 1;
#else
constexpr uint32_t kStride = kSlowdown > 1 ? 12 : 5;
#endif

// What is in the store, as far as operations have returned. For a key in `unsure` an operation is under way.
struct Contents {
  std::map<std::string, std::string> stored;
  std::map<std::string, int> unsure;
};

kvs::Task<void> InsertOne(kvs::Client& client, std::string key, Contents* contents) {
  const std::string value = "value of " + key;
  ++contents->unsure[key];
  const Status inserted = co_await client.InsertAsync(key, value);
  EXPECT_TRUE(inserted.ok()) << key << ": " << inserted.ToString();
  contents->stored[key] = value;
  --contents->unsure[key];
}

kvs::Task<void> DeleteOne(kvs::Client& client, std::string key, Contents* contents) {
  ++contents->unsure[key];
  const Status deleted = co_await client.DeleteAsync(key);
  EXPECT_TRUE(deleted.ok()) << key << ": " << deleted.ToString();
  contents->stored.erase(key);
  --contents->unsure[key];
}

kvs::Task<void> UpdateOne(kvs::Client& client, std::string key, std::string value, Contents* contents) {
  ++contents->unsure[key];
  const Status updated = co_await client.UpdateAsync(key, value);
  EXPECT_TRUE(updated.ok()) << key << ": " << updated.ToString();
  contents->stored[key] = value;
  --contents->unsure[key];
}

class PausedMerge : public ::testing::Test {
 protected:
  // What the second client does while the first one is paused in the middle of a merge of dir[0] and dir[1].
  enum class Other { kReads, kUpdates, kInsertsEverywhere, kInsertsInParent, kInsertsInChild, kDeletes };

  static std::string KeyOf(uint32_t i) { return "key-" + std::to_string(i); }
  static uint64_t Side(const std::string& key) { return HashKey(key).h1 % 2; }

  // `first` merges and pauses. `second` runs until it has done something structural, and for `second_pause` rounds
  // more. Then `first` wakes up and acts upon what it saw long ago. Returns false if it had ended before its pause.
  bool Run(Other other, uint32_t first_pause, uint32_t second_pause) {
    ManualClock clock;
    TestStoreOptions options;
    options.groups = 4;
    options.initial_depth = 1;
    options.memory_bytes = size_t{8} << 20;
    options.clock = &clock;
    TestStore store(options);
    Contents contents;  // outlives the clients, whose lanes write to it
    auto first = store.NewClient(4), second = store.NewClient(4), third = store.NewClient(4);
    const auto run = [&](kvs::Client& client, uint64_t polls) {
      for (uint64_t i = 0; i < polls; ++i) {
        client.Poll();
        clock.Advance(kLongerThanATakeoverNs / 64);
      }
    };
    const auto finish = [&](kvs::Client& client) {
      for (uint64_t i = 0; i < 100'000 && client.spawned() > 0; ++i) run(client, 1);
    };
    // Keys whose tables `second` knows before they merge.
    uint32_t next = 0;
    for (; next < 60; ++next) third->Spawn(InsertOne(*third, KeyOf(next), &contents));
    finish(*third);
    CheckAll(*second, contents);
    // Delete until one of the deletes has begun a merge. With this clock every run does the same, so the first run
    // finds which delete that is.
    const auto merging = [&] { return store.DirectoryEntryOf(0).merging(); };
    for (uint32_t i = 0; i < std::min(deletes_, next - 8); ++i) {
      first->Spawn(DeleteOne(*first, KeyOf(i), &contents));
      finish(*first);
      if (i + 1 == deletes_) break;
      for (uint32_t polls = 0; polls < kLookPolls && !merging(); ++polls) run(*first, 1);
      if (merging()) deletes_ = i + 1;
    }
    run(*first, first_pause);
    if (first->stats().merges > 0) return false;
    in_merge_ += merging() ? 1 : 0;

    const kvs::ClientStats before = second->stats();
    const auto changed = [&] {
      const kvs::ClientStats& now = second->stats();
      return now.splits > before.splits || now.merges > before.merges || now.merge_takeovers > before.merge_takeovers;
    };
    std::vector<std::string> survivors;
    for (const auto& [key, value] : contents.stored) survivors.push_back(key);
    for (uint32_t i = 0; i < 400 && !changed(); ++i) {
      if (second->spawned() == 0) {
        switch (other) {
          case Other::kReads:
            CheckAll(*second, contents);
            run(*second, 1100);
            i += 20;
            break;
          case Other::kUpdates: {
            const std::string key = survivors[i % survivors.size()];
            second->Spawn(UpdateOne(*second, key, "value " + std::to_string(i), &contents));
            break;
          }
          case Other::kDeletes:
            if (survivors.size() < 4) break;
            second->Spawn(DeleteOne(*second, survivors.back(), &contents));
            survivors.pop_back();
            break;
          default: {
            while (other != Other::kInsertsEverywhere &&
                   Side(KeyOf(next)) != (other == Other::kInsertsInChild ? 1u : 0u)) {
              ++next;
            }
            second->Spawn(InsertOne(*second, KeyOf(next++), &contents));
          }
        }
      }
      for (uint32_t polls = 0; polls < 200 && second->spawned() > 0 && !changed(); ++polls) run(*second, 1);
    }
    run(*second, second_pause);
    CheckMemory(store, contents);
    CheckAll(*third, contents);

    run(*first, 400);
    finish(*first);
    CheckAll(*third, contents);
    run(*second, 400);
    finish(*second);
    EXPECT_EQ(first->spawned() + second->spawned(), 0u) << "an operation hangs";
    // Whichever client is left finishes what is left.
    for (uint32_t i = 0; i < 5; ++i) {
      CheckAll(*third, contents);
      run(*third, 1100);
    }
    CheckAll(*third, contents);
    CheckAll(*first, contents);
    const uint64_t used = third->ReadTableStats().value().used_slots;
    EXPECT_EQ(used, contents.stored.size());
    CheckMemory(store, contents);
    return true;
  }

  void RunAll(Other other) {
    bool ended = false;
    for (uint32_t first_pause = 0; !ended; ++first_pause) {
      ASSERT_LT(first_pause, 200u) << "the merge does not end";
      for (uint32_t second_pause = 0; second_pause < 24 && !ended; second_pause += kStride) {
        SCOPED_TRACE(testing::Message() << "paused behind " << first_pause << " and " << second_pause
                                        << " round trips");
        ended = !Run(other, first_pause, second_pause);
        ASSERT_FALSE(HasFailure());
      }
    }
    std::printf("%u pauses in a merge\n", in_merge_);
    EXPECT_GT(in_merge_, 200u / kStride);
  }

  // The raw memory, at a moment when no verb is under way.
  static void CheckMemory(const TestStore& store, const Contents& contents) {
    const PoolImage pool{1, store.memory()};
    const PoolReport report = CheckPools({&pool, 1}, {.after_deaths = true});
    EXPECT_TRUE(report.ok()) << report.ToString();
    for (const auto& [key, value] : contents.stored) {
      const auto unsure = contents.unsure.find(key);
      if (unsure != contents.unsure.end() && unsure->second > 0) continue;
      const auto found = report.contents.find(key);
      ASSERT_TRUE(found != report.contents.end()) << key;
      ASSERT_EQ(found->second, value) << key;
    }
    for (const auto& [key, value] : report.contents) {
      const auto unsure = contents.unsure.find(key);
      const bool under_way = unsure != contents.unsure.end() && unsure->second > 0;
      ASSERT_TRUE(under_way || contents.stored.contains(key)) << key << " is back";
    }
  }

  static void CheckAll(kvs::Client& client, const Contents& contents) {
    for (const auto& [key, value] : contents.stored) {
      const auto unsure = contents.unsure.find(key);
      if (unsure != contents.unsure.end() && unsure->second > 0) continue;
      std::string read;
      const Status got = client.Get(key, &read);
      ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
      ASSERT_EQ(read, value);
    }
    for (const auto& [key, under_way] : contents.unsure) {
      if (under_way > 0 || contents.stored.contains(key)) continue;
      std::string read;
      const Status got = client.Get(key, &read);
      ASSERT_EQ(got, StatusCode::kNotFound) << key << ": " << got.ToString();
    }
  }

  static constexpr uint32_t kLookPolls = 16;  // the polls within which a merge begun by a delete shows in the directory
  uint32_t deletes_ = UINT32_MAX;             // deletes until one has begun a merge, once known
  uint32_t in_merge_ = 0;                     // pauses while dir[0] named the record
};

TEST_F(PausedMerge, ReadersFinishIt) { RunAll(Other::kReads); }
TEST_F(PausedMerge, UpdatesFinishIt) { RunAll(Other::kUpdates); }
TEST_F(PausedMerge, InsertsFinishItAndSplitTheTableAgain) { RunAll(Other::kInsertsEverywhere); }
TEST_F(PausedMerge, TheParentIsSplit) { RunAll(Other::kInsertsInParent); }
TEST_F(PausedMerge, TheChildIsSplit) { RunAll(Other::kInsertsInChild); }
TEST_F(PausedMerge, AnotherMergerComes) { RunAll(Other::kDeletes); }

}  // namespace
}  // namespace surgekv_test
