#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "krcore/messages/channel.h"
#include "krcore/messages/mailbox.h"
#include "krcore/messages/ports.h"
#include "krcore/queue/one_sided_queue.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/queue/request_check.h"

namespace krcore::messages {

using queue::OwnWr;
using queue::QueueStanding;

namespace {

bool IsTwoSided(Opcode opcode) {
  return opcode == Opcode::kSend || opcode == Opcode::kSendImm || opcode == Opcode::kWriteImm;
}

WorkRequest DataOf(const WorkRequest& wr) {
  WorkRequest data = wr;
  data.opcode = Opcode::kWrite;
  data.flags = static_cast<uint8_t>(wr.flags & ~kSignaled);
  return data;
}

size_t InlineBytes(const WorkRequest& wr) {
  if ((wr.flags & kInline) == 0) return 0;
  size_t bytes = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  return bytes;
}

// VirtualQueueImpl: a one-sided queue that may be connected to a port and bound to one. One-sided requests do not pass
// through it.
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

}  // namespace

// ---- receiving

Status VirtualQueueImpl::Bind(Port port, const BindOptions& options, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (mailbox_ != nullptr)
    return {StatusCode::kBadState, "this queue is bound to port " + std::to_string(mailbox_->port())};
  auto mailbox = Mailbox::Open(*pool_, ports_, port, options, deadline);
  if (!mailbox.ok()) return mailbox.status();
  mailbox_ = *std::move(mailbox);
  return {};
}

Status VirtualQueueImpl::PushRecv(std::span<const Receive> receives, size_t* bad_index) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (mailbox_ == nullptr) return StatusCode::kBadState;
  return mailbox_->PushRecv(receives, bad_index);
}

size_t VirtualQueueImpl::PopMessages(std::span<Message> out) { return mailbox_ && !forked() ? mailbox_->Pop(out) : 0; }

// ---- connecting

Status VirtualQueueImpl::Connect(NodeId peer, Deadline deadline) {
  std::shared_ptr<const peers::Peer> metadata;
  KRCORE_RETURN_IF_ERROR(FindPeer(peer, deadline, &metadata));
  if (channel_ != nullptr) [[unlikely]]
    channel_.reset();
  UsePeer(std::move(metadata));
  return {};
}

Status VirtualQueueImpl::Connect(NodeId peer, Port port, Deadline deadline) {
  if (port == kNoPort) return {StatusCode::kInvalidArgument, "no port named"};
  std::shared_ptr<const peers::Peer> metadata;
  KRCORE_RETURN_IF_ERROR(FindPeer(peer, deadline, &metadata));
  auto record = ports_.records().LookupPort(peer, port, deadline);
  PortInfo info;
  const bool bound = record.ok() && record->size() == sizeof(info);
  if (bound) std::memcpy(&info, record->data(), sizeof(info));
  if (!record.ok() && record.status().code() != StatusCode::kNotFound) return record.status();
  if (!bound || info.incarnation != metadata->target.address.incarnation)
    return {StatusCode::kNotFound,
            "port " + std::to_string(port) + " of node " + std::to_string(peer) + " is not bound"};
  return OpenChannel(std::move(metadata), port, info, deadline);
}

Status VirtualQueueImpl::Connect(const Sender& sender, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(MayConnect());
  auto card = CardOf(sender);
  if (!card.ok()) return card.status();
  std::shared_ptr<const peers::Peer> metadata = pool_->peers().Cached(card->address.node);
  if (metadata == nullptr || metadata->target.address.incarnation != card->address.incarnation) {
    auto ah = pool_->context().device->CreateAddressHandle(card->address);
    if (!ah.ok()) return {StatusCode::kUnavailable, "address handle: " + ah.status().ToString()};
    auto made = std::make_shared<peers::Peer>();
    made->target = {card->address, card->dct_num, card->dc_key};
    made->ah = *std::move(ah);
    metadata = std::move(made);
  }
  ++pool_->mutable_stats().metadata_hits;
  return OpenChannel(std::move(metadata), card->port, card->reply, deadline);
}

Status VirtualQueueImpl::OpenChannel(std::shared_ptr<const peers::Peer> peer, Port port, const PortInfo& info,
                                     Deadline deadline) {
  if (channel_ != nullptr && channel_->Reaches(*peer, port)) {
    // Keeps the same place, so that messages stay in order.
    KRCORE_RETURN_IF_ERROR(channel_->Settle(deadline));
    UsePeer(std::move(peer));
    return {};
  }
  channel_.reset();
  UsePeer(std::move(peer));
  state_.standing = QueueStanding::kUnconnected;
  auto channel =
      Channel::Open(*pool_, state_, port, info, this->port(), mailbox_ ? &mailbox_->info() : nullptr, deadline);
  if (!channel.ok()) return channel.status();
  channel_ = *std::move(channel);
  state_.standing = QueueStanding::kReady;
  return {};
}

size_t VirtualQueueImpl::memory_bytes() const {
  return OneSidedQueue::memory_bytes() + sizeof(*this) - sizeof(OneSidedQueue) +
         (mailbox_ ? mailbox_->memory_bytes() : 0);
}

void VirtualQueueImpl::PoolWillGo() {
  channel_.reset();
  mailbox_.reset();
}

uint32_t VirtualQueueImpl::credits() const {
  return channel_ && !forked() && state_.standing == QueueStanding::kReady ? channel_->credits() : 0;
}

// ---- sending

StatusCode VirtualQueueImpl::CheckMessage(const WorkRequest& wr, bool* zero_copy) const {
  *zero_copy = false;
  if (wr.opcode != Opcode::kWriteImm) return channel_->Check(wr, pool_->limits(), pool_->regions(), zero_copy);
  if (wr.num_sge == 0) return (wr.flags & ~queue::kKnownFlags) == 0 ? StatusCode::kOk : StatusCode::kInvalidArgument;
  uint64_t bytes;
  return queue::CheckRequest(DataOf(wr), pool_->limits(), pool_->regions(), regions(), &bytes);
}

// Batches with messages in them: all are checked, then accepted one by one.
StatusCode VirtualQueueImpl::StageMixed(std::span<const WorkRequest> wrs, size_t* bad_index) {
  uint32_t messages = 0;
  bool zero_copy;
  for (size_t i = 0; i < wrs.size(); ++i) {
    *bad_index = i;
    StatusCode code;
    if (IsTwoSided(wrs[i].opcode)) {
      if (channel_ == nullptr) return StatusCode::kBadState;
      code = CheckMessage(wrs[i], &zero_copy);
      if (code == StatusCode::kOk && !channel_->Accepts()) code = StatusCode::kUnavailable;
      if (code == StatusCode::kOk && ++messages > channel_->credits()) code = StatusCode::kQueueFull;
    } else {
      uint64_t bytes;
      code = queue::CheckRequest(wrs[i], pool_->limits(), pool_->regions(), regions(), &bytes);
    }
    if (code != StatusCode::kOk) return code;
  }
  for (size_t i = 0; i < wrs.size(); ++i) {
    const WorkRequest& wr = wrs[i];
    if (!IsTwoSided(wr.opcode)) {
      const StatusCode code = StageOne(wr, i == 0);
      if (code != StatusCode::kOk) return code;
      continue;
    }
    const StatusCode code = StageMessage(wr, i == 0);
    if (code != StatusCode::kOk) return code;
  }
  return StatusCode::kOk;
}

StatusCode VirtualQueueImpl::StageMessage(const WorkRequest& wr, bool first) {
  const bool zero_copy = wr.opcode != Opcode::kWriteImm && channel_->IsZeroCopy(wr, pool_->limits(), pool_->regions());
  uint32_t length = 0;
  const auto failed = [&] { return state_.standing != QueueStanding::kReady || !channel_->Accepts(); };
  const bool has_data = wr.opcode == Opcode::kWriteImm && wr.num_sge != 0;
  pool_->MakeRoom(*physical_, InlineBytes(wr) + (has_data ? 0 : sizeof(Header)));
  if (failed() && first) return state_.standing != QueueStanding::kReady ? StandingError() : StatusCode::kUnavailable;
  if (has_data && !failed()) {
    for (uint32_t i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
    physical_->Prepare();
    physical_->FillOwn(DataOf(wr), &state_, *state_.peer, OwnWr::kData, Opcode::kWriteImm, false, 0);
    physical_->Commit(1, *state_.peer);
    pool_->MakeRoom(*physical_, 0);
  }
  state_.Accept(1, wr.flags & kSignaled);
  if (failed())
    channel_->StageFailed(*physical_, wr, zero_copy, WcStatus::kFlushed);
  else
    channel_->StageMessage(*physical_, wr, zero_copy, length, pool_->regions());
  return StatusCode::kOk;
}

std::unique_ptr<queue::OneSidedQueue> Ports::MakeQueue(queue::QueuePoolImpl& pool, uint32_t depth) {
  return std::make_unique<VirtualQueueImpl>(pool, depth, *this);
}

}  // namespace krcore::messages
