// Which ports of a node are bound, and where others find them. Also makes the node's virtual queues, which have the
// ports.
#ifndef KRCORE_MESSAGES_PORTS_H_
#define KRCORE_MESSAGES_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "krcore/clock.h"
#include "krcore/message.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::messages {

// Where others find the ports of a node. Thread safety: any thread may call.
class PortRecords {
 public:
  virtual ~PortRecords() = default;
  // Publishes a port of this node. kOutOfMemory: the metadata servers have no room; others as Node::PublishService.
  virtual Status PublishPort(Port port, std::span<const std::byte> value, Deadline deadline) = 0;
  // Best effort; a sender that comes too late finds out at the port.
  virtual void WithdrawPort(Port port, Deadline deadline) = 0;
  // Returns what the port's node published; that node may be dead. kNotFound: nobody published it.
  virtual Result<std::vector<std::byte>> LookupPort(NodeId node, Port port, Deadline deadline) = 0;
};

// Ports: which ports of a node are bound, by any of its pools. Thread safety: any thread may call.
class Ports final : public queue::QueueMaker {
 public:
  explicit Ports(PortRecords& records) : records_(records) {}
  // Makes a VirtualQueueImpl.
  std::unique_ptr<queue::OneSidedQueue> MakeQueue(queue::QueuePoolImpl& pool, uint32_t depth) override;

  PortRecords& records() { return records_; }
  // Takes a port; kNoPort: chooses one. Returns kNoPort if it is taken, or all are.
  Port Take(Port wanted) {
    std::lock_guard lock(mutex_);
    if (wanted != kNoPort) return bound_.insert(wanted).second ? wanted : kNoPort;
    for (uint32_t tries = 0; tries <= UINT16_MAX - kFirstAutomaticPort; ++tries) {
      const Port port = next_;
      next_ = next_ == UINT16_MAX ? kFirstAutomaticPort : static_cast<Port>(next_ + 1);
      if (bound_.insert(port).second) return port;
    }
    return kNoPort;
  }
  void Free(Port port) {
    std::lock_guard lock(mutex_);
    bound_.erase(port);
  }

 private:
  PortRecords& records_;
  std::mutex mutex_;
  std::unordered_set<Port> bound_;  // guarded by mutex_
  Port next_ = kFirstAutomaticPort;
};

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_PORTS_H_
