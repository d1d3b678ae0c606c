// VirtualQueueImpl: checks requests and hands them to the PhysicalQueue that reaches its peer.
#ifndef KRCORE_QUEUE_VIRTUAL_QUEUE_IMPL_H_
#define KRCORE_QUEUE_VIRTUAL_QUEUE_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_state.h"
#include "krcore/queue/request_check.h"
#include "krcore/virtual_queue.h"

namespace krcore::messages {
class Channel;
class Mailbox;
struct PortInfo;
}  // namespace krcore::messages

namespace krcore::queue {

class QueuePoolImpl;

class VirtualQueueImpl final : public VirtualQueue {
 public:
  VirtualQueueImpl(QueuePoolImpl& pool, uint32_t depth);
  ~VirtualQueueImpl() override;

  Status Connect(NodeId peer, Deadline deadline) override;
  Status Bind(Port port, const BindOptions& options, Deadline deadline) override;
  Port port() const override;
  Status Connect(NodeId peer, Port port, Deadline deadline) override;
  Status Connect(const Sender& sender, Deadline deadline) override;
  uint32_t credits() const override;
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index) override;
  size_t PopMessages(std::span<Message> out) override;
  NodeId peer() const override { return state_.peer ? state_.peer->target.address.node : kNoNode; }
  std::span<const RemoteRegion> regions() const override {
    return state_.peer ? state_.peer->region_span() : std::span<const RemoteRegion>();
  }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  void Prefetch(std::span<const WorkRequest> wrs) override {
    if (state_.standing == QueueStanding::kReady && !wrs.empty())
      physical_->Prefetch(wrs, state_.peer->ah.get(), wrs[0].rkey);
  }
  size_t Pop(std::span<Completion> out) override { return forked() ? 0 : state_.Pop(out); }
  uint32_t outstanding() const override { return forked() ? 0 : state_.outstanding(); }

  // ---- for the pool
  QueueState& state() { return state_; }
  size_t memory_bytes() const;
  // What is accepted from now on goes through another physical queue.
  void MoveTo(PhysicalQueue& physical) { physical_ = &physical; }
  // The pool is about to go: from now on every call but Pop fails. Call CloseMessages of every queue before.
  void ForgetPool();
  void CloseMessages();

  // ---- for Mailbox, whose READs go through a queue like any other
  bool ready() const { return state_.standing == QueueStanding::kReady; }
  bool has_room() const { return physical_->free() > 0 && state_.used() < state_.depth(); }
  void Adopt(std::shared_ptr<const peers::Peer> peer) { UsePeer(std::move(peer)); }

 private:
  Status MayConnect() const;
  Status FindPeer(NodeId peer, Deadline deadline, std::shared_ptr<const peers::Peer>* metadata);
  void UsePeer(std::shared_ptr<const peers::Peer> peer);
  // False: as StageAlike, or they cannot be executed at once.
  bool ExecuteAlike(std::span<const WorkRequest> wrs);
  // False: they are not like what passed before, or are to be refused. Nothing has been accepted then.
  bool StageAlike(std::span<const WorkRequest> wrs);
  StatusCode StageUnlike(std::span<const WorkRequest> wrs, size_t* bad_index);
  StatusCode StageSlowly(std::span<const WorkRequest> wrs, size_t* bad_index);
  // One that passed its check, polling for room. `first`: nothing of its batch has been accepted.
  StatusCode StageOne(const WorkRequest& wr, bool first);
  StatusCode StandingError() const;
  // What passed the checks before, while the regions are those of then.
  const LikeRequest* Like(const peers::RegionView& local, const peers::Peer& peer) {
    if (like_local_ != local.version() || like_peer_ != &peer) [[unlikely]] {
      like_ = {};
      like_local_ = local.version();
      like_peer_ = &peer;
    }
    return &like_;
  }

  // messages.cc
  Status OpenChannel(std::shared_ptr<const peers::Peer> peer, Port port, const messages::PortInfo& info,
                     Deadline deadline);
  void CloseChannel();
  StatusCode CheckMessage(const WorkRequest& wr, bool* zero_copy) const;
  StatusCode StageMixed(std::span<const WorkRequest> wrs, size_t* bad_index);
  StatusCode StageMessage(const WorkRequest& wr, bool first);

  QueuePoolImpl* pool_;
  PhysicalQueue* physical_ = nullptr;
  QueueState state_;
  LikeRequest like_;
  uint64_t like_local_ = 0;                     // of version 0, which no peers::RegionView has
  const peers::Peer* like_peer_ = nullptr;      // state_.peer or a former one since Connect, so alive
  std::unique_ptr<messages::Channel> channel_;  // connected to a port
  std::unique_ptr<messages::Mailbox> mailbox_;  // bound
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_VIRTUAL_QUEUE_IMPL_H_
