// SendQueue: the verbs of one Qp that are under way, in two orders: that of posting, in which they complete, and one
// for each peer (flow), in which they execute. It outlives its Qp when the process that owned it is killed.
#ifndef KRCORE_RNIC_SIM_SEND_QUEUE_H_
#define KRCORE_RNIC_SIM_SEND_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "krcore/rnic/sim/verb.h"

namespace krcore::rnic::sim {

// Whom a SendQueue tells.
class SendQueueOwner {
 public:
  virtual ~SendQueueOwner() = default;
  // In posting order. An unsignaled success is not told.
  virtual void SendCompleted(const Verb& verb, WcStatus status) = 0;
  // A verb failed, and this was told already; the rest is flushed when this returns.
  virtual void SendFailed() = 0;
};

// What one SendQueue has under way to one peer. Either list is executed from its head only. A READ waits for every
// earlier verb of the flow, the others wait for each other only: that is all the order there is.
struct Flow {
  DeviceState* target = nullptr;
  VerbList<&Verb::next_in_flow> reads, others;
  uint32_t others_sent = 0, others_done = 0;
  uint64_t stopped_after = UINT64_MAX;  // position of one that failed or was lost: nothing behind it executes
};

class SendQueue {
 public:
  SendQueue(DeviceState* owning_device, SendQueueOwner* told, QpType qp_type, uint32_t qp_number, uint32_t pd_number)
      : device(owning_device), owner(told), type(qp_type), number(qp_number), pd(pd_number) {}

  uint32_t FlowTo(DeviceState* target) {
    for (uint32_t i = 0; i < flows.size(); ++i) {
      if (flows[i].target == target) return i;
    }
    flows.push_back({.target = target});
    return static_cast<uint32_t>(flows.size() - 1);
  }

  DeviceState* const device;
  SendQueueOwner* owner;  // null: its process is dead
  const QpType type;
  const uint32_t number, pd;
  // RC: whom it is connected to.
  DeviceState* peer = nullptr;
  uint32_t peer_number = 0;

  VerbList<&Verb::next_in_queue> posted;  // not completed yet
  VerbId waiting = kNoVerb;               // the first of them that has not left: a fence holds it back
  uint64_t completed = 0;                 // position of the last that completed
  uint64_t last_fenceable = 0;            // position of the last READ or atomic
  bool failed_locally = false;            // nothing leaves any more
  bool answer_missed = false;             // one was answered before those posted earlier
  std::vector<Flow> flows;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_SEND_QUEUE_H_
