// The mailbox of a port as laid out in the receiver's memory, where senders reach it by one-sided verbs.
//
//     owners    one word per sender's place: 0 (free) or the owner
//     controls  one Control per place
//     slots     places x slots of a Header and copy_bytes of payload
//
// Who may change the owner word depends on whether the place holds a whole card of its owner:
//
//     it does not   senders, by CAS: 0 -> owner; owner -> 0 by itself; dead owner -> owner, if the card was
//                   looked at after the death
//     it does       the receiver, by plain stores: owner -> kBeingFreed, the card is cleared, -> 0
//
// A place's messages are numbered; number n lies in slot n modulo slots. Numbers continue from owner to owner, so what
// an earlier owner left in a slot never passes for a message. A message is one WRITE. It counts once its checksums
// match, so nothing depends on the order in which a WRITE's words appear, and writing it again is harmless. That is how
// messages survive the replacement of a physical QP without being lost or doubled.
#ifndef KRCORE_MESSAGES_WIRE_H_
#define KRCORE_MESSAGES_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "krcore/message.h"
#include "krcore/rnic.h"

namespace krcore::messages {

// What a bound port publishes (PortRecords).
struct PortInfo {
  uint64_t addr = 0;
  uint32_t rkey = 0;
  uint32_t incarnation = 0;  // of the node
  uint32_t copy_bytes = 0;
  uint16_t senders = 0;
  uint16_t slots = 0;
};
static_assert(sizeof(PortInfo) == 24 && std::is_trivially_copyable_v<PortInfo>);

// Not an owner (peers::PlaceOwner): the receiver is about to clear the card.
inline constexpr uint64_t kBeingFreed = 1;

// The sender's identity and DC metadata. Written after a place is claimed and before its first message, so that the
// receiver has it with the first message.
struct Card {
  uint64_t checksum = 0;  // of the rest
  uint64_t owner = 0;
  rnic::DeviceAddress address;
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  Port port = kNoPort;  // for the reply
  uint16_t reserved = 0;
  PortInfo reply;
};
static_assert(sizeof(Card) == 88 && sizeof(Card) <= sizeof(Sender::route));
static_assert(std::is_trivially_copyable_v<Card>);
uint64_t ChecksumOf(const Card& card);

// Says that the place's messages end before number `next`. It names the owner, so that a second write of it, when the
// place is another owner's, closes nothing.
constexpr uint64_t Closing(uint64_t owner, uint64_t next) {
  return uint64_t{static_cast<uint32_t>(owner >> 32) ^ static_cast<uint32_t>(owner)} << 32 |
         static_cast<uint32_t>(next + 1);
}

struct Control {
  // The receiver's: how many messages have left their slots, of all owners. The sender READs it for its credits.
  uint64_t released;
  uint64_t padding[7];
  uint64_t closing;  // the sender's: Closing() once its queue is closed
  Card card;
  uint64_t padding2[4];
};
static_assert(sizeof(Control) == 192 && offsetof(Control, closing) == 64 && offsetof(Control, card) == 72);

enum class MessageKind : uint8_t {
  kVoid,      // nothing: a message whose sender was told that its outcome is unknown
  kCopy,      // the payload follows the header
  kZeroCopy,  // the payload is at (addr, rkey) of the sender
  kWritten,   // kWriteImm: the payload has been written elsewhere
};

struct Header {
  uint64_t number = 0;
  uint64_t payload_hash = 0;  // kCopy
  uint64_t addr = 0;          // kZeroCopy
  uint32_t rkey = 0;
  uint32_t length = 0;
  uint32_t imm = 0;
  MessageKind kind = MessageKind::kVoid;
  uint8_t with_imm = 0;
  uint16_t reserved = 0;
  uint64_t padding[2] = {};
  // Of the rest. It is the last word, by which sw tells ThreadSanitizer that a WRITE happens before its reader
  // (rnic/sw/word_copy.h): a reader that finds a match has seen the WRITE's last word, and not an equal one before it.
  uint64_t checksum = 0;
};
static_assert(sizeof(Header) == 64 && offsetof(Header, checksum) == 56 && std::is_trivially_copyable_v<Header>);
uint64_t ChecksumOf(const Header& header);
// Hashes the concatenation of `sges`.
uint64_t HashPayload(std::span<const Sge> sges);

// Offsets in a mailbox.
struct Layout {
  uint32_t senders, slots, copy_bytes;

  explicit Layout(const PortInfo& info) : senders(info.senders), slots(info.slots), copy_bytes(info.copy_bytes) {}
  size_t slot_bytes() const { return sizeof(Header) + ((size_t{copy_bytes} + 63) & ~size_t{63}); }
  size_t owner(uint32_t place) const { return 8 * size_t{place}; }
  size_t control(uint32_t place) const {
    return ((8 * size_t{senders} + 63) & ~size_t{63}) + sizeof(Control) * size_t{place};
  }
  size_t slot(uint32_t place, uint64_t number) const {
    return control(senders) + (size_t{place} * slots + number % slots) * slot_bytes();
  }
  size_t bytes() const { return slot(senders, 0); }
};
inline constexpr uint32_t kMaxSenders = 512;
inline constexpr uint32_t kMaxSlots = 1024;
inline constexpr uint32_t kMaxCopyBytes = 1u << 20;

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_WIRE_H_
