// StopClock: the host's clock until a stop is requested; from then on it is far in the future. So every wait with a
// deadline ends at once on Ctrl-C, without a cancellation argument through every interface. Take a deadline that must
// be cut short on the host's clock: one taken here after the stop runs its full time, as closing needs.
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
  // A century: past every deadline. Time goes on after the jump.
  static constexpr int64_t kJumpNs = int64_t{100} * 365 * 24 * 3600 * 1'000'000'000;
};

}  // namespace memnode

#endif  // MEMNODE_STOP_CLOCK_H_
