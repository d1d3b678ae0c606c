// The target of the software DC: serves READ, WRITE, atomics and SEND of any initiator that knows its number and key.
//
// Its state is a table of sessions, one for each initiator heard of lately; the one that was idle longest gives way. A
// session executes segments in the order of their PSNs, each once, and keeps the results of its atomics. The target
// executes no request of a session that it does not have. docs/software_dc.md has the protocol and why it holds.
//
// No allocation, clock, lock or I/O: the caller provides memory and `now_ns` (of a clock that counts while the machine
// sleeps and never goes back); packets come by sdc_target_receive and leave by the callbacks. All calls for one target,
// and the callbacks in them, are on one thread (in the kernel: under one lock); the callbacks call nothing of the
// target.
#ifndef KRCORE_RNIC_SDC_TARGET_H_
#define KRCORE_RNIC_SDC_TARGET_H_

#include "krcore/rnic/sdc/types.h"
#include "krcore/rnic/sdc/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

// Names an atomic that was handed over, until its result arrives.
struct sdc_token {
  uint32_t slot;
  uint32_t psn;
  uint64_t nonce;
};

struct sdc_atomic_request {
  struct sdc_token token;
  enum sdc_opcode opcode;
  uint32_t rkey;
  uint64_t addr;
  uint64_t compare_add;
  uint64_t swap;
};

struct sdc_recv {
  uint64_t wr_id;
  struct sdc_sge sges[SDC_MAX_SGE];
  uint32_t sge_count;
};

struct sdc_received {
  uint64_t wr_id;
  enum sdc_status status;
  bool has_imm;
  bool is_write;  // it was consumed by a WRITE with immediate
  uint32_t imm;
  uint32_t length;  // bytes received (is_write: written)
};

struct sdc_target_ops {
  // Returns the memory [addr, addr + length) that `rkey` opens for `access` (of sdc_access), null if it does not. It
  // stays valid until the call of the target returns. length > 0.
  void* (*memory)(void* context, uint32_t rkey, uint64_t addr, uint32_t length, uint32_t access);
  // Returns the local memory of a receive, null if lkey does not cover it.
  void* (*local)(void* context, uint32_t lkey, uint64_t addr, uint32_t length);
  // Hands an atomic over to the device; sdc_target_atomic_done brings its result. Atomics are executed in the order in
  // which they are handed over, within grace_ns. False: there is no room, and nothing was handed over.
  bool (*atomic)(void* context, const struct sdc_atomic_request* request);
  // `buffer` returns a buffer for a packet of the MTU's length, or null if there is none (the packet is then lost);
  // `send` sends the first `bytes` of it.
  uint8_t* (*buffer)(void* context);
  void (*send)(void* context, const struct sdc_address* to, uint32_t bytes);
  // Completes a receive. There is room for the completions of all receives that were posted.
  void (*received)(void* context, const struct sdc_received* received);
};

struct sdc_session {
  uint64_t nonce;
  uint64_t active_ns;  // when its initiator was last heard of, or an atomic was done
  uint64_t life;
  struct sdc_address from;
  uint32_t hello_id;
  uint32_t tag;
  uint32_t psn;         // the next one
  uint32_t failed_psn;  // if failed != 0: nothing is executed from here on
  uint8_t state;        // of sdc_session_state
  uint8_t failed;       // of sdc_status
  bool gap_told;        // it was told that `psn` is missing
  bool gone_known;      // gone_psn is valid
  uint32_t gone_psn;    // where the session before this one ended
  uint64_t gone_nonce;
  uint32_t pending;  // atomics that were handed over
  bool has_message;  // a SEND is half received:
  uint32_t message_length;
  uint32_t message_offset;  // what comes next
  uint64_t message_until_ns;
  struct sdc_recv message;
  uint64_t is_atomic, is_done;  // by PSN % SDC_WINDOW: it was an atomic; its result is there
  uint64_t results[SDC_WINDOW];
};

enum sdc_session_state { SDC_SESSION_FREE, SDC_SESSION_OPEN, SDC_SESSION_CLOSING };

struct sdc_target_stats {
  uint64_t packets, malformed, executed, repeated, sessions_made, sessions_evicted, strangers, expired, busy, rnr;
  uint64_t early;  // packets that came after a missing one
};

struct sdc_target_config {
  const struct sdc_target_ops* ops;
  void* context;
  uint32_t number;
  uint64_t key;
  uint64_t seed;  // random: no two lives of a target may share it
  uint32_t mtu_bytes;
  uint32_t access;   // of sdc_access: what it grants, if the memory grants it too (which `memory` checks)
  uint64_t hold_ns;  // a session that was active within this is not given to another: twice the initiators' idle_ns and
                     // retry_max_ns or more
  struct sdc_session* sessions;
  uint32_t session_count;
  struct sdc_recv* receives;  // a ring
  uint32_t receive_count;     // 0: it receives nothing
};

struct sdc_target {
  struct sdc_target_config config;
  struct sdc_target_stats stats;
  uint64_t nonces;  // made so far
  uint32_t receive_head;
  uint32_t receives_posted;  // in the ring
  uint32_t receives_held;    // half received messages
};

void sdc_target_init(struct sdc_target* target, const struct sdc_target_config* config);

// Posts a receive. False: there is no room for more.
bool sdc_target_post_receive(struct sdc_target* target, const struct sdc_recv* receive);

// Takes a datagram that arrived from `from`. It may contain anything.
void sdc_target_receive(struct sdc_target* target, const struct sdc_address* from, const void* packet, uint32_t bytes,
                        uint64_t now_ns);

// The atomic `token` has been executed (status SDC_SUCCESS, and `before` is the word it found), or has failed and will
// never be executed. Call it in the order in which atomics were handed over. Before a target's life ends, all must be
// done, or the queue that executes them destroyed.
void sdc_target_atomic_done(struct sdc_target* target, const struct sdc_token* token, enum sdc_status status,
                            uint64_t before, uint64_t now_ns);

#ifdef __cplusplus
}
#endif

#endif  // KRCORE_RNIC_SDC_TARGET_H_
