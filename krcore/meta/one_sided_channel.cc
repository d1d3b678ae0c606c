#include "krcore/meta/one_sided_channel.h"

#include <cassert>
#include <cstring>
#include <string>

#include "krcore/dct/initiator.h"

namespace krcore::meta {

Result<std::unique_ptr<OneSidedChannel>> OneSidedChannel::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                                 size_t max_bytes, rnic::QpType type) {
  std::unique_ptr<OneSidedChannel> channel(new OneSidedChannel(clock, max_bytes));
  auto mr = pd.RegisterMemory(channel->buffer_.data(), max_bytes, kLocalWrite);
  if (!mr.ok()) return mr.status();
  auto cq = device.CreateCq(16);
  if (!cq.ok()) return cq.status();
  auto qp = pd.CreateQp({.type = type, .send_cq = cq->get(), .recv_cq = cq->get(), .sq_depth = 8});
  if (!qp.ok()) return qp.status();
  channel->mr_ = *std::move(mr);
  channel->cq_ = *std::move(cq);
  channel->qp_ = *std::move(qp);
  return channel;
}

Result<std::unique_ptr<OneSidedChannel>> OneSidedChannel::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                                 size_t max_bytes) {
  auto channel = Create(device, pd, clock, max_bytes, rnic::QpType::kDci);
  if (channel.ok()) KRCORE_RETURN_IF_ERROR(dct::ResetToRts(*(*channel)->qp_));
  return channel;
}

Result<std::unique_ptr<OneSidedChannel>> OneSidedChannel::CreateRc(rnic::Device& device, rnic::Pd& pd, Clock& clock) {
  auto channel = Create(device, pd, clock, kMaxBytes, rnic::QpType::kRc);
  if (channel.ok()) KRCORE_RETURN_IF_ERROR((*channel)->qp_->ToInit(0, 0));
  return channel;
}

Status OneSidedChannel::ConnectRc(const rnic::DeviceAddress& peer, uint32_t peer_qpn) {
  KRCORE_RETURN_IF_ERROR(qp_->ToRtr({.device = peer, .qpn = peer_qpn}));
  return qp_->ToRts();
}

Status OneSidedChannel::EndWhatIsPosted(Deadline deadline) {
  resetting_ = true;
  for (uint32_t spins = 0; !qp_->BeginReset(); ++spins) {
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "the queue was still being reset, after a verb that was not answered"};
    clock_.Relax(spins);
  }
  resetting_ = false;
  return qp_->type() == rnic::QpType::kRc ? qp_->ToReset() : dct::ResetToRts(*qp_);
}

Status OneSidedChannel::Read(const RemoteMemory& remote, std::span<std::byte> out, Deadline deadline) {
  assert(out.size() <= buffer_.size());
  rnic::SendWr wr;
  wr.opcode = Opcode::kRead;
  KRCORE_RETURN_IF_ERROR(Execute(wr, remote, out.size(), deadline));
  std::memcpy(out.data(), buffer_.data(), out.size());
  return {};
}

Status OneSidedChannel::Write(const RemoteMemory& remote, std::span<const std::byte> data, Deadline deadline) {
  assert(data.size() <= buffer_.size());
  if (resetting_) KRCORE_RETURN_IF_ERROR(EndWhatIsPosted(deadline));  // before the buffer is filled
  std::memcpy(buffer_.data(), data.data(), data.size());
  rnic::SendWr wr;
  wr.opcode = Opcode::kWrite;
  return Execute(wr, remote, data.size(), deadline);
}

Status OneSidedChannel::CompareSwap(const RemoteMemory& remote, uint64_t expected, uint64_t desired, uint64_t* old,
                                    Deadline deadline) {
  rnic::SendWr wr;
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = expected;
  wr.swap = desired;
  KRCORE_RETURN_IF_ERROR(Execute(wr, remote, sizeof(uint64_t), deadline));
  std::memcpy(old, buffer_.data(), sizeof(uint64_t));
  return {};
}

Status OneSidedChannel::Execute(rnic::SendWr wr, const RemoteMemory& remote, size_t length, Deadline deadline) {
  const Sge sge{reinterpret_cast<uint64_t>(buffer_.data()), static_cast<uint32_t>(length), mr_->lkey()};
  wr.wr_id = ++last_wr_id_;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.flags = kSignaled;
  wr.remote_addr = remote.addr;
  wr.rkey = remote.rkey;
  wr.ah = remote.ah;
  wr.remote_qpn = remote.target->dct_num;
  wr.dc_key = remote.target->dc_key;
  if (resetting_) KRCORE_RETURN_IF_ERROR(EndWhatIsPosted(deadline));
  size_t bad_index = 0;
  KRCORE_RETURN_IF_ERROR(qp_->PostSend({&wr, 1}, &bad_index));

  Completion completion;
  for (uint32_t spins = 0;; ++spins) {
    if (cq_->Poll({&completion, 1}) == 1) {
      if (completion.wr_id == wr.wr_id) break;
      continue;  // of a request that an earlier deadline gave up
    }
    if (deadline.Passed(clock_)) {
      (void)EndWhatIsPosted({INT64_MIN});
      return {StatusCode::kTimeout, "node " + std::to_string(remote.target->address.node) + " did not answer a " +
                                        std::string(OpcodeName(wr.opcode)) + " in time"};
    }
    clock_.Relax(spins);
  }
  if (completion.status == WcStatus::kSuccess) return {};
  (void)EndWhatIsPosted({INT64_MIN});
  return {StatusCode::kUnavailable, std::string(OpcodeName(wr.opcode)) + " at node " +
                                        std::to_string(remote.target->address.node) + ": " +
                                        std::string(WcStatusName(completion.status))};
}

}  // namespace krcore::meta
