// WRs become segments, segments become packets.
#include "krcore/rnic/sdc/initiator_private.h"

bool sdc_local_copy(struct sdc_initiator* initiator, struct sdc_queued_wr* wr, uint32_t offset, uint32_t bytes,
                    uint8_t* to, const uint8_t* from) {
  if ((wr->wr.flags & SDC_INLINE) != 0) {
    sdc_copy(to, wr->bytes + offset, bytes);
    return true;
  }
  for (uint32_t i = 0; i < wr->wr.sge_count && bytes != 0; ++i) {
    const struct sdc_sge* sge = &wr->wr.sges[i];
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = bytes < sge->length - offset ? bytes : sge->length - offset;
    uint8_t* local =
        initiator->config.ops->local(initiator->config.context, sge->lkey, sge->addr + offset, part, from != NULL);
    if (local == NULL) return false;
    if (from != NULL) {
      sdc_copy_to_shared(local, from, part);
      from += part;
    } else {
      sdc_copy_from_shared(to, local, part);
      to += part;
    }
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

static uint8_t kind_of(enum sdc_opcode opcode) {
  switch (opcode) {
    case SDC_OP_READ: return SDC_READ;
    case SDC_OP_WRITE:
    case SDC_OP_WRITE_IMM: return SDC_WRITE;
    case SDC_OP_SEND:
    case SDC_OP_SEND_IMM: return SDC_SEND;
    case SDC_OP_COMPARE_SWAP:
    case SDC_OP_FETCH_ADD: break;
  }
  return SDC_ATOMIC;
}

static bool has_local_memory(struct sdc_initiator* initiator, const struct sdc_queued_wr* wr, bool written) {
  if ((wr->wr.flags & SDC_INLINE) != 0) return true;
  for (uint32_t i = 0; i < wr->wr.sge_count; ++i) {
    const struct sdc_sge* sge = &wr->wr.sges[i];
    if (sge->length != 0 &&
        initiator->config.ops->local(initiator->config.context, sge->lkey, sge->addr, sge->length, written) == NULL)
      return false;
  }
  return true;
}

// How long the segment at wr->offset is. It ends where a word of the remote memory does: no word is in two of them.
static uint32_t cut_segment(const struct sdc_initiator* initiator, const struct sdc_queued_wr* wr, uint8_t kind) {
  const uint32_t rest = wr->length - wr->offset;
  uint32_t most = sdc_segment_bytes(initiator->config.mtu_bytes);
  if (kind != SDC_SEND) most -= (uint32_t)((wr->wr.remote_addr + wr->offset + most) & 7);
  if (sdc_mutated(WORDS_CUT)) most = sdc_segment_bytes(initiator->config.mtu_bytes) - 3;
  return rest < most ? rest : most;
}

// Gives the next segment a slot. False: there is none, or no slot for it.
static bool add_slot(struct sdc_initiator* initiator, uint64_t now_ns) {
  if (initiator->slot_tail - initiator->slot_head == SDC_WINDOW || initiator->cut == initiator->posted) return false;
  if (sdc_is_behind_failure(initiator, initiator->cut)) return false;
  struct sdc_queued_wr* wr = sdc_wr_at(initiator, initiator->cut);
  const uint8_t kind = kind_of(wr->wr.opcode);
  if (now_ns >= wr->limit_ns && !sdc_mutated(SENT_BEHIND_LIMIT)) {
    sdc_fail_wr(initiator, initiator->cut, SDC_RETRY_EXCEEDED);
    return false;
  }
  if (!wr->begun && !has_local_memory(initiator, wr, kind == SDC_READ || kind == SDC_ATOMIC)) {
    sdc_fail_wr(initiator, initiator->cut, SDC_LOCAL_PROTECTION_ERROR);
    return false;
  }
  struct sdc_peer* peer = sdc_find_peer(initiator, &wr->wr);
  if (peer == NULL) return false;
  ++peer->users;
  const uint32_t bytes = cut_segment(initiator, wr, kind);
  struct sdc_slot* slot = sdc_slot_at(initiator, initiator->slot_tail++);
  slot->wr = initiator->cut;
  slot->psn = 0;
  slot->offset = wr->offset;
  slot->peer = (uint32_t)(peer - initiator->config.peers);
  slot->bytes = (uint16_t)bytes;
  slot->kind = kind;
  slot->state = SDC_SLOT_UNSENT;
  wr->begun = true;
  wr->offset += bytes;
  slot->last = wr->offset == wr->length;
  if (slot->last) ++initiator->cut;
  return true;
}

// A fenced WR waits for every READ and atomic before it, and all behind it do, whatever their peers.
static bool fence_is_closed(struct sdc_initiator* initiator, uint32_t position) {
  const struct sdc_slot* fenced = sdc_slot_at(initiator, position);
  if ((sdc_wr_at(initiator, fenced->wr)->wr.flags & SDC_FENCE) == 0 || sdc_mutated(NO_FENCE)) return false;
  if (fenced->state != SDC_SLOT_UNSENT || fenced->offset != 0) return false;
  for (uint32_t n = initiator->slot_head; n != position; ++n) {
    const struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (slot->state != SDC_SLOT_DONE && (slot->kind == SDC_READ || slot->kind == SDC_ATOMIC)) return true;
  }
  return false;
}

// The last moment at which a segment of this WR may be executed, by the target's clock. That clock shows at least
// `clock` plus what has passed here since, less the drift; so when it shows the result the limit has not passed here.
static uint64_t deadline(const struct sdc_initiator* initiator, const struct sdc_peer* peer,
                         const struct sdc_queued_wr* wr, uint64_t now_ns) {
  uint64_t limit_ns = wr->limit_ns;
  if (sdc_mutated(SENT_BEHIND_LIMIT)) limit_ns = now_ns + initiator->config.timing.limit_ns;
  const uint64_t rest_ns = limit_ns - peer->clock_at_ns;
  return peer->clock + rest_ns - rest_ns / SDC_CLOCK_DRIFT;
}

static void fill(struct sdc_packet* packet, const struct sdc_queued_wr* wr, const struct sdc_slot* slot) {
  const enum sdc_opcode opcode = wr->wr.opcode;
  packet->kind = slot->kind;
  packet->rkey = wr->wr.rkey;
  packet->addr = slot->kind == SDC_SEND ? 0 : wr->wr.remote_addr;
  if (slot->kind == SDC_ATOMIC) {
    packet->code = (uint8_t)opcode;
    packet->compare_add = wr->wr.compare_add;
    packet->swap = wr->wr.swap;
    return;
  }
  packet->bytes = slot->bytes;
  packet->length = wr->length;
  packet->offset = slot->offset;
  if (opcode != SDC_OP_WRITE_IMM && opcode != SDC_OP_SEND_IMM) return;
  packet->flags = SDC_FLAG_IMM;
  packet->imm = wr->wr.imm;
}

enum sdc_outcome { SDC_SENT, SDC_WAITS, SDC_STOP };

static enum sdc_outcome send_slot(struct sdc_initiator* initiator, struct sdc_slot* slot, struct sdc_peer* peer,
                                  uint64_t now_ns) {
  const struct sdc_timing* timing = &initiator->config.timing;
  struct sdc_queued_wr* wr = sdc_wr_at(initiator, slot->wr);
  const bool is_first = slot->state == SDC_SLOT_UNSENT;
  if (now_ns >= wr->limit_ns && !sdc_mutated(SENT_BEHIND_LIMIT)) {
    sdc_fail_wr(initiator, slot->wr, SDC_RETRY_EXCEEDED);
    return SDC_STOP;
  }
  // The target may have forgotten it, and what its clock shows is known well for a while only. It does not forget one
  // that has begun a message.
  const bool continues = slot->kind == SDC_SEND && slot->offset != 0;
  const bool is_old = peer->in_flight == 0 && now_ns - peer->clock_at_ns > timing->idle_ns && !continues;
  if (peer->state == SDC_PEER_KNOWN || (peer->state == SDC_PEER_OPEN && is_old)) sdc_greet(initiator, peer, now_ns);
  // Those who asked for the session are gone, failed or reset, and nobody looked at its timer any more. An answer to
  // what they sent still counts.
  if (peer->state == SDC_PEER_GREETING && now_ns >= peer->timer_ns) {
    peer->tries = 0;
    peer->timed_ns = 0;
    sdc_send_hello(initiator, peer, now_ns);
  }
  if (peer->state != SDC_PEER_OPEN || now_ns < peer->pause_ns || peer->on_wire >= peer->window) return SDC_WAITS;
  if (is_first && slot->kind != SDC_ATOMIC && peer->atomics != 0 && !sdc_mutated(NO_BARRIER)) return SDC_WAITS;
  if (continues && wr->nonce != peer->nonce) {
    // The message was begun in a session that is gone, and half a message with it.
    sdc_fail_wr(initiator, slot->wr, SDC_RETRY_EXCEEDED);
    return SDC_STOP;
  }
  uint8_t* buffer = initiator->config.ops->buffer(initiator->config.context);
  if (buffer == NULL) return SDC_STOP;
  struct sdc_packet packet;
  sdc_clear(&packet, sizeof(packet));
  fill(&packet, wr, slot);
  if (is_first) slot->psn = peer->psn;
  packet.target = peer->target;
  packet.tag = initiator->config.first_tag + slot->peer;
  packet.slot = peer->slot;
  packet.nonce = peer->nonce;
  packet.psn = slot->psn;
  packet.time = deadline(initiator, peer, wr, now_ns);
  const bool asks = slot->last || !is_first || slot->psn % 16 == 15 || peer->on_wire + 1 == peer->window;
  if (asks && (slot->kind == SDC_WRITE || slot->kind == SDC_SEND)) packet.flags |= SDC_FLAG_ACK;
  uint32_t bytes = sdc_build(buffer, &packet);
  if (sdc_has_data(slot->kind)) {
    if (!sdc_local_copy(initiator, wr, slot->offset, slot->bytes, buffer + bytes, NULL)) {
      sdc_fail_wr(initiator, slot->wr, SDC_LOCAL_PROTECTION_ERROR);
      return SDC_STOP;
    }
    bytes += slot->bytes;
  }
  if (is_first) {
    wr->nonce = peer->nonce;
    ++peer->psn;
    ++peer->in_flight;
    if (slot->kind == SDC_ATOMIC) ++peer->atomics;
    if (peer->timed_ns == 0 && (packet.flags & SDC_FLAG_ACK || !sdc_has_data(slot->kind))) {
      peer->timed_ns = now_ns;
      peer->timed_psn = slot->psn;
    }
  } else {
    ++initiator->stats.sent_again;
  }
  slot->state = SDC_SLOT_SENT;
  if (peer->timer_ns == 0) peer->timer_ns = now_ns + sdc_wait_ns(timing, peer, peer->backoff);
  ++initiator->stats.sent;
  initiator->config.ops->send(initiator->config.context, &peer->to, bytes);
  return SDC_SENT;
}

void sdc_send(struct sdc_initiator* initiator, uint64_t now_ns) {
  ++initiator->pass;
  for (uint32_t n = initiator->slot_head;; ++n) {
    if (n == initiator->slot_tail && !add_slot(initiator, now_ns)) return;
    struct sdc_slot* slot = sdc_slot_at(initiator, n);
    if (sdc_is_behind_failure(initiator, slot->wr)) return;
    if (slot->state == SDC_SLOT_DONE) continue;
    if (fence_is_closed(initiator, n)) return;
    struct sdc_peer* peer = &initiator->config.peers[slot->peer];
    if (peer->pass != initiator->pass) {
      peer->pass = initiator->pass;
      peer->on_wire = 0;
      peer->waits = false;
    }
    if (slot->state != SDC_SLOT_SENT) {
      if (peer->waits) continue;
      const enum sdc_outcome outcome = send_slot(initiator, slot, peer, now_ns);
      if (outcome == SDC_STOP) return;
      if (outcome == SDC_WAITS) peer->waits = true;
    }
    if (slot->state == SDC_SLOT_SENT) ++peer->on_wire;
  }
}
