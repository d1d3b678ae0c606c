// Moving memory into huge pages: at once, in the background, and the end of both.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "krcore/node.h"
#include "memnode/huge_page_collapser.h"
#include "tests/kvs/manual_clock.h"
#include "tests/support/program.h"

namespace memnode {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ranges::fill(region_->bytes(), std::byte{7});
    const auto moved = region_->CollapseToHugePages(0, size_t{2} << 20);
    if (moved == krcore::StatusCode::kUnsupported) GTEST_SKIP() << moved.ToString();
  }
  bool Whole() const {
    return std::ranges::all_of(region_->bytes(), [](std::byte each) { return each == std::byte{7}; });
  }

  testing_support::TestFabric fabric_;
  std::unique_ptr<krcore::Node> node_ =
      krcore::Node::Open({.fabric = fabric_.name(), .node = 1, .create_fabric = true}).value();
  std::unique_ptr<krcore::Region> region_ = node_->CreateRegion({.length = kBytes}).value();
};

TEST_F(HugePages, AreThereWhenTheConstructorReturnsIfTimeAllows) {
  const HugePageCollapser collapser(*region_, *krcore::RealClock(), 3'600'000'000'000);
  EXPECT_EQ(collapser.collapsed_bytes(), kBytes);
  EXPECT_GT(collapser.cpu_ns(), 0);
  EXPECT_TRUE(Whole());
}

TEST_F(HugePages, AreMadeInTheBackgroundIfTimeIsUp) {
  const HugePageCollapser collapser(*region_, *krcore::RealClock(), 0);
  uint32_t spins = 0;
  while (collapser.collapsed_bytes() < kBytes) krcore::RealClock()->Relax(++spins);
  EXPECT_TRUE(Whole());
}

// A constructor that moved all of it would leave nothing to stop. (Once in a while this thread waits for a core for so
// long that the other one has moved all.)
TEST_F(HugePages, TheConstructorReturnsAtOnceIfTimeIsUpOrItsClockHasJumped) {
  surgekv_test::ManualClock jumped;
  jumped.Advance(std::numeric_limits<int64_t>::max() / 2);
  const std::pair<krcore::Clock*, int64_t> cases[] = {{krcore::RealClock(), 0}, {&jumped, 3'600'000'000'000}};
  for (const auto& [clock, at_once_ns] : cases) {
    uint64_t least = kBytes;
    for (int round = 0; round < 20; ++round) {
      HugePageCollapser collapser(*region_, *clock, at_once_ns);
      collapser.Stop();
      least = std::min(least, collapser.collapsed_bytes());
    }
    EXPECT_LT(least, kBytes);
  }
}

TEST_F(HugePages, StopEndsTheBackgroundThreadWhereverItIs) {
  for (uint64_t pieces = 0; pieces < 4; ++pieces) {
    HugePageCollapser collapser(*region_, *krcore::RealClock(), 0);
    uint32_t spins = 0;
    while (collapser.collapsed_bytes() < pieces * kBytes / 4) krcore::RealClock()->Relax(++spins);
    collapser.Stop();
    const uint64_t moved = collapser.collapsed_bytes();
    EXPECT_GE(moved, pieces * kBytes / 4);
    collapser.Stop();
    EXPECT_EQ(collapser.collapsed_bytes(), moved);
  }
  EXPECT_TRUE(Whole());
}

}  // namespace
}  // namespace memnode
