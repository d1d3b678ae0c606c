// The send queue: WRs go in, segments go out, answers come in, and completions come out in posting order.
#include "krcore/rnic/sdc/initiator.h"

#include "krcore/rnic/sdc/initiator_private.h"

void sdc_initiator_init(struct sdc_initiator* initiator, const struct sdc_initiator_config* config) {
  sdc_clear(initiator, sizeof(*initiator));
  initiator->config = *config;
  sdc_clear(config->peers, sizeof(struct sdc_peer) * (uint64_t)config->peer_count);
}

enum sdc_posted sdc_initiator_post(struct sdc_initiator* initiator, const struct sdc_wr* wr, uint64_t now_ns) {
  if (initiator->state == SDC_QUEUE_RESETTING) return SDC_POST_BAD_STATE;
  if (wr->sge_count > SDC_MAX_SGE) return SDC_POST_INVALID;
  uint64_t length = 0;
  for (uint32_t i = 0; i < wr->sge_count; ++i) length += wr->sges[i].length;
  const bool is_inline = (wr->flags & SDC_INLINE) != 0;
  if (!sdc_is_well_formed((uint32_t)wr->opcode, wr->sge_count, length, wr->remote_addr, is_inline,
                          SDC_MAX_INLINE_BYTES))
    return SDC_POST_INVALID;
  if (initiator->posted - initiator->polled >= initiator->config.depth) return SDC_POST_FULL;
  struct sdc_queued_wr* queued = sdc_wr_at(initiator, initiator->posted);
  queued->wr = *wr;
  queued->limit_ns = now_ns + initiator->config.timing.limit_ns;
  queued->nonce = 0;
  queued->offset = 0;
  queued->begun = false;
  queued->status = SDC_SUCCESS;
  const uint32_t position = initiator->posted++;
  if (initiator->state == SDC_QUEUE_ERROR) {
    queued->status = SDC_FLUSHED;
    initiator->done = initiator->cut = initiator->posted;
    return SDC_POSTED;
  }
  if (length > initiator->config.max_message_bytes) {
    queued->length = 0;
    sdc_fail_wr(initiator, position, SDC_LOCAL_LENGTH_ERROR);
    return SDC_POSTED;
  }
  queued->length = (uint32_t)length;
  if (is_inline) {
    uint8_t* to = queued->bytes;
    for (uint32_t i = 0; i < wr->sge_count; ++i) {
      sdc_copy(to, (const void*)(uintptr_t)wr->sges[i].addr, wr->sges[i].length);
      to += wr->sges[i].length;
    }
  }
  return SDC_POSTED;
}

bool sdc_is_behind_failure(const struct sdc_initiator* initiator, uint32_t position) {
  return initiator->failing && !sdc_before(position, initiator->failed);
}

void sdc_fail_wr(struct sdc_initiator* initiator, uint32_t position, enum sdc_status status) {
  if (sdc_is_behind_failure(initiator, position)) return;
  initiator->failing = true;
  initiator->failed = position;
  initiator->failed_status = (uint8_t)status;
}

// Moves the queue to ERR. WRs from `done` on are flushed; one that has failed keeps its status.
static void flush(struct sdc_initiator* initiator, uint64_t now_ns) {
  for (; initiator->done != initiator->posted; ++initiator->done) {
    struct sdc_queued_wr* wr = sdc_wr_at(initiator, initiator->done);
    if (wr->status == SDC_SUCCESS) wr->status = SDC_FLUSHED;
  }
  initiator->cut = initiator->posted;
  initiator->failing = false;
  initiator->state = SDC_QUEUE_ERROR;
  sdc_drop_slots(initiator, now_ns);
}

// Completes the WRs that are done.
static void retire(struct sdc_initiator* initiator, uint64_t now_ns) {
  if (initiator->state != SDC_QUEUE_READY) return;
  while (initiator->done != initiator->posted) {
    if (initiator->failing && initiator->done == initiator->failed) {
      sdc_wr_at(initiator, initiator->done)->status = initiator->failed_status;
      flush(initiator, now_ns);
      return;
    }
    if (initiator->slot_head == initiator->slot_tail) return;
    const struct sdc_slot* slot = sdc_slot_at(initiator, initiator->slot_head);
    if (slot->state != SDC_SLOT_DONE) return;
    --initiator->config.peers[slot->peer].users;
    if (slot->last) ++initiator->done;
    ++initiator->slot_head;
  }
}

bool sdc_initiator_poll(struct sdc_initiator* initiator, struct sdc_completion* completion) {
  while (initiator->polled != initiator->done) {
    const struct sdc_queued_wr* wr = sdc_wr_at(initiator, initiator->polled++);
    if (wr->status == SDC_SUCCESS && (wr->wr.flags & SDC_SIGNALED) == 0) continue;
    completion->wr_id = wr->wr.wr_id;
    completion->status = (enum sdc_status)wr->status;
    completion->opcode = wr->wr.opcode;
    return true;
  }
  return false;
}

void sdc_initiator_fail(struct sdc_initiator* initiator, uint64_t now_ns) {
  if (initiator->state == SDC_QUEUE_READY) flush(initiator, now_ns);
}

void sdc_initiator_reset(struct sdc_initiator* initiator, uint64_t now_ns) {
  if (initiator->state == SDC_QUEUE_READY) flush(initiator, now_ns);
  initiator->polled = initiator->done;
  initiator->state = initiator->closing == 0 ? SDC_QUEUE_READY : SDC_QUEUE_RESETTING;
}

bool sdc_initiator_is_reset(const struct sdc_initiator* initiator) { return initiator->state == SDC_QUEUE_READY; }

// ---- WRs become segments, segments become packets

// Copies the WR's bytes [offset, offset + bytes) from its local memory to `to`, or from `from` into it (the other is
// null). False: it is not local memory (any more).
static bool local_copy(struct sdc_initiator* initiator, struct sdc_queued_wr* wr, uint32_t offset, uint32_t bytes,
                       uint8_t* to, const uint8_t* from) {
  if (to != NULL && (wr->wr.flags & SDC_INLINE) != 0) {  // only what is read locally may be inline
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

// Returns the length of the segment at wr->offset. It ends at the end of a word of the remote memory: no word is in two
// segments.
static uint32_t cut_segment(const struct sdc_initiator* initiator, const struct sdc_queued_wr* wr, uint8_t kind) {
  const uint32_t rest = wr->length - wr->offset;
  uint32_t most = sdc_segment_bytes(initiator->config.mtu_bytes);
  if (kind != SDC_SEND) most -= (uint32_t)((wr->wr.remote_addr + wr->offset + most) & 7);
  if (sdc_mutated(WORDS_CUT)) most = sdc_segment_bytes(initiator->config.mtu_bytes) - 3;
  return rest < most ? rest : most;
}

// Gives the next segment a slot. False: there is no next segment, or no slot for it.
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

// A fenced WR waits for every READ and atomic before it, and so does everything after it, whatever their peers.
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

// Returns the last moment at which a segment of this WR may be executed, by the target's clock. That clock shows at
// least `clock` plus the time that has passed here since, less the drift; so when it shows the result, the limit has
// not passed here.
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
  // The target may have forgotten the session, and its clock is known well only for a while. It does not forget a
  // session that has begun a message.
  const bool continues = slot->kind == SDC_SEND && slot->offset != 0;
  const bool is_old = peer->in_flight == 0 && now_ns - peer->clock_at_ns > timing->idle_ns && !continues;
  if (peer->state == SDC_PEER_KNOWN || (peer->state == SDC_PEER_OPEN && is_old)) sdc_greet(initiator, peer, now_ns);
  // The WRs that asked for the session may have failed or been reset, and nobody looked at its timer any more. An
  // answer to what they sent still counts.
  if (peer->state == SDC_PEER_GREETING && now_ns >= peer->timer_ns) {
    peer->tries = 0;
    peer->timed_ns = 0;
    sdc_send_hello(initiator, peer, now_ns);
  }
  if (peer->state != SDC_PEER_OPEN || now_ns < peer->pause_ns || peer->on_wire >= peer->window) return SDC_WAITS;
  if (is_first && slot->kind != SDC_ATOMIC && peer->atomics != 0 && !sdc_mutated(NO_BARRIER)) return SDC_WAITS;
  if (continues && wr->nonce != peer->nonce) {
    // The message was begun in a session that is gone, and half of the message is gone with it.
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
    if (!local_copy(initiator, wr, slot->offset, slot->bytes, buffer + bytes, NULL)) {
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

static void send_segments(struct sdc_initiator* initiator, uint64_t now_ns) {
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

// ---- What targets answer

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

// Everything before `psn` has been executed, which is all that a WRITE or SEND waits for.
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
      !local_copy(initiator, sdc_wr_at(initiator, slot->wr), slot->offset, bytes, NULL, data))
    sdc_fail_wr(initiator, slot->wr, SDC_LOCAL_PROTECTION_ERROR);
  done(initiator, peer, slot, now_ns);
}

static void not_ready(struct sdc_initiator* initiator, struct sdc_peer* peer, const struct sdc_slot* slot,
                      uint64_t now_ns) {
  const struct sdc_timing* timing = &initiator->config.timing;
  if (now_ns < peer->pause_ns) return;  // reported already
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
  // Both statements about its clock are true; keep the one that shows the later time.
  const uint64_t since_ns = now_ns - peer->clock_at_ns;
  if (packet->time >= peer->clock + since_ns - since_ns / SDC_CLOCK_DRIFT) {
    peer->clock = packet->time;
    peer->clock_at_ns = now_ns;
  }
  if (packet->kind == SDC_GONE) {
    sdc_session_gone(initiator, peer, packet);
    return;
  }
  if (sdc_before(peer->psn, packet->psn)) return;  // nothing there has been asked for yet
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
  retire(initiator, now_ns);
}

// ---- Time

void sdc_initiator_run(struct sdc_initiator* initiator, uint64_t now_ns) {
  sdc_close_peers(initiator, now_ns);
  if (initiator->state != SDC_QUEUE_READY) return;
  if (initiator->done != initiator->posted && now_ns >= sdc_wr_at(initiator, initiator->done)->limit_ns &&
      !sdc_mutated(SENT_BEHIND_LIMIT)) {
    ++initiator->stats.expired;
    sdc_fail_wr(initiator, initiator->done, SDC_RETRY_EXCEEDED);
  }
  sdc_check_timers(initiator, now_ns);
  send_segments(initiator, now_ns);
  retire(initiator, now_ns);
}

static void earlier(uint64_t* next_ns, uint64_t at_ns, uint64_t now_ns) {
  // What is due, but was left alone by the last run, waits for something else.
  if (at_ns > now_ns && at_ns < *next_ns) *next_ns = at_ns;
}

uint64_t sdc_initiator_next(const struct sdc_initiator* initiator, uint64_t now_ns) {
  uint64_t next_ns = ~(uint64_t)0;
  for (uint32_t i = 0; i < initiator->config.peer_count && initiator->closing != 0; ++i) {
    const struct sdc_peer* peer = &initiator->config.peers[i];
    if (peer->state == SDC_PEER_CLOSING) earlier(&next_ns, peer->timer_ns, now_ns);
  }
  if (initiator->state != SDC_QUEUE_READY || initiator->done == initiator->posted) return next_ns;
  earlier(&next_ns, initiator->config.wrs[initiator->done & (initiator->config.depth - 1)].limit_ns, now_ns);
  for (uint32_t n = initiator->slot_head; n != initiator->slot_tail; ++n) {
    const struct sdc_slot* slot = &initiator->slots[n % SDC_WINDOW];
    const struct sdc_peer* peer = &initiator->config.peers[slot->peer];
    if (slot->state == SDC_SLOT_DONE) continue;
    earlier(&next_ns, peer->timer_ns, now_ns);
    if (slot->state != SDC_SLOT_SENT) earlier(&next_ns, peer->pause_ns, now_ns);
  }
  return next_ns;
}
