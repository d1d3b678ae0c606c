#include "krcore/messages/channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace krcore::messages {

using queue::OwnWr;
using queue::OwnWrDone;
using queue::QueueStanding;

namespace {

// An inline payload of up to this length follows its header in memory that belongs to the WR until it completes. So it
// may be posted again, and NICs that take inline no more than the header (rnic/verbs: 64 bytes) have inline messages
// too.
constexpr size_t kOwnPayloadBytes = queue::kOwnBytes - sizeof(Header);

constexpr int64_t kCloseNs = 1'000'000'000;  // longer than a NIC's transport retries
constexpr uint32_t kMaxSpins = 1u << 16;     // bound of a wait whose clock stands still

}  // namespace

// ---- claiming a place

Result<std::unique_ptr<Channel>> Channel::Open(queue::QueuePoolImpl& pool, queue::QueueState& owner, Port port,
                                               const PortInfo& info, Port reply_port, const PortInfo* reply,
                                               Deadline deadline) {
  if (info.senders == 0 || info.senders > kMaxSenders || info.slots == 0 || info.slots > kMaxSlots ||
      info.copy_bytes > kMaxCopyBytes)
    return Status(StatusCode::kCorrupt, "the record of the port is not one of a port");
  const rnic::DeviceAddress& self = pool.context().self.address;
  if (self.node >> peers::kPlaceOwnerNodeBits != 0)
    return Status(StatusCode::kUnsupported,
                  "messages need a node id below " + std::to_string(1u << peers::kPlaceOwnerNodeBits));
  KRCORE_RETURN_IF_ERROR(pool.NeedOwnMemory());
  // Others must be able to find out whether the owner of a place lives.
  KRCORE_RETURN_IF_ERROR(pool.NeedPublished(deadline));
  std::unique_ptr<Channel> channel(new Channel(pool, owner, port, info));
  const uint32_t queue =
      pool.context().owners->fetch_add(1, std::memory_order_relaxed);  // a number; pairs with nothing
  channel->owner_word_ = peers::PlaceOwner(self.node, queue, self.incarnation);
  owner.own_wrs = channel.get();
  KRCORE_RETURN_IF_ERROR(channel->Claim(deadline));
  KRCORE_RETURN_IF_ERROR(channel->Introduce(reply_port, reply, deadline));
  channel->seen_flush_ = owner.flushed_in_recovery;
  pool.AddWork(channel.get());
  return channel;
}

Status Channel::Claim(Deadline deadline) {
  const std::span<const uint64_t> owners(reinterpret_cast<const uint64_t*>(pool_.scratch()), info_.senders);
  const Sge into{reinterpret_cast<uint64_t>(pool_.scratch()), 8u * info_.senders, pool_.scratch_lkey()};
  static_assert(8 * kMaxSenders <= queue::QueuePoolImpl::kScratchBytes);
  // Each round sees other senders win every place that was free, so it is not repeated for long.
  for (int round = 0; round < 4 && !claimed_; ++round) {
    KRCORE_RETURN_IF_ERROR(Run({.opcode = Opcode::kRead, .remote = info_.addr, .into = into}, nullptr, deadline));
    const std::vector<uint64_t> seen(owners.begin(), owners.end());
    const uint32_t first =
        peers::PlaceOwnerNumber(owner_word_) + peers::PlaceOwnerNode(owner_word_);  // senders begin at different places
    bool any_free = false;
    for (uint32_t i = 0; i < info_.senders && !claimed_; ++i) {
      const uint32_t place = (first + i) % info_.senders;
      if (seen[place] != 0) continue;
      any_free = true;
      KRCORE_RETURN_IF_ERROR(TryClaim(place, 0, deadline));
    }
    if (!any_free) KRCORE_RETURN_IF_ERROR(TakeOverFromDead(seen, deadline));
    if (!any_free && !claimed_) break;
  }
  if (!claimed_)
    return {StatusCode::kQueueFull, "port " + std::to_string(port_) + " of node " +
                                        std::to_string(peer_->target.address.node) +
                                        " has no place for another sender"};
  return {};
}

Status Channel::TryClaim(uint32_t place, uint64_t expected, Deadline deadline) {
  place_ = place;
  in_doubt_ = true;
  uint64_t old = 0;
  KRCORE_RETURN_IF_ERROR(Run({.opcode = Opcode::kCompareSwap,
                              .remote = info_.addr + layout_.owner(place),
                              .expected = expected,
                              .desired = owner_word_},
                             &old, deadline));
  // The word is our own if an earlier try was executed after all.
  claimed_ = old == expected || old == owner_word_;
  in_doubt_ = false;
  return {};
}

// Takes a place whose owner died before it wrote its card. Nothing was or will be sent there, and the receiver cannot
// know whose death to ask about, so a sender that needs it takes it. The card read after the death counts: either it
// was there then or never will be, or the receiver has cleared it, and the owner word with it (wire.h).
Status Channel::TakeOverFromDead(std::span<const uint64_t> owners, Deadline deadline) {
  for (uint32_t place = 0; place < owners.size() && !claimed_; ++place) {
    const uint64_t owner = owners[place];
    if (owner == kBeingFreed) continue;
    const auto introduced = [&](const Card& card) { return card.owner == owner && card.checksum == ChecksumOf(card); };
    Card card;
    KRCORE_RETURN_IF_ERROR(ReadCard(place, &card, deadline));
    if (introduced(card) ||
        !pool_.node().IsConfirmedDead(peers::PlaceOwnerNode(owner), peers::PlaceOwnerIncarnation(owner)))
      continue;
    KRCORE_RETURN_IF_ERROR(ReadCard(place, &card, deadline));
    if (!introduced(card)) KRCORE_RETURN_IF_ERROR(TryClaim(place, owner, deadline));
  }
  return {};
}

Status Channel::ReadCard(uint32_t place, Card* card, Deadline deadline) {
  const Sge into{reinterpret_cast<uint64_t>(pool_.scratch()), sizeof(Card), pool_.scratch_lkey()};
  const uint64_t at = info_.addr + layout_.control(place) + offsetof(Control, card);
  KRCORE_RETURN_IF_ERROR(Run({.opcode = Opcode::kRead, .remote = at, .into = into}, nullptr, deadline));
  std::memcpy(static_cast<void*>(card), pool_.scratch(), sizeof(*card));
  return {};
}

Status Channel::Introduce(Port reply_port, const PortInfo* reply, Deadline deadline) {
  uint64_t released = 0;
  const uint64_t at = info_.addr + layout_.control(place_) + offsetof(Control, released);
  KRCORE_RETURN_IF_ERROR(Run({.opcode = Opcode::kRead, .remote = at}, &released, deadline));
  next_ = released_ = released;
  Card card;
  const peers::Target& self = pool_.context().self;
  card.owner = owner_word_;
  card.address = self.address;
  card.dc_key = self.dc_key;
  card.dct_num = self.dct_num;
  if (reply != nullptr) {
    card.port = reply_port;
    card.reply = *reply;
  }
  card.checksum = ChecksumOf(card);
  const Status written = Run({.opcode = Opcode::kWrite,
                              .remote = info_.addr + layout_.control(place_) + offsetof(Control, card),
                              .data = std::as_bytes(std::span(&card, 1))},
                             nullptr, deadline);
  introduced_ = written.ok();
  return written;
}

// ---- one-sided verbs of its own

bool Channel::Post(Op op, const OneSided& verb) {
  queue::PhysicalQueue& physical = *pool_.QueueFor(peer_->target);
  if (physical.free() == 0) return false;
  physical.Prepare();
  std::byte* const memory = physical.own_memory();
  Sge sge{reinterpret_cast<uint64_t>(memory), 8, physical.own_lkey()};
  if (verb.into.length != 0) sge = verb.into;
  if (!verb.data.empty()) {
    std::memcpy(memory, verb.data.data(), verb.data.size());
    sge.length = static_cast<uint32_t>(verb.data.size());
  }
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = verb.opcode;
  wr.flags = 0;
  wr.remote_addr = verb.remote;
  wr.rkey = info_.rkey;
  wr.compare_add = verb.expected;
  wr.swap = verb.desired;
  physical.FillOwn(wr, &owner_, *peer_, OwnWr::kInternal, verb.opcode, false, 0);
  physical.Commit(1, *peer_);
  op_ = op;
  return true;
}

bool Channel::WaitFor(const std::function<bool()>& done, Deadline deadline) {
  Clock& clock = pool_.node().clock();
  int64_t last_ns = clock.NowNs();
  for (uint32_t spins = 0, still = 0; !done(); ++spins) {
    const int64_t now_ns = clock.NowNs();
    still = now_ns == last_ns ? still + 1 : 0;
    last_ns = now_ns;
    if (still >= kMaxSpins || now_ns >= deadline.at_ns) return false;
    pool_.PollWaiting(spins);
  }
  return true;
}

Status Channel::Run(const OneSided& verb, uint64_t* result, Deadline deadline) {
  const Status timeout(StatusCode::kTimeout,
                       "node " + std::to_string(peer_->target.address.node) + " did not answer within the deadline");
  for (uint32_t tries = 0;; ++tries) {
    if (deadline.Passed(pool_.node().clock())) return timeout;
    if (tries != 0) pool_.node().clock().Relax(64 * tries);  // a NIC that fails at once must not make this spin
    owner_.standing = QueueStanding::kReady;                 // otherwise the pool takes the WR back at the next fault
    const bool posted = WaitFor([&] { return Post(Op::kControl, verb); }, deadline);
    if (!posted) return timeout;
    // However long it takes: a NIC completes or fails the WR, whose memory is in use until then.
    (void)WaitFor([&] { return op_ == Op::kNone; }, Deadline::After(pool_.node().clock(), kCloseNs));
    const bool hung = op_ != Op::kNone;
    owner_.standing = QueueStanding::kUnconnected;
    if (hung) return timeout;
    switch (op_status_) {
      case WcStatus::kSuccess:
        if (result != nullptr) *result = op_result_;
        return {};
      case WcStatus::kFlushed: continue;
      case WcStatus::kRetryExceeded:
        if (!ReceiverIsDead()) continue;
        return {StatusCode::kUnavailable, "node " + std::to_string(peer_->target.address.node) + " is dead"};
      default:
        return {StatusCode::kUnavailable, "port " + std::to_string(port_) + " of node " +
                                              std::to_string(peer_->target.address.node) + " has been closed"};
    }
  }
}

bool Channel::ReceiverIsDead() const {
  const Deadline deadline = Deadline::After(pool_.node().clock(), rnic::kPollingAskNs);
  return pool_.context().device->QueryPeer(peer_->target.address, deadline) == rnic::PeerState::kDead;
}

// ---- messages

StatusCode Channel::Check(const WorkRequest& wr, const queue::RequestLimits& limits, const peers::RegionView& local,
                          bool* zero_copy) const {
  *zero_copy = false;
  if (wr.num_sge >= queue::kMaxSge || wr.num_sge >= limits.max_sge || (wr.num_sge != 0 && wr.sg_list == nullptr) ||
      (wr.flags & ~queue::kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;
  const bool is_inline = (wr.flags & kInline) != 0;
  uint64_t total = 0;
  uint32_t rights = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) return StatusCode::kInvalidArgument;
    total += sge.length;
    if (is_inline) continue;
    const peers::LocalRegion* region = local.Find(sge.lkey);
    if (region == nullptr || !region->Covers(sge.addr, sge.length)) return StatusCode::kPermissionDenied;
    rights = region->rights;
  }
  if (is_inline && total > kOwnPayloadBytes && total + sizeof(Header) > limits.max_inline_bytes)
    return StatusCode::kInvalidArgument;
  if (total > limits.max_message_bytes) return StatusCode::kInvalidArgument;
  const bool readable = wr.num_sge == 1 && !is_inline && (rights & kRemoteRead) != 0;
  if (total <= std::min(pool_.copy_bytes(), info_.copy_bytes)) return StatusCode::kOk;
  if (readable) {
    *zero_copy = true;
    return StatusCode::kOk;
  }
  if (total <= info_.copy_bytes) return StatusCode::kOk;
  return wr.num_sge == 1 && !is_inline ? StatusCode::kPermissionDenied : StatusCode::kInvalidArgument;
}

bool Channel::IsZeroCopy(const WorkRequest& wr, const queue::RequestLimits& limits,
                         const peers::RegionView& local) const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  if (total <= std::min(pool_.copy_bytes(), info_.copy_bytes)) return false;
  bool zero_copy;
  return Check(wr, limits, local, &zero_copy) == StatusCode::kOk && zero_copy;
}

void Channel::StageMessage(queue::PhysicalQueue& physical, const WorkRequest& wr, bool zero_copy, uint32_t length,
                           const peers::RegionView& local) {
  Header header;
  header.number = next_;
  header.length = length;
  header.imm = wr.imm;
  header.with_imm = wr.opcode != Opcode::kSend;
  physical.Prepare();
  Sge sges[queue::kMaxSge];
  uint8_t count = 1;
  if (wr.opcode == Opcode::kWriteImm) {
    header.kind = MessageKind::kWritten;
  } else if (zero_copy) {
    header.kind = MessageKind::kZeroCopy;
    header.addr = wr.sg_list[0].addr;
    header.rkey = local.Find(wr.sg_list[0].lkey)->rkey;
    header.length = wr.sg_list[0].length;
  } else {
    header.kind = MessageKind::kCopy;
    header.length = 0;
    for (uint8_t i = 0; i < wr.num_sge; ++i) {
      header.length += wr.sg_list[i].length;
      sges[count++] = wr.sg_list[i];
    }
    header.payload_hash = HashPayload({wr.sg_list, wr.num_sge});
  }
  header.checksum = ChecksumOf(header);
  std::byte* const memory = physical.own_memory();
  std::memcpy(memory, &header, sizeof(header));
  sges[0] = {reinterpret_cast<uint64_t>(memory), sizeof(header), physical.own_lkey()};
  // One piece of memory costs a NIC less than two, and copying a few words costs us little.
  const bool in_own_memory = header.kind == MessageKind::kCopy && header.length <= kOwnPayloadBytes;
  if (in_own_memory) {
    for (uint8_t i = 1; i < count; ++i) {
      std::memcpy(memory + sges[0].length, reinterpret_cast<const void*>(sges[i].addr), sges[i].length);
      sges[0].length += sges[i].length;
    }
    count = 1;
  }
  WorkRequest out;
  out.wr_id = wr.wr_id;
  out.sg_list = sges;
  out.num_sge = count;
  out.opcode = Opcode::kWrite;
  out.flags = wr.flags;
  if (wr.opcode == Opcode::kWriteImm || zero_copy || in_own_memory)
    out.flags = static_cast<uint8_t>(out.flags & ~kInline);
  out.remote_addr = info_.addr + layout_.slot(place_, next_);
  out.rkey = info_.rkey;
  physical.FillOwn(out, &owner_, *peer_, OwnWr::kMessage, wr.opcode, zero_copy, static_cast<uint32_t>(next_));
  physical.Commit(1, *peer_);
  ++next_;
  ++in_flight_;
}

void Channel::StageFailed(queue::PhysicalQueue& physical, const WorkRequest& wr, bool zero_copy, WcStatus status) {
  physical.CommitSettledOwn(wr, &owner_, status, OwnWr::kMessage, zero_copy, static_cast<uint32_t>(next_));
  ++next_;
  ++in_flight_;
}

// ---- completions

void Channel::OnDone(const OwnWrDone& done) {
  const WcStatus status = done.completion.status;
  switch (done.kind) {
    case OwnWr::kMessage: return MessageDone(done);
    case OwnWr::kData: data_status_ = status; return;
    case OwnWr::kInternal: break;
  }
  const Op op = std::exchange(op_, Op::kNone);
  op_status_ = status;
  std::memcpy(&op_result_, done.memory, sizeof(op_result_));
  if (op == Op::kControl) return;
  if (status == WcStatus::kRetryExceeded || status == WcStatus::kFlushed) {
    suspect_ = status == WcStatus::kRetryExceeded;
    return back_off_.Failed();
  }
  // The receiver's memory is no longer registered: its queue has been closed and takes no more messages.
  if (status != WcStatus::kSuccess) return Die(status);
  switch (op) {
    case Op::kVoid: Voided(to_void_.front()); break;
    case Op::kClose: closed_ = true; break;
    case Op::kPull:
      if (op_result_ <= released_ || op_result_ > next_) return back_off_.Failed();
      released_ = op_result_;
      ReleaseHeld();
      break;
    default: break;
  }
  back_off_.Succeeded();
}

void Channel::MessageDone(const OwnWrDone& done) {
  --in_flight_;
  // Restores the high half of the number, which is less than 2^32 below next_.
  const uint64_t number = next_ - static_cast<uint32_t>(static_cast<uint32_t>(next_) - done.tag);
  OwnWrDone told = done;
  // If a kWriteImm's WRITE failed, the whole kWriteImm failed.
  const WcStatus data = std::exchange(data_status_, WcStatus::kSuccess);
  if (done.completion.opcode == Opcode::kWriteImm && data != WcStatus::kSuccess) told.completion.status = data;
  if (told.completion.status != WcStatus::kSuccess) doubt_from_ = std::min(doubt_from_, number);
  if (done.zero_copy) {
    Hold(told, number);
  } else if (told.completion.status == WcStatus::kSuccess && !done.user_signaled) {
    owner_.CompleteSilently();
  } else {
    owner_.Deliver(told.completion, done.user_signaled);
  }
}

void Channel::Hold(const OwnWrDone& done, uint64_t number) {
  const uint32_t position = owner_.DeliverHeld(done.completion, !done.user_signaled);
  held_.push_back({number, position, done.completion.status});
  if (dead_) return Die(WcStatus::kRetryExceeded);
  // A pull posted before this message, and again after the QP was replaced, may know more than it does.
  ReleaseHeld();
}

void Channel::Release(const Held& held, WcStatus status) {
  const uint32_t* const next = held_.size() > 1 ? &held_[1].position : nullptr;
  owner_.ReleaseHeld(held.position, status, next);
  held_.pop_front();
}

void Channel::ReleaseHeld() {
  while (!held_.empty() && held_.front().number < released_) Release(held_.front(), held_.front().status);
}

void Channel::Voided(uint64_t number) {
  to_void_.pop_front();
  // Voids go from old to new, and everything held before this message was released or voided.
  while (!held_.empty() && held_.front().number <= number) {
    const Held held = held_.front();
    if (held.number == number && held.status == WcStatus::kSuccess) {
      Release(held, WcStatus::kFlushed);  // by Close
    } else if (held.number == number || held.number < released_) {
      Release(held, held.status);
    } else {
      break;
    }
  }
}

void Channel::Die(WcStatus status) {
  dead_ = true;
  to_void_.clear();
  while (!held_.empty()) {
    const Held held = held_.front();
    Release(held, held.status == WcStatus::kSuccess ? status : held.status);
  }
}

// ---- at each poll

size_t Channel::Work() {
  if (dead_ || op_ != Op::kNone || back_off_.Skips()) return 0;
  if (std::exchange(suspect_, false) && ReceiverIsDead()) {
    Die(WcStatus::kRetryExceeded);
    return 0;
  }
  // Flushed messages complete in their turn; until then no message after them may be accepted.
  if (in_flight_ == 0) seen_flush_ = owner_.flushed_in_recovery;
  // After the last message in flight, and so after the reset of the QP that failed.
  if (doubt_from_ != kNone && in_flight_ == 0) {
    for (uint64_t number = std::max(doubt_from_, released_); number < next_; ++number) to_void_.push_back(number);
    doubt_from_ = kNone;
  }
  if (!to_void_.empty()) {
    Header header;
    header.number = to_void_.front();
    header.checksum = ChecksumOf(header);
    Post(Op::kVoid, {.opcode = Opcode::kWrite,
                     .remote = info_.addr + layout_.slot(place_, header.number),
                     .data = std::as_bytes(std::span(&header, 1))});
  } else if (closing_ && !closed_) {
    const uint64_t last = Closing(owner_word_, next_);
    Post(Op::kClose, {.opcode = Opcode::kWrite,
                      .remote = info_.addr + layout_.control(place_) + offsetof(Control, closing),
                      .data = std::as_bytes(std::span(&last, 1))});
  } else if (!held_.empty() || next_ - released_ > info_.slots / 2u) {
    Post(Op::kPull,
         {.opcode = Opcode::kRead, .remote = info_.addr + layout_.control(place_) + offsetof(Control, released)});
  }
  return 0;
}

Status Channel::Settle(Deadline deadline) {
  if (!WaitFor([this] { return dead_ || (!HasDoubt() && in_flight_ == 0); }, deadline))
    return {StatusCode::kTimeout, "messages of unknown outcome could not be settled within the deadline"};
  if (dead_) return {StatusCode::kUnavailable, "the receiver has gone"};
  return {};
}

Channel::~Channel() {
  if ((claimed_ || in_doubt_) && !dead_) {
    pool_.RemoveWork(this);
    pool_.AddWork(this);  // also if Open failed before it added it
    const Deadline deadline = Deadline::After(pool_.node().clock(), kCloseNs);
    (void)WaitFor([this] { return dead_ || (in_flight_ == 0 && op_ == Op::kNone); }, deadline);
    // If Open failed: an unanswered claim can have no card, so the place belongs to the senders.
    if (in_doubt_ && !dead_ && op_ == Op::kNone)
      (void)Run({.opcode = Opcode::kCompareSwap,
                 .remote = info_.addr + layout_.owner(place_),
                 .expected = owner_word_,
                 .desired = 0},
                nullptr, deadline);
    // A claim that was answered may or may not have its card, which would make the place the receiver's. So it gets a
    // card, and after that is told that nothing will come.
    if (claimed_ && !introduced_ && !dead_ && op_ == Op::kNone) (void)Introduce(kNoPort, nullptr, deadline);
    if (doubt_from_ == kNone && to_void_.empty()) {
      for (const Held& held : held_) to_void_.push_back(held.number);
    } else {
      (void)WaitFor([this] { return dead_ || !HasDoubt(); }, deadline);
      for (const Held& held : held_) to_void_.push_back(held.number);
    }
    closing_ = introduced_;
    back_off_.Resume();
    (void)WaitFor([this] { return dead_ || closed_ || !closing_; }, deadline);
  }
  pool_.RemoveWork(this);
  if (op_ != Op::kNone)
    (void)WaitFor([this] { return op_ == Op::kNone; }, Deadline::After(pool_.node().clock(), kCloseNs));
  owner_.own_wrs = nullptr;
}

}  // namespace krcore::messages
