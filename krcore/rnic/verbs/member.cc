#include "krcore/rnic/verbs/member.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "krcore/resources.h"

namespace krcore::rnic::verbs {
namespace {

constexpr int64_t kAskNs = 10'000'000'000;   // a request, including waiting for others and for a connection
constexpr int64_t kTryNs = 3'000'000'000;    // one attempt on one connection
constexpr int64_t kLeaveNs = 3'000'000'000;  // the kernel does what does not succeed
constexpr int64_t kPingNs = 2'000'000'000;
constexpr int64_t kRetryNs = 300'000'000;  // between attempts to come back
// This end's kernel must give up a connection later than the service's can (service.cc), whatever net.ipv4.tcp_retries2
// is, or its reset would look like this process's death. Its probes find out what the service's kernel has given up.
constexpr int kUserTimeoutMs = 24 * 3600 * 1000, kKeepIdleS = 5, kKeepIntervalS = 5;
constexpr size_t kMaxKnownDead = 4096;
constexpr uint32_t kLower = 0, kUpper = 1;

Deadline In(int64_t duration_ns) { return Deadline::After(*RealClock(), duration_ns); }
Deadline Earlier(Deadline a, Deadline b) { return {std::min(a.at_ns, b.at_ns)}; }
constexpr Deadline kNever{std::numeric_limits<int64_t>::max()};

void CopyName(std::span<char> field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), field.size()), field.begin());
}

bool LockBefore(Deadline deadline, std::unique_lock<std::mutex>& lock) {
  for (uint32_t spins = 0; !lock.try_lock(); ++spins) {
    if (deadline.Passed(*RealClock())) return false;
    RealClock()->Relax(spins);
  }
  return true;
}

Status NoService() { return {StatusCode::kUnavailable, "that is no membership service"}; }

Result<Socket> Dial(const HostPort& service, Deadline deadline) {
  auto made = Connect(service, deadline);
  if (!made.ok()) return made;
  const auto set = [&](int level, int option, int value) {
    setsockopt(made->fd(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  return made;
}

}  // namespace

Result<std::unique_ptr<Member>> Member::Connect(const HostPort& service, const std::string& fabric, Deadline deadline) {
  auto spare = NewEvent();
  if (!spare.ok()) return spare.status();
  auto stop = NewEvent();
  if (!stop.ok()) return stop.status();
  auto low = Dial(service, Earlier(deadline, In(kAskNs)));
  if (!low.ok()) return low.status();
  return std::unique_ptr<Member>(new Member(service, fabric, *std::move(low), *std::move(spare), *std::move(stop)));
}

Member::Member(HostPort service, std::string fabric, Socket low, Socket spare, Socket stop)
    : service_(std::move(service)), fabric_(std::move(fabric)), spare_(std::move(spare)), stop_(std::move(stop)) {
  channels_[kLower].socket = std::move(low);
}

Member::~Member() { StopKeeper(); }

void Member::StopKeeper() {
  if (!keeper_.joinable()) return;
  SetEvent(stop_);
  keeper_.join();
}

int Member::low_descriptor() const { return std::max(channels_[kLower].socket.fd(), spare_.fd()); }

Result<Member::Verdict> Member::Exchange(Channel& channel, MessageType type, std::span<const std::byte> body,
                                         std::span<std::byte> reply, Deadline deadline, int stop) {
  if (channel.broken) return Status(StatusCode::kUnavailable, "the connection to the membership service is broken");
  const auto failed = [&](const Status& status) {
    channel.broken = !(status == StatusCode::kTimeout);
    return status;
  };
  if (channel.late) {
    if (Status status = AwaitReply(channel, deadline, stop); !status.ok()) return failed(status);
    channel.late = false;
    channel.got = 0;
  }
  std::byte message[sizeof(Header) + kMaxBody];
  Header header;
  header.type = type;
  header.body_bytes = static_cast<uint16_t>(body.size());
  std::memcpy(message, &header, sizeof(header));
  if (!body.empty()) std::memcpy(message + sizeof(header), body.data(), body.size());
  Status status = channel.socket.Send({message, sizeof(header) + body.size()}, deadline, stop);
  if (!status.ok()) {
    channel.broken = true;  // half of a request may have gone out
    return status;
  }
  status = AwaitReply(channel, deadline, stop);
  channel.late = status == StatusCode::kTimeout;
  if (!status.ok()) return failed(status);
  std::memcpy(&header, channel.reply.data(), sizeof(header));
  if (header.body_bytes != (header.status == 0 ? reply.size() : 0)) return failed(NoService());
  std::copy_n(channel.reply.begin() + sizeof(header), header.body_bytes, reply.begin());
  channel.got = 0;
  return Verdict{static_cast<StatusCode>(header.status)};
}

Status Member::AwaitReply(Channel& channel, Deadline deadline, int stop) {
  const auto receive = [&](size_t bytes) {
    size_t got = 0;
    const auto rest = std::span(channel.reply).first(bytes).subspan(std::min(channel.got, bytes));
    const Status status = channel.socket.Receive(rest, deadline, stop, &got);
    channel.got += got;
    return status;
  };
  KRCORE_RETURN_IF_ERROR(receive(sizeof(Header)));
  Header header;
  std::memcpy(&header, channel.reply.data(), sizeof(header));
  if (header.magic != kWireMagic || header.type != MessageType::kReply || header.body_bytes > kMaxBody)
    return NoService();
  return receive(sizeof(Header) + header.body_bytes);
}

Status Member::Join(NodeId wanted, std::span<const uint8_t, 24> address, int highest, Deadline deadline) {
  deadline = Earlier(deadline, In(kAskNs));
  highest_ = highest;
  JoinBody join;
  CopyName(join.fabric, fabric_);
  join.node = wanted;
  std::copy(address.begin(), address.end(), join.address);
  IdentityBody identity;
  const auto joined =
      Exchange(channels_[kLower], MessageType::kJoin, BytesOf(join), WritableBytesOf(identity), deadline);
  if (!joined.ok()) return joined.status();
  switch (joined->code) {
    case StatusCode::kOk: break;
    case StatusCode::kNotFound:
      return {StatusCode::kNotFound, "the membership service at " + service_.host + " port " + service_.port +
                                         " is not fabric " + fabric_ + "'s"};
    case StatusCode::kExists:
      return {StatusCode::kExists,
              "node id " + std::to_string(wanted) + " of fabric " + fabric_ +
                  " is held by a device that is not known to be gone; choose another id or stop it"};
    default: return {joined->code, "fabric " + fabric_ + " takes no further device"};
  }
  identity_ = {identity.node, identity.incarnation, identity.token};
  KRCORE_RETURN_IF_ERROR(Resume(kUpper, deadline, deadline, -1));
  auto keeper = StartThread("keeper of the membership", [this] { Keep(); });
  if (!keeper.ok()) return keeper.status();
  keeper_ = *std::move(keeper);
  return {};
}

// Without an answer nobody knows whether the service has taken the connection, and closing it might look like the end
// of this process. So it stays open, and the membership ends. If the connection fails before that, the service has
// given it up itself, and ignores how it ends.
Status Member::Attach(Channel& channel, uint32_t index, Deadline deadline, int stop) {
  AttachBody attach;
  CopyName(attach.fabric, fabric_);
  attach.token = identity_.token;
  attach.incarnation = identity_.incarnation;
  attach.channel = index;
  const auto attached = Exchange(channel, MessageType::kAttach, BytesOf(attach), {}, deadline, stop);
  if (attached.ok() && attached->code == StatusCode::kOk) return {};
  const std::lock_guard lock(mutex_);
  if (!attached.ok()) {
    if (attached.status() == StatusCode::kTimeout) {
      expelled_ = true;
      undecided_ = std::move(channel.socket);
    }
    return attached.status();
  }
  expelled_ = attached->code == StatusCode::kNotFound;
  return {StatusCode::kUnavailable, "fabric " + fabric_ +
                                        " does not know this device any more: its membership service was restarted, or "
                                        "gave its place away while it could not be reached"};
}

// The old connection is closed only when the service has accepted the new one in its place, and the new one has its
// place among the descriptors before the service knows it. Requests meanwhile are not kept out.
Status Member::Resume(uint32_t index, Deadline connect, Deadline attach, int stop) {
  {
    const std::lock_guard lock(mutex_);
    if (expelled_) return {StatusCode::kUnavailable, "this device is no member of fabric " + fabric_ + " any more"};
  }
  Channel fresh;
  auto socket = Dial(service_, connect);
  if (!socket.ok()) return socket.status();
  fresh.socket = *std::move(socket);
  const auto replace = [&] {
    const std::lock_guard lock(mutex_);
    std::swap(channels_[index], fresh);
    if (index == kUpper) refusal_ = {};
  };
  if (index == kUpper) {
    KRCORE_RETURN_IF_ERROR(fresh.socket.MoveAbove(highest_));
    KRCORE_RETURN_IF_ERROR(Attach(fresh, index, attach, stop));
    replace();
    return {};
  }
  auto made = NewEvent();
  if (!made.ok()) return made.status();
  Socket next_spare = *std::move(made);
  KRCORE_RETURN_IF_ERROR(fresh.socket.MoveTo(spare_.fd()));
  (void)spare_.Release();  // `fresh` has it
  const Status attached = Attach(fresh, index, attach, stop);
  if (attached.ok()) replace();
  if (!fresh.socket) return attached;
  // The descriptor that the service does not use becomes the next spare one.
  const int low = fresh.socket.Release();
  const Status moved = next_spare.MoveTo(low);
  spare_ = std::move(next_spare);
  return attached.ok() ? moved : attached;
}

Result<Member::Verdict> Member::Ask(MessageType type, std::span<const std::byte> body, std::span<std::byte> reply,
                                    Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  const Status silent(StatusCode::kTimeout, "the membership service does not answer");
  const Deadline patience = In(kAskNs);
  deadline = Earlier(deadline, patience);
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!LockBefore(deadline, lock)) return silent;
  Channel& channel = channels_[kUpper];
  for (uint32_t spins = 0;; ++spins) {
    // A thread with a deadline of its own does not wait where another one has just waited in vain.
    if (!channel.broken && channel.late && deadline.at_ns < patience.at_ns &&
        AwaitReply(channel, In(0), -1) == StatusCode::kTimeout)
      return silent;
    if (!channel.broken) {
      auto answered = Exchange(channel, type, body, reply, Earlier(deadline, In(kTryNs)));
      if (answered.ok()) return answered;
      if (!channel.broken && deadline.Passed(*RealClock()) && !patience.Passed(*RealClock())) return silent;
      channel.broken = true;
      spins = 0;
    }
    if (expelled_)
      return Status(StatusCode::kUnavailable, "this device is no member of fabric " + fabric_ + " any more");
    if (refusal_.ok() && patience.Passed(*RealClock())) refusal_ = silent;
    if (!refusal_.ok()) return refusal_;
    if (deadline.Passed(*RealClock())) return silent;
    lock.unlock();
    RealClock()->Relax(spins);
    if (!LockBefore(deadline, lock)) return silent;
  }
}

PeerState Member::Query(uint32_t incarnation, Deadline deadline) {
  if (forked()) return PeerState::kUnreachable;
  if (KnownDead(incarnation)) return PeerState::kDead;
  StateBody state;
  const auto answered =
      Ask(MessageType::kQuery, BytesOf(IncarnationBody{incarnation}), WritableBytesOf(state), deadline);
  if (!answered.ok() || answered->code != StatusCode::kOk) return PeerState::kUnreachable;
  if (state.state == static_cast<uint32_t>(PeerState::kAlive)) return PeerState::kAlive;
  if (state.state != static_cast<uint32_t>(PeerState::kDead)) return PeerState::kUnreachable;
  const std::lock_guard lock(dead_mutex_);
  if (dead_.size() >= kMaxKnownDead) dead_.clear();
  dead_.insert(incarnation);
  return PeerState::kDead;
}

bool Member::KnownDead(uint32_t incarnation) {
  if (forked()) return false;  // the mutex may be held for ever
  const std::lock_guard lock(dead_mutex_);
  return dead_.count(incarnation) != 0;
}

Status Member::Publish(const std::string& name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckRecord(name, value));
  RecordBody record;
  CopyName(record.name, name);
  record.value_bytes = static_cast<uint32_t>(value.size());
  if (!value.empty()) std::memcpy(record.value, value.data(), value.size());
  const auto answered = Ask(MessageType::kPublish, BytesOf(record), {}, deadline);
  if (!answered.ok()) return answered.status();
  switch (answered->code) {
    case StatusCode::kOk: return {};
    case StatusCode::kExists: return {StatusCode::kExists, "record '" + name + "' is another device's"};
    case StatusCode::kNotFound: return {StatusCode::kUnavailable, "this device is no member of its fabric any more"};
    default: return {answered->code, "the fabric does not take record '" + name + "'"};
  }
}

Result<std::vector<std::byte>> Member::Lookup(const std::string& name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  RecordBody record, found;
  CopyName(record.name, name);
  const auto answered = Ask(MessageType::kLookup, BytesOf(record), WritableBytesOf(found), deadline);
  if (!answered.ok()) return answered.status();
  if (answered->code != StatusCode::kOk) return Status(answered->code, "no record '" + name + "'");
  const auto value =
      std::as_bytes(std::span(found.value)).first(std::min<size_t>(found.value_bytes, kRecordValueBytes));
  return std::vector<std::byte>(value.begin(), value.end());
}

// Uses any connection that the service still has: it no longer looks at one that broke, so the end of this process
// would not tell it.
void Member::Leave() {
  if (forked()) return;
  StopKeeper();
  const Deadline deadline = In(kLeaveNs);
  const auto leave = [&](uint32_t index) {
    std::unique_lock lock(mutex_, std::defer_lock);
    return LockBefore(deadline, lock) && Exchange(channels_[index], MessageType::kLeave, {}, {}, deadline).ok();
  };
  if (!leave(kUpper) && !leave(kLower) && !deadline.Passed(*RealClock()) && Resume(kUpper, deadline, deadline, -1).ok())
    (void)leave(kUpper);
  const std::lock_guard lock(mutex_);
  expelled_ = true;  // it does not come back
}

bool Member::AwaitStop(bool whole, int64_t timeout_ns) {
  pollfd polled[1 + kChannels] = {{stop_.fd(), POLLIN, 0}};
  nfds_t count = 1;
  if (whole) {
    for (const Channel& channel : channels_) polled[count++] = {channel.socket.fd(), POLLRDHUP, 0};
  }
  poll(polled, count, static_cast<int>(timeout_ns / 1'000'000));
  return polled[0].revents != 0;
}

bool Member::Ping(uint32_t index) {
  StateBody state;
  const std::lock_guard lock(mutex_);
  const bool answered = Exchange(channels_[index], MessageType::kQuery, BytesOf(IncarnationBody{identity_.incarnation}),
                                 WritableBytesOf(state), In(kTryNs))
                            .ok();
  channels_[index].broken = !answered;
  return answered;
}

// A connection without traffic tells neither end that the network has lost it, so the keeper makes some traffic. For
// the service's answer on a new connection it waits until the answer comes, however long the service was held up, or
// until the connection fails, as it does when the service's kernel has given it up.
void Member::Keep() {
  bool whole = true;
  while (!AwaitStop(whole, whole ? kPingNs : kRetryNs)) {
    whole = true;
    for (uint32_t index = 0; index < kChannels; ++index) {
      if (AwaitStop(false, 0)) return;
      if (Ping(index)) continue;
      const Status resumed = Resume(index, In(kTryNs), kNever, stop_.fd());
      if (resumed.ok()) continue;
      whole = false;
      const std::lock_guard lock(mutex_);
      if (channels_[kUpper].broken) refusal_ = resumed;
    }
  }
}

}  // namespace krcore::rnic::verbs
