#include "krcore/rnic/sw/inbox.h"

#include <algorithm>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/sw/qp.h"
#include "krcore/rnic/sw/requester.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {

size_t InboxBytes(uint32_t slots, uint32_t payload_bytes) {
  return sizeof(InboxHeader) + size_t{slots} * (sizeof(InboxSlot) + payload_bytes);
}

void InitInbox(InboxHeader& inbox, uint32_t slots, uint32_t payload_bytes) {
  inbox.slots = slots;
  inbox.payload_bytes = payload_bytes;
  for (uint32_t i = 0; i < slots; ++i) {
    inbox.slot(i).word.store(SlotWord(SlotState::kFree, i, 0), std::memory_order_relaxed);
  }
}

Claim ClaimSlot(InboxHeader& inbox, uint32_t incarnation) {
  uint64_t ticket = inbox.tail.load(std::memory_order_acquire);
  // This ends: every round raises `tail`, here or elsewhere, and `posted` bounds it.
  while (ticket < inbox.posted.load(std::memory_order_acquire)) {
    InboxSlot& slot = inbox.slot(ticket);
    uint64_t expected = SlotWord(SlotState::kFree, ticket, 0);
    const bool claimed = slot.word.compare_exchange_strong(expected, SlotWord(SlotState::kClaimed, ticket, incarnation),
                                                           std::memory_order_acq_rel, std::memory_order_acquire);
    uint64_t tail = ticket;
    inbox.tail.compare_exchange_strong(tail, ticket + 1, std::memory_order_acq_rel);
    if (claimed) return {&slot, ticket, incarnation};
    ticket = inbox.tail.load(std::memory_order_acquire);
  }
  return {};
}

bool PublishSlot(const Claim& claim, SlotState state) {
  uint64_t expected = SlotWord(SlotState::kClaimed, claim.ticket, claim.incarnation);
  return claim.slot->word.compare_exchange_strong(expected, SlotWord(state, claim.ticket, claim.incarnation),
                                                  std::memory_order_acq_rel);
}

// ---- sending: the two-sided half of a Requester. SENDs, datagrams and immediates go into the target's inbox.

namespace {

void Gather(const SendWr& wr, std::byte* to) {
  for (uint8_t i = 0; i < wr.num_sge; ++i) {
    StoreWords(to, reinterpret_cast<const std::byte*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    to += wr.sg_list[i].length;
  }
}

}  // namespace

InboxHeader* Requester::FindInbox(const Step& step) {
  const uint32_t segment = step.entry->inbox_segment.load(std::memory_order_acquire);
  if (segment == kNoSegment) return nullptr;
  const uint64_t serial = step.entry->inbox_serial.load(std::memory_order_relaxed);
  const uint64_t hash = (reinterpret_cast<uint64_t>(step.peer) >> 6) * 31 + segment;
  Inbox& inbox = inboxes_[hash % kInboxes];
  if (inbox.peer.get() != step.peer || inbox.segment != segment || inbox.serial != serial) {
    inbox = Inbox{step.peer->shared_from_this(), segment, serial, step.peer->MapSegment(segment, serial)};
  }
  if (inbox.mapping == nullptr) {
    inbox.peer = nullptr;
    return nullptr;
  }
  return reinterpret_cast<InboxHeader*>(inbox.mapping->addr());
}

// Whether a datagram finds its QP. The sender is not told if it does not.
bool Requester::DatagramAccepted(const Step& step) const {
  const uint64_t serving = QpWord(step.wr->remote_qpn, EntryType::kUd, static_cast<uint8_t>(QpState::kRtr));
  return step.peer->Alive() && (step.entry->word.load(std::memory_order_acquire) & kServingMask) == serving &&
         step.entry->qkey.load(std::memory_order_relaxed) == step.wr->qkey;
}

WcStatus Requester::SendMessage(const Step& step) {
  const bool datagram = type_ == QpType::kUd;
  if (datagram && !DatagramAccepted(step)) return WcStatus::kSuccess;
  InboxHeader* inbox = FindInbox(step);
  const Claim claim = inbox == nullptr ? Claim{} : ClaimSlot(*inbox, fabric_->incarnation());
  if (claim.slot == nullptr) return datagram ? WcStatus::kSuccess : WcStatus::kRnrRetryExceeded;
  InboxSlot& slot = *claim.slot;
  const SendWr& wr = *step.wr;
  const uint32_t capacity = slot.capacity.load(std::memory_order_relaxed);
  const bool immediate_only = wr.opcode == Opcode::kWriteImm;
  const uint64_t needed = immediate_only ? 0 : uint64_t{step.length} + (datagram ? kGrhBytes : 0);
  WcStatus status = WcStatus::kSuccess;
  slot.kind = wr.opcode == Opcode::kSend      ? MessageKind::kSend
              : wr.opcode == Opcode::kSendImm ? MessageKind::kSendImm
                                              : MessageKind::kWriteImm;
  if (capacity == kBadCapacity) {
    slot.kind = MessageKind::kBadReceive;
    status = WcStatus::kRemoteOperationError;
  } else if (needed > capacity || (!immediate_only && step.length > inbox->payload_bytes)) {
    slot.kind = MessageKind::kTooLong;
    status = WcStatus::kRemoteInvalidRequest;
  }
  if (datagram && status == WcStatus::kRemoteInvalidRequest) {
    // One sender's mistake must not break a queue that everybody may send to, so the message is dropped.
    PublishSlot(claim, SlotState::kVoid);
    return WcStatus::kSuccess;
  }
  slot.length = step.length;
  slot.imm = wr.imm;
  slot.src_qp = number_;
  slot.src_node = fabric_->node();
  if (status == WcStatus::kSuccess && step.length > 0) {
    if (immediate_only) {
      Write(step);
    } else {
      Gather(wr, slot.payload());
    }
  }
  // Not delivered: the queue was reset or broken meanwhile.
  if (!PublishSlot(claim, SlotState::kReady) && !datagram) return WcStatus::kRetryExceeded;
  stores_pending_ = true;
  return datagram ? WcStatus::kSuccess : status;
}

// ---- receiving

namespace {

// After how many polls with a claimed slot at the head to ask whether the claimer lives (a system call).
constexpr uint32_t kStalledPollsPerLook = 256;

}  // namespace

bool LocalRange(const DeviceSegment& own, uint32_t pd, const Sge& sge, bool written) {
  if (sge.length == 0) return true;
  const MrEntry& mr = own.mrs[MrIndex(sge.lkey)];
  const uint64_t offset = sge.addr - mr.base.load(std::memory_order_relaxed);
  const uint64_t length = mr.length.load(std::memory_order_relaxed);
  return mr.key.load(std::memory_order_acquire) == sge.lkey && mr.pd.load(std::memory_order_relaxed) == pd &&
         offset <= length && sge.length <= length - offset &&
         (!written || (mr.rights.load(std::memory_order_relaxed) & kLocalWrite) != 0);
}

Receiver::Receiver(SharedDevice* device, const Options& options, SwQp* qp)
    : device_(device), options_(options), qp_(qp), recvs_(options.depth) {}

Result<std::unique_ptr<Receiver>> Receiver::Create(SharedDevice* device, const Options& options, SwQp* qp) {
  std::unique_ptr<Receiver> receiver(new Receiver(device, options, qp));
  KRCORE_RETURN_IF_ERROR(receiver->MakeInbox());
  options.cq->Attach(receiver.get());
  return receiver;
}

Receiver::~Receiver() {
  options_.cq->Detach(this);
  options_.cq->Forget(options_.number, nullptr);
  DropInbox();
}

Status Receiver::MakeInbox() {
  const uint32_t payload = (std::max(options_.max_bytes, 1U) + 63) & ~63U;
  const uint64_t serial = device_->tables.NextSerial();
  const std::string suffix = device_->fabric.OwnSuffix(serial);
  auto mapping = device_->fabric.backing().Create(suffix, InboxBytes(options_.depth, payload), /*claimed=*/false);
  if (!mapping.ok()) return mapping.status();
  mapping_ = *std::move(mapping);
  inbox_ = reinterpret_cast<InboxHeader*>(mapping_->addr());
  InitInbox(*inbox_, options_.depth, payload);
  auto segment = device_->tables.AddSegment(serial, suffix, mapping_->addr(), mapping_->length(), "");
  if (!segment.ok()) {
    device_->fabric.backing().Remove(suffix);
    return segment.status();
  }
  segment_ = *segment;
  QpEntry& entry = device_->tables.qp(options_.number);
  entry.inbox_serial.store(segment_.serial, std::memory_order_relaxed);
  entry.inbox_segment.store(segment_.index, std::memory_order_release);
  return {};
}

void Receiver::DropInbox() {
  if (segment_.index == kNoSegment) return;
  device_->tables.qp(options_.number).inbox_segment.store(kNoSegment, std::memory_order_release);
  device_->tables.RemoveSegment(segment_, mapping_->addr());
  device_->fabric.backing().Remove(device_->fabric.OwnSuffix(segment_.serial));
  segment_ = {};
}

Status Receiver::Reset() {
  DropInbox();
  options_.cq->Forget(options_.number, nullptr);
  head_ = posted_ = 0;
  return MakeInbox();
}

uint32_t Receiver::CapacityOf(const Posted& recv) const {
  uint64_t total = 0;
  for (uint8_t i = 0; i < recv.num_sge; ++i) {
    if (!LocalRange(device_->fabric.segment(), options_.pd, recv.sges[i], true)) return kBadCapacity;
    total += recv.sges[i].length;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(total, kBadCapacity - 1));
}

Status Receiver::Post(std::span<const RecvWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    const RecvWr& wr = wrs[i];
    StatusCode refused = StatusCode::kOk;
    if (HasBadSges(wr, kMaxSge)) refused = StatusCode::kInvalidArgument;
    if (posted_ - head_ == options_.depth) refused = StatusCode::kQueueFull;
    if (refused != StatusCode::kOk) {
      if (bad_index != nullptr) *bad_index = i;
      return refused;
    }
    Posted& recv = recvs_[posted_ % options_.depth];
    recv.wr_id = wr.wr_id;
    recv.num_sge = wr.num_sge;
    std::copy_n(wr.sg_list, wr.num_sge, recv.sges);
    Announce();
  }
  return {};
}

// Lets senders use the receive stored for the ticket posted_.
void Receiver::Announce() {
  inbox_->slot(posted_).capacity.store(CapacityOf(recvs_[posted_ % options_.depth]), std::memory_order_relaxed);
  inbox_->posted.store(++posted_, std::memory_order_release);
}

void Receiver::Drain() {
  while (head_ != posted_) {
    InboxSlot& slot = inbox_->slot(head_);
    const uint64_t word = slot.word.load(std::memory_order_acquire);
    const SlotState state = StateOf(word);
    if (state == SlotState::kFree) return;
    if (state == SlotState::kVoid || (state == SlotState::kClaimed && ClaimerDead(word))) {
      PassOver();
    } else if (state == SlotState::kReady) {
      // A copy, because the failure of one receive flushes the others, which changes the ring.
      const Posted recv = recvs_[head_ % options_.depth];
      ++head_;
      Deliver(slot, recv);
    } else {
      return;
    }
  }
}

bool Receiver::ClaimerDead(uint64_t word) {
  return ++stalled_polls_ % kStalledPollsPerLook == 0 && !device_->fabric.ConfirmAlive(ClaimerOf(word));
}

// The message at the head never came. Moves its receive to the end of the queue.
void Receiver::PassOver() {
  const Posted recv = recvs_[head_ % options_.depth];
  inbox_->slot(head_).word.store(SlotWord(SlotState::kFree, head_ + options_.depth, 0), std::memory_order_release);
  ++head_;
  recvs_[posted_ % options_.depth] = recv;
  Announce();
}

void Receiver::Deliver(InboxSlot& slot, const Posted& recv) {
  WcStatus status = WcStatus::kSuccess;
  if (slot.kind == MessageKind::kTooLong) {
    status = WcStatus::kLocalLengthError;
  } else if (slot.kind == MessageKind::kBadReceive || CapacityOf(recv) == kBadCapacity) {
    status = WcStatus::kLocalProtectionError;
  } else if (slot.kind != MessageKind::kWriteImm) {
    // The sender checked that it fits.
    ScatterMessage(std::span(recv.sges, recv.num_sge), options_.type, slot.payload(), slot.length, LoadWords);
  }
  const Opcode opcode = slot.kind == MessageKind::kSend      ? Opcode::kSend
                        : slot.kind == MessageKind::kSendImm ? Opcode::kSendImm
                                                             : Opcode::kWriteImm;
  Complete(recv, status, {opcode, slot.length, slot.imm, slot.src_qp, slot.src_node});
  slot.word.store(SlotWord(SlotState::kFree, head_ - 1 + options_.depth, 0), std::memory_order_release);
  if (status != WcStatus::kSuccess && qp_ != nullptr) (void)qp_->ToErr();
}

void Receiver::Complete(const Posted& recv, WcStatus status, const Arrival& arrival) {
  options_.cq->PushReceived(ReceiveCompletion(recv.wr_id, status, options_.type, options_.number, arrival));
}

void Receiver::Flush() {
  Drain();
  for (; head_ != posted_; ++head_) {
    Complete(recvs_[head_ % options_.depth], WcStatus::kFlushed, {});
    // The queue's state already keeps senders out; a sender that is inside may find the slot taken.
    inbox_->slot(head_).word.store(SlotWord(SlotState::kFree, head_ + options_.depth, 0), std::memory_order_release);
  }
}

}  // namespace krcore::rnic::sw
