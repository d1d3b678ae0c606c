#include "krcore/meta/server_link.h"

#include <utility>

#include "krcore/meta/record.h"

namespace krcore::meta {
namespace {

using State = rc::Handshake::State;

constexpr int64_t kTryAgainNs = 10'000'000'000;  // a server that took no connection

uint64_t OwnerOf(const Server& server) { return PackOwner(server.info.address.node, server.info.address.incarnation); }

}  // namespace

bool ServerLink::Work(const ServerPtr& server, const NewOwner& new_owner, bool may_take_a_while) {
  const std::unique_lock lock(work_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread goes on with it
  const bool wanted = server != nullptr && server->info.desk_places != 0;
  if (handshake_.state() == State::kIdle) {
    if (!wanted || clock_.NowNs() < try_again_ns_) return false;
    if (may_take_a_while && !Begin(server, new_owner)) GiveUp();
    return true;
  }
  connector_->Poll();
  handshake_.Step(clock_.NowNs());
  switch (handshake_.state()) {
    case State::kIdle: return wanted;
    case State::kFailed: GiveUp(); return true;
    case State::kAnswered: break;
    default: return true;
  }
  const bool other = !wanted || server->id() != server_->id();
  const bool in_use = connected_to_.load(std::memory_order_relaxed) != 0;
  if (!other && in_use) return false;
  if (!may_take_a_while) return true;
  if (!other && made_ != nullptr) {
    Connect();
    return connected_to_.load(std::memory_order_relaxed) == 0;
  }
  // Broken, or another one's turn.
  {
    const std::lock_guard reading(mutex_);
    connected_to_.store(0, std::memory_order_relaxed);
    channel_.reset();
  }
  made_.reset();
  handshake_.Close();
  return true;
}

// The connector first, the next time the rest. False: it cannot be made.
bool ServerLink::Begin(const ServerPtr& server, const NewOwner& new_owner) {
  if (connector_ == nullptr) {
    auto connector = rc::Connector::Create(device_, pd_, 1);
    if (connector.ok()) connector_ = *std::move(connector);
    return connector_ != nullptr;
  }
  connector_->Poll();
  if (connector_->outcome(0) == rc::Connector::Outcome::kUnderWay) return true;
  auto channel = OneSidedChannel::CreateRc(device_, pd_, clock_);
  if (!channel.ok()) return false;
  made_ = *std::move(channel);
  server_ = server;
  auto peer = std::make_shared<dct::Peer>();
  peer->target = server->target;
  peer->ah = server->ah;
  peer->desk = {.addr = server->info.desk_addr,
                .length = server->info.desk_places * sizeof(rc::Place),
                .rkey = server->info.desk_rkey,
                .tag = rc::kDeskTag};
  rc::Request request;
  request.address = self_;
  request.owner = new_owner();
  request.qpn = made_->qpn();
  handshake_.Begin(*connector_, 0, std::move(peer), request, self_.node);
  return true;
}

void ServerLink::Connect() {
  if (!made_->ConnectRc(server_->target.address, handshake_.peer_qpn()).ok()) return GiveUp();
  const std::lock_guard reading(mutex_);
  channel_ = std::move(made_);
  connected_to_.store(OwnerOf(*server_), std::memory_order_relaxed);
}

void ServerLink::GiveUp() {
  made_.reset();
  handshake_.Close();
  try_again_ns_ = clock_.NowNs() + kTryAgainNs;
}

std::optional<Status> ServerLink::Read(const Server& server, size_t offset, std::span<std::byte> out,
                                       Deadline deadline) {
  if (connected_to_.load(std::memory_order_relaxed) != OwnerOf(server)) return {};
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || connected_to_.load(std::memory_order_relaxed) != OwnerOf(server)) return {};
  const Status status = channel_->Read(server.At(offset), out, deadline);
  if (status.ok()) return status;
  connected_to_.store(0, std::memory_order_relaxed);
  return {};
}

}  // namespace krcore::meta
