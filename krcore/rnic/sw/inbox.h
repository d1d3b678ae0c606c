// Inbox: where a Qp or Dct takes SENDs, datagrams and immediates. A ring of slots in a segment of the receiver;
// every sender of the fabric writes it.
//
// A ticket counts messages since the inbox was made; ticket t uses slot t modulo the number of slots. A slot's
// word says which ticket it serves, how far that is, and who works on it:
//   FREE(t) --CAS, sender--> CLAIMED(t, sender) --sender--> READY(t) or VOID(t) --receiver--> FREE(t + slots)
// The claim names the claimer in the same CAS, so a receiver that waits for a claimed slot can ask the kernel
// whether the claimer still lives, and free the slot if it does not. Nothing else in an inbox can be left
// half-done: `tail` is a hint that anybody moves on, `posted` belongs to the receiver.
#ifndef KRCORE_RNIC_SW_INBOX_H_
#define KRCORE_RNIC_SW_INBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "krcore/rnic/sw/layout.h"

namespace krcore::rnic::sw {

enum class SlotState : uint8_t { kFree = 0, kClaimed = 1, kReady = 2, kVoid = 3 };

inline constexpr uint64_t kTicketMask = 0x3fff'ffff;

// incarnation of the claimer << 32 | ticket (30 bits) << 2 | state
constexpr uint64_t SlotWord(SlotState state, uint64_t ticket, uint32_t incarnation) {
  return uint64_t{incarnation} << 32 | (ticket & kTicketMask) << 2 | static_cast<uint64_t>(state);
}
constexpr SlotState StateOf(uint64_t word) { return static_cast<SlotState>(word & 3); }
constexpr uint32_t ClaimerOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

enum class MessageKind : uint32_t { kSend, kSendImm, kWriteImm, kTooLong, kBadReceive };

// Capacity of a receive whose SGEs its own MRs do not allow.
inline constexpr uint32_t kBadCapacity = ~uint32_t{0};

struct alignas(64) InboxSlot {
  std::atomic<uint64_t> word;
  std::atomic<uint32_t> capacity;  // bytes of the posted receive; the receiver's, before `posted`
  // What follows is the claimer's until READY (release), then the receiver's (acquire).
  MessageKind kind;
  uint32_t length;
  uint32_t imm;
  uint32_t src_qp;
  uint32_t src_node;
  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(InboxSlot) == 64);

struct InboxHeader {
  uint32_t slots;
  uint32_t payload_bytes;                    // of a slot, a multiple of 64
  alignas(64) std::atomic<uint64_t> posted;  // tickets below it have a receive. Release; pairs with Claim
  alignas(64) std::atomic<uint64_t> tail;    // no ticket below it is FREE. A hint
  uint64_t padding[7];

  InboxSlot& slot(uint64_t ticket) {
    std::byte* first = reinterpret_cast<std::byte*>(this + 1);
    return *reinterpret_cast<InboxSlot*>(first + (ticket % slots) * (sizeof(InboxSlot) + payload_bytes));
  }
};
static_assert(sizeof(InboxHeader) == 192);

size_t InboxBytes(uint32_t slots, uint32_t payload_bytes);
// Into zeroed memory of InboxBytes.
void InitInbox(InboxHeader& inbox, uint32_t slots, uint32_t payload_bytes);

struct Claim {
  InboxSlot* slot = nullptr;  // null: no receive is posted
  uint64_t ticket = 0;
  uint32_t incarnation = 0;
};
Claim ClaimSlot(InboxHeader& inbox, uint32_t incarnation);
// False if the receiver no longer waits for it.
bool PublishSlot(const Claim& claim, SlotState state);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_INBOX_H_
