// The peers of an initiator, and the life of a session with one.
#include "krcore/rnic/sdc/initiator_private.h"

static bool is_peer_of(const struct sdc_peer* peer, const struct sdc_wr* wr) {
  return peer->state != SDC_PEER_EMPTY && peer->target == wr->target && peer->key == wr->key &&
         sdc_same_address(&peer->to, &wr->to);
}

static uint32_t hash(const struct sdc_wr* wr) {
  uint64_t x = wr->key ^ ((uint64_t)wr->target << 32 | wr->to.qpn);
  for (uint32_t i = 0; i < sizeof(wr->to.bytes) / 8; ++i) {
    uint64_t word;
    sdc_copy(&word, wr->to.bytes + 8 * i, 8);
    x = (x ^ word) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
  }
  return (uint32_t)(x * 0xbf58476d1ce4e5b9u >> 32);
}

struct sdc_peer* sdc_find_peer(struct sdc_initiator* initiator, const struct sdc_wr* wr) {
  const uint32_t sets = initiator->config.peer_count / SDC_PEER_WAYS;
  struct sdc_peer* set = &initiator->config.peers[(hash(wr) & (sets - 1)) * SDC_PEER_WAYS];
  struct sdc_peer* oldest = NULL;
  for (uint32_t i = 0; i < SDC_PEER_WAYS; ++i) {
    struct sdc_peer* peer = &set[i];
    if (is_peer_of(peer, wr) && peer->state != SDC_PEER_CLOSING) {
      peer->used = ++initiator->uses;
      return peer;
    }
    if (peer->users != 0 || peer->state == SDC_PEER_CLOSING) continue;
    if (oldest == NULL || peer->used < oldest->used) oldest = peer;
  }
  // Evict a peer that nothing is under way to: what its session was asked to do is done, and the target will forget it.
  if (oldest == NULL) return NULL;
  if (oldest->state != SDC_PEER_EMPTY) ++initiator->stats.peers_evicted;
  sdc_clear(oldest, sizeof(*oldest));
  oldest->state = SDC_PEER_KNOWN;
  oldest->to = wr->to;
  oldest->target = wr->target;
  oldest->key = wr->key;
  oldest->used = ++initiator->uses;
  return oldest;
}

static void send_plain(struct sdc_initiator* initiator, const struct sdc_peer* peer, struct sdc_packet* packet) {
  uint8_t* buffer = initiator->config.ops->buffer(initiator->config.context);
  if (buffer == NULL) return;  // as good as lost
  packet->target = peer->target;
  packet->tag = initiator->config.first_tag + (uint32_t)(peer - initiator->config.peers);
  ++initiator->stats.sent;
  initiator->config.ops->send(initiator->config.context, &peer->to, sdc_build(buffer, packet));
}

void sdc_send_hello(struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns) {
  struct sdc_packet packet;
  sdc_clear(&packet, sizeof(packet));
  packet.kind = SDC_HELLO;
  packet.life = initiator->config.life;
  packet.key = peer->key;
  packet.id = peer->hello_id;
  packet.psn = peer->first_psn;
  ++initiator->stats.hellos;
  send_plain(initiator, peer, &packet);
  peer->timer_ns = now_ns + sdc_wait_ns(&initiator->config.timing, peer, peer->backoff);
}

void sdc_greet(struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns) {
  peer->state = SDC_PEER_GREETING;
  peer->hello_id = ++initiator->hellos;
  // Any number will do; this choice is never far from a wrap, so that wrapping is no rare event.
  peer->first_psn = 0u - (peer->hello_id * 37u & 1023u);
  peer->tries = 0;
  peer->timed_ns = now_ns;
  sdc_send_hello(initiator, peer, now_ns);
}

// Makes the next WR ask for another session. Nothing is waited for meanwhile.
static void forget_session(struct sdc_peer* peer) {
  peer->state = SDC_PEER_KNOWN;
  peer->timer_ns = peer->timed_ns = 0;
  peer->in_flight = peer->atomics = 0;
}

void sdc_answer_to_hello(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_packet* packet,
                         uint64_t now_ns) {
  if (peer->state != SDC_PEER_GREETING || packet->id != peer->hello_id || packet->life != initiator->config.life)
    return;
  if (packet->kind == SDC_REFUSED) {
    forget_session(peer);
    sdc_fail_peer(initiator, peer, SDC_REMOTE_ACCESS_ERROR);
  } else if (packet->kind == SDC_BUSY) {
    // The target is alive, so this does not count as a try. The WR's limit says how long this may go on.
    peer->tries = 1;
    peer->timed_ns = 0;
    peer->timer_ns = now_ns + sdc_wait_ns(&initiator->config.timing, peer, 1);
  } else {
    if (peer->timed_ns != 0) sdc_measure(peer, now_ns);
    peer->state = SDC_PEER_OPEN;
    peer->nonce = packet->nonce;
    peer->slot = packet->slot;
    peer->psn = peer->first_psn;
    peer->in_flight = peer->atomics = 0;
    peer->tries = peer->rnr_tries = 0;
    peer->window = SDC_WINDOW;
    peer->timer_ns = peer->pause_ns = 0;
    peer->gap_told = false;
    peer->clock = packet->time;
    peer->clock_at_ns = now_ns;
  }
}

void sdc_fail_peer(struct sdc_initiator* initiator, const struct sdc_peer* peer, enum sdc_status status) {
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    const struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] != peer || slot->state == SDC_SLOT_DONE) continue;
    sdc_fail_wr(initiator, slot->wr, status);
    return;
  }
}

// Sends again in the next session what was sent in this one, if the target says that it was not executed, or if that
// does not matter.
void sdc_session_gone(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_packet* packet) {
  const bool known = (packet->flags & SDC_FLAG_KNOWN) != 0;
  ++initiator->stats.sessions_gone;
  forget_session(peer);
  if (++peer->gone > SDC_MAX_GONE || sdc_mutated(GONE_COUNTS)) sdc_fail_peer(initiator, peer, SDC_RETRY_EXCEEDED);
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] != peer || !sdc_is_pending(slot)) continue;
    const bool executed = known && sdc_before(slot->psn, packet->psn);
    if (slot->kind == SDC_READ || (known && !executed) || sdc_mutated(GONE_SENT_AGAIN)) {
      slot->state = SDC_SLOT_UNSENT;
      continue;
    }
    slot->state = SDC_SLOT_DONE;
    // The result of an atomic is lost with the session.
    if (!known || slot->kind == SDC_ATOMIC) sdc_fail_wr(initiator, slot->wr, SDC_RETRY_EXCEEDED);
  }
}

void sdc_drop_slots(struct sdc_initiator* initiator, uint64_t now_ns) {
  for (; initiator->slot_head != initiator->slot_tail; ++initiator->slot_head) {
    const struct sdc_slot* slot = sdc_slot_at(initiator, initiator->slot_head);
    struct sdc_peer* peer = &initiator->config.peers[slot->peer];
    --peer->users;
    if (!sdc_is_pending(slot)) continue;
    if (slot->kind == SDC_READ || sdc_mutated(RESET_AT_ONCE)) {
      // A READ changes nothing if it is executed. How far the session got is unknown, so the next WR gets another one.
      if (peer->state == SDC_PEER_OPEN) forget_session(peer);
      continue;
    }
    if (peer->state != SDC_PEER_CLOSING) {
      peer->state = SDC_PEER_CLOSING;
      peer->close_until_ns = 0;
      peer->timer_ns = now_ns;
      peer->tries = 0;
      ++initiator->closing;
    }
    const uint64_t until_ns = sdc_wr_at(initiator, slot->wr)->limit_ns + initiator->config.timing.grace_ns;
    if (until_ns > peer->close_until_ns) peer->close_until_ns = until_ns;
  }
}

void sdc_peer_closed(struct sdc_initiator* initiator, struct sdc_peer* peer) {
  forget_session(peer);
  --initiator->closing;
  if (initiator->closing == 0 && initiator->state == SDC_QUEUE_RESETTING) initiator->state = SDC_QUEUE_READY;
}

void sdc_close_peers(struct sdc_initiator* initiator, uint64_t now_ns) {
  for (uint32_t i = 0; i < initiator->config.peer_count && initiator->closing != 0; ++i) {
    struct sdc_peer* peer = &initiator->config.peers[i];
    if (peer->state != SDC_PEER_CLOSING || now_ns < peer->timer_ns) continue;
    if (now_ns > peer->close_until_ns || (sdc_mutated(CLOSE_GIVEN_UP) && peer->tries > 3)) {
      sdc_peer_closed(initiator, peer);
      continue;
    }
    struct sdc_packet packet;
    sdc_clear(&packet, sizeof(packet));
    packet.kind = SDC_CLOSE;
    packet.slot = peer->slot;
    packet.nonce = peer->nonce;
    send_plain(initiator, peer, &packet);
    peer->timer_ns = now_ns + sdc_wait_ns(&initiator->config.timing, peer, peer->tries);
    if (peer->timer_ns > peer->close_until_ns) peer->timer_ns = peer->close_until_ns + 1;
    ++peer->tries;
  }
}

void sdc_narrow_window(struct sdc_peer* peer) {
  peer->window /= 2;
  if (peer->window < SDC_MIN_WINDOW) peer->window = SDC_MIN_WINDOW;
}

static void timed_out(struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns) {
  ++initiator->stats.timeouts;
  ++peer->backoff;
  peer->timed_ns = 0;
  if (++peer->tries > initiator->config.timing.retries) {
    peer->timer_ns = 0;
    sdc_fail_peer(initiator, peer, SDC_RETRY_EXCEEDED);
    return;
  }
  if (peer->state == SDC_PEER_GREETING) {
    sdc_send_hello(initiator, peer, now_ns);
    return;
  }
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] == peer && slot->state == SDC_SLOT_SENT) slot->state = SDC_SLOT_AGAIN;
  }
  peer->gap_told = false;
  sdc_narrow_window(peer);
  peer->timer_ns = now_ns + sdc_wait_ns(&initiator->config.timing, peer, peer->backoff);
}

void sdc_check_timers(struct sdc_initiator* initiator, uint64_t now_ns) {
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    const struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (sdc_is_behind_failure(initiator, slot->wr)) return;
    struct sdc_peer* peer = &initiator->config.peers[slot->peer];
    if (slot->state != SDC_SLOT_DONE && peer->timer_ns != 0 && now_ns >= peer->timer_ns)
      timed_out(initiator, peer, now_ns);
  }
}
