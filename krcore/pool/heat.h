// Heat: how busy a queue is: WRs an interval, averaged so that each interval counts half as much as the next.
#ifndef KRCORE_POOL_HEAT_H_
#define KRCORE_POOL_HEAT_H_

#include <algorithm>
#include <cstdint>

namespace krcore::pool {

class Heat {
 public:
  // `wrs` in the last `intervals` (>= 1) intervals together.
  void Add(uint64_t wrs, uint64_t intervals) {
    const uint64_t each = wrs / intervals;
    const uint64_t halvings = std::min<uint64_t>(intervals, 63);
    average_ = (average_ >> halvings) + each - (each >> halvings);
  }
  uint64_t average() const { return average_; }

 private:
  uint64_t average_ = 0;
};

}  // namespace krcore::pool

#endif  // KRCORE_POOL_HEAT_H_
