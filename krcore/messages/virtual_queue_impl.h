// VirtualQueueImpl: a one-sided queue that may be connected to a port and bound to one. One-sided requests do not pass
// through it.
#ifndef KRCORE_MESSAGES_VIRTUAL_QUEUE_IMPL_H_
#define KRCORE_MESSAGES_VIRTUAL_QUEUE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/messages/channel.h"
#include "krcore/messages/mailbox.h"
#include "krcore/messages/ports.h"
#include "krcore/queue/one_sided_queue.h"

namespace krcore::messages {

class VirtualQueueImpl final : public queue::OneSidedQueue {
 public:
  VirtualQueueImpl(queue::QueuePoolImpl& pool, uint32_t depth, Ports& ports)
      : OneSidedQueue(pool, depth), ports_(ports) {}
  ~VirtualQueueImpl() override { PoolWillGo(); }

  Status Connect(NodeId peer, Deadline deadline) override;
  Status Bind(Port port, const BindOptions& options, Deadline deadline) override;
  Port port() const override { return mailbox_ ? mailbox_->port() : kNoPort; }
  Status Connect(NodeId peer, Port port, Deadline deadline) override;
  Status Connect(const Sender& sender, Deadline deadline) override;
  uint32_t credits() const override;
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index) override;
  size_t PopMessages(std::span<Message> out) override;

  // ---- for the pool
  size_t memory_bytes() const override;
  void PoolWillGo() override;

 private:
  Status OpenChannel(std::shared_ptr<const peers::Peer> peer, Port port, const PortInfo& info, Deadline deadline);
  StatusCode CheckMessage(const WorkRequest& wr, bool* zero_copy) const;
  StatusCode StageMixed(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  StatusCode StageMessage(const WorkRequest& wr, bool first);

  Ports& ports_;
  std::unique_ptr<Channel> channel_;  // connected to a port
  std::unique_ptr<Mailbox> mailbox_;  // bound
};

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_VIRTUAL_QUEUE_IMPL_H_
