// What a session's requests do, each once and in the order of their PSNs.
#include "krcore/rnic/sdc/target_private.h"

// Of a request that was refused for good: it and all behind it are never executed, and a repetition of it fails alike.
static void fail(struct sdc_target* target, struct sdc_session* session, uint32_t psn, enum sdc_status status,
                 uint64_t now_ns) {
  if (!sdc_mutated(FAILURE_FORGOTTEN) && (session->failed == 0 || sdc_before(psn, session->failed_psn))) {
    session->failed = (uint8_t)status;
    session->failed_psn = psn;
  }
  struct sdc_packet answer;
  sdc_clear(&answer, sizeof(answer));
  answer.kind = SDC_NAK;
  answer.code = (uint8_t)status;
  answer.psn = psn;
  sdc_answer_packet(target, session, &answer, NULL, now_ns);
}

// The memory that the whole message of `packet` may touch; null if it may not. Needs length > 0.
static uint8_t* message_memory(struct sdc_target* target, const struct sdc_packet* packet, uint32_t length,
                               uint32_t access) {
  if ((target->config.access & access) == 0) return NULL;
  if (sdc_mutated(SEGMENT_CHECKED) && access != SDC_ACCESS_ATOMIC) {
    uint8_t* memory = target->config.ops->memory(target->config.context, packet->rkey, packet->addr + packet->offset,
                                                 packet->bytes, access);
    return memory == NULL ? NULL : memory - packet->offset;
  }
  return target->config.ops->memory(target->config.context, packet->rkey, packet->addr, length, access);
}

// READs may be executed again, as long as their answer is wanted.
static void read(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                 uint64_t now_ns) {
  const uint8_t* memory = NULL;
  if (packet->bytes > sdc_segment_bytes(target->config.mtu_bytes)) {
    fail(target, session, packet->psn, SDC_REMOTE_INVALID_REQUEST, now_ns);
    return;
  }
  if (packet->length != 0) {
    memory = message_memory(target, packet, packet->length, SDC_ACCESS_READ);
    if (memory == NULL) {
      fail(target, session, packet->psn, SDC_REMOTE_ACCESS_ERROR, now_ns);
      return;
    }
  }
  if (packet->psn == session->psn) ++session->psn;
  struct sdc_packet answer;
  sdc_clear(&answer, sizeof(answer));
  answer.kind = SDC_DATA;
  answer.psn = packet->psn;
  answer.bytes = packet->bytes;
  sdc_answer_packet(target, session, &answer, packet->length == 0 ? NULL : memory + packet->offset, now_ns);
}

static void acknowledge(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                        uint64_t now_ns) {
  if ((packet->flags & SDC_FLAG_ACK) != 0) sdc_answer(target, session, SDC_ACK, session->psn, now_ns);
}

static void not_ready(struct sdc_target* target, struct sdc_session* session, uint64_t now_ns) {
  ++target->stats.rnr;
  session->gap_told = true;  // what comes behind is missing something that was just asked for
  sdc_answer(target, session, SDC_RNR, session->psn, now_ns);
}

static void write(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                  uint64_t now_ns) {
  uint8_t* memory = NULL;
  if (packet->length != 0) {
    memory = message_memory(target, packet, packet->length, SDC_ACCESS_WRITE);
    if (memory == NULL) {
      fail(target, session, packet->psn, SDC_REMOTE_ACCESS_ERROR, now_ns);
      return;
    }
  }
  const bool has_imm = (packet->flags & SDC_FLAG_IMM) != 0 && packet->offset + packet->bytes == packet->length;
  if (has_imm && !sdc_can_receive(target, now_ns)) {
    not_ready(target, session, now_ns);
    return;
  }
  if (packet->bytes != 0) sdc_copy_to_shared(memory + packet->offset, packet->data, packet->bytes);
  if (has_imm) sdc_receive_imm(target, packet);
  if (packet->psn == session->psn) ++session->psn;
  acknowledge(target, session, packet, now_ns);
}

static void send(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                 uint64_t now_ns) {
  const enum sdc_status status = sdc_receive_segment(target, session, packet, now_ns);
  if (status == SDC_RNR_RETRY_EXCEEDED) {
    not_ready(target, session, now_ns);
  } else if (status != SDC_SUCCESS) {
    fail(target, session, packet->psn, status, now_ns);
  } else {
    ++session->psn;
    acknowledge(target, session, packet, now_ns);
  }
}

static void atomic(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                   uint64_t now_ns) {
  if ((packet->addr & 7) != 0) {
    fail(target, session, packet->psn, SDC_REMOTE_INVALID_REQUEST, now_ns);
    return;
  }
  if (message_memory(target, packet, 8, SDC_ACCESS_ATOMIC) == NULL) {
    fail(target, session, packet->psn, SDC_REMOTE_ACCESS_ERROR, now_ns);
    return;
  }
  const struct sdc_atomic_request request = {
      .token = {.slot = (uint32_t)(session - target->config.sessions), .psn = packet->psn, .nonce = session->nonce},
      .opcode = (enum sdc_opcode)packet->code,
      .rkey = packet->rkey,
      .addr = packet->addr,
      .compare_add = packet->compare_add,
      .swap = packet->swap,
  };
  if (!target->config.ops->atomic(target->config.context, &request)) {
    // Whoever asks later will find room: that is the same to him as one that takes long.
    sdc_answer(target, session, SDC_PROGRESS, packet->psn, now_ns);
    return;
  }
  const uint64_t bit = (uint64_t)1 << (packet->psn % SDC_WINDOW);
  session->is_atomic |= bit;
  session->is_done &= ~bit;
  ++session->pending;
  if (packet->psn == session->psn) ++session->psn;
}

// A request that was executed before: its answer was lost, or the network doubled it.
static void repeat(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                   uint64_t now_ns) {
  ++target->stats.repeated;
  if (session->psn - packet->psn > SDC_WINDOW) return;  // nobody waits for its answer
  if (packet->kind == SDC_READ) {
    read(target, session, packet, now_ns);
  } else if (packet->kind == SDC_ATOMIC) {
    const uint32_t place = packet->psn % SDC_WINDOW;
    if (sdc_mutated(ATOMIC_REPEATED)) {
      atomic(target, session, packet, now_ns);
    } else if ((session->is_atomic >> place & 1) != 0 && (session->is_done >> place & 1) != 0) {
      struct sdc_packet answer;
      sdc_clear(&answer, sizeof(answer));
      answer.kind = SDC_RESULT;
      answer.psn = packet->psn;
      answer.word = session->results[place];
      sdc_answer_packet(target, session, &answer, NULL, now_ns);
    } else if ((session->is_atomic >> place & 1) != 0) {
      sdc_answer(target, session, SDC_PROGRESS, packet->psn, now_ns);
    }
  } else if (sdc_mutated(WRITE_REPEATED) && packet->kind == SDC_WRITE) {
    write(target, session, packet, now_ns);
  } else {
    acknowledge(target, session, packet, now_ns);
  }
}

void sdc_execute(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                 uint64_t now_ns) {
  if (session->failed != 0 && !sdc_before(packet->psn, session->failed_psn)) {
    if (packet->psn == session->failed_psn)
      fail(target, session, packet->psn, (enum sdc_status)session->failed, now_ns);
    return;
  }
  if (sdc_before(packet->psn, session->psn)) {
    repeat(target, session, packet, now_ns);
    return;
  }
  if (packet->psn != session->psn) {
    ++target->stats.early;
    if (sdc_mutated(GAPS_IGNORED)) {
      session->psn = packet->psn;
    } else {
      if (!session->gap_told) sdc_answer(target, session, SDC_GAP, session->psn, now_ns);
      session->gap_told = true;
      return;
    }
  }
  ++target->stats.executed;
  session->gap_told = false;
  session->is_atomic &= ~((uint64_t)1 << (packet->psn % SDC_WINDOW));
  if (packet->kind == SDC_READ) {
    read(target, session, packet, now_ns);
  } else if (packet->kind == SDC_WRITE) {
    write(target, session, packet, now_ns);
  } else if (packet->kind == SDC_SEND) {
    send(target, session, packet, now_ns);
  } else if (packet->kind == SDC_ATOMIC) {
    atomic(target, session, packet, now_ns);
  }
}
