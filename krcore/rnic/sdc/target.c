// The sessions of a target: who has one, and who gets whose.
#include "krcore/rnic/sdc/target.h"

#include "krcore/rnic/sdc/target_private.h"

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

void sdc_answer_packet(struct sdc_target* target, const struct sdc_session* session, struct sdc_packet* packet,
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

void sdc_answer(struct sdc_target* target, const struct sdc_session* session, enum sdc_kind kind, uint32_t psn,
                uint64_t now_ns) {
  struct sdc_packet packet;
  sdc_clear(&packet, sizeof(packet));
  packet.kind = (uint8_t)kind;
  packet.psn = psn;
  sdc_answer_packet(target, session, &packet, NULL, now_ns);
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

static void end_session(struct sdc_target* target, struct sdc_session* session) {
  sdc_give_receive_back(target, session);
  session->gone_nonce = session->nonce;
  session->gone_psn = session->psn;
  // What a session that failed did with the segment at which it failed is not told by a PSN.
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
  sdc_answer_packet(target, session, &packet, NULL, now_ns);
}

// A session may give way when nothing of it is under way here and its initiator had time to use it.
static bool may_end(const struct sdc_target* target, const struct sdc_session* session, uint64_t now_ns) {
  if (session->pending != 0 && !sdc_mutated(EVICT_PENDING)) return false;
  if (session->has_message && now_ns <= session->message_until_ns) return false;
  return now_ns - session->active_ns >= target->config.hold_ns;
}

// The place for a new session, null if all are in use.
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
    if (!sdc_before(session->hello_id, packet->id)) return;  // an old one, late
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

// A request of a session that is not there: it ended, or it was another target's with this number, or a late packet's.
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
  if (session->pending != 0 && !sdc_mutated(CLOSE_PENDING)) return;  // the answer comes with the last of them
  sdc_answer(target, session, SDC_CLOSED, 0, now_ns);
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
    sdc_execute(target, session, &parsed, now_ns);
  }
}

void sdc_target_atomic_done(struct sdc_target* target, const struct sdc_token* token, enum sdc_status status,
                            uint64_t before, uint64_t now_ns) {
  struct sdc_session* session = &target->config.sessions[token->slot];
  if (session->state == SDC_SESSION_FREE || session->nonce != token->nonce || session->pending == 0) return;
  --session->pending;
  session->active_ns = now_ns;  // its answer needs time to arrive, too
  // What the device calls a local failure may have been executed, and no NAK carries it.
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
  sdc_answer_packet(target, session, &answer, NULL, now_ns);
}

uint32_t sdc_target_pending(const struct sdc_target* target) {
  uint32_t pending = 0;
  for (uint32_t i = 0; i < target->config.session_count; ++i) {
    if (target->config.sessions[i].state != SDC_SESSION_FREE) pending += target->config.sessions[i].pending;
  }
  return pending;
}
