// Everything that a run does, drawn from its seed.
#ifndef TESTS_RNIC_SDC_PLAN_H_
#define TESTS_RNIC_SDC_PLAN_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "krcore/rnic/sdc/initiator.h"

namespace sdc_test {

inline constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;

enum class FaultKind : uint8_t {
  kRestartTarget,
  kRestartInitiator,  // killed: it does not reset its queue
  kPauseTarget,       // it sleeps, but its clock goes on
  kPauseInitiator,
  kPartition,   // packets between the two are lost
  kHold,        // ... or arrive when it is over
  kReset,       // the initiator resets its queue, whatever is in flight
  kFail,        // the initiator moves its queue to ERR
  kDeregister,  // the target's memory goes away for a while
  kDeregisterLocal,
};
inline constexpr int kFaultKinds = 10;

struct Fault {
  uint64_t at_ns = 0;
  FaultKind kind = FaultKind::kReset;
  uint32_t initiator = 0, target = 0;
  uint64_t for_ns = 0;
};

struct Plan {
  uint64_t seed = 0;
  bool calm = false;  // no fault by which a proper WR may fail
  uint32_t initiators = 1, targets = 1;
  uint32_t sessions = 8;  // of a target
  uint32_t peers = 8;     // of an initiator
  uint32_t receives = 8;  // of a target
  uint32_t depth = 16;    // of a send queue
  uint32_t outstanding = 8;
  uint32_t wrs = 40;  // of each initiator
  uint32_t mtu_bytes = 1024;
  uint32_t max_bytes = 256;  // of a message
  double loss = 0, duplicate = 0, late = 0;
  uint64_t wire_ns = 20 * kUs, late_ns = 0;  // one way at most; of a late packet
  double slow_atomic = 0;
  uint64_t slow_ns = 0;
  uint64_t repost_ns = 0;  // at most so long until a receive is posted again
  double bad = 0;          // share of WRs that must fail
  double doomed = 0.12;    // share of READs and WRITEs that go to memory that may go
  double atomics = 0.3, reads = 0.3, messages = 0.2, fences = 0.2;
  sdc_timing timing{};
  std::vector<Fault> faults;  // by time

  std::string ToString() const;
};

Plan MakePlan(uint64_t seed);

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_PLAN_H_
