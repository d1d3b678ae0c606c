// The send queue: WRs go in, completions come out, in posting order.
#include "krcore/rnic/sdc/initiator.h"

#include "krcore/rnic/sdc/initiator_private.h"

void sdc_initiator_init(struct sdc_initiator* initiator, const struct sdc_initiator_config* config) {
  sdc_clear(initiator, sizeof(*initiator));
  initiator->config = *config;
  sdc_clear(config->peers, sizeof(struct sdc_peer) * (uint64_t)config->peer_count);
}

static bool is_atomic(enum sdc_opcode opcode) { return opcode == SDC_OP_COMPARE_SWAP || opcode == SDC_OP_FETCH_ADD; }

static bool is_well_formed(const struct sdc_wr* wr, uint64_t length) {
  if (wr->opcode > SDC_OP_FETCH_ADD || wr->sge_count > SDC_MAX_SGE) return false;
  const bool is_inline = (wr->flags & SDC_INLINE) != 0;
  if (is_atomic(wr->opcode) && (wr->sge_count != 1 || length != 8 || (wr->remote_addr & 7) != 0)) return false;
  if (is_inline && (is_atomic(wr->opcode) || wr->opcode == SDC_OP_READ || length > SDC_MAX_INLINE_BYTES)) return false;
  return true;
}

enum sdc_posted sdc_initiator_post(struct sdc_initiator* initiator, const struct sdc_wr* wr, uint64_t now_ns) {
  if (initiator->state == SDC_QUEUE_RESETTING) return SDC_POST_BAD_STATE;
  if (wr->sge_count > SDC_MAX_SGE) return SDC_POST_INVALID;
  uint64_t length = 0;
  for (uint32_t i = 0; i < wr->sge_count; ++i) length += wr->sges[i].length;
  if (!is_well_formed(wr, length)) return SDC_POST_INVALID;
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
  if ((wr->flags & SDC_INLINE) != 0) {
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

// To ERR; WRs from `done` on are flushed but for what they have failed with.
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

void sdc_retire(struct sdc_initiator* initiator, uint64_t now_ns) {
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

void sdc_initiator_run(struct sdc_initiator* initiator, uint64_t now_ns) {
  sdc_close_peers(initiator, now_ns);
  if (initiator->state != SDC_QUEUE_READY) return;
  if (initiator->done != initiator->posted && now_ns >= sdc_wr_at(initiator, initiator->done)->limit_ns &&
      !sdc_mutated(SENT_BEHIND_LIMIT)) {
    ++initiator->stats.expired;
    sdc_fail_wr(initiator, initiator->done, SDC_RETRY_EXCEEDED);
  }
  sdc_check_timers(initiator, now_ns);
  sdc_send(initiator, now_ns);
  sdc_retire(initiator, now_ns);
}

static void earlier(uint64_t* next_ns, uint64_t at_ns, uint64_t now_ns) {
  // What is due and was left alone by the last run waits for something else.
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
