// Several threads, each with its own client and many lanes, on one store. Every history is linearizable and nothing
// that was acknowledged is missing, while subtables split all the time.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

struct Activity {
  uint64_t splits = 0, merges = 0, cas_failures = 0;
};

void RunOnce(uint32_t threads, const TestStoreOptions& store_options, const StressOptions& options, Activity* seen) {
  TestStore store(store_options);
  kvs::Store& attached = store.store();
  StressLogs logs(threads, options.operations);
  std::vector<std::thread> workers;
  std::vector<kvs::ClientStats> stats(threads);
  for (uint32_t w = 0; w < threads; ++w) {
    workers.emplace_back([&, w] { stats[w] = RunWorker(attached, options, logs, w); });
  }
  for (std::thread& worker : workers) worker.join();
  for (const kvs::ClientStats& s : stats) {
    seen->splits += s.splits;
    seen->merges += s.merges;
    seen->cas_failures += s.cas_failures;
  }
  VerifyLogs(attached, options, logs);
}

// Runs until enough has happened. The machine decides how often threads meet; a busy one may run them one after
// another.
void RunThreads(uint32_t threads, const TestStoreOptions& store_options, StressOptions options) {
  constexpr int kMostRounds = 30;
  constexpr uint64_t kEnough = 12 / kSlowdown;
  const bool merges = options.operations_per_phase != 0 && options.long_pause_every == 0;
  Activity seen;
  const auto enough = [&] { return seen.splits >= kEnough && (!merges || seen.merges >= kEnough); };
  for (int round = 0; round < kMostRounds && !enough() && !testing::Test::HasFailure(); ++round) {
    RunOnce(threads, store_options, options, &seen);
    options.seed += 1'000'000;
  }
  EXPECT_TRUE(enough()) << "too little to show anything: " << seen.splits << " splits, " << seen.merges << " merges";
  testing::Test::RecordProperty("splits", static_cast<int>(seen.splits));
  testing::Test::RecordProperty("merges", static_cast<int>(seen.merges));
  testing::Test::RecordProperty("cas_failures", static_cast<int>(seen.cas_failures));
}

class Threads : public ::testing::Test {
 protected:
  static uint32_t Operations(uint32_t wanted) { return wanted / kSlowdown; }
};

TEST_F(Threads, TinySubtablesSplitUnderContention) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(60'000);
    RunThreads(2 + seed % 3, {.groups = 2 + seed % 3, .memory_bytes = size_t{128} << 20}, options);
  });
}

TEST_F(Threads, FullSizedSubtablesSplitUnderContention) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(60'000);
    options.filler_percent = 75;
    RunThreads(3, {.groups = 16, .memory_bytes = size_t{128} << 20}, options);
  });
}

TEST_F(Threads, ManyWritersOfOneKey) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(20'000);
    options.lanes = 5;
    options.hot_keys = 1;
    options.operations_per_hot = 300;
    options.filler_percent = 30;
    RunThreads(3, {.memory_bytes = size_t{64} << 20}, options);
  });
}

// Operations of one client are combined. With one client there is nothing else; with two, the groups of both meet.
TEST_F(Threads, ManyLanesOfAClientOnFewKeys) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(30'000);
    const uint32_t clients = 1 + seed / 3 % 2;
    options.hot_keys = 1 + seed % 3;
    // The more operations on one key are in flight at once, the more orders the checker must try.
    options.lanes = (5 + 2 * options.hot_keys) / clients;
    options.max_in_flight = 2 + seed % options.lanes;
    options.operations_per_hot = 200;
    options.filler_percent = 15;
    RunThreads(clients, {.memory_bytes = size_t{64} << 20}, options);
  });
}

// Phases of growth and of shrinking, so that splits and merges go on at the same time.
TEST_F(Threads, TinySubtablesSplitAndMergeUnderContention) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(60'000);
    options.filler_percent = 60;
    const uint32_t threads = 2 + seed % 3;
    options.operations_per_phase = options.operations / (2 + seed % 5);
    RunThreads(threads, {.groups = 2 + seed % 3, .memory_bytes = size_t{128} << 20}, options);
  });
}

TEST_F(Threads, FullSizedSubtablesSplitAndMergeUnderContention) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(60'000);
    options.filler_percent = 75;
    options.operations_per_phase = options.operations / 6;
    RunThreads(3, {.groups = 16, .memory_bytes = size_t{128} << 20}, options);
  });
}

// These control planes are for comparison: they use devices of their own, or connections that all threads share.
class ThreadsOverRc : public Threads, public ::testing::WithParamInterface<std::string> {};

TEST_P(ThreadsOverRc, TinySubtablesSplitAndMergeUnderContentionAndClientsAreExpelled) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(30'000);
    options.filler_percent = 60;
    options.operations_per_phase = options.operations / 3;
    options.long_pause_every = 4'000;
    RunThreads(
        3, {.groups = 2 + seed % 3, .memory_bytes = size_t{64} << 20, .memory_nodes = 2, .control_plane = GetParam()},
        options);
  });
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, ThreadsOverRc, ::testing::Values("verbs", "lite"),
                         [](const auto& info) { return info.param; });

TEST_F(Threads, PausesLongEnoughForATakeoverOfMerges) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(20'000);
    options.filler_percent = 60;
    options.operations_per_phase = options.operations / 4;
    options.long_pause_every = 4'000;
    RunThreads(3, {.memory_bytes = size_t{64} << 20}, options);
  });
}

TEST_F(Threads, PausesLongEnoughForATakeover) {
  Repeat([](uint32_t seed) {
    StressOptions options;
    options.seed = seed;
    options.operations = Operations(20'000);
    options.long_pause_every = 4'000;
    RunThreads(3, {.memory_bytes = size_t{64} << 20}, options);
  });
}

}  // namespace
}  // namespace surgekv_test
