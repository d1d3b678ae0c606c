#include "krcore/rnic/sw/inbox.h"

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
  // Ends: every round raises `tail`, here or elsewhere, and `posted` bounds it.
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

}  // namespace krcore::rnic::sw
