// The two-sided half of a Requester: SEND, datagrams and immediates go into the target's inbox.
#include <algorithm>

#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/requester.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {
namespace {

constexpr uint64_t kServingMask = ~uint64_t{1};

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

// Whether a datagram finds its QP. Nobody tells the sender if it does not.
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
    // One sender's mistake must not break a queue that everybody may send to: dropped.
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

}  // namespace krcore::rnic::sw
