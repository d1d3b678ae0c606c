// The network is cut: verbs fail, and a client that asks the fabric which nodes live gets no answer. Each operation
// still ends at its deadline, by the clock of a simulated fabric, on each control plane.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/rnic/sim/world.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kOperationMs = 5'000, kOpenMs = 2'000;
constexpr int64_t kResetMs = 2'000;  // until nothing of a broken queue executes any more
// What may be added to a deadline: a look-up, or a reset of a queue, that is under way.
constexpr int64_t kPollMs = 600;
constexpr int64_t kOnTopMs = kResetMs + kPollMs;
constexpr int64_t kCloseMs = 1'000;  // for a closing node to withdraw what it has published
// After the cut: how long a client that failed to connect waits before it tries again, plus the new try.
constexpr int64_t kBackMs = 2'500;
constexpr int64_t kShortMs = 60;   // a deadline shorter than a try to connect may take
constexpr int64_t kMinTryMs = 20;  // Connections::kMinTryNs
constexpr size_t kKeys = 24;

class Unanswered : public ::testing::TestWithParam<std::string> {
 protected:
  explicit Unanswered(int64_t operation_ms = kOperationMs)
      : world_({.fabric = "unanswered", .seed = 5, .cost = {}, .chaos = {}}),
        store_({.fabric = "unanswered",
                .memory_bytes = size_t{4} << 20,
                .operation_timeout_ms = operation_ms,
                .clock = &world_.clock(),
                .memory_nodes = 2,
                .chunk_bytes = size_t{1} << 16,
                .control_plane = GetParam(),
                .rnic = "sim"}) {
    client_ = store_.NewClient();
    for (size_t i = 0; i < kKeys; ++i) names_.push_back("key-" + std::to_string(i));
    for (const std::string& name : names_) EXPECT_TRUE(client_->Put(name, "value").ok());
    keys_.assign(names_.begin(), names_.end());
  }

  // Begins the cut, long enough ago that everybody has to ask again.
  void Cut() {
    world_.set_chaos({.break_queue = 1, .reset_ns = kResetMs * kMs});
    world_.LeaveUnanswered(true);
    world_.RunUntil(world_.now_ns() + 2'000 * kMs);
  }
  void Restore() {
    world_.set_chaos({});
    world_.LeaveUnanswered(false);
  }
  int64_t TookMs(const std::function<void()>& call) {
    const int64_t begin_ns = world_.now_ns();
    call();
    return (world_.now_ns() - begin_ns) / kMs;
  }
  int64_t TookWhileCutMs(const std::function<void()>& call) {
    Cut();
    const int64_t took_ms = TookMs(call);
    Restore();
    return took_ms;
  }

  krcore::rnic::sim::World world_;
  TestStore store_;
  std::unique_ptr<kvs::Client> client_;
  std::vector<std::string> names_;
  std::vector<std::string_view> keys_;
};

TEST_P(Unanswered, AGetEndsAtItsDeadline) {
  std::string value;
  EXPECT_LE(TookWhileCutMs([&] { EXPECT_FALSE(client_->Get(names_[1], &value).ok()); }), kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, APutEndsAtItsDeadline) {
  EXPECT_LE(TookWhileCutMs([&] { EXPECT_FALSE(client_->Put(names_[1], "other").ok()); }), kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, AMultiGetEndsAtItsDeadline) {
  std::vector<std::string> values(kKeys);
  std::vector<krcore::Status> statuses(kKeys);
  EXPECT_LE(TookWhileCutMs([&] { client_->MultiGet(keys_, values, statuses); }), kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, AMultiWriteEndsAtItsDeadline) {
  std::vector<kvs::WriteRequest> writes;
  for (const std::string_view key : keys_) writes.push_back({.key = key, .value = "other"});
  EXPECT_LE(TookWhileCutMs([&] { client_->MultiWrite(writes); }), kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, ManyGetsAtOnceEndAtTheirDeadlines) {
  std::vector<std::string> values(kKeys);
  const auto get = [](kvs::Client& client, std::string_view key, std::string* value) -> kvs::Task<void> {
    (void)co_await client.GetAsync(key, value);
  };
  EXPECT_LE(TookWhileCutMs([&] {
              for (size_t i = 0; i < kKeys; ++i) client_->Spawn(get(*client_, keys_[i], &values[i]));
              client_->Drain();
            }),
            kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, ACompactionEndsAtItsDeadline) {
  kvs::CompactReport report;
  EXPECT_LE(TookWhileCutMs([&] { (void)client_->Compact({.timeout_ms = kOperationMs}, &report); }),
            kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, ADrainEndsAtItsDeadline) {
  kvs::DrainReport report;
  EXPECT_LE(TookWhileCutMs([&] { (void)client_->DrainNode(2, {.timeout_ms = kOperationMs}, &report); }),
            kOperationMs + kOnTopMs);
}

TEST_P(Unanswered, ANewClientIsRefusedAtItsDeadline) {
  EXPECT_LE(TookWhileCutMs([&] { EXPECT_FALSE(store_.store().NewClient({}).ok()); }),
            kOperationMs + kOnTopMs + kCloseMs);
}

TEST_P(Unanswered, AStoreIsNotOpenedAtItsDeadline) {
  kvs::StoreOptions options;
  options.rnic = "sim";
  options.fabric = "unanswered";
  options.control_plane = GetParam();
  options.open_timeout_ms = kOpenMs;
  options.clock = &world_.clock();
  EXPECT_LE(TookWhileCutMs([&] { EXPECT_FALSE(kvs::Store::Open(options).ok()); }), kOpenMs + kOnTopMs + kCloseMs);
}

// Whatever was under way when the cut began, the client works again after it.
class Forgotten : public Unanswered {
 protected:
  void ExpectForgotten() {
    const int64_t end_ns = world_.now_ns() + kBackMs * kMs;
    std::string value;
    krcore::Status status = krcore::StatusCode::kUnavailable;
    while (!status.ok() && world_.now_ns() < end_ns) {
      world_.RunUntil(world_.now_ns() + 10 * kMs);  // an operation that fails at once takes no time
      status = client_->Get(names_[0], &value);
    }
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
};

TEST_P(Forgotten, ACutUnderAGet) {
  std::string value;
  (void)TookWhileCutMs([&] { EXPECT_FALSE(client_->Get(names_[1], &value).ok()); });
  ExpectForgotten();
}

TEST_P(Forgotten, ACutUnderAMultiGet) {
  std::vector<std::string> values(kKeys);
  std::vector<krcore::Status> statuses(kKeys);
  (void)TookWhileCutMs([&] { client_->MultiGet(keys_, values, statuses); });
  ExpectForgotten();
}

TEST_P(Forgotten, ACutUnderAMultiWrite) {
  std::vector<kvs::WriteRequest> writes;
  for (const std::string_view key : keys_) writes.push_back({.key = key, .value = "other"});
  (void)TookWhileCutMs([&] { client_->MultiWrite(writes); });
  ExpectForgotten();
}

// Whoever polls has other clients to look after.
TEST_P(Unanswered, APollReturnsSoon) {
  std::string value;
  const auto get = [](kvs::Client& client, std::string_view key, std::string* found) -> kvs::Task<void> {
    (void)co_await client.GetAsync(key, found);
  };
  int64_t longest_ms = 0;
  (void)TookWhileCutMs([&] {
    client_->Spawn(get(*client_, keys_[1], &value));
    const int64_t end_ns = world_.now_ns() + (kOperationMs + kOnTopMs) * kMs;
    while (world_.now_ns() < end_ns) {
      longest_ms = std::max(longest_ms, TookMs([&] { (void)client_->Poll(); }));
      world_.RunUntil(world_.now_ns() + kMs);
    }
    client_->Drain();
  });
  EXPECT_LE(longest_ms, kPollMs);
}

// A try to connect ends with the operations that wait for it. This uses "lite", which waits neither for a reset
// (krcore) nor for the renewal of a lease (verbs).
class ShortDeadline : public Unanswered {
 protected:
  ShortDeadline() : Unanswered(kShortMs) {}
};

TEST_P(ShortDeadline, EndsAnOperationThatTriesToConnect) {
  std::string value;
  Cut();
  const int64_t begin_ns = world_.now_ns();
  int64_t longest_ms = 0;
  while (world_.now_ns() - begin_ns < kOperationMs * kMs) {
    longest_ms = std::max(longest_ms, TookMs([&] { EXPECT_FALSE(client_->Get(names_[1], &value).ok()); }));
    world_.RunUntil(world_.now_ns() + kMs);
  }
  Restore();
  EXPECT_LE(longest_ms, kShortMs + kMinTryMs + 5);  // plus what little else it does
}

constexpr auto kName = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(ControlPlanes, Unanswered, ::testing::Values("krcore", "verbs", "lite"), kName);
INSTANTIATE_TEST_SUITE_P(ControlPlanes, Forgotten, ::testing::Values("krcore", "verbs", "lite"), kName);
INSTANTIATE_TEST_SUITE_P(ControlPlanes, ShortDeadline, ::testing::Values("lite"), kName);

}  // namespace
}  // namespace surgekv_test
