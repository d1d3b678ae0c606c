#include "krcore/clock.h"

#include <sched.h>

#include <ctime>
#if defined(__x86_64__)
#  include <immintrin.h>
#endif

namespace krcore {
namespace {

constexpr uint32_t kSpinCalls = 200;
constexpr uint32_t kYieldCalls = 2000;
constexpr long kSleepNs = 50'000;

int64_t Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class MonotonicClock final : public Clock {
 public:
  int64_t NowNs() override { return Read(CLOCK_MONOTONIC); }
  int64_t CoarseNowNs() override { return Read(CLOCK_MONOTONIC_COARSE); }

  void Relax(uint32_t spins) override {
    if (spins < kSpinCalls) {
#if defined(__x86_64__)
      _mm_pause();
#endif
    } else if (spins < kYieldCalls) {
      sched_yield();
    } else {
      const timespec nap{0, kSleepNs};
      nanosleep(&nap, nullptr);
    }
  }
};

}  // namespace

uint64_t Clock::UnixMs() { return static_cast<uint64_t>(Read(CLOCK_REALTIME)) / 1'000'000; }

Clock* RealClock() {
  static MonotonicClock clock;
  return &clock;
}

}  // namespace krcore
