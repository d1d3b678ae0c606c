// The packets of the software DC. All fields are little-endian; a packet is the payload of one UD message.
//
//     request:  header 40 | hello 24, transfer 24 or atomic 32 | data of a WRITE or SEND
//     answer:   header 40 | welcome 16 or word 8               | data of a READ
//
// A packet transfers one segment of a WR, and its PSN is the segment's place in the session. UD's own checksum (the
// ICRC) covers all of it, so there is none here.
#ifndef KRCORE_RNIC_SDC_WIRE_H_
#define KRCORE_RNIC_SDC_WIRE_H_

#include "krcore/rnic/sdc/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDC_MAGIC 0x5344u
#define SDC_VERSION 1u
// The Q_Key of the UD queues. It is not privileged, and the same for all, because it only tells strangers apart.
#define SDC_QKEY 0x5344dc01u
// Segments that a queue may have under way, and so the number of answers that a target must be able to repeat.
#define SDC_WINDOW 64u
#define SDC_MIN_MTU_BYTES 256u
#define SDC_MAX_MTU_BYTES 4096u

enum sdc_kind {
  // Requests.
  SDC_HELLO = 1,  // who are you, and may I
  SDC_READ = 2,
  SDC_WRITE = 3,
  SDC_SEND = 4,
  SDC_ATOMIC = 5,
  SDC_CLOSE = 6,  // forget the session
  // Answers.
  SDC_WELCOME = 17,   // to HELLO: the session's slot and nonce
  SDC_REFUSED = 18,   // to HELLO: the key is wrong
  SDC_BUSY = 19,      // to HELLO: all sessions are in use
  SDC_ACK = 20,       // everything before `psn` was executed
  SDC_DATA = 21,      // of the READ `psn`
  SDC_RESULT = 22,    // of the atomic `psn`
  SDC_PROGRESS = 23,  // the atomic `psn` has been taken, but has no result yet
  SDC_NAK = 24,       // `psn` failed, and how; nothing from there on is executed
  SDC_RNR = 25,       // there is no receive for `psn`; nothing from there on was executed
  SDC_GAP = 26,       // `psn` is missing
  SDC_GONE = 27,      // there is no such session; SDC_FLAG_KNOWN: it ended before `psn`
  SDC_CLOSED = 28,    // to CLOSE: nothing of the session is executed any more
};

enum sdc_flag {
  SDC_FLAG_IMM = 1,    // SEND, WRITE: with an immediate
  SDC_FLAG_ACK = 2,    // SEND, WRITE: answer at once
  SDC_FLAG_KNOWN = 4,  // GONE
};

struct sdc_header {
  uint16_t magic;
  uint8_t version;
  uint8_t kind;
  uint32_t target;  // DCT number
  uint32_t slot;    // the session's place in the target's table
  uint32_t tag;     // the peer's place in the initiator's table; the target returns it
  uint64_t nonce;   // the session's, chosen by the target
  uint32_t psn;
  uint8_t flags;
  uint8_t code;    // ATOMIC: the opcode; NAK: the status
  uint16_t bytes;  // the bytes that this packet transfers; READ: that its answer will transfer
  uint64_t time;   // request: not to be executed after this, by the target's clock; answer: the target's clock
};
SDC_STATIC_ASSERT(sizeof(struct sdc_header) == 40, "wire format");
SDC_STATIC_ASSERT(offsetof(struct sdc_header, nonce) == 16, "wire format");
SDC_STATIC_ASSERT(offsetof(struct sdc_header, time) == 32, "wire format");

struct sdc_hello {
  uint64_t life;  // of the initiator
  uint64_t key;   // the DC key
  uint32_t id;    // counts the initiator's hellos
  uint32_t zero;
};
SDC_STATIC_ASSERT(sizeof(struct sdc_hello) == 24, "wire format");

// READ, WRITE, SEND. Each segment names the whole message, so that all of it can be checked before any of it is done.
struct sdc_transfer {
  uint64_t addr;  // SEND: 0
  uint32_t rkey;
  uint32_t length;
  uint32_t offset;  // of the segment
  uint32_t imm;
};
SDC_STATIC_ASSERT(sizeof(struct sdc_transfer) == 24, "wire format");

struct sdc_atomic {
  uint64_t addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t rkey;
  uint32_t zero;
};
SDC_STATIC_ASSERT(sizeof(struct sdc_atomic) == 32, "wire format");

struct sdc_welcome {
  uint64_t life;
  uint32_t id;
  uint32_t zero;
};
SDC_STATIC_ASSERT(sizeof(struct sdc_welcome) == 16, "wire format");

// A packet in the host's byte order. Fields that its kind does not have are 0.
struct sdc_packet {
  uint8_t kind, flags, code;
  uint16_t bytes;
  uint32_t target, slot, tag, psn;
  uint64_t nonce, time;
  uint64_t life, key;  // HELLO; the life also WELCOME, REFUSED, BUSY
  uint32_t id;         // the same
  uint64_t addr;       // READ, WRITE, ATOMIC
  uint32_t rkey, length, offset, imm;
  uint64_t compare_add, swap;
  uint64_t word;        // RESULT
  const uint8_t* data;  // `bytes` bytes of WRITE, SEND, DATA: within the packet that was parsed
};

// Returns how many data bytes a packet of a queue with this MTU carries: a multiple of 8.
static inline uint32_t sdc_segment_bytes(uint32_t mtu_bytes) {
  return (mtu_bytes - (uint32_t)(sizeof(struct sdc_header) + sizeof(struct sdc_transfer))) & ~7u;
}

// Returns whether an SDC_NAK can have this status, of sdc_status, as its code.
bool sdc_nak_carries(uint8_t code);

// Reads a packet of `bytes` bytes from anybody. False: it is malformed, and *out is undefined. For a valid packet: its
// length is exactly what its fields say; offset + bytes <= length for transfers, and bytes is 0 only if length is.
bool sdc_parse(const void* packet, uint32_t bytes, struct sdc_packet* out);

// Writes the packet without its data to `to`. Returns how many bytes those are; the data belong right after them.
uint32_t sdc_build(uint8_t* to, const struct sdc_packet* packet);

static inline bool sdc_is_request(uint8_t kind) { return kind >= SDC_HELLO && kind <= SDC_CLOSE; }
static inline bool sdc_is_answer(uint8_t kind) { return kind >= SDC_WELCOME && kind <= SDC_CLOSED; }
static inline bool sdc_has_data(uint8_t kind) { return kind == SDC_WRITE || kind == SDC_SEND || kind == SDC_DATA; }

#ifdef __cplusplus
}
#endif

#endif  // KRCORE_RNIC_SDC_WIRE_H_
