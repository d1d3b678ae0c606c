#include "ycsb/workload/generators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace ycsb {
namespace {

// Chi-square over `cells` cells, in standard deviations from its mean: chi2 of k degrees has mean k, variance 2k.
double ChiSquareDeviation(const std::vector<double>& expected, const std::vector<uint64_t>& observed) {
  double chi2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(observed[i]) - expected[i];
    chi2 += difference * difference / expected[i];
  }
  const double degrees = static_cast<double>(expected.size() - 1);
  return (chi2 - degrees) / std::sqrt(2 * degrees);
}

TEST(Random, IsUniformAndDeterministic) {
  Random random(42, 1);
  constexpr uint64_t kDraws = 1'000'000;
  std::vector<uint64_t> observed(100);
  for (uint64_t i = 0; i < kDraws; ++i) ++observed[random.Below(100)];
  EXPECT_LT(std::abs(ChiSquareDeviation(std::vector<double>(100, kDraws / 100.0), observed)), 4);
  Random a(7, 0), b(7, 0), other_stream(7, 1);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), other_stream.Next());
}

TEST(Zeta, AgreesWithTheDirectSum) {
  for (const double theta : {0.5, 0.9, 0.99}) {
    for (const uint64_t n : {1u, 2u, 999u, 1000u, 1001u, 200'000u}) {
      double sum = 0;
      for (uint64_t i = n; i > 0; --i) sum += std::pow(static_cast<double>(i), -theta);
      EXPECT_NEAR(Zeta(n, theta) / sum, 1, 1e-12) << n << ' ' << theta;
    }
  }
}

TEST(Zeta, OfTenBillionIsTheConstantInYcsb) { EXPECT_NEAR(Zeta(10'000'000'000, 0.99), 26.46902820178302, 1e-6); }

// The closed form of Gray et al. is exact for ranks 0 and 1 and an approximation for the others: near rank 10 it is off
// by up to some 10 percent. The popular ranks are therefore tested exactly, and the others in groups.
TEST(Zipfian, TopRanksHaveTheirProbability) {
  constexpr uint64_t kDraws = 2'000'000;
  const Zipfian zipfian(1'000'000, 0.99);
  Random random(1);
  std::vector<uint64_t> observed(zipfian.items());
  for (uint64_t i = 0; i < kDraws; ++i) ++observed[zipfian.Next(random)];
  for (const uint64_t rank : {0, 1}) {
    const double expected = zipfian.Probability(rank) * kDraws;
    EXPECT_NEAR(static_cast<double>(observed[rank]), expected, 5 * std::sqrt(expected)) << rank;
  }
  for (uint64_t begin = 2; begin < zipfian.items(); begin *= 4) {
    const uint64_t end = std::min(begin * 4, zipfian.items());
    double expected = 0;
    for (uint64_t rank = begin; rank < end; ++rank) expected += zipfian.Probability(rank) * kDraws;
    const auto sum = static_cast<double>(std::accumulate(observed.begin() + static_cast<int64_t>(begin),
                                                         observed.begin() + static_cast<int64_t>(end), uint64_t{0}));
    EXPECT_NEAR(sum / expected, 1, 0.15) << "ranks " << begin << " to " << end;
  }
}

TEST(Zipfian, GrownIsAsMadeLarge) {
  Zipfian grown(1000, 0.99);
  grown.GrowTo(1500);
  grown.GrowTo(20'000);
  const Zipfian made(20'000, 0.99);
  EXPECT_NEAR(grown.Probability(0), made.Probability(0), 1e-12);
  Random a(3), b(3);
  for (int i = 0; i < 10'000; ++i) EXPECT_EQ(grown.Next(a), made.Next(b));
}

TEST(Zipfian, StaysInRangeHoweverFewItems) {
  Random random(9);
  for (uint64_t items = 1; items <= 5; ++items) {
    const Zipfian zipfian(items, 0.99);
    for (int i = 0; i < 10'000; ++i) EXPECT_LT(zipfian.Next(random), items);
  }
}

TEST(ScrambledZipfian, HottestItemIsYcsbsAndHasItsShare) {
  EXPECT_EQ(FnvHash64(0), 0xa8c7f832281a39c5u);  // FNV-1a 64 of eight zero bytes
  constexpr uint64_t kItems = 1'000'000;
  constexpr uint64_t kDraws = 1'000'000;
  const ScrambledZipfian zipfian(kItems, 0.99);
  Random random(5);
  std::vector<uint64_t> observed(kItems);
  for (uint64_t i = 0; i < kDraws; ++i) ++observed[zipfian.Next(random)];
  const double expected = zipfian.RankProbability(0) * kDraws;
  EXPECT_NEAR(static_cast<double>(observed[FnvHash64(0) % kItems]), expected, 5 * std::sqrt(expected));
  // The items are scattered: neither half has much more than the other.
  const auto low = std::accumulate(observed.begin(), observed.begin() + kItems / 2, uint64_t{0});
  EXPECT_NEAR(static_cast<double>(low) / kDraws, 0.5, 0.1);
}

TEST(SkewedLatest, NewestIsMostPopularAndFollowsInserts) {
  SkewedLatest latest(0, 999, 0.99);
  Random random(2);
  for (const uint64_t last : {uint64_t{999}, uint64_t{1999}}) {
    constexpr uint64_t kDraws = 200'000;
    uint64_t newest = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const uint64_t record = latest.Next(random, last);
      ASSERT_LE(record, last);
      newest += record == last;
    }
    const double expected = Zipfian(last + 1, 0.99).Probability(0) * kDraws;
    EXPECT_NEAR(static_cast<double>(newest), expected, 5 * std::sqrt(expected));
  }
}

TEST(AcknowledgedCounter, LimitWaitsForTheOldest) {
  AcknowledgedCounter counter(100);
  EXPECT_EQ(counter.last(), 99u);
  EXPECT_EQ(counter.Next(), 100u);
  EXPECT_EQ(counter.Next(), 101u);
  EXPECT_EQ(counter.Next(), 102u);
  counter.Acknowledge(101);
  counter.Acknowledge(102);
  EXPECT_EQ(counter.last(), 99u);
  counter.Acknowledge(100);
  EXPECT_EQ(counter.last(), 102u);
}

TEST(AcknowledgedCounter, NeverPassesALostInsertEvenBeyondTheWindow) {
  AcknowledgedCounter counter(0, 8);
  for (uint64_t i = 0; i < 50; ++i) {
    const uint64_t number = counter.Next();
    if (number != 3) counter.Acknowledge(number);
  }
  EXPECT_EQ(counter.last(), 2u);
}

TEST(AcknowledgedCounter, ThreadsTogetherReachTheEnd) {
  constexpr uint64_t kEach = 50'000;
  AcknowledgedCounter counter(0);
  const auto work = [&] {
    for (uint64_t i = 0; i < kEach; ++i) counter.Acknowledge(counter.Next());
  };
  std::thread one(work), two(work);
  one.join();
  two.join();
  EXPECT_EQ(counter.last(), 2 * kEach - 1);
}

Workload Of(Distribution distribution, uint64_t records) {
  Workload workload;
  workload.record_count = workload.insert_count = records;
  workload.distribution = distribution;
  return workload;
}

TEST(KeyChooser, OnlyRecordsThatExist) {
  for (const Distribution distribution : {Distribution::kUniform, Distribution::kZipfian, Distribution::kLatest,
                                          Distribution::kHotspot, Distribution::kSequential}) {
    Workload workload = Of(distribution, 1000);
    workload.insert_start = 100;
    workload.insert_count = 900;
    workload.insert_proportion = 0.5;
    workload.operation_count = 10'000;  // room for inserts that do not happen
    const AcknowledgedCounter inserted(workload.insert_count);
    KeyChooser chooser(workload, inserted);
    Random random(1);
    for (uint64_t i = 0; i < 20'000; ++i) {
      const uint64_t record = chooser.Next(random, i);
      ASSERT_GE(record, 100u) << DistributionName(distribution);
      ASSERT_LT(record, 1000u) << DistributionName(distribution);
    }
  }
}

TEST(KeyChooser, AClientReadsItsOwnRangeAndWhatItInserted) {
  for (const Distribution distribution : {Distribution::kZipfian, Distribution::kLatest}) {
    Workload workload = Of(distribution, 1000);
    workload.insert_start = 500;
    workload.insert_count = 100;
    workload.insert_proportion = 0.5;
    workload.operation_count = 1000;
    AcknowledgedCounter inserted(workload.insert_count);
    std::set<uint64_t> own;
    for (uint64_t record = 500; record < 600; ++record) own.insert(record);
    for (int i = 0; i < 150; ++i) {
      const uint64_t number = inserted.Next();
      inserted.Acknowledge(number);
      EXPECT_TRUE(own.insert(workload.own_records().At(number)).second);
    }
    EXPECT_TRUE(own.contains(1500) && own.contains(1599) && own.contains(2500) && own.contains(2549));
    KeyChooser chooser(workload, inserted);
    Random random(1);
    for (uint64_t i = 0; i < 20'000; ++i) {
      const uint64_t record = chooser.Next(random, i);
      ASSERT_TRUE(own.contains(record)) << record;
    }
  }
}

TEST(RecordLength, IsDrawnFieldByField) {
  Random random(1);
  EXPECT_EQ(RecordLength(10, 1, 100, FieldLengths::kConstant).Next(random), 1000u);
  for (const FieldLengths lengths : {FieldLengths::kUniform, FieldLengths::kZipfian}) {
    const RecordLength length(4, 10, 50, lengths);
    constexpr int kDraws = 100'000;
    double sum = 0;
    uint64_t shortest = 1000, longest = 0;
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t drawn = length.Next(random);
      sum += static_cast<double>(drawn);
      shortest = std::min(shortest, drawn);
      longest = std::max(longest, drawn);
    }
    EXPECT_GE(shortest, 40u);
    EXPECT_LE(longest, 200u);
    EXPECT_GT(longest, 150u);
    EXPECT_NEAR(sum / kDraws / length.mean(), 1, 0.05);  // the closed form of Gray et al. is an approximation
  }
  EXPECT_EQ(RecordLength(4, 10, 50, FieldLengths::kUniform).mean(), 120);
  EXPECT_LT(RecordLength(4, 10, 50, FieldLengths::kZipfian).mean(), 100) << "short ones are frequent";
}

TEST(KeyChooser, SequentialReadsEachRecordOnce) {
  const AcknowledgedCounter inserted(50);
  KeyChooser chooser(Of(Distribution::kSequential, 50), inserted);
  Random random(1);
  std::vector<uint64_t> seen(50);
  for (uint64_t ticket = 0; ticket < 50; ++ticket) ++seen[chooser.Next(random, ticket)];
  EXPECT_EQ(seen, std::vector<uint64_t>(50, 1));
}

TEST(KeyChooser, HotspotHasItsShareOfOperations) {
  const AcknowledgedCounter inserted(1000);
  KeyChooser chooser(Of(Distribution::kHotspot, 1000), inserted);
  Random random(1);
  uint64_t hot = 0;
  for (uint64_t i = 0; i < 100'000; ++i) hot += chooser.Next(random, i) < 200;
  EXPECT_NEAR(static_cast<double>(hot), 80'000, 5 * std::sqrt(100'000 * 0.8 * 0.2));
}

TEST(KeyChooser, HottestIsTheMostFrequent) {
  const AcknowledgedCounter inserted(1000);
  KeyChooser chooser(Of(Distribution::kZipfian, 1000), inserted);
  Random random(1);
  std::vector<uint64_t> seen(1000);
  for (uint64_t i = 0; i < 100'000; ++i) ++seen[chooser.Next(random, i)];
  EXPECT_EQ(static_cast<uint64_t>(std::max_element(seen.begin(), seen.end()) - seen.begin()), chooser.Hottest());
}

}  // namespace
}  // namespace ycsb
