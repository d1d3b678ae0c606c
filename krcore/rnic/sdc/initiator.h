// The initiator of the software DC: a send queue whose WRs each name their target.
//
// WRs are cut into segments, of which up to SDC_WINDOW are under way, in posting order. Each is repeated until it is
// answered, its tries are exhausted, or its WR's limit has passed. Completions come in posting order; the first failed
// WR moves the queue to ERR and flushes the rest. docs/software_dc.md has the protocol and why it holds.
//
// No allocation, clock, lock or I/O: the caller provides memory and `now_ns` (of a clock that counts while the machine
// sleeps and never goes back); packets come by sdc_initiator_receive and leave by the callbacks. All calls for one
// initiator, and the callbacks in them, are on one thread (in the kernel: under one lock); the callbacks call nothing
// of it.
#ifndef KRCORE_RNIC_SDC_INITIATOR_H_
#define KRCORE_RNIC_SDC_INITIATOR_H_

#include "krcore/rnic/sdc/types.h"
#include "krcore/rnic/sdc/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDC_MAX_INLINE_BYTES 128u
#define SDC_PEER_WAYS 4u

enum sdc_wr_flag {  // of krcore::SendFlags
  SDC_SIGNALED = 1,
  SDC_FENCE = 2,
  SDC_INLINE = 4,
};

struct sdc_wr {
  uint64_t wr_id;
  enum sdc_opcode opcode;
  uint8_t flags;
  uint32_t sge_count;
  struct sdc_sge sges[SDC_MAX_SGE];  // SDC_INLINE: addr points to bytes that are copied when it is posted
  uint32_t imm;
  uint64_t remote_addr;
  uint32_t rkey;
  uint64_t compare_add, swap;
  struct sdc_address to;
  uint32_t target;  // DCT number
  uint64_t key;
};

struct sdc_completion {
  uint64_t wr_id;
  enum sdc_status status;
  enum sdc_opcode opcode;
};

struct sdc_initiator_ops {
  // Returns local memory [addr, addr + length) that `lkey` covers, to be written by us or not; null if it does not
  // cover it. The memory stays valid until the call of the initiator returns. length > 0. For SDC_INLINE, `addr` itself
  // is read, when the WR is posted.
  void* (*local)(void* context, uint32_t lkey, uint64_t addr, uint32_t length, bool written);
  // `buffer` returns a buffer for a packet of the MTU's length, or null if there is none now (call sdc_initiator_run
  // when there is); `send` sends the first `bytes` of it. A buffer that was not sent is returned again next time.
  uint8_t* (*buffer)(void* context);
  void (*send)(void* context, const struct sdc_address* to, uint32_t bytes);
};

struct sdc_timing {
  uint64_t limit_ns;      // from its post on, a WR may reach its target for this long; then it fails
  uint64_t grace_ns;      // within this an atomic is executed that a target has handed over to its device
  uint64_t retry_ns;      // without an answer for so long, or what answers take if that is longer, a segment is sent
                          // again; twice as long each time,
  uint64_t retry_max_ns;  // up to this
  uint64_t idle_ns;       // after this idle time a session is asked for anew: half of what targets hold one for
  uint64_t rnr_ns;        // pause before it is sent again after "no receive"
  uint32_t retries;       // in a row without any progress
  uint32_t rnr_retries;
};

// A WR in the queue.
struct sdc_queued_wr {
  struct sdc_wr wr;
  uint64_t limit_ns;
  uint64_t nonce;   // SEND: of the session that its first segment went to
  uint32_t length;  // all SGEs
  uint32_t offset;  // of the next segment
  bool begun;       // it has a segment
  uint8_t status;   // once it is done
  uint8_t bytes[SDC_MAX_INLINE_BYTES];
};

// A segment in the window.
struct sdc_slot {
  uint32_t wr;  // position
  uint32_t psn;
  uint32_t offset;
  uint32_t peer;
  uint16_t bytes;
  uint8_t kind;   // of sdc_kind
  uint8_t state;  // of sdc_slot_state
  bool last;      // of its WR
};

enum sdc_slot_state { SDC_SLOT_UNSENT, SDC_SLOT_SENT, SDC_SLOT_AGAIN, SDC_SLOT_DONE };

// What is known of a target.
struct sdc_peer {
  struct sdc_address to;
  uint64_t key;
  uint32_t target;
  uint8_t state;   // of sdc_peer_state
  uint32_t users;  // slots of the window
  uint64_t used;   // when it was last used, in counts of use

  uint32_t hello_id;
  uint32_t first_psn;
  // The session.
  uint64_t nonce;
  uint32_t slot;
  uint32_t psn;        // the next one
  uint32_t in_flight;  // segments sent and not answered
  uint32_t atomics;    // of them
  // The target's clock shows at least `clock` plus the time that has passed here since `clock_at_ns`.
  uint64_t clock, clock_at_ns;

  uint64_t timer_ns;  // 0: none
  uint64_t pause_ns;  // nothing is sent before
  uint32_t tries, rnr_tries, gone;
  // The time that answers take, as RFC 6298 estimates it. One segment at a time is measured, from `timed_ns` on (0:
  // none). Kept from session to session.
  uint64_t round_trip_ns, deviation_ns;
  uint64_t timed_ns;
  uint32_t timed_psn;
  uint32_t backoff;  // timeouts since the last measurement
  bool gap_told;
  uint32_t gap_psn;
  uint32_t window;          // segments that may be on the wire: fewer after a loss
  uint32_t pass;            // of send_segments, to which these belong:
  uint32_t on_wire;         // segments sent, of those that the pass has reached
  bool waits;               // a segment waits, and so do those after it
  uint64_t close_until_ns;  // CLOSING: after this nothing of the session is executed anyway
};

enum sdc_peer_state { SDC_PEER_EMPTY, SDC_PEER_KNOWN, SDC_PEER_GREETING, SDC_PEER_OPEN, SDC_PEER_CLOSING };
enum sdc_queue_state { SDC_QUEUE_READY, SDC_QUEUE_ERROR, SDC_QUEUE_RESETTING };

struct sdc_initiator_stats {
  uint64_t packets, malformed, sent, sent_again, timeouts, hellos, sessions_gone, rnr, expired, peers_evicted;
};

struct sdc_initiator_config {
  const struct sdc_initiator_ops* ops;
  void* context;
  uint64_t life;  // random: no two initiators that ever send from one address may share it
  uint32_t mtu_bytes;
  uint32_t max_message_bytes;
  struct sdc_timing timing;
  struct sdc_queued_wr* wrs;
  uint32_t depth;  // a power of two
  struct sdc_peer* peers;
  uint32_t peer_count;  // SDC_PEER_WAYS times a power of two
  uint32_t first_tag;   // of its packets: first_tag up to first_tag + peer_count - 1. Answers have them, too: so
                        // several initiators may share a UD queue
};

struct sdc_initiator {
  struct sdc_initiator_config config;
  struct sdc_initiator_stats stats;
  uint8_t state;  // of sdc_queue_state
  // Positions of WRs, which only grow (and wrap): up to where they are polled, done, cut into segments, posted.
  uint32_t polled, done, cut, posted;
  bool failing;  // the WR at `failed` will fail with `failed_status` when those before it are done
  uint32_t failed;
  uint8_t failed_status;
  uint32_t slot_head, slot_tail;
  struct sdc_slot slots[SDC_WINDOW];
  uint32_t hellos;
  uint32_t closing;  // peers
  uint32_t pass;
  uint64_t uses;
};

void sdc_initiator_init(struct sdc_initiator* initiator, const struct sdc_initiator_config* config);

enum sdc_posted {
  SDC_POSTED,
  SDC_POST_FULL,     // a place is free again when the completion of the WR in it, or a later one, was polled
  SDC_POST_INVALID,  // malformed: the opcode, the number of SGEs, an inline payload's length, an atomic's SGE or
                     // alignment
  SDC_POST_BAD_STATE,
};

// Copies the WR; its buffers are borrowed until it completes. In ERR it is flushed. Sends nothing until
// sdc_initiator_run.
enum sdc_posted sdc_initiator_post(struct sdc_initiator* initiator, const struct sdc_wr* wr, uint64_t now_ns);

// Takes a datagram that arrived. It may contain anything.
void sdc_initiator_receive(struct sdc_initiator* initiator, const void* packet, uint32_t bytes, uint64_t now_ns);

// Sends what may be sent, repeats what was not answered, and fails what must not be sent any more. Call it after posts
// and packets, and when sdc_initiator_next says so.
void sdc_initiator_run(struct sdc_initiator* initiator, uint64_t now_ns);

// Returns when sdc_initiator_run, last called at now_ns, has something to do if nothing else happens; ~0: never.
uint64_t sdc_initiator_next(const struct sdc_initiator* initiator, uint64_t now_ns);

// Takes the next completion, in posting order; false: there is none. Unsignaled WRs have one only if they fail.
bool sdc_initiator_poll(struct sdc_initiator* initiator, struct sdc_completion* completion);

// Moves the queue to ERR: all WRs that are not done are flushed.
void sdc_initiator_fail(struct sdc_initiator* initiator, uint64_t now_ns);

// Begins to move the queue to RESET: forgets all WRs and completions. Once sdc_initiator_is_reset, nothing of it is
// executed any more. That takes a round trip to each target that has something of it. If a target does not answer, it
// takes until what it may have has expired: at most limit_ns + grace_ns after the last post. Run and receive meanwhile.
// Then the queue is ready for posts.
void sdc_initiator_reset(struct sdc_initiator* initiator, uint64_t now_ns);
bool sdc_initiator_is_reset(const struct sdc_initiator* initiator);

#ifdef __cplusplus
}
#endif

#endif  // KRCORE_RNIC_SDC_INITIATOR_H_
