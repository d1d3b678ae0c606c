// What the files of the target share.
#ifndef KRCORE_RNIC_SDC_TARGET_PRIVATE_H_
#define KRCORE_RNIC_SDC_TARGET_PRIVATE_H_

#include "krcore/rnic/sdc/mutation.h"
#include "krcore/rnic/sdc/target.h"

// Sends an answer of `kind` about `psn` to the session's initiator.
void sdc_answer(struct sdc_target* target, const struct sdc_session* session, enum sdc_kind kind, uint32_t psn,
                uint64_t now_ns);
// The same with everything else that `packet` says; header fields that every answer of the session has are filled in.
// `data`: packet->bytes of them, memory that others change.
void sdc_answer_packet(struct sdc_target* target, const struct sdc_session* session, struct sdc_packet* packet,
                       const uint8_t* data, uint64_t now_ns);

// A request of an open session that is not behind its deadline.
void sdc_execute(struct sdc_target* target, struct sdc_session* session, const struct sdc_packet* packet,
                 uint64_t now_ns);

// ---- receives

// The half received message of a session will not be completed: its receive is the next one again.
void sdc_give_receive_back(struct sdc_target* target, struct sdc_session* session);
// One segment of a SEND. SDC_SUCCESS; SDC_RNR_RETRY_EXCEEDED: there is no receive; else the status for the sender.
enum sdc_status sdc_receive_segment(struct sdc_target* target, struct sdc_session* session,
                                    const struct sdc_packet* packet, uint64_t now_ns);
// Whether a receive is posted and its completion has room; and completes one with the immediate of a WRITE.
bool sdc_can_receive(struct sdc_target* target, uint64_t now_ns);
void sdc_receive_imm(struct sdc_target* target, const struct sdc_packet* packet);

#endif  // KRCORE_RNIC_SDC_TARGET_PRIVATE_H_
