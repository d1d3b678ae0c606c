// The stores that bench_peers compares: each does what is asked of it, mistakes are noticed, and the bare bound makes
// the accesses that the store makes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/peers/bound/bare_bound.h"
#include "bench/peers/comparison.h"
#include "bench/peers/goals.h"
#include "bench/peers/measure.h"
#include "bench/peers/stores/surgekv_peer.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace peers {
namespace {

constexpr SliceOptions kShort{.warm_up_ns = 1'000'000, .measure_ns = 5'000'000, .trace_length = 10'000};
// The most that D inserts in all slices of a test.
constexpr uint64_t kNewRecords = 4 * (kMostNewOfSlice + 1'000);

class EachPeer : public testing::TestWithParam<std::tuple<std::string, size_t>> {};

TEST_P(EachPeer, ReadsWhatWasWritten) {
  const auto& [name, key_bytes] = GetParam();
  const Shape shape{.records = 5'000,
                    .new_records = kNewRecords,
                    .key_bytes = key_bytes,
                    .value_bytes = key_bytes == 8 ? size_t{8} : size_t{100}};
  auto peer = MakePeer(name, shape);
  if (peer.status() == krcore::StatusCode::kNotFound) GTEST_SKIP() << peer.status().ToString();
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  Bench bench(shape, kShort);
  const Outcome loaded = bench.LoadAll(**peer, /*workers=*/2, /*in_flight=*/16);
  EXPECT_EQ(loaded.failures, 0) << loaded.first_failure;
  EXPECT_GT(loaded.ops_per_s, 0);
  for (const Mix mix : {Mix::kC, Mix::kA, Mix::kB, Mix::kD, Mix::kF}) {
    for (const uint32_t in_flight : {1, 16}) {
      const Load load{.mix = mix, .zipf = true, .workers = 2, .in_flight = in_flight, .timed = in_flight == 1};
      const Outcome outcome = bench.RunSlice(**peer, load);
      EXPECT_EQ(outcome.failures, 0) << Row{name, load}.Name() << ": " << outcome.first_failure;
      EXPECT_GT(outcome.ops_per_s, 0) << Row{name, load}.Name();
      EXPECT_EQ(outcome.p99_ns > 0, load.timed);
    }
  }
  // An insert of what is there already fails, so that a peer which forgot everything would not look fast.
  EXPECT_EQ(bench.LoadAll(**peer, /*workers=*/1, /*in_flight=*/1).failures, shape.records);
}

INSTANTIATE_TEST_SUITE_P(All, EachPeer,
                         testing::Combine(testing::ValuesIn(PeerNames()), testing::Values(size_t{16}, size_t{8})),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           for (char& character : name) character = character == '-' ? '_' : character;
                           return name + (std::get<1>(info.param) == 8 ? "_8_8" : "_16_100");
                         });

// Answers every Get with the value of one record.
class Forgetful final : public Peer {
 public:
  class OneValue final : public Session {
   public:
    void Run(Requests& requests, uint32_t) override {
      std::string value(100, '\0');
      ycsb::FillValue(/*record=*/7, {}, value.data(), value.size());
      for (Request request; requests.Next(0, &request);) requests.Done(0, true, value);
    }
  };
  std::unique_ptr<Session> NewSession() override { return std::make_unique<OneValue>(); }
  uint64_t MemoryBytes() override { return 0; }
};

TEST(Requests, AnotherRecordsValueIsAFailure) {
  Forgetful peer;
  Bench bench({.records = 1'000}, kShort);
  const Outcome outcome = bench.RunSlice(peer, {.mix = Mix::kC});
  EXPECT_GT(outcome.failures, 0);
  EXPECT_NE(outcome.first_failure.find("an intact one of record 7"), std::string::npos) << outcome.first_failure;
}

TEST(Requests, LoadAsksForEveryRecordOnceAndAReadModifyWriteIsTwoRequestsOfOneRecord) {
  const Trace first = Trace::OfLoad(10, 16, 0, 2), second = Trace::OfLoad(10, 16, 1, 2);
  std::vector<int> seen(10);
  for (const Trace* trace : {&first, &second}) {
    Requests requests(*trace, 100, {});
    for (Request request; requests.Next(0, &request); requests.Done(0, true)) {
      EXPECT_EQ(request.verb, Verb::kInsert);
      ++seen[request.record];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(10, 1));

  const Trace trace = Trace::OfMix(Mix::kF, true, 100, 16, 1'000, 1, 0, 1);
  Requests requests(trace, 100, {});
  std::string value(100, '\0');
  uint64_t gets = 0, updates = 0, last = 0;
  for (Request request; requests.Next(3, &request);) {
    if (request.verb == Verb::kUpdate) {
      EXPECT_EQ(request.record, last);
    }
    (request.verb == Verb::kUpdate ? updates : gets) += 1;
    last = request.record;
    ycsb::FillValue(request.record, {}, value.data(), value.size());
    requests.Done(3, true, value);
  }
  requests.End();
  EXPECT_EQ(gets, 1'000);
  EXPECT_NEAR(static_cast<double>(updates), 500, 100);
  EXPECT_EQ(requests.measured(), 1'000);
  EXPECT_EQ(requests.failures(), 0);
}

TEST(Comparison, APeerThatDoesNotExistIsReported) {
  Comparison comparison({.records = 100}, kShort, 1);
  const Row row{"nothing", {.mix = Mix::kC}};
  comparison.Add(row);
  comparison.Run();
  EXPECT_FALSE(comparison.MedianOf(row, Metric::kThroughput).has_value());
  ASSERT_EQ(comparison.problems().size(), 1);
  EXPECT_TRUE(comparison.problems()[0].starts_with("not run: nothing")) << comparison.problems()[0];
  EXPECT_NE(GoalTable({{"a measure", true, 2, std::nullopt, "why"}}).find("| not run | - | why |"), std::string::npos);
}

// ---- the bound against the store

// The store and the bound, with the same requests from one worker each. The store's clock stands still: no rounds of
// maintenance are among its verbs.
class BoundAndStore : public testing::Test {
 protected:
  static constexpr uint64_t kRecords = 20'000;

  BoundAndStore() {
    store_session_ = std::make_unique<SurgekvSession>(
        store_.store().NewClient({.max_in_flight = 64, .address_cache_entries = 0}).value());
    bound_session_ = std::make_unique<BareSession>(*memory_, shape_);
    // The first round of maintenance is due at once; the next one when the clock moves, never.
    for (int polls = 0; polls < 1'000; ++polls) store_session_->client().Poll();
  }

  struct Both {
    Accesses store, bound;
    uint64_t chunks = 0;  // that the store's client took
  };
  Both Ask(const Trace& trace, uint32_t in_flight) {
    const kvs::ClientStats before = store_session_->client().stats();
    const Accesses bound_before = bound_session_->accesses();
    for (Session* session :
         {static_cast<Session*>(store_session_.get()), static_cast<Session*>(bound_session_.get())}) {
      Requests requests(trace, shape_.value_bytes, {});
      session->Run(requests, in_flight);
      EXPECT_EQ(requests.failures(), 0) << requests.first_failure();
    }
    const kvs::ClientStats& after = store_session_->client().stats();
    const Accesses& bound_after = bound_session_->accesses();
    return {{after.reads - before.reads, after.writes - before.writes, after.atomics - before.atomics},
            {bound_after.reads - bound_before.reads, bound_after.writes - bound_before.writes,
             bound_after.atomics - bound_before.atomics},
            after.chunks_taken - before.chunks_taken};
  }
  Trace Mixed(Mix mix, size_t length) const { return Trace::OfMix(mix, false, kRecords, 16, length, 1, 0, 1); }
  // Taking a chunk is two READs and two CASes of the store, and a span of a chunk that is begun two READs and a CAS.
  // They are no operation's; the bound only counts bytes.
  static void ExpectTheSame(const Both& both) {
    const uint64_t spans = both.store.atomics - 2 * both.chunks - both.bound.atomics;
    EXPECT_LE(spans, 4u);
    EXPECT_EQ(both.bound.reads, both.store.reads - 2 * (both.chunks + spans));
    EXPECT_EQ(both.bound.writes, both.store.writes);
  }

  const Shape shape_{.records = kRecords};
  surgekv_test::ManualClock clock_;
  surgekv_test::TestStore store_{
      {.groups = kvs::SubtableGeometry{}.groups, .clock = &clock_, .hash_seed = kvs::HashSeed{}}};  // the bound's
  std::unique_ptr<BareMemory> memory_ = BareMemory::Create(shape_, /*safe=*/true).value();
  std::unique_ptr<SurgekvSession> store_session_;
  std::unique_ptr<BareSession> bound_session_;
};

TEST_F(BoundAndStore, InsertsMakeTheSameAccesses) {
  const Both both = Ask(Trace::OfLoad(1'000, 16, 0, 1), 1);
  ExpectTheSame(both);
  EXPECT_GE(both.bound.reads, 4'000);
  EXPECT_EQ(both.bound.writes, 1'000);
  EXPECT_EQ(both.bound.atomics, 2'000);
}

TEST_F(BoundAndStore, GetsAndUpdatesMakeTheSameAccesses) {
  (void)Ask(Trace::OfLoad(kRecords, 16, 0, 1), 1);
  for (const uint32_t in_flight : {1u, 16u}) {
    const Both gets = Ask(Mixed(Mix::kC, 5'000), in_flight);
    ExpectTheSame(gets);
    EXPECT_GE(gets.bound.reads, 15'000);
    EXPECT_EQ(gets.bound.writes + gets.bound.atomics, 0);
  }
  const Both mixed = Ask(Mixed(Mix::kA, 5'000), 1);
  ExpectTheSame(mixed);
  EXPECT_EQ(mixed.bound.writes, mixed.bound.atomics);
  EXPECT_GT(mixed.bound.writes, 2'000);
}

TEST_F(BoundAndStore, GrowingMakesTheSameAccesses) {
  const Both both = Ask(Trace::OfLoad(kRecords, 16, 0, 1), 1);
  EXPECT_EQ(bound_session_->splits(), store_session_->client().stats().splits);
  EXPECT_GE(bound_session_->splits(), 7);
  // They take memory for tables differently: some accesses a split, of thousands. And the store looks before a split
  // whether it helps the key, by 28 READs.
  const uint64_t looks = 28 * bound_session_->splits();
  EXPECT_NEAR(static_cast<double>(both.bound.reads + looks) / static_cast<double>(both.store.reads), 1, 0.002);
  EXPECT_NEAR(static_cast<double>(both.bound.atomics) / static_cast<double>(both.store.atomics), 1, 0.002);
  EXPECT_EQ(both.bound.writes, both.store.writes);
}

}  // namespace
}  // namespace peers
