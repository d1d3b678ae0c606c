// What targets answer.
#include "krcore/rnic/sdc/initiator_private.h"

static struct sdc_slot* find_slot(struct sdc_initiator* initiator, const struct sdc_peer* peer, uint32_t psn) {
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] == peer && sdc_is_pending(slot) && slot->psn == psn) return slot;
  }
  return NULL;
}

static void progress(const struct sdc_initiator* initiator, struct sdc_peer* peer, uint64_t now_ns) {
  peer->tries = peer->rnr_tries = peer->gone = 0;
  peer->gap_told = false;
  const uint64_t wait_ns = sdc_wait_ns(&initiator->config.timing, peer, peer->backoff);
  peer->timer_ns = peer->in_flight == 0 ? 0 : now_ns + wait_ns;
}

static void done(const struct sdc_initiator* initiator, struct sdc_peer* peer, struct sdc_slot* slot, uint64_t now_ns) {
  slot->state = SDC_SLOT_DONE;
  --peer->in_flight;
  if (slot->kind == SDC_ATOMIC) --peer->atomics;
  if (peer->window < SDC_WINDOW) ++peer->window;
  if (peer->timed_ns != 0 && slot->psn == peer->timed_psn) sdc_measure(peer, now_ns);
  progress(initiator, peer, now_ns);
}

// All before `psn` has been executed: that is all that a WRITE or SEND waits for.
static void done_before(struct sdc_initiator* initiator, struct sdc_peer* peer, uint32_t psn, uint64_t now_ns) {
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] != peer || !sdc_is_pending(slot)) continue;
    if (!sdc_before(slot->psn, psn)) return;
    if (slot->kind == SDC_WRITE || slot->kind == SDC_SEND || sdc_mutated(ACK_FOR_READS))
      done(initiator, peer, slot, now_ns);
  }
}

static void send_again_from(struct sdc_initiator* initiator, struct sdc_peer* peer, uint32_t psn) {
  peer->timed_ns = 0;
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (&initiator->config.peers[slot->peer] == peer && slot->state == SDC_SLOT_SENT && !sdc_before(slot->psn, psn))
      slot->state = SDC_SLOT_AGAIN;
  }
}

static void take_answer(struct sdc_initiator* initiator, struct sdc_peer* peer, struct sdc_slot* slot,
                        const uint8_t* data, uint32_t bytes, uint64_t now_ns) {
  if (!sdc_is_behind_failure(initiator, slot->wr) &&
      !sdc_local_copy(initiator, sdc_wr_at(initiator, slot->wr), slot->offset, bytes, NULL, data))
    sdc_fail_wr(initiator, slot->wr, SDC_LOCAL_PROTECTION_ERROR);
  done(initiator, peer, slot, now_ns);
}

static void not_ready(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_slot* slot,
                      uint64_t now_ns) {
  const struct sdc_timing* timing = &initiator->config.timing;
  if (now_ns < peer->pause_ns) return;  // it was said already
  ++initiator->stats.rnr;
  if (++peer->rnr_tries > timing->rnr_retries) {
    sdc_fail_wr(initiator, slot->wr, SDC_RNR_RETRY_EXCEEDED);
    return;
  }
  peer->tries = 0;
  peer->pause_ns = now_ns + timing->rnr_ns;
  peer->timer_ns = peer->pause_ns + sdc_wait_ns(timing, peer, peer->backoff);
  send_again_from(initiator, peer, slot->psn);
}

static void answer_in_session(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_packet* packet,
                              uint64_t now_ns) {
  // Of what is known of its clock the later is the better, and both are true.
  const uint64_t since_ns = now_ns - peer->clock_at_ns;
  if (packet->time >= peer->clock + since_ns - since_ns / SDC_CLOCK_DRIFT) {
    peer->clock = packet->time;
    peer->clock_at_ns = now_ns;
  }
  if (packet->kind == SDC_GONE) {
    sdc_session_gone(initiator, peer, packet);
    return;
  }
  if (sdc_before(peer->psn, packet->psn)) return;  // nothing there was asked yet
  done_before(initiator, peer, packet->psn, now_ns);
  struct sdc_slot* slot = find_slot(initiator, peer, packet->psn);
  if (packet->kind == SDC_GAP) {
    if (peer->gap_told && peer->gap_psn == packet->psn) return;
    peer->gap_told = true;
    peer->gap_psn = packet->psn;
    sdc_narrow_window(peer);
    send_again_from(initiator, peer, packet->psn);
  } else if (packet->kind == SDC_ACK || slot == NULL) {
    return;
  } else if (packet->kind == SDC_DATA) {
    if (slot->kind == SDC_READ && packet->bytes == slot->bytes)
      take_answer(initiator, peer, slot, packet->data, packet->bytes, now_ns);
  } else if (packet->kind == SDC_RESULT) {
    uint8_t word[8];
    sdc_copy(word, &packet->word, 8);
    if (slot->kind == SDC_ATOMIC) take_answer(initiator, peer, slot, word, 8, now_ns);
  } else if (packet->kind == SDC_PROGRESS) {
    if (slot->kind != SDC_ATOMIC || sdc_mutated(PROGRESS_COUNTS)) return;
    peer->tries = peer->backoff = 0;
    peer->timer_ns = now_ns + sdc_wait_ns(&initiator->config.timing, peer, 0);
  } else if (packet->kind == SDC_NAK) {
    sdc_fail_wr(initiator, slot->wr, (enum sdc_status)packet->code);
  } else if (packet->kind == SDC_RNR) {
    not_ready(initiator, peer, slot, now_ns);
  }
}

void sdc_initiator_receive(struct sdc_initiator* initiator, const void* packet, uint32_t bytes, uint64_t now_ns) {
  struct sdc_packet parsed;
  ++initiator->stats.packets;
  if (!sdc_parse(packet, bytes, &parsed) || !sdc_is_answer(parsed.kind) ||
      parsed.tag - initiator->config.first_tag >= initiator->config.peer_count) {
    ++initiator->stats.malformed;
    return;
  }
  struct sdc_peer* peer = &initiator->config.peers[parsed.tag - initiator->config.first_tag];
  if (peer->target != parsed.target) return;
  if (parsed.kind == SDC_WELCOME || parsed.kind == SDC_REFUSED || parsed.kind == SDC_BUSY) {
    sdc_answer_to_hello(initiator, peer, &parsed, now_ns);
  } else if (parsed.nonce == peer->nonce && parsed.slot == peer->slot) {
    if (peer->state == SDC_PEER_CLOSING && (parsed.kind == SDC_CLOSED || parsed.kind == SDC_GONE)) {
      sdc_peer_closed(initiator, peer);
    } else if (peer->state == SDC_PEER_OPEN && parsed.kind != SDC_CLOSED) {
      answer_in_session(initiator, peer, &parsed, now_ns);
    }
  }
  sdc_retire(initiator, now_ns);
}
