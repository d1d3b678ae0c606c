#include "krcore/baseline/datagrams.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace krcore::baseline {
namespace {

constexpr uint32_t kQkey = 0x6B726331;
constexpr size_t kGrhBytes = 40;  // in front of what a UD receive gets
constexpr size_t kBufferBytes = kGrhBytes + kMaxDatagramBytes;
constexpr uint32_t kSendDepth = 64;
constexpr uint64_t kSendId = ~uint64_t{0};  // wr_id; those of receives are their buffers

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

}  // namespace krcore::baseline
