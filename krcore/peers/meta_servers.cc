#include "krcore/peers/meta_servers.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "krcore/peers/meta_table.h"
#include "krcore/peers/peer.h"

namespace krcore::peers {

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
  if (channel.ok()) KRCORE_RETURN_IF_ERROR(ResetToRts(*(*channel)->qp_));
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
  return qp_->type() == rnic::QpType::kRc ? qp_->ToReset() : ResetToRts(*qp_);
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
      continue;  // for a request that an earlier deadline gave up
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

// ---- which servers there are

std::string BootstrapName(uint32_t index) { return "metaserver" + std::to_string(index); }

bool operator<(const Server& a, const Server& b) {
  const auto place = [](const Server& server) {
    return std::tuple(server.info.state == ServerState::kChoosing, server.info.serial, server.id());
  };
  return place(a) < place(b);
}

bool ServerList::AnyServing() const {
  return std::any_of(all.begin(), all.end(), [](const ServerPtr& server) { return server->serving(); });
}

bool ServerList::Contains(uint32_t server_id) const {
  return std::any_of(all.begin(), all.end(), [&](const ServerPtr& server) { return server->id() == server_id; });
}

std::vector<ServerPtr> ServerList::NearestFirst(NodeId self) const {
  std::vector<ServerPtr> serving;
  for (const ServerPtr& server : all)
    if (server->serving()) serving.push_back(server);
  if (serving.empty()) return serving;
  size_t near = self % serving.size();
  for (size_t i = 0; i < serving.size(); ++i)
    if (serving[i]->info.address.node == self) near = i;
  std::rotate(serving.begin(), serving.begin() + static_cast<ptrdiff_t>(near), serving.end());
  return serving;
}

namespace {

// How often the announcements are read again if servers come and go meanwhile.
constexpr int kMaxCollects = 64;

using Announcements = std::array<std::vector<std::byte>, kMaxServers>;

// Reads them one after the other.
Result<Announcements> Collect(rnic::Device& device, Deadline deadline) {
  Announcements all;
  for (uint32_t i = 0; i < kMaxServers; ++i) {
    auto value = device.LookupRecord(BootstrapName(i), deadline);
    if (value.ok())
      all[i] = *std::move(value);
    else if (!(value.status() == StatusCode::kNotFound))
      return value.status();
  }
  return all;
}

// Returns all of them as they stood at one moment: none returns to an earlier value, so two equal readings show that.
Result<Announcements> Snapshot(rnic::Device& device, Deadline deadline) {
  auto announced = Collect(device, deadline);
  for (int collects = 1; announced.ok(); ++collects) {
    auto again = Collect(device, deadline);
    if (!again.ok() || *announced == *again) return again;
    if (collects == kMaxCollects) return Status(StatusCode::kUnavailable, "metadata servers come and go all the time");
    announced = std::move(again);
  }
  return announced;
}

// Returns the server announced by `value`, unless it is withdrawn. *died: its process is gone.
Result<ServerPtr> ServerOf(rnic::Device& device, const std::vector<std::byte>& value, const ServerList& known,
                           Deadline deadline, bool* died) {
  Bootstrap info;
  if (value.size() != sizeof(info)) return Status(StatusCode::kCorrupt, "malformed announcement of a metadata server");
  std::memcpy(&info, value.data(), sizeof(info));
  if (info.magic != kBootstrapMagic || !info.geometry.valid())
    return Status(StatusCode::kCorrupt, "the metadata server's announcement is of another version");
  if (info.state == ServerState::kWithdrawn) return ServerPtr();
  auto server = std::make_shared<Server>();
  server->info = info;
  server->target = {info.address, info.dct_num, info.dc_key};
  for (const ServerPtr& old : known.all)
    if (old->id() == server->id()) server->ah = old->ah;
  if (server->ah == nullptr) {
    auto ah = device.CreateAddressHandle(info.address);
    if (!ah.ok()) {
      *died = device.QueryPeer(info.address, deadline) == rnic::PeerState::kDead;
      return Status(StatusCode::kUnavailable, "metadata server: " + ah.status().ToString());
    }
    server->ah = *std::move(ah);
  }
  return ServerPtr(std::move(server));
}

}  // namespace

Result<ServerList> ReadServerList(rnic::Device& device, const ServerList& known, Deadline deadline) {
  ServerList list;
  for (int attempts = 0;; ++attempts) {
    auto announced = Snapshot(device, deadline);
    if (!announced.ok()) return announced.status();
    list.all.clear();
    bool died = false;
    Status failed;
    for (const std::vector<std::byte>& value : *announced) {
      if (value.empty()) continue;
      auto server = ServerOf(device, value, known, deadline, &died);
      if (!server.ok())
        failed = server.status();
      else if (*server != nullptr)
        list.all.push_back(*std::move(server));
    }
    if (failed.ok()) break;
    // It has died since; another one may have come in its place.
    if (!died || attempts == kMaxCollects) return failed;
  }
  std::sort(list.all.begin(), list.all.end(), [](const ServerPtr& a, const ServerPtr& b) { return *a < *b; });
  return list;
}

// ---- RC connections to servers

namespace {

using State = Handshake::State;

constexpr int64_t kTryAgainNs = 10'000'000'000;  // a server that took no connection

uint64_t OwnerOf(const Server& server) { return PackOwner(server.info.address.node, server.info.address.incarnation); }

}  // namespace

bool ServerLink::Work(const ServerPtr& server, const NewOwner& new_owner, bool may_take_a_while) {
  const std::unique_lock lock(work_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread continues it
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
  // Broken, or another server is wanted.
  {
    const std::lock_guard reading(mutex_);
    connected_to_.store(0, std::memory_order_relaxed);
    channel_.reset();
  }
  made_.reset();
  handshake_.Close();
  return true;
}

// Makes the connector first, and the rest the next time. False: it cannot be made.
bool ServerLink::Begin(const ServerPtr& server, const NewOwner& new_owner) {
  if (connector_ == nullptr) {
    auto connector = Connector::Create(device_, pd_, 1);
    if (connector.ok()) connector_ = *std::move(connector);
    return connector_ != nullptr;
  }
  connector_->Poll();
  if (connector_->outcome(0) == Connector::Outcome::kUnderWay) return true;
  auto channel = OneSidedChannel::CreateRc(device_, pd_, clock_);
  if (!channel.ok()) return false;
  made_ = *std::move(channel);
  server_ = server;
  auto peer = std::make_shared<Peer>();
  peer->target = server->target;
  peer->ah = server->ah;
  peer->desk = {.addr = server->info.desk_addr,
                .length = server->info.desk_places * sizeof(DeskPlace),
                .rkey = server->info.desk_rkey,
                .tag = kDeskTag};
  DeskRequest request;
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

}  // namespace krcore::peers
