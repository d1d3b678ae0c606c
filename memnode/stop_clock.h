// StopClock: the host's clock, until a stop is requested; from then on it stands far in the future. So every wait
// with a deadline ends at once on Ctrl-C, without a cancellation argument through every interface.
#ifndef MEMNODE_STOP_CLOCK_H_
#define MEMNODE_STOP_CLOCK_H_

#include "cli/stop_signal.h"
#include "krcore/clock.h"

namespace memnode {

class StopClock final : public krcore::Clock {
 public:
  int64_t NowNs() override {
    const int64_t now = krcore::RealClock()->NowNs();
    return cli::StopSignal::Requested() ? now + kJumpNs : now;
  }
  void Relax(uint32_t spins) override { krcore::RealClock()->Relax(spins); }

 private:
  // A century: past every deadline, and it runs on, so that deadlines taken after the stop still pass.
  static constexpr int64_t kJumpNs = int64_t{100} * 365 * 24 * 3600 * 1'000'000'000;
};

}  // namespace memnode

#endif  // MEMNODE_STOP_CLOCK_H_
