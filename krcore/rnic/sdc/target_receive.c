// Receives of a target: a ring of posted ones; a SEND in several segments holds one until it is whole.
#include "krcore/rnic/sdc/target_private.h"

bool sdc_target_post_receive(struct sdc_target* target, const struct sdc_recv* receive) {
  const struct sdc_target_config* config = &target->config;
  // One that is held may come back, and must find its place.
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

void sdc_give_receive_back(struct sdc_target* target, struct sdc_session* session) {
  if (!session->has_message) return;
  session->has_message = false;
  if (sdc_mutated(RECEIVE_LOST)) return;
  --target->receives_held;
  const uint32_t count = target->config.receive_count;
  target->receive_head = (target->receive_head + count - 1) % count;
  target->config.receives[target->receive_head] = session->message;
  ++target->receives_posted;
}

bool sdc_can_receive(struct sdc_target* target, uint64_t now_ns) {
  if (target->receives_posted == 0 && target->receives_held != 0) {
    // A sender that died in the middle holds one: its message cannot be completed behind the deadline of its WR.
    for (uint32_t i = 0; i < target->config.session_count; ++i) {
      struct sdc_session* session = &target->config.sessions[i];
      if (session->state != SDC_SESSION_OPEN || !session->has_message || now_ns <= session->message_until_ns) continue;
      sdc_give_receive_back(target, session);
      session->failed = SDC_REMOTE_OPERATION_ERROR;
      session->failed_psn = session->psn;
    }
  }
  return target->receives_posted != 0 &&
         (target->config.ops->has_room(target->config.context) || sdc_mutated(OVERRUN_ACKNOWLEDGED));
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

void sdc_receive_imm(struct sdc_target* target, const struct sdc_packet* packet) {
  const struct sdc_recv receive = take(target);
  complete(target, &receive, SDC_SUCCESS, packet);
}

// Copies a segment to where the message's bytes from `offset` on belong. False: that is not local memory any more.
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
  if (!sdc_can_receive(target, now_ns)) return SDC_RNR_RETRY_EXCEEDED;
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

enum sdc_status sdc_receive_segment(struct sdc_target* target, struct sdc_session* session,
                                    const struct sdc_packet* packet, uint64_t now_ns) {
  if (!session->has_message) {
    if (packet->offset != 0) return SDC_REMOTE_INVALID_REQUEST;
    const enum sdc_status status = begin(target, session, packet, now_ns);
    if (status != SDC_SUCCESS) return status;
  } else if (packet->offset != session->message_offset || packet->length != session->message_length) {
    return SDC_REMOTE_INVALID_REQUEST;
  }
  const bool last = packet->offset + packet->bytes == packet->length;
  const bool has_room = target->config.ops->has_room(target->config.context);
  // Of a failure the receiver hears as well.
  if (!has_room && !sdc_mutated(OVERRUN_ACKNOWLEDGED)) return SDC_RNR_RETRY_EXCEEDED;
  session->message_until_ns = packet->time;
  if (!scatter(target, &session->message, packet)) {
    end(target, session, SDC_LOCAL_PROTECTION_ERROR, packet);
    return SDC_REMOTE_OPERATION_ERROR;
  }
  session->message_offset += packet->bytes;
  if (last) end(target, session, SDC_SUCCESS, packet);
  return SDC_SUCCESS;
}
