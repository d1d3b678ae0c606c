// Clock: the only source of time and the only way to wait in krcore and kvs. It is injected, so that the simulator can
// replace it by virtual time.
//
// Thread safety: implementations are safe for concurrent use.
#ifndef KRCORE_CLOCK_H_
#define KRCORE_CLOCK_H_

#include <cstdint>

namespace krcore {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns monotonic time in nanoseconds from an arbitrary origin that is common to the host's processes.
  virtual int64_t NowNs() = 0;
  // As NowNs, but may lag it by up to kMaxCoarseLagNs: for checks so frequent that reading the precise time would cost
  // too much.
  virtual int64_t CoarseNowNs() { return NowNs(); }
  // Returns the time of day in milliseconds since 1970, UTC; by default the host's. It may jump, and other hosts may
  // have another one.
  virtual uint64_t UnixMs();
  // Called repeatedly while a caller waits for another party. `spins` counts the calls since the wait began. The real
  // clock spins first, then yields, then sleeps for at most 50 us a call.
  virtual void Relax(uint32_t spins) = 0;
};

inline constexpr int64_t kMaxCoarseLagNs = 10'000'000;  // a tick of the slowest kernel

// The host's CLOCK_MONOTONIC. Never null; owned by the library.
Clock* RealClock();

// An absolute point on a Clock, in nanoseconds.
struct Deadline {
  int64_t at_ns = INT64_MAX;
  static Deadline After(Clock& clock, int64_t duration_ns) { return {clock.NowNs() + duration_ns}; }
  static Deadline Never() { return {}; }
  bool Passed(Clock& clock) const { return at_ns != INT64_MAX && clock.NowNs() >= at_ns; }
};

}  // namespace krcore

#endif  // KRCORE_CLOCK_H_
