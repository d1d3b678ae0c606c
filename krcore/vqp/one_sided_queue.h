// OneSidedQueue: a VirtualQueue of a control plane that has no messages.
#ifndef KRCORE_VQP_ONE_SIDED_QUEUE_H_
#define KRCORE_VQP_ONE_SIDED_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/virtual_queue.h"

namespace krcore::vqp {

class OneSidedQueue : public VirtualQueue {
 public:
  using VirtualQueue::Connect;
  Status Bind(Port, const BindOptions&, Deadline) final { return NoMessages(); }
  Port port() const final { return kNoPort; }
  Status Connect(NodeId, Port, Deadline) final { return NoMessages(); }
  Status Connect(const Sender&, Deadline) final { return NoMessages(); }
  uint32_t credits() const final { return 0; }
  Status PushRecv(std::span<const Receive>, size_t*) final { return NoMessages(); }
  size_t PopMessages(std::span<Message>) final { return 0; }

 private:
  Status NoMessages() const {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return {StatusCode::kUnsupported, "this control plane has one-sided requests only"};
  }
};

}  // namespace krcore::vqp

#endif  // KRCORE_VQP_ONE_SIDED_QUEUE_H_
