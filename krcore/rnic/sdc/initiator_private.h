// What the files of the initiator share.
#ifndef KRCORE_RNIC_SDC_INITIATOR_PRIVATE_H_
#define KRCORE_RNIC_SDC_INITIATOR_PRIVATE_H_

#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/sdc/mutation.h"

// Clocks of two machines run at rates that differ by less than one part in this.
#define SDC_CLOCK_DRIFT 128u
// Sessions in a row that a peer may forget without any progress.
#define SDC_MAX_GONE 16u
// Segments of a peer that are on the wire at a time when many are lost.
#define SDC_MIN_WINDOW 4u

static inline struct sdc_queued_wr* sdc_wr_at(struct sdc_initiator* initiator, uint32_t position) {
  return &initiator->config.wrs[position & (initiator->config.depth - 1)];
}
static inline struct sdc_slot* sdc_slot_at(struct sdc_initiator* initiator, uint32_t position) {
  return &initiator->slots[position % SDC_WINDOW];
}
static inline bool sdc_is_pending(const struct sdc_slot* slot) {
  return slot->state == SDC_SLOT_SENT || slot->state == SDC_SLOT_AGAIN;
}

// ---- initiator.c

// Makes the WR fail with this status, unless an earlier one fails.
void sdc_fail_wr(struct sdc_initiator* initiator, uint32_t position, enum sdc_status status);
// Returns whether the segments of this WR no longer matter: it, or one before it, fails.
bool sdc_is_behind_failure(const struct sdc_initiator* initiator, uint32_t position);

// ---- initiator_peers.c: the table of peers and their sessions

// Returns the peer of `wr`, a new one if need be; null: all peers that might give way have segments under way.
struct sdc_peer* sdc_find_peer(struct sdc_initiator* initiator, const struct sdc_wr* wr);
// Asks for a session.
void sdc_greet(struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns);
void sdc_send_hello(struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns);
// Takes the answer to a HELLO.
void sdc_answer_to_hello(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_packet* packet,
                         uint64_t now_ns);
// Takes the answer "there is no such session".
void sdc_session_gone(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_packet* packet);
// Drops the window, and closes sessions that may have something to execute.
void sdc_drop_slots(struct sdc_initiator* initiator, uint64_t now_ns);
void sdc_close_peers(struct sdc_initiator* initiator, uint64_t now_ns);
void sdc_peer_closed(struct sdc_initiator* initiator, struct sdc_peer* peer);
// Fails the first WR that has a segment for this peer.
void sdc_fail_peer(struct sdc_initiator* initiator, const struct sdc_peer* peer, enum sdc_status status);

// Returns how long to wait for an answer, doubled `backoff` times.
static inline uint64_t sdc_wait_ns(const struct sdc_timing* timing, const struct sdc_peer* peer, uint32_t backoff) {
  const uint64_t usual_ns = peer->round_trip_ns + 4 * peer->deviation_ns;
  const uint64_t first_ns = usual_ns > timing->retry_ns ? usual_ns : timing->retry_ns;
  const uint64_t wait_ns = backoff < 16 && first_ns < timing->retry_max_ns ? first_ns << backoff : timing->retry_max_ns;
  return wait_ns < timing->retry_max_ns ? wait_ns : timing->retry_max_ns;
}
// Measures an answer to something that was sent once, at `timed_ns`, so that no answer to a repetition is taken for the
// first one's.
static inline void sdc_measure(struct sdc_peer* peer, uint64_t now_ns) {
  const uint64_t took_ns = now_ns - peer->timed_ns;
  const uint64_t off_ns = took_ns > peer->round_trip_ns ? took_ns - peer->round_trip_ns : peer->round_trip_ns - took_ns;
  if (peer->round_trip_ns == 0) {
    peer->round_trip_ns = took_ns;
    peer->deviation_ns = took_ns / 2;
  } else {
    peer->deviation_ns += off_ns / 4 - peer->deviation_ns / 4;
    peer->round_trip_ns += took_ns / 8 - peer->round_trip_ns / 8;
  }
  peer->timed_ns = 0;
  peer->backoff = 0;
}
// Called when something was lost, and with it everything after it.
void sdc_narrow_window(struct sdc_peer* peer);
// Handles packets that were not answered in time.
void sdc_check_timers(struct sdc_initiator* initiator, uint64_t now_ns);

#endif  // KRCORE_RNIC_SDC_INITIATOR_PRIVATE_H_
