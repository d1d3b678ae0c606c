#include "krcore/baselines/exchange.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace krcore::baselines {
namespace {

constexpr uint32_t kQkey = 0x6B726331;
constexpr size_t kGrhBytes = 40;  // precedes the payload of a UD receive
constexpr size_t kBufferBytes = kGrhBytes + kMaxDatagramBytes;
constexpr uint32_t kSendDepth = 64;
constexpr uint64_t kSendId = ~uint64_t{0};  // wr_id; the wr_id of a receive is its buffer

}  // namespace

Result<std::unique_ptr<Datagrams>> Datagrams::Create(rnic::Device& device, rnic::Pd& pd, uint32_t receives) {
  std::unique_ptr<Datagrams> datagrams(new Datagrams((receives + kSendDepth) * kBufferBytes));
  datagrams->receives_ = receives;
  auto mr = pd.RegisterMemory(datagrams->buffers_.data(), datagrams->buffers_.size(), kLocalWrite);
  if (!mr.ok()) return mr.status();
  datagrams->mr_ = *std::move(mr);
  auto cq = device.CreateCq(receives + kSendDepth);
  if (!cq.ok()) return cq.status();
  datagrams->cq_ = *std::move(cq);
  auto qp = pd.CreateQp({.type = rnic::QpType::kUd,
                         .send_cq = datagrams->cq_.get(),
                         .recv_cq = datagrams->cq_.get(),
                         .sq_depth = kSendDepth,
                         .rq_depth = receives,
                         .max_recv_bytes = kBufferBytes});
  if (!qp.ok()) return qp.status();
  datagrams->qp_ = *std::move(qp);
  KRCORE_RETURN_IF_ERROR(datagrams->qp_->ToInit(0, kQkey));
  for (uint32_t i = 0; i < receives; ++i) KRCORE_RETURN_IF_ERROR(datagrams->PostReceive(i));
  KRCORE_RETURN_IF_ERROR(datagrams->qp_->ToRtr({}));
  KRCORE_RETURN_IF_ERROR(datagrams->qp_->ToRts());
  return datagrams;
}

Status Datagrams::PostReceive(uint64_t index) {
  const Sge sge{reinterpret_cast<uint64_t>(&buffers_[index * kBufferBytes]), kBufferBytes, mr_->lkey()};
  const rnic::RecvWr wr{index, &sge, 1};
  return qp_->PostRecv({&wr, 1}, nullptr);
}

void Datagrams::Send(const rnic::AddressHandle& to, uint32_t qpn, std::span<const std::byte> message) {
  if (sent_ - sent_done_ == kSendDepth) return;  // full: lost, and whoever needs it sends again
  // Not inline: an answer is longer than what every NIC takes so.
  std::byte* const copy = &buffers_[(receives_ + sent_ % kSendDepth) * kBufferBytes];
  assert(message.size() <= kBufferBytes);
  std::memcpy(copy, message.data(), message.size());
  const Sge sge{reinterpret_cast<uint64_t>(copy), static_cast<uint32_t>(message.size()), mr_->lkey()};
  rnic::SendWr wr;
  wr.wr_id = kSendId;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = Opcode::kSend;
  wr.flags = kSignaled;
  wr.ah = &to;
  wr.remote_qpn = qpn;
  wr.qkey = kQkey;
  if (qp_->PostSend({&wr, 1}, nullptr).ok()) ++sent_;
}

size_t Datagrams::Receive(std::span<std::byte> out) {
  Completion completion;
  while (cq_->Poll({&completion, 1}) == 1) {
    if (completion.wr_id == kSendId) {
      ++sent_done_;
      continue;
    }
    size_t length = 0;
    if (completion.status == WcStatus::kSuccess && completion.byte_len >= kGrhBytes) {
      length = std::min(completion.byte_len - kGrhBytes, out.size());
      std::memcpy(out.data(), &buffers_[completion.wr_id * kBufferBytes + kGrhBytes], length);
    }
    (void)PostReceive(completion.wr_id);  // fails only where the device is gone
    if (length != 0) return length;
  }
  return 0;
}

// ---- exchange

namespace {

constexpr int64_t kResendNs = 20'000'000;   // a busy host's scheduler is no lost datagram
constexpr int64_t kGoodbyeNs = 10'000'000;  // for a peer that does not answer any more

}  // namespace

std::string AcceptorRecord(NodeId node) { return "rc-" + std::to_string(node); }

Result<std::unique_ptr<Exchange>> Exchange::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock) {
  std::unique_ptr<Exchange> exchange(new Exchange(device, clock));
  auto datagrams = Datagrams::Create(device, pd, /*receives=*/8);
  if (!datagrams.ok()) return datagrams.status();
  exchange->datagrams_ = *std::move(datagrams);
  return exchange;
}

Result<Exchange::Target> Exchange::Find(NodeId peer, Deadline deadline) {
  auto record = device_.LookupRecord(AcceptorRecord(peer), deadline);
  if (!record.ok()) {
    if (record.status() == StatusCode::kNotFound)
      return Status(StatusCode::kNotFound,
                    "node " + std::to_string(peer) + " is dead, or does not accept RC connections");
    return record.status();
  }
  Target target;
  if (record->size() == sizeof(Announcement))
    std::memcpy(&target.announced, record->data(), sizeof(Announcement));
  else
    target.announced.magic = 0;
  if (target.announced.magic != kExchangeMagic)
    return Status(StatusCode::kCorrupt, "the acceptor's record of node " + std::to_string(peer) + " is malformed");
  if (target.announced.qpn == 0)
    return Status(StatusCode::kNotFound, "node " + std::to_string(peer) + " accepts RC connections no more");
  auto ah = device_.CreateAddressHandle(target.announced.address);
  if (!ah.ok()) return Status(StatusCode::kUnavailable, "address handle: " + ah.status().ToString());
  target.ah = *std::move(ah);
  return target;
}

void Exchange::TakeReplies() {
  Reply reply;
  for (size_t length; (length = datagrams_->Receive(std::as_writable_bytes(std::span(&reply, 1)))) != 0;) {
    if (length != sizeof(Reply) || reply.magic != kExchangeMagic) continue;
    const auto asked = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting* waiting) {
      return waiting->id == reply.id && waiting->kind == reply.kind;
    });
    if (asked != waiting_.end()) (*asked)->reply = reply;
  }
}

Result<Reply> Exchange::Call(const Target& target, Request request, Deadline deadline) {
  const rnic::DeviceAddress& peer = target.announced.address;
  request.from = device_.address();
  Waiting waiting{request.kind, request.id, {}};
  std::unique_lock lock(mutex_);
  request.reply_qpn = datagrams_->qpn();
  waiting_.push_back(&waiting);
  lock.unlock();
  Status status;
  int64_t send_again_ns = INT64_MIN;
  for (uint32_t spins = 0; status.ok(); ++spins) {
    const int64_t now_ns = clock_.NowNs();
    const bool send = now_ns >= send_again_ns;
    if (send && device_.QueryPeer(peer, deadline) == rnic::PeerState::kDead) {
      status = {StatusCode::kUnavailable, "node " + std::to_string(peer.node) + " died"};
      break;
    }
    lock.lock();
    if (send) datagrams_->Send(*target.ah, target.announced.qpn, std::as_bytes(std::span(&request, 1)));
    TakeReplies();
    const bool answered = waiting.reply.has_value();
    lock.unlock();
    if (answered) break;
    if (send) send_again_ns = now_ns + kResendNs;
    if (deadline.Passed(clock_)) {
      status = {StatusCode::kTimeout, "node " + std::to_string(peer.node) + " does not answer connection requests"};
    } else {
      clock_.Relax(spins);
    }
  }
  lock.lock();
  std::erase(waiting_, &waiting);
  if (waiting.reply) return *waiting.reply;  // perhaps at the last moment
  return status;
}

Result<Exchange::Agreed> Exchange::Connect(NodeId peer, uint32_t qpn, Deadline deadline) {
  auto target = Find(peer, deadline);
  if (!target.ok()) return target.status();
  Request request;
  request.id = last_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  request.qpn = qpn;
  auto reply = Call(*target, request, deadline);
  if (!reply.ok()) return reply.status();
  if (reply->code != 0)
    return Status(static_cast<StatusCode>(reply->code), "node " + std::to_string(peer) + " refused to connect");
  if (reply->region_count > kMaxRegionsPerNode)
    return Status(StatusCode::kCorrupt, "malformed answer of node " + std::to_string(peer));
  return Agreed{request.id, target->announced.address, *reply};
}

void Exchange::Disconnect(const Agreed& agreed) {
  const Deadline deadline = Deadline::After(clock_, kGoodbyeNs);
  auto target = Find(agreed.peer.node, deadline);
  if (!target.ok() || target->announced.address.incarnation != agreed.peer.incarnation) return;
  Request request;
  request.kind = RequestKind::kDisconnect;
  request.id = agreed.id;
  (void)Call(*target, request, deadline);
}

}  // namespace krcore::baselines
