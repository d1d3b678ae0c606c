// The initiator of the software DC: a send queue whose WRs each name their target.
//
// WRs are cut into segments, of which up to SDC_WINDOW are under way, in posting order; each is repeated until it is
// answered, its tries are exhausted or its WR's limit has passed. Completions come in posting order; the first failed
// WR moves the queue to ERR and flushes the rest. docs/software_dc.md has the protocol and why it holds.
//
// No allocation, clock, lock or I/O: memory is handed in, `now_ns` is an argument (a clock that counts while the
// machine sleeps and never goes back), packets come by sdc_initiator_receive and leave by the callbacks. All calls for
// one initiator, and the callbacks in them, are on one thread (in the kernel: under one lock); the callbacks call
// nothing of it.
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
  // Local memory [addr, addr + length) that `lkey` covers, to be written by us or not; null if it does not. It stays
  // valid until the call of the initiator returns. length > 0. For SDC_INLINE, `addr` itself is read, at the post.
  void* (*local)(void* context, uint32_t lkey, uint64_t addr, uint32_t length, bool written);
  // A buffer for a packet of the MTU's length, null if there is none now (call sdc_initiator_run when there is); and
  // sends the first `bytes` of it. A buffer that was not sent is the next one again.
  uint8_t* (*buffer)(void* context);
  void (*send)(void* context, const struct sdc_address* to, uint32_t bytes);
};

struct sdc_timing {
  uint64_t limit_ns;      // from a WR's post on it may reach its target for so long; then it is failed
  uint64_t grace_ns;      // an atomic that a target has handed over to its device is executed within this
  uint64_t retry_ns;      // without an answer for so long, or what answers take if that is longer, a segment is sent
                          // again; twice as long each time,
  uint64_t retry_max_ns;  // up to this
  uint64_t idle_ns;       // a session that was idle for longer is asked for anew: half of what targets hold one for
  uint64_t rnr_ns;        // after "no receive" it is sent again
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
  uint64_t used;   // when last, counted

  uint32_t hello_id;
  uint32_t first_psn;
  // The session.
  uint64_t nonce;
  uint32_t slot;
  uint32_t psn;        // the next one
  uint32_t in_flight;  // segments sent and not answered
  uint32_t atomics;    // of them
  // "By its clock it is later than `clock` by what has passed here since `clock_at_ns`."
  uint64_t clock, clock_at_ns;

  uint64_t timer_ns;  // 0: none
  uint64_t pause_ns;  // nothing is sent before
  uint32_t tries, rnr_tries, gone;
  // What answers take, as RFC 6298 estimates it; of a segment at a time, from `timed_ns` on (0: none). Kept from
  // session to session.
  uint64_t round_trip_ns, deviation_ns;
  uint64_t timed_ns;
  uint32_t timed_psn;
  uint32_t backoff;  // timeouts since the last that was measured
  bool gap_told;
  uint32_t gap_psn;
  uint32_t window;          // segments that may be on the wire: fewer after a loss
  uint32_t pass;            // of sdc_send, to which these belong:
  uint32_t on_wire;         // segments sent, of those that it came to
  bool waits;               // something does, and what is behind it
  uint64_t close_until_ns;  // CLOSING: from then on nothing of the session is executed anyway
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
  // Positions of WRs, which only grow (and wrap): polled up to, done up to, cut into segments up to, posted up to.
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
  SDC_POST_FULL,     // a place is free when a completion, or a later one, was polled
  SDC_POST_INVALID,  // malformed: the opcode, the number of SGEs, an inline payload's length, an atomic's SGE or
                     // alignment
  SDC_POST_BAD_STATE,
};

// Copies the WR; its buffers are borrowed until it completes. In ERR it is flushed. Sends nothing before
// sdc_initiator_run.
enum sdc_posted sdc_initiator_post(struct sdc_initiator* initiator, const struct sdc_wr* wr, uint64_t now_ns);

// A datagram arrived. Anything may be in it.
void sdc_initiator_receive(struct sdc_initiator* initiator, const void* packet, uint32_t bytes, uint64_t now_ns);

// Sends what may be sent, repeats what was not answered, fails what must not be sent any more. Call it after posts and
// packets, and when sdc_initiator_next says so.
void sdc_initiator_run(struct sdc_initiator* initiator, uint64_t now_ns);

// When sdc_initiator_run, which was last called at now_ns, has something to do if nothing else happens; ~0: never.
uint64_t sdc_initiator_next(const struct sdc_initiator* initiator, uint64_t now_ns);

// The next completion, in posting order; false: there is none. Unsignaled WRs have one only if they fail.
bool sdc_initiator_poll(struct sdc_initiator* initiator, struct sdc_completion* completion);

// To ERR: all WRs that are not done are flushed.
void sdc_initiator_fail(struct sdc_initiator* initiator, uint64_t now_ns);

// To RESET: forgets all WRs and completions. Nothing of it is executed any more once sdc_initiator_is_reset, which
// takes a round trip to each target that has something of it, or with targets that do not answer until what they may
// have has expired: at most limit_ns + grace_ns after the last post. Run and receive meanwhile. Then it is ready for
// posts.
void sdc_initiator_reset(struct sdc_initiator* initiator, uint64_t now_ns);
bool sdc_initiator_is_reset(const struct sdc_initiator* initiator);

#ifdef __cplusplus
}
#endif

#endif  // KRCORE_RNIC_SDC_INITIATOR_H_
