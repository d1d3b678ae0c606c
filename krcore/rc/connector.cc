#include "krcore/rc/connector.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "krcore/dct/initiator.h"

namespace krcore::rc {

Result<std::unique_ptr<Connector>> Connector::Create(rnic::Device& device, rnic::Pd& pd, uint32_t lanes) {
  std::unique_ptr<Connector> connector(new Connector(device, lanes));
  auto mr = pd.RegisterMemory(connector->buffer_.data(), lanes * sizeof(Lane), kLocalWrite);
  if (!mr.ok()) return mr.status();
  auto cq = device.CreateCq(lanes);
  if (!cq.ok()) return cq.status();
  auto qp = dct::CreateInitiator(pd, **cq, lanes);
  if (!qp.ok()) return qp.status();
  connector->mr_ = *std::move(mr);
  connector->cq_ = *std::move(cq);
  connector->qp_ = *std::move(qp);
  return connector;
}

void Connector::CompareSwap(uint32_t lane, const dct::Peer& peer, size_t offset, uint64_t expected, uint64_t desired) {
  rnic::SendWr wr;
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = expected;
  wr.swap = desired;
  Post(lane, peer, offset, sizeof(uint64_t), wr);
}

void Connector::Write(uint32_t lane, const dct::Peer& peer, size_t offset, std::span<const std::byte> data) {
  assert(data.size() <= kLaneBytes);
  std::memcpy(buffer_[lane].bytes, data.data(), data.size());
  rnic::SendWr wr;
  wr.opcode = Opcode::kWrite;
  Post(lane, peer, offset, data.size(), wr);
}

void Connector::Read(uint32_t lane, const dct::Peer& peer, size_t offset) {
  rnic::SendWr wr;
  wr.opcode = Opcode::kRead;
  Post(lane, peer, offset, sizeof(uint64_t), wr);
}

void Connector::Post(uint32_t lane, const dct::Peer& peer, size_t offset, size_t length, rnic::SendWr wr) {
  assert(outcomes_[lane] != Outcome::kUnderWay);
  if (resetting_) {  // it fails with the others, when that has ended
    outcomes_[lane] = Outcome::kUnderWay;
    return;
  }
  const Sge sge{reinterpret_cast<uint64_t>(buffer_[lane].bytes), static_cast<uint32_t>(length), mr_->lkey()};
  wr.wr_id = uint64_t{generation_} << 32 | lane;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.flags = kSignaled;
  wr.remote_addr = peer.desk.addr + offset;
  wr.rkey = peer.desk.rkey;
  wr.ah = peer.ah.get();
  wr.remote_qpn = peer.target.dct_num;
  wr.dc_key = peer.target.dc_key;
  size_t bad_index = 0;
  outcomes_[lane] = qp_->PostSend({&wr, 1}, &bad_index).ok() ? Outcome::kUnderWay : Outcome::kFailed;
}

uint64_t Connector::word(uint32_t lane) const {
  uint64_t word;
  std::memcpy(&word, buffer_[lane].bytes, sizeof(word));
  return word;
}

void Connector::Poll() {
  if (resetting_) return FailAll();
  Completion completion;
  while (cq_->Poll({&completion, 1}) == 1) {
    if (completion.wr_id >> 32 != generation_) continue;
    if (completion.status != WcStatus::kSuccess) return FailAll();
    outcomes_[static_cast<uint32_t>(completion.wr_id)] = Outcome::kDone;
  }
}

// The reset ends whatever was posted: a verb that failed does not happen later (rnic.h).
void Connector::FailAll() {
  resetting_ = !qp_->BeginReset();
  if (resetting_) return;
  (void)dct::ResetToRts(*qp_);
  ++generation_;
  for (Outcome& outcome : outcomes_) {
    if (outcome == Outcome::kUnderWay) outcome = Outcome::kFailed;
  }
}

}  // namespace krcore::rc
