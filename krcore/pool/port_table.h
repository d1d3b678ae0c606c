// PortTable: which ports of a node are bound, by whichever of its pools. PortRecords: where others find them.
//
// Thread safety: from any thread.
#ifndef KRCORE_POOL_PORT_TABLE_H_
#define KRCORE_POOL_PORT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "krcore/clock.h"
#include "krcore/message.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::pool {

class PortRecords {
 public:
  virtual ~PortRecords() = default;
  // Of a port of this node. kOutOfMemory: the metadata servers have no room; others as Node::PublishService.
  virtual Status PublishPort(Port port, std::span<const std::byte> value, Deadline deadline) = 0;
  // Best effort; whoever comes too late finds out at the port.
  virtual void WithdrawPort(Port port, Deadline deadline) = 0;
  // As its node published it, which may be dead. kNotFound: nobody did.
  virtual Result<std::vector<std::byte>> LookupPort(NodeId node, Port port, Deadline deadline) = 0;
};

class PortTable {
 public:
  // kNoPort: chooses one. Returns kNoPort if it is taken, or all are.
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
  std::mutex mutex_;
  std::unordered_set<Port> bound_;  // guarded by mutex_
  Port next_ = kFirstAutomaticPort;
};

}  // namespace krcore::pool

#endif  // KRCORE_POOL_PORT_TABLE_H_
