// The queue of a MultiWrite to one of two memory nodes breaks during the call. The outcome of the writes there may be
// unknown. Those at the other node are done, each with its own answer. And the queue of a Delete breaks, whose outcome
// is known in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kvs/client.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

using krcore::StatusCode;
using kvs::WriteKind;
using kvs::WriteRequest;

constexpr uint32_t kLoaded = 90, kKeys = 120;
constexpr uint32_t kPoints = 60;
constexpr krcore::NodeId kBreaks = 2;
// Virtual time that one write takes whose outcome is looked up in vain several times, with pauses between.
constexpr int64_t kWaitNs = 300'000'000;

WriteKind KindOf(uint32_t key) {
  if (key >= kLoaded) return WriteKind::kInsert;
  return key % 3 == 0 ? WriteKind::kDelete : WriteKind::kUpdate;
}

krcore::NodeId NodeOfTable(const Stage& stage, uint32_t key) {
  for (uint32_t depth = 10; depth != UINT32_MAX; --depth) {
    const kvs::DirectoryEntry entry = stage.Entry(static_cast<uint32_t>(Stage::HashOf(key).h1 & ((1u << depth) - 1)));
    if (entry.present() && entry.depth() == depth) return entry.subtable().node;
  }
  return krcore::kNoNode;
}

class BrokenMultiWrite {
 public:
  // The queue breaks after `point` short rounds, or the memory node dies then.
  void Run(uint32_t point, bool dies = false) {
    for (uint32_t key = 0; key < kLoaded; ++key) EXPECT_EQ(stage_.Do(client_, OpKind::kInsert, key), StatusCode::kOk);
    for (uint32_t key = 0; key < kKeys; ++key) names_.push_back(Stage::NameOf(key));
    for (uint32_t key = 0; key < kKeys; ++key)
      requests_.push_back({KindOf(key), names_[key], "new", StatusCode::kBadState});
    stage_.client(client_).Spawn(Write());
    stage_.set_tempo(300);  // several rounds per round trip
    stage_.Poll(client_, point);
    if (dies) {
      stage_.world().Kill(kBreaks, 0);
    } else {
      stage_.world().BreakQueues(stage_.NodeOf(client_), kBreaks);
    }
    const int64_t broken_ns = stage_.world().now_ns();
    stage_.set_tempo(5'000);
    ASSERT_TRUE(stage_.PollUntil(
        client_, [this] { return ended_; }, 200'000))
        << point;
    took_ns_ = stage_.world().now_ns() - broken_ns;
  }
  const kvs::ClientStats& stats() { return stage_.client(client_).stats(); }
  // Checks that all writes not done are at that memory node, and that each key holds what its answer says.
  void Check() {
    stage_.Wait(200'000'000);  // until it connects again
    for (uint32_t key = 0; key < kKeys; ++key) {
      const kvs::Status& status = requests_[key].status;
      std::string value;
      bool read = false;
      stage_.client(client_).Spawn(Read(key, &value, &read));
      ASSERT_TRUE(stage_.PollUntil(
          client_, [&read] { return read; }, 200'000));
      if (status.ok()) {
        EXPECT_EQ(value, KindOf(key) == WriteKind::kDelete ? "absent" : "new") << names_[key];
        continue;
      }
      EXPECT_EQ(NodeOfTable(stage_, key), kBreaks) << names_[key] << ": " << status.ToString();
      if (status == StatusCode::kUnknown) {
        ++unknown_;
        continue;
      }
      EXPECT_EQ(status, StatusCode::kUnavailable) << status.ToString();
      ++unavailable_;
      EXPECT_EQ(value == "absent", key >= kLoaded) << names_[key] << " has become " << value;
      EXPECT_NE(value, "new") << names_[key];
    }
  }
  int64_t took_ns() const { return took_ns_; }
  // Counts the writes whose outcome nobody can tell.
  ptrdiff_t UnknownAnswers() const {
    return std::ranges::count_if(requests_,
                                 [](const WriteRequest& request) { return request.status == StatusCode::kUnknown; });
  }
  uint32_t unknown() const { return unknown_; }
  uint32_t unavailable() const { return unavailable_; }
  uint32_t TablesAt(krcore::NodeId node) const {
    uint32_t keys = 0;
    for (uint32_t key = 0; key < kKeys; ++key) keys += NodeOfTable(stage_, key) == node ? 1 : 0;
    return keys;
  }

 private:
  kvs::Task<void> Write() {
    co_await stage_.client(client_).MultiWriteAsync(requests_);
    ended_ = true;
  }
  kvs::Task<void> Read(uint32_t key, std::string* value, bool* ended) {
    const kvs::Status got = co_await stage_.client(client_).GetAsync(names_[key], value);
    if (!got.ok()) *value = got == StatusCode::kNotFound ? "absent" : got.ToString();
    *ended = true;
  }

  std::vector<std::string> names_;
  std::vector<WriteRequest> requests_;
  bool ended_ = false;
  int64_t took_ns_ = 0;
  uint32_t unknown_ = 0, unavailable_ = 0;
  Stage stage_{StageOptions{.groups = 2, .memory_nodes = 2}};
  const uint32_t client_ = stage_.AddClient(128);
};

TEST(MultiWriteBreak, ConcernsTheWritesAtThatMemoryNodeAlone) {
  uint64_t looked_up = 0;
  uint32_t unknown = 0, unavailable = 0;
  for (uint32_t point = 0; point < kPoints && !HasFailure(); ++point) {
    BrokenMultiWrite writes;
    writes.Run(point);
    if (HasFatalFailure()) return;
    EXPECT_GT(writes.TablesAt(1), 0u);
    EXPECT_GT(writes.TablesAt(kBreaks), 0u);
    writes.Check();
    unknown += writes.unknown();
    unavailable += writes.unavailable();
    looked_up += writes.stats().outcomes_looked_up;
  }
  std::printf("%lu outcomes looked up; %u writes unknown, %u unavailable\n", looked_up, unknown, unavailable);
  EXPECT_GT(looked_up, 0u);
  EXPECT_GT(unavailable, 0u);
}

// The writes whose outcomes are looked up in vain wait for that in parallel.
TEST(MultiWriteBreak, OfADeadMemoryNodeIsWaitedForOnce) {
  ptrdiff_t most = 0;
  for (uint32_t point = 0; point < kPoints && !HasFailure(); ++point) {
    BrokenMultiWrite writes;
    writes.Run(point, true);
    if (HasFatalFailure()) return;
    EXPECT_LT(writes.took_ns(), kWaitNs) << point;
    most = std::max(most, writes.UnknownAnswers());
  }
  EXPECT_GT(most, 1);
}

kvs::Task<void> Delete(kvs::Client& client, std::string key, kvs::Status* status, bool* ended) {
  *status = co_await client.DeleteAsync(key);
  *ended = true;
}

// The word that it wrote is its own: if that is found, it was the one that deleted the key.
TEST(DeleteBreak, IsToldDoneThoughItsCompletionWasLost) {
  uint32_t done_after_all = 0;
  for (uint32_t point = 0; point < 40; ++point) {
    Stage stage({.breaks = true});
    const uint32_t client = stage.AddClient();
    ASSERT_EQ(stage.Do(client, OpKind::kInsert, 0), StatusCode::kOk);
    const kvs::GlobalAddress table = stage.Entry(0).subtable();
    kvs::Status status = StatusCode::kBadState;
    bool ended = false;
    stage.client(client).Spawn(Delete(stage.client(client), Stage::NameOf(0), &status, &ended));
    stage.set_tempo(400);  // several rounds per round trip
    stage.Poll(client, point);
    stage.world().BreakQueues(stage.NodeOf(client), 1);
    stage.set_tempo(5'000);
    const bool executed = !stage.AnyCandidate(table, 0, kvs::SlotState::kVal);
    const bool told = ended;
    ASSERT_TRUE(stage.PollUntil(
        client, [&ended] { return ended; }, 200'000))
        << point;
    EXPECT_TRUE(status.ok() || !executed) << "point " << point << ": " << status.ToString();
    EXPECT_NE(status, StatusCode::kUnknown) << "point " << point;
    EXPECT_EQ(status.ok(), !stage.AnyCandidate(table, 0, kvs::SlotState::kVal)) << "point " << point;
    done_after_all += executed && !told ? 1 : 0;
  }
  EXPECT_GT(done_after_all, 0u);
}

}  // namespace
}  // namespace surgekv_sim
