#include "krcore/rnic/verbs/ud_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/nic.h"

namespace krcore::rnic::verbs {
namespace {

constexpr size_t kLineBytes = 64;

// The receive's place, and the life of the queue in which it was posted.
uint64_t ReceiveId(uint32_t life, uint32_t place) {
  return UdPort::kReceive | uint64_t{life & 0x7fff'ffff} << 32 | place;
}

}  // namespace

Result<std::unique_ptr<UdPort>> UdPort::Open(Context* context, ibv_pd* pd, ibv_cq* recv_cq, const Sizes& sizes) {
  std::unique_ptr<UdPort> port(new UdPort(context, sizes));
  port->stride_ = (kGrhBytes + sizes.mtu_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  auto buffers =
      RegisteredPages::Allocate(pd, port->stride_ * (sizes.sends + size_t{sizes.receives}), "buffers for datagrams");
  if (!buffers.ok()) return buffers.status();
  port->buffers_ = *std::move(buffers);
  port->send_cq_ = ibv.create_cq(context->get(), static_cast<int>(sizes.sends), nullptr, nullptr, 0);
  if (port->send_cq_ == nullptr) return FailedCall(errno, "create a CQ for datagrams");
  ibv_qp_init_attr init{};
  init.qp_context = nullptr;
  init.send_cq = port->send_cq_;
  init.recv_cq = recv_cq;
  init.cap = {sizes.sends, sizes.receives, 1, 1, 0};
  init.qp_type = IBV_QPT_UD;
  port->qp_ = ibv.create_qp(pd, &init);
  if (port->qp_ == nullptr) return FailedCall(errno, "create a UD QP");
  KRCORE_RETURN_IF_ERROR(port->ToRts());
  for (uint32_t place = 0; place < sizes.receives; ++place) port->to_receive_.push_back(place);
  port->PostReceives();
  if (port->broken_) return Status(StatusCode::kUnavailable, "a UD QP of the device takes no receives");
  return port;
}

UdPort::~UdPort() {
  if (qp_ != nullptr) ibv.destroy_qp(qp_);
  if (send_cq_ != nullptr) ibv.destroy_cq(send_cq_);
}

Status UdPort::ToRts() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = context_->port().number;
  attr.qkey = kSdcQkey;
  int error = ibv.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  attr.qp_state = IBV_QPS_RTR;
  if (error == 0) error = ibv.modify_qp(qp_, &attr, IBV_QP_STATE);
  attr.qp_state = IBV_QPS_RTS;
  if (error == 0) error = ibv.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return error == 0 ? Status{} : FailedCall(error, "start a UD QP");
}

uint8_t* UdPort::Buffer() {
  if (broken_) return nullptr;  // until Flush: receives that are in use must stay
  if (sent_ - done_ == sizes_.sends) {
    PostSends();
    Reap();
    if (sent_ - done_ == sizes_.sends) return nullptr;
  }
  return SendBuffer(sent_);
}

void UdPort::Send(ibv_ah* ah, uint32_t qpn, uint32_t bytes) {
  if (faults_ != nullptr) [[unlikely]] {
    SendFaultily(ah, qpn, bytes);
  } else {
    Enqueue(ah, qpn, bytes);
  }
}

bool UdPort::Happens(uint32_t one_of) {
  if (random_ == 0) random_ = (faults_->seed + qpn()) * 0x9e37'79b9'7f4a'7c15 | 1;
  random_ ^= random_ << 13;  // xorshift
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return one_of != 0 && (random_ >> 11) % one_of == 0;
}

void UdPort::SendCopy(const Held& held) {
  uint8_t* const buffer = held.bytes.empty() ? nullptr : Buffer();
  if (buffer == nullptr) return;
  std::copy(held.bytes.begin(), held.bytes.end(), buffer);
  Enqueue(held.ah, held.qpn, static_cast<uint32_t>(held.bytes.size()));
}

void UdPort::SendFaultily(ibv_ah* ah, uint32_t qpn, uint32_t bytes) {
  if (Happens(faults_->lost)) return;
  const uint8_t* const buffer = SendBuffer(sent_);
  const bool late = held_.bytes.empty() && Happens(faults_->late);
  const bool twice = Happens(faults_->doubled);
  Held copy;
  if (late || twice) copy = {ah, qpn, {buffer, buffer + bytes}};
  if (!late) Enqueue(ah, qpn, bytes);
  if (twice) SendCopy(copy);
  if (late) {
    held_ = std::move(copy);
  } else {
    SendCopy(std::exchange(held_, {}));
  }
}

void UdPort::Enqueue(ibv_ah* ah, uint32_t qpn, uint32_t bytes) {
  ibv_send_wr post{};
  post.wr_id = sent_;
  post.num_sge = 1;
  post.opcode = IBV_WR_SEND;
  if ((sent_ + 1) % kSignalEvery == 0) post.send_flags = IBV_SEND_SIGNALED;
  post.wr.ud.ah = ah;
  post.wr.ud.remote_qpn = qpn;
  post.wr.ud.remote_qkey = kSdcQkey;
  sges_.push_back({reinterpret_cast<uint64_t>(SendBuffer(sent_)), bytes, buffers_->lkey()});
  posts_.push_back(post);
  ++sent_;
  if (posts_.size() == kBatch) PostSends();
}

void UdPort::PostSends() {
  if (posts_.empty()) return;
  for (size_t i = 0; i < posts_.size(); ++i) {
    posts_[i].sg_list = &sges_[i];
    posts_[i].next = i + 1 < posts_.size() ? &posts_[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp_, posts_.data(), &bad) != 0) broken_ = true;
  posts_.clear();
  sges_.clear();
  if (sent_ - done_ > sizes_.sends / 2) Reap();
}

void UdPort::Reap() {
  ibv_wc wcs[kBatch];
  for (int got = 1; got > 0;) {
    got = ibv_poll_cq(send_cq_, static_cast<int>(kBatch), wcs);
    for (int i = 0; i < got; ++i) {
      done_ = std::max(done_, wcs[i].wr_id + 1);
      if (wcs[i].status != IBV_WC_SUCCESS) broken_ = true;
    }
  }
}

UdPort::Datagram UdPort::Received(const ibv_wc& wc) {
  const auto place = static_cast<uint32_t>(wc.wr_id);
  if ((wc.wr_id ^ ReceiveId(life_, place)) != 0 || place >= sizes_.receives) return {};  // of an earlier life
  to_receive_.push_back(place);
  if (wc.status != IBV_WC_SUCCESS) {
    broken_ = true;
    return {};
  }
  if (wc.byte_len < kGrhBytes || (wc.wc_flags & IBV_WC_GRH) == 0) return {};
  const uint8_t* const buffer = ReceiveBuffer(place);
  return {buffer, buffer + kGrhBytes, wc.byte_len - kGrhBytes};
}

void UdPort::PostReceives() {
  ibv_recv_wr posts[kBatch];
  ibv_sge sges[kBatch];
  for (size_t at = 0; at < to_receive_.size() && !broken_;) {
    const size_t count = std::min(kBatch, to_receive_.size() - at);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t place = to_receive_[at + i];
      sges[i] = {reinterpret_cast<uint64_t>(ReceiveBuffer(place)), kGrhBytes + sizes_.mtu_bytes, buffers_->lkey()};
      posts[i] = {ReceiveId(life_, place), i + 1 < count ? &posts[i + 1] : nullptr, &sges[i], 1};
    }
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp_, posts, &bad) != 0) broken_ = true;
    at += count;
  }
  to_receive_.clear();
}

void UdPort::Flush() {
  PostSends();
  if (!to_receive_.empty()) PostReceives();
  if (broken_) Recover();
}

// What was in flight is lost, as the network may lose it. If the NIC does not take the queue back, this is tried again.
void UdPort::Recover() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  if (ibv.modify_qp(qp_, &attr, IBV_QP_STATE) != 0) return;
  ibv_wc wc{};
  while (ibv_poll_cq(send_cq_, 1, &wc) > 0) {
  }
  posts_.clear();
  sges_.clear();
  done_ = sent_;
  ++life_;
  broken_ = !ToRts().ok();
  if (broken_) return;
  to_receive_.clear();
  for (uint32_t place = 0; place < sizes_.receives; ++place) to_receive_.push_back(place);
  PostReceives();
}

// ---- reply handles

namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
// The network is asked for some seconds: a thread that waits for that repeatedly has no time for others.
constexpr int64_t kAgainNs = 1'000'000'000;
constexpr size_t kIpv4At = 20, kIpv4SourceAt = kIpv4At + 12, kSourceGidAt = 8;

}  // namespace

std::optional<ibv_gid> SenderGid(const ibv_gid& own, std::span<const uint8_t, kGrhBytes> header) {
  ibv_gid gid{};
  if (std::equal(std::begin(kMappedPrefix), std::end(kMappedPrefix), own.raw)) {
    if (header[kIpv4At] >> 4 != 4) return {};
    std::memcpy(gid.raw, kMappedPrefix, sizeof(kMappedPrefix));
    std::memcpy(gid.raw + sizeof(kMappedPrefix), &header[kIpv4SourceAt], 4);
    return gid;
  }
  if (header[0] >> 4 != 6) return {};
  std::memcpy(gid.raw, &header[kSourceGidAt], sizeof(gid.raw));
  return gid;
}

ReplyHandles::~ReplyHandles() {
  for (const Handle& handle : handles_)
    if (handle.ah != nullptr) ibv.destroy_ah(handle.ah);
  for (const Handle& handle : retired_) ibv.destroy_ah(handle.ah);
}

ReplyHandles::Key ReplyHandles::KeyOf(const sdc_address& address) {
  Key key;
  std::memcpy(key.data(), address.bytes, key.size());
  return key;
}

ReplyHandles::Handle* ReplyHandles::Known(const Key& key, const UdPort& port) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  handles_.splice(handles_.begin(), handles_, found->second);
  handles_.front().used = port.sent();
  return &handles_.front();
}

ibv_ah* ReplyHandles::Find(const sdc_address& address, const UdPort& port) {
  const Handle* const handle = Known(KeyOf(address), port);
  return handle != nullptr ? handle->ah : nullptr;
}

ibv_ah* ReplyHandles::Get(const sdc_address& address, const UdPort& port) {
  const Key key = KeyOf(address);
  if (Known(key, port) == nullptr) {
    Retire(port);
    handles_.push_front({key, nullptr, port.sent(), INT64_MIN});
    by_key_[key] = handles_.begin();
  }
  Handle& handle = handles_.front();
  if (handle.ah != nullptr || clock_->NowNs() < handle.again_ns) return handle.ah;
  PortAddress to;
  std::memcpy(&to, address.bytes, sizeof(to));
  ibv_ah_attr attr = PathTo(*context_, to);
  handle.ah = ibv.create_ah(pd_, &attr);
  if (handle.ah == nullptr) handle.again_ns = clock_->NowNs() + kAgainNs;
  return handle.ah;
}

void ReplyHandles::Retire(const UdPort& port) {
  if (handles_.size() == limit_) {
    if (handles_.back().ah != nullptr) retired_.push_back(handles_.back());
    by_key_.erase(handles_.back().key);
    handles_.pop_back();
  }
  while (!retired_.empty() && retired_.front().used < port.done()) {
    ibv.destroy_ah(retired_.front().ah);
    retired_.pop_front();
  }
}

}  // namespace krcore::rnic::verbs
