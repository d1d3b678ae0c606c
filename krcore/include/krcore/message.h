// Two-sided messages (KRCORE section 4): the vocabulary of VirtualQueue::Bind, PushRecv and PopMessages.
//
// A queue that is bound to a port of its node receives; a queue that is connected to (node, port) sends to it by
// kSend, kSendImm and kWriteImm; one queue may do both. A sender is one connected queue: its messages arrive in the
// order in which they were pushed, each once, copy and zero-copy mixed. Between senders there is no order.
//
// Flow control: each sender has `slots` places of its own at the receiving port, its credits. A Push takes a place,
// which comes back when the message has left it for a posted receive. So a receiver that posts no receives holds its
// senders back (Push: kQueueFull) and loses nothing, and no message ever reaches a NIC without room for it (no RNR).
//
// Copy and zero-copy: a short message travels into its place and from there into the receive. A longer one puts only
// its description there; the receiver READs the message straight from the sender's memory into the receive. That memory
// must be a Region with kRemoteRead, and the sender's completion comes after the READ.
#ifndef KRCORE_MESSAGE_H_
#define KRCORE_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "krcore/types.h"

namespace krcore {

using Port = uint16_t;
inline constexpr Port kNoPort = 0;
inline constexpr Port kFirstAutomaticPort = 49152;  // Bind(kNoPort) chooses from here up

// A message of up to this length is copied, a longer one is READ by the receiver. At this length both cost the same, as
// bench_messages measured on `sw`.
inline constexpr uint32_t kDefaultCopyBytes = 512;

struct BindOptions {
  uint16_t senders = 64;         // queues that may be connected at the same time, at most 512
  uint16_t slots = 16;           // messages of one sender in flight: its credits, at most 1024
  uint32_t copy_bytes = 4096;    // room for one message; longer ones can only come by zero-copy. At most 1 MiB
  uint32_t receive_depth = 256;  // receives posted and not yet popped
};

// A receive for PushRecv. The buffer is borrowed until the message that names `wr_id` is popped.
struct Receive {
  uint64_t wr_id = 0;
  Sge buffer{};  // length 0: for immediates and empty messages only
};

// The sender of a message, and all that a reply needs: VirtualQueue::Connect(Sender) looks nothing up. A value; it
// stays valid as long as the sender's process and its bound queue live.
struct Sender {
  NodeId node = kNoNode;
  uint32_t incarnation = 0;  // of the node
  uint32_t queue = 0;        // tells connected queues of one node apart
  Port port = kNoPort;       // of the sending queue; kNoPort: it is not bound, and cannot be replied to
  uint16_t reserved = 0;
  std::array<uint64_t, 12> route{};  // the sender's DC metadata and reply port; krcore's own
};

struct Message {
  uint64_t wr_id = 0;  // of the Receive that the message is in
  // kSuccess. kLocalLengthError: the receive was too short; it comes back unused, byte_len says what is needed, and the
  // message waits for the next receive. kRemoteAccessError: the sender took its memory away before the READ.
  WcStatus status = WcStatus::kSuccess;
  Opcode opcode = Opcode::kRecv;  // kRecvWithImm: after a kWriteImm, the receive's buffer is untouched
  uint8_t flags = 0;              // of WcFlags
  bool zero_copy = false;         // it came by READ
  uint32_t byte_len = 0;
  uint32_t imm = 0;
  Sender sender{};
};

}  // namespace krcore

#endif  // KRCORE_MESSAGE_H_
