// Messages: the inbox where a Qp or Dct receives SENDs, datagrams and immediates, and the Receiver that empties it.
#ifndef KRCORE_RNIC_SW_INBOX_H_
#define KRCORE_RNIC_SW_INBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/software_nic.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/rnic/sw/tables.h"

namespace krcore::rnic::sw {

class SwCq;
class SwQp;

// Inbox: where a Qp or Dct receives SENDs, datagrams and immediates. It is a ring of slots in a segment of the
// receiver, which every sender of the fabric writes.
//
// Tickets count messages since the inbox was made; ticket t uses slot t modulo the number of slots. A slot's word says
// which ticket it serves, in which state, and who works on it:
//   FREE(t) --CAS, sender--> CLAIMED(t, sender) --sender--> READY(t) or VOID(t) --receiver--> FREE(t + slots)
// The claim names the claimer in the same CAS. So a receiver that waits for a claimed slot can ask the kernel whether
// the claimer still lives, and free the slot if it does not. Nothing else in an inbox can be left half-done: `tail` is
// a hint that anybody advances, and `posted` belongs to the receiver.

enum class SlotState : uint8_t { kFree = 0, kClaimed = 1, kReady = 2, kVoid = 3 };

inline constexpr uint64_t kTicketMask = 0x3fff'ffff;

// incarnation of the claimer << 32 | ticket (30 bits) << 2 | state
constexpr uint64_t SlotWord(SlotState state, uint64_t ticket, uint32_t incarnation) {
  return uint64_t{incarnation} << 32 | (ticket & kTicketMask) << 2 | static_cast<uint64_t>(state);
}
constexpr SlotState StateOf(uint64_t word) { return static_cast<SlotState>(word & 3); }
constexpr uint32_t ClaimerOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

enum class MessageKind : uint32_t { kSend, kSendImm, kWriteImm, kTooLong, kBadReceive };

// Capacity of a receive whose SGEs are not allowed by its own MRs.
inline constexpr uint32_t kBadCapacity = ~uint32_t{0};

struct alignas(64) InboxSlot {
  std::atomic<uint64_t> word;
  std::atomic<uint32_t> capacity;  // bytes of the posted receive; the receiver writes it before `posted`
  // What follows belongs to the claimer until READY (release), then to the receiver (acquire).
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
// Initializes zeroed memory of InboxBytes.
void InitInbox(InboxHeader& inbox, uint32_t slots, uint32_t payload_bytes);

struct Claim {
  InboxSlot* slot = nullptr;  // null: no receive is posted
  uint64_t ticket = 0;
  uint32_t incarnation = 0;
};
Claim ClaimSlot(InboxHeader& inbox, uint32_t incarnation);
// Returns false if the receiver no longer waits for it.
bool PublishSlot(const Claim& claim, SlotState state);

// Whether [sge.addr, + length) lies in an MR of this device and Pd, with local write right if `written`.
bool LocalRange(const DeviceSegment& own, uint32_t pd, const Sge& sge, bool written);

// The receive side of a Qp or Dct: posted receives, which are matched with the inbox when the Cq is polled.
class Receiver {
 public:
  struct Options {
    EntryType type = EntryType::kRc;
    uint32_t number = 0;
    uint32_t pd = 0;
    SwCq* cq = nullptr;
    uint32_t depth = 0;
    uint32_t max_bytes = 0;
  };
  // `qp` goes to ERR when a receive has failed. Null: of a Dct, which a failed receive does not break, because
  // everybody may send to it.
  static Result<std::unique_ptr<Receiver>> Create(SharedDevice* device, const Options& options, SwQp* qp);
  ~Receiver();

  // kQueueFull, kInvalidArgument.
  Status Post(std::span<const RecvWr> wrs, size_t* bad_index);
  // Completes what has arrived.
  void Drain();
  // Completes what has arrived, and every other receive as flushed.
  void Flush();
  // Drops everything, arrived or not, and starts with a new inbox: late senders write to the old one.
  Status Reset();

 private:
  struct Posted {
    uint64_t wr_id = 0;
    uint8_t num_sge = 0;
    Sge sges[kMaxSge];
  };

  Receiver(SharedDevice* device, const Options& options, SwQp* qp);
  Status MakeInbox();
  void DropInbox();
  uint32_t CapacityOf(const Posted& recv) const;
  void Announce();
  bool ClaimerDead(uint64_t word);
  void Deliver(InboxSlot& slot, const Posted& recv);
  void Complete(const Posted& recv, WcStatus status, const Arrival& arrival);
  void PassOver();

  SharedDevice* const device_;
  const Options options_;
  SwQp* const qp_;
  std::shared_ptr<Mapping> mapping_;
  SegmentRef segment_;
  InboxHeader* inbox_ = nullptr;
  std::vector<Posted> recvs_;  // the receive of ticket t is recvs_[t % depth]
  uint64_t head_ = 0;          // the next ticket to complete
  uint64_t posted_ = 0;        // the value of inbox_->posted
  uint32_t stalled_polls_ = 0;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_INBOX_H_
