// DeviceState: what the World knows of one device. It stays when the device is closed, so that whoever still names
// it finds out that it is gone.
#ifndef KRCORE_RNIC_SIM_DEVICE_STATE_H_
#define KRCORE_RNIC_SIM_DEVICE_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/sim/chaos.h"
#include "krcore/rnic/sim/send_queue.h"
#include "krcore/rnic/sim/tables.h"

namespace krcore::rnic::sim {

enum class Life : uint8_t { kAlive, kKilled, kClosed };

struct DeviceState {
  uint32_t index = 0;  // in the World, also what the address says
  NodeId node = kNoNode;
  uint32_t incarnation = 0;
  Life life = Life::kAlive;
  bool ready_listed = false;

  uint32_t next_pd = 1;
  MrTable mrs;
  QpTable qps;

  // ---- its NIC
  int64_t send_free_ns = 0;        // when the next verb can leave
  int64_t serve_free_ns = 0;       // when the next one can be served
  int64_t stalled_until_ns = 0;    // doorbells
  std::vector<int64_t> word_free;  // when the next atomic on a word can be served; by hash, made when first used
  uint64_t unpolled = 0;           // completions in its CQs
  std::optional<Chaos> chaos;      // of the verbs that it posts; none: the World's
  int64_t control_ns = 0;          // modelled time of its control path calls

  // ---- its death
  uint64_t verbs_left = 0;  // counts down to it; 0: not planned
  bool dies_before = false;
  int64_t dies_linger_ns = 0;
  int64_t linger_until_ns = 0;
  uint64_t zombies = 0;  // of `orphans`: may still execute
  std::vector<std::unique_ptr<SendQueue>> orphans;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_DEVICE_STATE_H_
