#include "krcore/peers/rc_desk.h"

#include <atomic>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::peers {

uint64_t ChecksumOf(const DeskRequest& request) {
  // Seeded, so that it never equals the checksum of a place that nobody has written yet.
  return XXH3_64bits_withSeed(reinterpret_cast<const std::byte*>(&request) + sizeof(request.checksum),
                              sizeof(request) - sizeof(request.checksum), 1);
}

namespace {

constexpr int64_t kDeadLookIntervalNs = 1'000'000'000;  // a system call for each connection
// How long a place may be claimed without a request before its owner counts as dead. The request of an owner that was
// only slow comes late: it names an owner that has lost the place, and that owner stays on DC.
constexpr int64_t kClaimNs = 10'000'000'000;
constexpr uint32_t kAllRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;

// Acquire: what a peer wrote before the word is seen after it, where its NIC keeps that order.
uint64_t Load(uint64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
// Release: a peer that READs the word finds everything before it done.
void Store(uint64_t& word, uint64_t value) { std::atomic_ref(word).store(value, std::memory_order_release); }

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                   std::span<DeskPlace> desk) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(device, pd, clock, desk));
  auto cq = device.CreateCq(1);  // nothing is ever posted
  if (!cq.ok()) return cq.status();
  acceptor->cq_ = *std::move(cq);
  return acceptor;
}

size_t Acceptor::Poll() {
  const int64_t now_ns = clock_.NowNs();
  const bool look_for_dead = now_ns - last_look_ns_ >= kDeadLookIntervalNs;
  if (look_for_dead) last_look_ns_ = now_ns;
  size_t changed = 0;
  const Deadline asked_by{now_ns + rnic::kPollingAskNs};  // for all of them together
  for (size_t index = 0; index < desk_.size(); ++index)
    changed += PollPlace(index, now_ns, look_for_dead, asked_by) ? 1 : 0;
  return changed;
}

bool Acceptor::PollPlace(size_t index, int64_t now_ns, bool look_for_dead, Deadline asked_by) {
  DeskPlace& place = desk_[index];
  const uint64_t owner = Load(place.owner);
  if (owner == 0) return false;
  Connection& connection = connections_[index];
  if (connection.owner != owner) {
    connection.owner = owner;
    connection.claimed_ns = now_ns;
  }
  if (Load(place.closing) == owner) {
    Free(index);
    return true;
  }
  if (connection.answered) {
    if (!look_for_dead || device_.QueryPeer(connection.peer, asked_by) != rnic::PeerState::kDead) return false;
    Free(index);
    return true;
  }
  DeskRequest request;
  if (!ReadRequest(index, &request)) {
    if (now_ns - connection.claimed_ns < kClaimNs) return false;
    Free(index);
    return true;
  }
  connection.answered = true;
  connection.peer = request.address;
  const bool connected = Connect(request, connection).ok();
  Store(place.answer, Answer(owner, connected ? connection.qp->num() : 0));
  return true;
}

bool Acceptor::ReadRequest(size_t index, DeskRequest* request) const {
  uint64_t words[sizeof(DeskRequest) / 8];
  auto* const from = reinterpret_cast<uint64_t*>(&desk_[index].request);
  // Relaxed: the checksum tells whether the words belong together.
  for (size_t i = 0; i < std::size(words); ++i) words[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
  std::memcpy(static_cast<void*>(request), words, sizeof(words));
  return request->owner == connections_[index].owner && request->checksum == ChecksumOf(*request);
}

Status Acceptor::Connect(const DeskRequest& request, Connection& connection) {
  auto qp = pd_.CreateQp({.type = rnic::QpType::kRc, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = 1});
  if (!qp.ok()) return qp.status();
  KRCORE_RETURN_IF_ERROR((*qp)->ToInit(kAllRights, 0));
  KRCORE_RETURN_IF_ERROR((*qp)->ToRtr({.device = request.address, .qpn = request.qpn}));
  connection.qp = *std::move(qp);
  return {};
}

void Acceptor::Free(size_t index) {
  connections_[index] = {};
  DeskPlace& place = desk_[index];
  Store(place.answer, 0);
  Store(place.closing, 0);
  Store(place.request.checksum, 0);
  Store(place.owner, 0);  // last: from now on the place may be another owner's
}

}  // namespace krcore::peers
