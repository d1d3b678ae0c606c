// A target: its answers, its receives, what requests do, and its sessions.
#include "krcore/rnic/sdc/target.h"

#include "krcore/rnic/sdc/mutation.h"

// A bijection of 64-bit words (splitmix64): different counts give different nonces.
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void sdc_target_init(struct sdc_target* target, const struct sdc_target_config* config) {
  sdc_clear(target, sizeof(*target));
  target->config = *config;
  sdc_clear(config->sessions, sizeof(struct sdc_session) * (uint64_t)config->session_count);
}

// Sends an answer to the session's initiator; fills in the header fields that every answer of the session has.
// `data`: packet->bytes of them, memory that others change.
static void answer_packet(struct sdc_target* target, const struct sdc_session* session, struct sdc_packet* packet,
                          const uint8_t* data, uint64_t now_ns) {
  uint8_t* buffer = target->config.ops->buffer(target->config.context);
  if (buffer == NULL) return;
  packet->target = target->config.number;
  packet->slot = (uint32_t)(session - target->config.sessions);
  packet->nonce = session->nonce;
  packet->tag = session->tag;
  packet->time = now_ns;
  const uint32_t head = sdc_build(buffer, packet);
  if (packet->bytes != 0) sdc_copy_from_shared(buffer + head, data, packet->bytes);
  target->config.ops->send(target->config.context, &session->from, head + packet->bytes);
}

// Sends an answer of `kind` about `psn`, with nothing else.
static void answer_about(struct sdc_target* target, const struct sdc_session* session, enum sdc_kind kind, uint32_t psn,
                         uint64_t now_ns) {
  struct sdc_packet packet;
  sdc_clear(&packet, sizeof(packet));
  packet.kind = (uint8_t)kind;
  packet.psn = psn;
  answer_packet(target, session, &packet, NULL, now_ns);
}

// Answers a request that belongs to no session.
static void answer_stranger(struct sdc_target* target, const struct sdc_address* to, const struct sdc_packet* request,
                            struct sdc_packet* packet, uint64_t now_ns) {
  uint8_t* buffer = target->config.ops->buffer(target->config.context);
  if (buffer == NULL) return;
  packet->target = target->config.number;
  packet->slot = request->slot;
  packet->nonce = request->nonce;
  packet->tag = request->tag;
  packet->life = request->life;
  packet->id = request->id;
  packet->time = now_ns;
  target->config.ops->send(target->config.context, to, sdc_build(buffer, packet));
}

// ---- Receives: a ring of posted ones. A SEND in several segments holds one until it is whole.

bool sdc_target_post_receive(struct sdc_target* target, const struct sdc_recv* receive) {
  const struct sdc_target_config* config = &target->config;
  // A receive that is held may come back, and must find its place.
  if (target->receives_posted + target->receives_held >= config->receive_count) return false;
  if (receive->sge_count > SDC_MAX_SGE) return false;
  config->receives[(target->receive_head + target->receives_posted) % config->receive_count] = *receive;
  ++target->receives_posted;
  return true;
}

static struct sdc_recv take(struct sdc_target* target) {
  const struct sdc_recv receive = target->config.receives[target->receive_head];
  target->receive_head = (target->receive_head + 1) % target->config.receive_count;
  --target->receives_posted;
  return receive;
}

// The half-received message of a session will not be completed, so its receive becomes the next one again.
static void give_receive_back(struct sdc_target* target, struct sdc_session* session) {
  if (!session->has_message) return;
  session->has_message = false;
  if (sdc_mutated(RECEIVE_LOST)) return;
  --target->receives_held;
  const uint32_t count = target->config.receive_count;
  target->receive_head = (target->receive_head + count - 1) % count;
  target->config.receives[target->receive_head] = session->message;
  ++target->receives_posted;
}

// Returns whether a receive is posted.
static bool can_receive(struct sdc_target* target, uint64_t now_ns) {
  if (target->receives_posted == 0 && target->receives_held != 0) {
    // A sender that died in the middle holds a receive: its message cannot be completed after the deadline of its WR.
    for (uint32_t i = 0; i < target->config.session_count; ++i) {
      struct sdc_session* session = &target->config.sessions[i];
      if (session->state != SDC_SESSION_OPEN || !session->has_message || now_ns <= session->message_until_ns) continue;
      give_receive_back(target, session);
      session->failed = SDC_REMOTE_OPERATION_ERROR;
      session->failed_psn = session->psn;
    }
  }
  return target->receives_posted != 0;
}

static void complete(struct sdc_target* target, const struct sdc_recv* receive, enum sdc_status status,
                     const struct sdc_packet* packet) {
  const struct sdc_received received = {
      .wr_id = receive->wr_id,
      .status = status,
      .has_imm = (packet->flags & SDC_FLAG_IMM) != 0,
      .is_write = packet->kind == SDC_WRITE,
      .imm = packet->imm,
      .length = packet->length,
  };
  target->config.ops->received(target->config.context, &received);
}

// Completes a receive with the immediate of a WRITE.
static void receive_imm(struct sdc_target* target, const struct sdc_packet* packet) {
  const struct sdc_recv receive = take(target);
  complete(target, &receive, SDC_SUCCESS, packet);
}

// Copies a segment to its place in the message's memory. False: that is not local memory any more.
static bool scatter(struct sdc_target* target, const struct sdc_recv* receive, const struct sdc_packet* packet) {
  uint32_t offset = packet->offset, bytes = packet->bytes;
  const uint8_t* from = packet->data;
  for (uint32_t i = 0; i < receive->sge_count && bytes != 0; ++i) {
    const struct sdc_sge* sge = &receive->sges[i];
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = bytes < sge->length - offset ? bytes : sge->length - offset;
    uint8_t* to = target->config.ops->local(target->config.context, sge->lkey, sge->addr + offset, part);
    if (to == NULL) return false;
    sdc_copy_to_shared(to, from, part);
    from += part;
    bytes -= part;
    offset = 0;
  }
  return true;
}

// The first segment of a message takes a receive.
static enum sdc_status begin(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                             uint64_t now_ns) {
  if (!can_receive(target, now_ns)) return SDC_RNR_RETRY_EXCEEDED;
  const struct sdc_recv receive = take(target);
  uint64_t room = 0;
  for (uint32_t i = 0; i < receive.sge_count; ++i) room += receive.sges[i].length;
  if (packet->length > room) {
    complete(target, &receive, SDC_LOCAL_LENGTH_ERROR, packet);
    return SDC_REMOTE_INVALID_REQUEST;
  }
  session->message = receive;
  session->message_length = packet->length;
  session->message_offset = 0;
  session->has_message = true;
  ++target->receives_held;
  return SDC_SUCCESS;
}

static void end(struct sdc_target* target, struct sdc_session* session, enum sdc_status status,
                const struct sdc_packet* packet) {
  session->has_message = false;
  --target->receives_held;
  complete(target, &session->message, status, packet);
}

// Takes one segment of a SEND. SDC_SUCCESS; SDC_RNR_RETRY_EXCEEDED: there is no receive; else the status for the
// sender.
static enum sdc_status receive_segment(struct sdc_target* target, struct sdc_session* session,
                                       const struct sdc_packet* packet, uint64_t now_ns) {
  if (!session->has_message) {
    if (packet->offset != 0) return SDC_REMOTE_INVALID_REQUEST;
    const enum sdc_status status = begin(target, session, packet, now_ns);
    if (status != SDC_SUCCESS) return status;
  } else if (packet->offset != session->message_offset || packet->length != session->message_length) {
    return SDC_REMOTE_INVALID_REQUEST;
  }
  const bool last = packet->offset + packet->bytes == packet->length;
  session->message_until_ns = packet->time;
  if (!scatter(target, &session->message, packet)) {
    end(target, session, SDC_LOCAL_PROTECTION_ERROR, packet);
    return SDC_REMOTE_OPERATION_ERROR;
  }
  session->message_offset += packet->bytes;
  if (last) end(target, session, SDC_SUCCESS, packet);
  return SDC_SUCCESS;
}

// ---- What a session's requests do, each once and in the order of their PSNs

// Refuses a request for good: it and everything after it are never executed, and a repetition of it fails alike.
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
  answer_packet(target, session, &answer, NULL, now_ns);
}

// Returns the memory that the whole message of `packet` may touch; null if it may not touch it. Needs length > 0.
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

// A READ may be executed again, as long as its answer is wanted.
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
  answer_packet(target, session, &answer, packet->length == 0 ? NULL : memory + packet->offset, now_ns);
}

static void acknowledge(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                        uint64_t now_ns) {
  if ((packet->flags & SDC_FLAG_ACK) != 0) answer_about(target, session, SDC_ACK, session->psn, now_ns);
}

static void answer_rnr(struct sdc_target* target, struct sdc_session* session, uint64_t now_ns) {
  ++target->stats.rnr;
  session->gap_told = true;  // what comes after it lacks something that was just asked for
  answer_about(target, session, SDC_RNR, session->psn, now_ns);
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
  if (has_imm && !can_receive(target, now_ns)) {
    answer_rnr(target, session, now_ns);
    return;
  }
  if (packet->bytes != 0) sdc_copy_to_shared(memory + packet->offset, packet->data, packet->bytes);
  if (has_imm) receive_imm(target, packet);
  if (packet->psn == session->psn) ++session->psn;
  acknowledge(target, session, packet, now_ns);
}

static void send(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                 uint64_t now_ns) {
  const enum sdc_status status = receive_segment(target, session, packet, now_ns);
  if (status == SDC_RNR_RETRY_EXCEEDED) {
    answer_rnr(target, session, now_ns);
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
    // Whoever asks later will find room: to the initiator that looks like an atomic that takes long.
    answer_about(target, session, SDC_PROGRESS, packet->psn, now_ns);
    return;
  }
  const uint64_t bit = (uint64_t)1 << (packet->psn % SDC_WINDOW);
  session->is_atomic |= bit;
  session->is_done &= ~bit;
  ++session->pending;
  if (packet->psn == session->psn) ++session->psn;
}

// Handles a request that was executed before: its answer was lost, or the network duplicated it.
static void repeat(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                   uint64_t now_ns) {
  ++target->stats.repeated;
  if (session->psn - packet->psn > SDC_WINDOW) return;  // nobody waits for its answer any more
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
      answer_packet(target, session, &answer, NULL, now_ns);
    } else if ((session->is_atomic >> place & 1) != 0) {
      answer_about(target, session, SDC_PROGRESS, packet->psn, now_ns);
    }
  } else if (sdc_mutated(WRITE_REPEATED) && packet->kind == SDC_WRITE) {
    write(target, session, packet, now_ns);
  } else {
    acknowledge(target, session, packet, now_ns);
  }
}

// Executes a request of an open session whose deadline has not passed.
static void execute(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
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
      if (!session->gap_told) answer_about(target, session, SDC_GAP, session->psn, now_ns);
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

// ---- Sessions: who has one, and who gets whose place

static void end_session(struct sdc_target* target, struct sdc_session* session) {
  give_receive_back(target, session);
  session->gone_nonce = session->nonce;
  session->gone_psn = session->psn;
  // If a session failed, a PSN cannot tell what it did with the segment at which it failed.
  session->gone_known = session->failed == 0;
  session->state = SDC_SESSION_FREE;
}

static void welcome(struct sdc_target* target, const struct sdc_session* session, uint32_t first_psn, uint64_t now_ns) {
  struct sdc_packet packet;
  sdc_clear(&packet, sizeof(packet));
  packet.kind = SDC_WELCOME;
  packet.psn = first_psn;
  packet.life = session->life;
  packet.id = session->hello_id;
  answer_packet(target, session, &packet, NULL, now_ns);
}

// A session may give way if nothing of it is under way here and its initiator has had time to use it.
static bool may_end(const struct sdc_target* target, const struct sdc_session* session, uint64_t now_ns) {
  if (session->pending != 0 && !sdc_mutated(EVICT_PENDING)) return false;
  if (session->has_message && now_ns <= session->message_until_ns) return false;
  return now_ns - session->active_ns >= target->config.hold_ns;
}

// Returns the place for a new session, null if all are in use.
static struct sdc_session* find_place(struct sdc_target* target, uint64_t now_ns) {
  struct sdc_session* oldest = NULL;
  for (uint32_t i = 0; i < target->config.session_count; ++i) {
    struct sdc_session* session = &target->config.sessions[i];
    if (session->state == SDC_SESSION_FREE) return session;
    if (!may_end(target, session, now_ns)) continue;
    if (oldest == NULL || session->active_ns < oldest->active_ns) oldest = session;
  }
  if (oldest == NULL) return NULL;
  ++target->stats.sessions_evicted;
  end_session(target, oldest);
  return oldest;
}

static void hello(struct sdc_target* target, const struct sdc_address* from, const struct sdc_packet* packet,
                  uint64_t now_ns) {
  struct sdc_packet answer;
  sdc_clear(&answer, sizeof(answer));
  if (packet->key != target->config.key) {
    answer.kind = SDC_REFUSED;
    answer_stranger(target, from, packet, &answer, now_ns);
    return;
  }
  struct sdc_session* session = NULL;
  for (uint32_t i = 0; i < target->config.session_count && session == NULL; ++i) {
    struct sdc_session* at = &target->config.sessions[i];
    // An initiator has one session here, that of its latest hello.
    if (at->state != SDC_SESSION_FREE && at->life == packet->life && sdc_same_address(&at->from, from)) session = at;
  }
  if (session != NULL) {
    if (session->hello_id == packet->id && session->state == SDC_SESSION_OPEN)
      welcome(target, session, packet->psn, now_ns);
    if (!sdc_before(session->hello_id, packet->id)) return;  // a late copy of an earlier one
    if (session->pending == 0) {
      end_session(target, session);
    } else {
      session = NULL;
      answer.kind = SDC_BUSY;
    }
  } else {
    session = find_place(target, now_ns);
    if (session == NULL) answer.kind = SDC_BUSY;
  }
  if (session == NULL) {
    ++target->stats.busy;
    answer_stranger(target, from, packet, &answer, now_ns);
    return;
  }
  const struct sdc_session before = {
      .gone_known = session->gone_known, .gone_psn = session->gone_psn, .gone_nonce = session->gone_nonce};
  *session = before;
  session->nonce = mix(target->config.seed + ++target->nonces);
  session->state = SDC_SESSION_OPEN;
  session->life = packet->life;
  session->hello_id = packet->id;
  session->tag = packet->tag;
  session->from = *from;
  session->psn = packet->psn;
  session->active_ns = now_ns;
  ++target->stats.sessions_made;
  welcome(target, session, packet->psn, now_ns);
}

// Answers a request whose session does not exist: it ended, it was another target's with this number, or the packet is
// late.
static void refuse_stranger(struct sdc_target* target, const struct sdc_address* from, const struct sdc_packet* packet,
                            uint64_t now_ns) {
  struct sdc_packet answer;
  sdc_clear(&answer, sizeof(answer));
  ++target->stats.strangers;
  answer.kind = packet->kind == SDC_CLOSE ? SDC_CLOSED : SDC_GONE;
  if (answer.kind == SDC_GONE && packet->slot < target->config.session_count) {
    const struct sdc_session* session = &target->config.sessions[packet->slot];
    if (session->gone_known && session->gone_nonce == packet->nonce) {
      answer.flags = SDC_FLAG_KNOWN;
      answer.psn = session->gone_psn;
    }
  }
  answer_stranger(target, from, packet, &answer, now_ns);
}

static void close_session(struct sdc_target* target, struct sdc_session* session, uint64_t now_ns) {
  session->state = SDC_SESSION_CLOSING;
  if (session->pending != 0 && !sdc_mutated(CLOSE_PENDING)) return;  // the last of them brings the answer
  answer_about(target, session, SDC_CLOSED, 0, now_ns);
  end_session(target, session);
}

void sdc_target_receive(struct sdc_target* target, const struct sdc_address* from, const void* packet, uint32_t bytes,
                        uint64_t now_ns) {
  struct sdc_packet parsed;
  ++target->stats.packets;
  if (!sdc_parse(packet, bytes, &parsed) || !sdc_is_request(parsed.kind) || parsed.target != target->config.number) {
    ++target->stats.malformed;
    return;
  }
  if (parsed.kind == SDC_HELLO) {
    hello(target, from, &parsed, now_ns);
    return;
  }
  struct sdc_session* session = NULL;
  if (parsed.slot < target->config.session_count) session = &target->config.sessions[parsed.slot];
  if (session == NULL || session->state == SDC_SESSION_FREE ||
      (session->nonce != parsed.nonce && !sdc_mutated(ANY_NONCE))) {
    refuse_stranger(target, from, &parsed, now_ns);
    return;
  }
  session->active_ns = now_ns;
  if (parsed.kind == SDC_CLOSE) {
    close_session(target, session, now_ns);
  } else if (session->state == SDC_SESSION_OPEN) {
    if (now_ns > parsed.time && !sdc_mutated(NO_DEADLINE)) {
      ++target->stats.expired;
      return;
    }
    execute(target, session, &parsed, now_ns);
  }
}

void sdc_target_atomic_done(struct sdc_target* target, const struct sdc_token* token, enum sdc_status status,
                            uint64_t before, uint64_t now_ns) {
  struct sdc_session* session = &target->config.sessions[token->slot];
  if (session->state == SDC_SESSION_FREE || session->nonce != token->nonce || session->pending == 0) return;
  --session->pending;
  session->active_ns = now_ns;  // its answer needs time to arrive as well
  // What the device calls a local failure may have been executed, and no NAK carries that status.
  if (status != SDC_SUCCESS && !sdc_nak_carries((uint8_t)status)) status = SDC_RETRY_EXCEEDED;
  const uint32_t place = token->psn % SDC_WINDOW;
  if (status == SDC_SUCCESS) {
    session->results[place] = before;
    session->is_done |= (uint64_t)1 << place;
  } else if (session->failed == 0 || sdc_before(token->psn, session->failed_psn)) {
    session->failed = (uint8_t)status;
    session->failed_psn = token->psn;
  }
  if (session->state == SDC_SESSION_CLOSING) {
    if (session->pending == 0) close_session(target, session, now_ns);
    return;
  }
  struct sdc_packet answer;
  sdc_clear(&answer, sizeof(answer));
  answer.kind = status == SDC_SUCCESS ? SDC_RESULT : SDC_NAK;
  answer.code = status == SDC_SUCCESS ? 0 : (uint8_t)status;
  answer.psn = token->psn;
  answer.word = before;
  answer_packet(target, session, &answer, NULL, now_ns);
}
