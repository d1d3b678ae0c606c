#include "krcore/messages/channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace krcore::messages {

using queue::OwnWr;
using queue::OwnWrDone;

namespace {

// An inline payload of up to this length follows its header in memory that belongs to the WR until it completes. So it
// may be posted again, and NICs that take inline no more than the header (rnic/verbs: 64 bytes) have inline messages
// too.
constexpr size_t kOwnPayloadBytes = queue::kOwnBytes - sizeof(Header);

}  // namespace

// ---- opening

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
  const uint32_t queue =
      pool.context().owners->fetch_add(1, std::memory_order_relaxed);  // a number; pairs with nothing
  std::unique_ptr<Channel> channel(
      new Channel(pool, owner, port, info, peers::PlaceOwner(self.node, queue, self.incarnation)));
  owner.own_wrs = channel.get();
  KRCORE_RETURN_IF_ERROR(channel->place_.Claim(deadline));
  KRCORE_RETURN_IF_ERROR(channel->place_.Introduce(reply_port, reply, deadline));
  channel->next_ = channel->released_ = channel->place_.first_number();
  channel->seen_flush_ = owner.flushed_in_recovery;
  pool.AddWork(channel.get());
  return channel;
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
  if (total <= std::min(pool_.copy_bytes(), to_.info.copy_bytes)) return StatusCode::kOk;
  if (readable) {
    *zero_copy = true;
    return StatusCode::kOk;
  }
  if (total <= to_.info.copy_bytes) return StatusCode::kOk;
  return wr.num_sge == 1 && !is_inline ? StatusCode::kPermissionDenied : StatusCode::kInvalidArgument;
}

bool Channel::IsZeroCopy(const WorkRequest& wr, const queue::RequestLimits& limits,
                         const peers::RegionView& local) const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  if (total <= std::min(pool_.copy_bytes(), to_.info.copy_bytes)) return false;
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
  out.remote_addr = to_.info.addr + to_.layout.slot(place_.place(), next_);
  out.rkey = to_.info.rkey;
  physical.FillOwn(out, &owner_, *to_.peer, OwnWr::kMessage, wr.opcode, zero_copy, static_cast<uint32_t>(next_));
  physical.Commit(1, *to_.peer);
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
  const Op op = verbs_.Done(done);
  if (op == Op::kControl) return;
  if (status == WcStatus::kRetryExceeded || status == WcStatus::kFlushed) {
    suspect_ = status == WcStatus::kRetryExceeded;
    return back_off_.Failed();
  }
  // The receiver's memory is no longer registered: its queue has been closed and takes no more messages.
  if (status != WcStatus::kSuccess) return Die(status);
  switch (op) {
    case Op::kVoid:
      held_.Voided(to_void_.front(), released_);
      to_void_.pop_front();
      break;
    case Op::kClose: closed_ = true; break;
    case Op::kPull:
      if (verbs_.result() <= released_ || verbs_.result() > next_) return back_off_.Failed();
      released_ = verbs_.result();
      held_.ReleaseBefore(released_);
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
    held_.Hold(told, number);
    if (dead_) return Die(WcStatus::kRetryExceeded);
    // A pull posted before this message, and again after the QP was replaced, may know more than it does.
    held_.ReleaseBefore(released_);
  } else if (told.completion.status == WcStatus::kSuccess && !done.user_signaled) {
    owner_.CompleteSilently();
  } else {
    owner_.Deliver(told.completion, done.user_signaled);
  }
}

void HeldMessages::Hold(const OwnWrDone& done, uint64_t number) {
  held_.push_back({number, owner_.DeliverHeld(done.completion, !done.user_signaled), done.completion.status});
}

void HeldMessages::ReleaseFirst(WcStatus status) {
  const uint32_t* const next = held_.size() > 1 ? &held_[1].position : nullptr;
  owner_.ReleaseHeld(held_.front().position, status, next);
  held_.pop_front();
}

void HeldMessages::ReleaseBefore(uint64_t released) {
  while (!held_.empty() && held_.front().number < released) ReleaseFirst(held_.front().status);
}

void HeldMessages::Voided(uint64_t number, uint64_t released) {
  // Everything held before this message was released or voided.
  while (!held_.empty() && held_.front().number <= number) {
    const Held held = held_.front();
    if (held.number == number && held.status == WcStatus::kSuccess) {
      ReleaseFirst(WcStatus::kFlushed);  // by Close
    } else if (held.number == number || held.number < released) {
      ReleaseFirst(held.status);
    } else {
      break;
    }
  }
}

void HeldMessages::ReleaseAll(WcStatus status) {
  while (!held_.empty()) ReleaseFirst(held_.front().status == WcStatus::kSuccess ? status : held_.front().status);
}

void Channel::Die(WcStatus status) {
  dead_ = true;
  to_void_.clear();
  held_.ReleaseAll(status);
}

// ---- at each poll

size_t Channel::Work() {
  if (dead_ || verbs_.under_way() || back_off_.Skips()) return 0;
  if (std::exchange(suspect_, false) && verbs_.ReceiverIsDead()) {
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
    verbs_.Post(Op::kVoid, {.opcode = Opcode::kWrite,
                            .at = to_.layout.slot(place_.place(), header.number),
                            .data = std::as_bytes(std::span(&header, 1))});
  } else if (closing_ && !closed_) {
    const uint64_t last = Closing(place_.owner_word(), next_);
    verbs_.Post(Op::kClose, {.opcode = Opcode::kWrite,
                             .at = to_.layout.control(place_.place()) + offsetof(Control, closing),
                             .data = std::as_bytes(std::span(&last, 1))});
  } else if (!held_.empty() || next_ - released_ > to_.info.slots / 2u) {
    verbs_.Post(Op::kPull,
                {.opcode = Opcode::kRead, .at = to_.layout.control(place_.place()) + offsetof(Control, released)});
  }
  return 0;
}

Status Channel::Settle(Deadline deadline) {
  if (!verbs_.WaitFor([this] { return dead_ || (!HasDoubt() && in_flight_ == 0); }, deadline))
    return {StatusCode::kTimeout, "messages of unknown outcome could not be settled within the deadline"};
  if (dead_) return {StatusCode::kUnavailable, "the receiver has gone"};
  return {};
}

Channel::~Channel() {
  if (place_.made() && !dead_) {
    pool_.RemoveWork(this);
    pool_.AddWork(this);  // also if Open failed before it added it
    const Deadline deadline = Deadline::After(pool_.node().clock(), kCloseNs);
    (void)verbs_.WaitFor([this] { return dead_ || (in_flight_ == 0 && !verbs_.under_way()); }, deadline);
    // Open has failed. If the place is the receiver's after this, the receiver is told below that nothing will come.
    if (!place_.introduced() && !dead_ && !verbs_.under_way()) {
      place_.EndUnintroduced(deadline);
      next_ = released_ = place_.first_number();
    }
    (void)verbs_.WaitFor([this] { return dead_ || !HasDoubt(); }, deadline);
    held_.AppendNumbersTo(&to_void_);
    closing_ = place_.introduced();
    back_off_.Resume();
    (void)verbs_.WaitFor([this] { return dead_ || closed_ || !closing_; }, deadline);
  }
  pool_.RemoveWork(this);
  verbs_.WaitForEnd();
  owner_.own_wrs = nullptr;
}

}  // namespace krcore::messages
