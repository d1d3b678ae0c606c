// A clock that only the test moves.
#ifndef TESTS_KVS_MANUAL_CLOCK_H_
#define TESTS_KVS_MANUAL_CLOCK_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "krcore/clock.h"
#include "kvs/client.h"

namespace surgekv_test {

class ManualClock final : public krcore::Clock {
 public:
  int64_t NowNs() override {
    ++looks_;
    return now_ns_;
  }
  void Relax(uint32_t) override { now_ns_ += 1'000; }
  uint64_t UnixMs() override { return static_cast<uint64_t>(now_ns_) / 1'000'000; }
  void Advance(int64_t ns) { now_ns_ += ns; }
  uint64_t looks() const { return looks_; }  // how often it was read

 private:
  int64_t now_ns_ = 1'000'000;
  uint64_t looks_ = 0;
};

// Polls the client until all that it has spawned has ended. `step_ns` pass after each poll.
inline void FinishAll(kvs::Client& client, ManualClock& clock, int64_t step_ns = 1'000) {
  for (int i = 0; client.spawned() > 0 && i < 100'000; ++i) {
    client.Poll();
    clock.Advance(step_ns);
  }
  ASSERT_EQ(client.spawned(), 0u) << "an operation hangs";
}

}  // namespace surgekv_test

#endif  // TESTS_KVS_MANUAL_CLOCK_H_
