#include "krcore/rnic/verbs/service.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "krcore/base/os.h"
#include "krcore/resources.h"
#include "krcore/rnic/verbs/wire.h"

namespace krcore::rnic::verbs {
namespace {

// Ids that are handed out before the first comes again. All fit into 16 bits, as in the owner words of kvs.
constexpr NodeId kDynamicNodes = (1 << 16) - kFirstDynamicNode;

}  // namespace

Roster::Roster(uint32_t first_incarnation, uint64_t seed, int64_t resume_ns)
    : first_incarnation_(std::max(first_incarnation, 1U)),
      resume_ns_(resume_ns),
      next_incarnation_(first_incarnation_),
      seed_(seed) {}

// splitmix64: tokens tell members apart, and strangers from members; they do not protect against reading the wire.
uint64_t Roster::NextToken() {
  uint64_t mixed = seed_ += 0x9e37'79b9'7f4a'7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d0'49bb'1331'11eb;
  return mixed ^ mixed >> 31;
}

bool Roster::Taken(NodeId node) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) { return entry.second.node == node; });
}

Result<Identity> Roster::Join(NodeId wanted, int64_t now_ns) {
  Expire(now_ns);
  NodeId node = wanted;
  if (wanted != kNoNode) {
    const auto holder = std::ranges::find_if(members_, [&](const auto& entry) { return entry.second.node == wanted; });
    if (holder != members_.end()) {
      if (!holder->second.away) return Status(StatusCode::kExists, "node id " + std::to_string(wanted) + " is held");
      Expel(holder->first);
    }
  }
  if (members_.size() >= kMaxMembers && !MakeRoom())
    return Status(StatusCode::kOutOfMemory, "the fabric has " + std::to_string(kMaxMembers) + " devices, its limit");
  if (wanted == kNoNode) {
    // Not the lowest free id, so that ids of the recently dead stay unused for a while, and none of an absent member.
    do {
      node = next_node_++;
      if (next_node_ == kFirstDynamicNode + kDynamicNodes) next_node_ = kFirstDynamicNode;
    } while (Taken(node));
  }
  const uint32_t incarnation = next_incarnation_++;
  const uint64_t token = NextToken();
  members_[incarnation] = {.node = node, .token = token, .lost_ns = now_ns};
  return Identity{node, incarnation, token};
}

Status Roster::Attach(uint32_t incarnation, uint64_t token, uint32_t channel, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found == members_.end() || found->second.token != token)
    return {StatusCode::kNotFound, "the fabric has no such member any more"};
  if (channel >= kChannels) return {StatusCode::kInvalidArgument, "a member has two channels"};
  found->second.channels[channel] = Channel::kOpen;
  if (found->second.away) {
    found->second.away = false;
    found->second.lost_ns = now_ns;
  }
  return {};
}

void Roster::Lose(uint32_t incarnation, uint32_t channel, Loss loss, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found == members_.end()) return;
  found->second.channels[channel] = loss == Loss::kClosed ? Channel::kClosed : Channel::kBroken;
  found->second.lost_ns = now_ns;
}

void Roster::Leave(uint32_t incarnation) { Remove(incarnation); }

bool Roster::Alive(const Member& member) {
  return std::all_of(member.channels.begin(), member.channels.end(), [](Channel c) { return c == Channel::kOpen; });
}

// A member that never opened the other channel was told no identity that it could have used: it has nothing in flight.
bool Roster::Dead(const Member& member, int64_t now_ns) {
  const auto gone = [](Channel c) { return c == Channel::kClosed || c == Channel::kNever; };
  const bool any_closed =
      std::any_of(member.channels.begin(), member.channels.end(), [](Channel c) { return c == Channel::kClosed; });
  return any_closed && std::all_of(member.channels.begin(), member.channels.end(), gone) &&
         now_ns - member.lost_ns >= kSettledNs;
}

PeerState Roster::StateOf(uint32_t incarnation, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found != members_.end()) {
    if (Alive(found->second)) return PeerState::kAlive;
    return Dead(found->second, now_ns) ? PeerState::kDead : PeerState::kUnreachable;
  }
  if (expelled_.count(incarnation) != 0) return PeerState::kUnreachable;
  // It is from another service's time, perhaps before this one's host was restarted: its member may well live.
  const bool mine = incarnation - first_incarnation_ < next_incarnation_ - first_incarnation_;
  return mine ? PeerState::kDead : PeerState::kUnreachable;
}

Status Roster::Publish(uint32_t incarnation, const std::string& name, std::span<const std::byte> value,
                       int64_t now_ns) {
  KRCORE_RETURN_IF_ERROR(CheckRecord(name, value));
  Expire(now_ns);
  const auto member = members_.find(incarnation);
  if (member == members_.end()) return {StatusCode::kNotFound, "the fabric has no such member any more"};
  if (member->second.away) return {StatusCode::kUnavailable, "the member is not back yet"};
  const auto found = records_.find(name);
  if (found != records_.end() && found->second.owner != incarnation)
    return {StatusCode::kExists, "record '" + name + "' is another device's"};
  if (found == records_.end() && records_.size() >= kMaxRecords)
    return {StatusCode::kOutOfMemory, "the fabric has " + std::to_string(kMaxRecords) + " records, its limit"};
  records_[name] = {incarnation, {value.begin(), value.end()}};
  return {};
}

Result<std::vector<std::byte>> Roster::Lookup(const std::string& name, int64_t now_ns) {
  Expire(now_ns);
  const auto found = records_.find(name);
  if (found == records_.end()) return Status(StatusCode::kNotFound, "no record '" + name + "'");
  return found->second.value;
}

void Roster::Expire(int64_t now_ns) {
  std::vector<uint32_t> dead;
  for (auto& [incarnation, member] : members_) {
    if (Dead(member, now_ns)) {
      dead.push_back(incarnation);
    } else if (!member.away && !Alive(member) && now_ns - member.lost_ns >= resume_ns_) {
      member.away = true;
      ForgetRecords(incarnation);
    }
  }
  for (const uint32_t incarnation : dead) Remove(incarnation);
}

// Gives up the member that has been away longest. False: none is away.
bool Roster::MakeRoom() {
  auto longest = members_.end();
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    if (!member->second.away) continue;
    if (longest == members_.end() || member->second.lost_ns < longest->second.lost_ns) longest = member;
  }
  if (longest == members_.end()) return false;
  Expel(longest->first);
  return true;
}

void Roster::Expel(uint32_t incarnation) {
  expelled_.insert(incarnation);
  Remove(incarnation);
}

void Roster::Remove(uint32_t incarnation) {
  members_.erase(incarnation);
  ForgetRecords(incarnation);
}

void Roster::ForgetRecords(uint32_t incarnation) {
  std::erase_if(records_, [&](const auto& entry) { return entry.second.owner == incarnation; });
}

// ---- service

namespace {

// Channels of all members, channels that are being replaced, and strangers.
constexpr size_t kMaxConnections = 3 * kMaxMembers;
constexpr int64_t kStrangerNs = 10'000'000'000;  // for a stranger to identify itself
constexpr int64_t kAcceptPauseNs = 100'000'000;  // while there are no descriptors
constexpr int kTickMs = 1000;
constexpr size_t kMaxOutBytes = 16 * 1024;  // of replies that a member has not read

void KeepAlive(int fd) {
  // A network that is silent for so long counts as broken. It must be shorter than any kernel at a member's end takes
  // to give up, since that would look like the member's death (docs/krcore.md).
  constexpr int kKeepIdleS = 5, kKeepIntervalS = 2, kKeepCount = 3, kUserTimeoutMs = 11'000;
  const auto set = [&](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

template <typename Body>
Body As(const std::byte* bytes) {
  Body body;
  std::memcpy(&body, bytes, sizeof(body));
  return body;
}

void Append(std::vector<std::byte>& out, const void* data, size_t length) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + length);
}

void Reply(std::vector<std::byte>& out, StatusCode status) {
  Header header;
  header.status = static_cast<uint8_t>(status);
  Append(out, &header, sizeof(header));
}

template <typename Body>
void Reply(std::vector<std::byte>& out, const Body& body) {
  Header header;
  header.body_bytes = sizeof(body);
  Append(out, &header, sizeof(header));
  Append(out, &body, sizeof(body));
}

}  // namespace

Result<std::unique_ptr<Service>> Service::Start(const HostPort& address, const std::string& fabric, int64_t resume_ns) {
  auto listener = Listen(address);
  if (!listener.ok()) return listener.status();
  auto wake = NewEvent();
  if (!wake.ok()) return wake.status();
  const auto incarnation = Random64();
  const auto seed = Random64();
  if (!incarnation.ok() || !seed.ok()) return seed.ok() ? incarnation.status() : seed.status();
  std::unique_ptr<Service> service(
      new Service(*std::move(listener), *std::move(wake), fabric,
                  Roster(static_cast<uint32_t>(*incarnation & 0x3fff'ffff), *seed, resume_ns)));
  auto thread = StartThread("membership service", [self = service.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  service->thread_ = *std::move(thread);
  return service;
}

Service::Service(Socket listener, Socket wake, std::string fabric, Roster roster)
    : fabric_(std::move(fabric)), listener_(std::move(listener)), wake_(std::move(wake)), roster_(std::move(roster)) {}

Service::~Service() {
  stop_ = true;
  SetEvent(wake_);
  if (thread_.joinable()) thread_.join();
}

void Service::BreakConnections() {
  break_all_ = true;
  SetEvent(wake_);
}

void Service::Run() {
  std::vector<pollfd> polled;
  while (!stop_) {
    const bool accepting = RealClock()->NowNs() >= accept_again_ns_;
    polled.clear();
    polled.push_back({wake_.fd(), POLLIN, 0});
    polled.push_back({listener_.fd(), static_cast<short>(accepting ? POLLIN : 0), 0});
    for (const Connection& connection : connections_) {
      polled.push_back(
          {connection.socket.fd(), static_cast<short>(connection.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    const int wait_ms = accepting ? kTickMs : static_cast<int>(kAcceptPauseNs / 1'000'000);
    // poll fails if the limit of descriptors is below their number by now; this must not spin then.
    if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) poll(nullptr, 0, wait_ms);
    const int64_t now_ns = RealClock()->NowNs();
    uint64_t ignored = 0;
    (void)!read(wake_.fd(), &ignored, sizeof(ignored));
    const bool break_all = break_all_.exchange(false);
    auto connection = connections_.begin();
    for (size_t i = 2; i < polled.size(); ++i) {
      const auto current = connection++;
      Fate fate = Fate::kGoesOn;
      const bool says_nothing = current->incarnation == 0 && now_ns - current->since_ns > kStrangerNs;
      if (break_all || says_nothing) {
        fate = Fate::kBroken;
      } else if (polled[i].revents != 0) {
        fate = Read(*current, now_ns);
        if (fate == Fate::kGoesOn) fate = Write(*current);
      }
      // The member has opened another connection for this channel, has left, or was given up.
      const bool over = current->channel >= kChannels || !roster_.Present(current->incarnation);
      if (current->incarnation != 0 && over && current->out.empty()) fate = Fate::kBroken;
      if (fate != Fate::kGoesOn) Drop(current, fate);
    }
    if ((polled[1].revents & POLLIN) != 0) Accept(now_ns);
    roster_.Expire(now_ns);
  }
}

void Service::Accept(int64_t now_ns) {
  for (;;) {
    Socket accepted =
        Socket::Of([&] { return accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (!accepted) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
      if (DropStranger()) continue;
      accept_again_ns_ = now_ns + kAcceptPauseNs;
      return;
    }
    if (connections_.size() >= kMaxConnections && !DropStranger()) continue;  // closed at once
    KeepAlive(accepted.fd());
    connections_.emplace_back(std::move(accepted), now_ns);
  }
}

Service::Fate Service::Read(Connection& connection, int64_t now_ns) {
  std::byte buffer[1024];
  for (;;) {
    const ssize_t got = recv(connection.socket.fd(), buffer, sizeof(buffer), 0);
    if (got == 0) return Fate::kClosed;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return Fate::kGoesOn;
      return errno == ECONNRESET ? Fate::kClosed : Fate::kBroken;
    }
    connection.in.insert(connection.in.end(), buffer, buffer + got);
    size_t used = 0;
    while (connection.in.size() - used >= sizeof(Header)) {
      const auto header = As<Header>(connection.in.data() + used);
      const int expected = RequestBytes(header.type);
      if (header.magic != kWireMagic || expected < 0 || header.body_bytes != expected) return Fate::kBroken;
      if (connection.in.size() - used < sizeof(Header) + header.body_bytes) break;
      const Fate fate = Answer(connection, header, connection.in.data() + used + sizeof(Header), now_ns);
      if (fate != Fate::kGoesOn) return fate;
      used += sizeof(Header) + header.body_bytes;
    }
    connection.in.erase(connection.in.begin(), connection.in.begin() + static_cast<ptrdiff_t>(used));
    if (connection.out.size() > kMaxOutBytes) return Fate::kBroken;
  }
}

Service::Fate Service::Write(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = send(connection.socket.fd(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return Fate::kGoesOn;
      return errno == ECONNRESET || errno == EPIPE ? Fate::kClosed : Fate::kBroken;
    }
    connection.out.erase(connection.out.begin(), connection.out.begin() + sent);
  }
  return Fate::kGoesOn;
}

// An earlier connection of this channel counts for nothing from here on, however it ends.
void Service::Attached(Connection& connection, uint32_t incarnation, uint32_t channel) {
  for (Connection& other : connections_) {
    if (other.incarnation == incarnation && other.channel == channel) other.channel = kChannels;
  }
  connection.incarnation = incarnation;
  connection.channel = channel;
}

Service::Fate Service::Answer(Connection& connection, const Header& header, const std::byte* body, int64_t now_ns) {
  std::vector<std::byte>& out = connection.out;
  const bool stranger = connection.incarnation == 0;
  const bool introduces = header.type == MessageType::kJoin || header.type == MessageType::kAttach;
  if (stranger != introduces) return Fate::kBroken;
  switch (header.type) {
    case MessageType::kJoin: {
      const auto join = As<JoinBody>(body);
      if (Text(join.fabric) != fabric_) {
        Reply(out, StatusCode::kNotFound);
        break;
      }
      const auto identity = roster_.Join(join.node, now_ns);
      if (!identity.ok()) {
        Reply(out, identity.status().code());
        break;
      }
      (void)roster_.Attach(identity->incarnation, identity->token, 0, now_ns);
      Attached(connection, identity->incarnation, 0);
      Reply(out, IdentityBody{identity->node, identity->incarnation, identity->token});
      break;
    }
    case MessageType::kAttach: {
      const auto attach = As<AttachBody>(body);
      const Status status = Text(attach.fabric) != fabric_
                                ? Status(StatusCode::kNotFound)
                                : roster_.Attach(attach.incarnation, attach.token, attach.channel, now_ns);
      if (status.ok()) Attached(connection, attach.incarnation, attach.channel);
      Reply(out, status.code());
      break;
    }
    case MessageType::kQuery: {
      const PeerState state = roster_.StateOf(As<IncarnationBody>(body).incarnation, now_ns);
      Reply(out, StateBody{static_cast<uint32_t>(state)});
      break;
    }
    case MessageType::kPublish: {
      const auto record = As<RecordBody>(body);
      if (record.value_bytes > kRecordValueBytes) return Fate::kBroken;
      const auto value = std::as_bytes(std::span(record.value)).first(record.value_bytes);
      Reply(out, roster_.Publish(connection.incarnation, Text(record.name), value, now_ns).code());
      break;
    }
    case MessageType::kLookup: {
      RecordBody record = As<RecordBody>(body);
      const auto value = roster_.Lookup(Text(record.name), now_ns);
      if (!value.ok()) {
        Reply(out, value.status().code());
        break;
      }
      record.value_bytes = static_cast<uint32_t>(value->size());
      if (!value->empty()) std::memcpy(record.value, value->data(), value->size());
      Reply(out, record);
      break;
    }
    case MessageType::kLeave:
      roster_.Leave(connection.incarnation);
      Reply(out, StatusCode::kOk);
      break;
    case MessageType::kReply: return Fate::kBroken;
  }
  return Fate::kGoesOn;
}

void Service::Drop(std::list<Connection>::iterator connection, Fate fate) {
  if (connection->incarnation != 0 && connection->channel < kChannels) {
    // Reads the clock now, not at the round's begin: kSettledNs counts from the member's end or later.
    roster_.Lose(connection->incarnation, connection->channel, fate == Fate::kClosed ? Loss::kClosed : Loss::kBroken,
                 RealClock()->NowNs());
  }
  connections_.erase(connection);
}

bool Service::DropStranger() {
  const auto stranger = std::find_if(connections_.begin(), connections_.end(),
                                     [](const Connection& connection) { return connection.incarnation == 0; });
  if (stranger == connections_.end()) return false;
  connections_.erase(stranger);
  return true;
}

}  // namespace krcore::rnic::verbs
