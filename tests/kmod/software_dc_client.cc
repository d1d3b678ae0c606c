#include "tests/kmod/software_dc_client.h"

#include <unistd.h>

#include <chrono>

#include "krcore/rnic.h"
#include "tests/support/free_port.h"

namespace kmod_test {
namespace {

using krcore::rnic::RecvWr;
using krcore::rnic::SendWr;

constexpr size_t kBytes = 64 * kPage;
constexpr uint32_t kDepth = 64;
// A stranger's memory: the first half holds sends, the second half receives, one place each.
constexpr uint64_t kPlaces = 32;
constexpr uint32_t kPlaceBytes = kPage, kGrh = 40;

std::chrono::steady_clock::time_point In(int ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

void ToRts(krcore::rnic::Qp& qp, uint32_t qkey) {
  EXPECT_TRUE(qp.ToInit(0, qkey).ok());
  EXPECT_TRUE(qp.ToRtr({}).ok());
  EXPECT_TRUE(qp.ToRts().ok());
}

}  // namespace

Verbs::Verbs() : memory(kBytes) {
  static int made = 0;
  device = krcore::rnic::OpenDevice({.provider = "verbs",
                                     .fabric = "kmod-" + std::to_string(getpid()) + "-" + std::to_string(made++),
                                     .create_fabric = true,
                                     .address = "127.0.0.1:" + std::to_string(testing_support::FreePort())})
               .value();
  pd = device->CreatePd().value();
  mr = pd->RegisterMemory(memory.bytes(), kBytes, krcore::kLocalWrite).value();
}

std::unique_ptr<krcore::rnic::AddressHandle> Verbs::HandleOf(const krc_dc_target& target) {
  krcore::rnic::DeviceAddress address = device->address();
  std::memcpy(address.bytes, target.gid, sizeof(target.gid));  // everything else is the same
  return device->CreateAddressHandle(address).value();
}

Initiator::Initiator(Verbs* verbs, const krc_dc_target& to)
    : target(to),
      verbs_(verbs),
      cq_(verbs->device->CreateCq(2 * kDepth).value()),
      qp_(verbs->pd
              ->CreateQp(
                  {.type = krcore::rnic::QpType::kDci, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = kDepth})
              .value()),
      handle_(verbs->HandleOf(to)),
      sges_(kDepth) {
  ToRts(*qp_, 0);
}

SendWr Initiator::Wr(krcore::Opcode opcode, size_t local, uint32_t rkey, const void* remote, uint32_t length) {
  krcore::Sge& sge = sges_[next_++ % sges_.size()];
  sge = {reinterpret_cast<uint64_t>(verbs_->memory.bytes()) + local, length, verbs_->mr->lkey()};
  SendWr wr{};
  wr.opcode = opcode;
  wr.flags = krcore::kSignaled;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.rkey = rkey;
  wr.remote_addr = reinterpret_cast<uint64_t>(remote);
  wr.ah = handle_.get();
  wr.remote_qpn = target.number;
  wr.dc_key = target.key;
  return wr;
}

krcore::WcStatus Initiator::Await() {
  krcore::Completion done;
  for (const auto end = In(kPatienceMs); std::chrono::steady_clock::now() < end;)
    if (cq_->Poll({&done, 1}) == 1) return done.status;
  ADD_FAILURE() << "no completion came";
  return krcore::WcStatus::kGeneralError;
}

krcore::WcStatus Initiator::Run(const SendWr& wr) {
  EXPECT_TRUE(Post(wr).ok());
  return Await();
}

void Initiator::Restart() {
  EXPECT_TRUE(qp_->ToReset().ok());
  krcore::Completion left;
  while (cq_->Poll({&left, 1}) == 1) {
  }
  ToRts(*qp_, 0);
}

Stranger::Stranger(Verbs* verbs, const krc_dc_target& target)
    : verbs_(verbs),
      target_(target),
      send_cq_(verbs->device->CreateCq(kPlaces).value()),
      recv_cq_(verbs->device->CreateCq(kPlaces).value()),
      qp_(verbs->pd
              ->CreateQp({.type = krcore::rnic::QpType::kUd,
                          .send_cq = send_cq_.get(),
                          .recv_cq = recv_cq_.get(),
                          .sq_depth = kPlaces,
                          .rq_depth = kPlaces,
                          .max_recv_bytes = kPlaceBytes})
              .value()),
      handle_(verbs->HandleOf(target)) {
  ToRts(*qp_, SDC_QKEY);
  for (uint64_t i = 0; i < kPlaces; ++i) PostReceive(i);
}

void Stranger::PostReceive(uint64_t which) {
  const krcore::Sge sge = {reinterpret_cast<uint64_t>(verbs_->memory.bytes()) + (kPlaces + which) * kPlaceBytes,
                           kPlaceBytes, verbs_->mr->lkey()};
  RecvWr receive{};
  receive.wr_id = which;
  receive.sg_list = &sge;
  receive.num_sge = 1;
  EXPECT_TRUE(qp_->PostRecv({&receive, 1}, nullptr).ok());
}

void Stranger::Send(std::span<const uint8_t> bytes) {
  krcore::Completion done;
  for (const auto end = In(kPatienceMs); sent_ - done_ == kPlaces && std::chrono::steady_clock::now() < end;)
    if (send_cq_->Poll({&done, 1}) == 1) ++done_;
  ASSERT_LT(sent_ - done_, kPlaces);
  const size_t at = sent_++ % kPlaces * kPlaceBytes;
  std::memcpy(verbs_->memory.bytes() + at, bytes.data(), bytes.size());
  const krcore::Sge sge = {reinterpret_cast<uint64_t>(verbs_->memory.bytes()) + at, static_cast<uint32_t>(bytes.size()),
                           verbs_->mr->lkey()};
  SendWr wr{};
  wr.opcode = krcore::Opcode::kSend;
  wr.flags = krcore::kSignaled;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.ah = handle_.get();
  wr.remote_qpn = target_.number;
  wr.qkey = SDC_QKEY;
  EXPECT_TRUE(qp_->PostSend({&wr, 1}, nullptr).ok());
}

void Stranger::Send(const sdc_packet& packet) {
  std::vector<uint8_t> bytes(kPlaceBytes);
  const uint32_t head = sdc_build(bytes.data(), &packet);
  const uint32_t data = sdc_has_data(packet.kind) ? packet.bytes : 0;
  if (data != 0) std::memcpy(bytes.data() + head, packet.data, data);
  Send(std::span<const uint8_t>(bytes.data(), head + data));
}

bool Stranger::Receive(sdc_packet* packet, int timeout_ms) {
  krcore::Completion done;
  for (const auto end = In(timeout_ms); std::chrono::steady_clock::now() < end;) {
    if (recv_cq_->Poll({&done, 1}) == 0) continue;
    // The packet is parsed before its place is posted again, except for its data, which no test wants.
    const uint8_t* const place = verbs_->memory.bytes() + (kPlaces + done.wr_id) * kPlaceBytes;
    const bool parsed = done.byte_len >= kGrh && sdc_parse(place + kGrh, done.byte_len - kGrh, packet);
    PostReceive(done.wr_id);
    if (parsed) return true;
  }
  return false;
}

}  // namespace kmod_test
