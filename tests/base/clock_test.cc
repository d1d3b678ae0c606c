#include "krcore/clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace krcore {
namespace {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns; }
  void Relax(uint32_t) override { now_ns += 1'000; }
  int64_t now_ns = 0;
};

TEST(Deadline, PassesExactlyAtItsTime) {
  FakeClock clock;
  const Deadline deadline = Deadline::After(clock, 500);
  clock.now_ns = 499;
  EXPECT_FALSE(deadline.Passed(clock));
  clock.now_ns = 500;
  EXPECT_TRUE(deadline.Passed(clock));
}

TEST(Deadline, NeverDoesNotPass) {
  FakeClock clock;
  clock.now_ns = INT64_MAX;
  EXPECT_FALSE(Deadline::Never().Passed(clock));
}

TEST(RealClock, TellsTheTimeOfDay) {
  const auto unix_ms = [] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  };
  const uint64_t before = unix_ms(), told = RealClock()->UnixMs(), after = unix_ms();
  EXPECT_LE(before, told);
  EXPECT_LE(told, after);
}

TEST(RealClock, NeverGoesBackwardsAndRelaxReturnsInEveryStage) {
  Clock& clock = *RealClock();
  int64_t last_ns = clock.NowNs();
  for (const uint32_t spins : {0U, 199U, 200U, 1'999U, 2'000U, UINT32_MAX}) {
    clock.Relax(spins);
    const int64_t now_ns = clock.NowNs();
    EXPECT_GE(now_ns, last_ns);
    last_ns = now_ns;
  }
}

}  // namespace
}  // namespace krcore
