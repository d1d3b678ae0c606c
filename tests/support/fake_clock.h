// FakeClock: time that moves only when it is used: every reading and every wait takes a little.
#ifndef TESTS_SUPPORT_FAKE_CLOCK_H_
#define TESTS_SUPPORT_FAKE_CLOCK_H_

#include <sched.h>

#include <atomic>

#include "krcore/clock.h"

namespace surgekv_test {

class FakeClock final : public krcore::Clock {
 public:
  int64_t NowNs() override { return now_ns_.fetch_add(100) + 100; }
  uint64_t UnixMs() override { return static_cast<uint64_t>(NowNs()) / 1'000'000; }
  void Relax(uint32_t spins) override {
    now_ns_.fetch_add(2'000);
    uint32_t seen = longest_wait_.load();
    while (seen < spins && !longest_wait_.compare_exchange_weak(seen, spins)) {
    }
    sched_yield();
  }
  void Advance(int64_t ns) { now_ns_.fetch_add(ns); }
  uint32_t longest_wait() const { return longest_wait_.load(); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000};
  std::atomic<uint32_t> longest_wait_{0};
};

}  // namespace surgekv_test

#endif  // TESTS_SUPPORT_FAKE_CLOCK_H_
