/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The calls of krcore_ioctl.h on a queue, whose lock main.c holds. (Those for
 * messages are in port.h and sender.h, that of the software DC is in sdc.h.)
 */
#ifndef KRCORE_CALLS_H
#define KRCORE_CALLS_H

#include "queue.h"

int krc_queue_attach(struct krc_queue *queue, struct krc_attach *attach);
int krc_queue_connect_device(struct krc_queue *queue,
			     const struct krc_connect_device *connect);
int krc_queue_join(struct krc_queue *queue, struct krc_join *join);
/*
 * Makes a fresh queue, which nobody else can name yet, belong to the node and the
 * device of `other`. Takes the locks of both. -EINVAL: `depth`.
 */
int krc_queue_join_like(struct krc_queue *queue, struct krc_queue *other,
			u32 depth);
int krc_queue_publish(struct krc_queue *queue,
		      const struct krc_publish *publish);
int krc_queue_connect(struct krc_queue *queue, struct krc_connect *connect);
int krc_queue_start(struct krc_queue *queue, struct krc_start *start);
int krc_queue_set_service(struct krc_queue *queue, struct krc_service *service);
int krc_queue_get_service(struct krc_queue *queue, struct krc_service *service);
int krc_queue_peer_state(struct krc_queue *queue, struct krc_peer_state *state);
int krc_queue_reg_mr(struct krc_queue *queue, struct krc_reg_mr *reg);
int krc_queue_dereg_mr(struct krc_queue *queue,
		       const struct krc_dereg_mr *dereg);
int krc_queue_push(struct krc_queue *queue, struct krc_push *push);

/*
 * Takes the queue from its device: its regions end when what uses them has
 * completed. `gone`: because the device is removed. May be called more than once.
 * Takes the lock. Context: process, may sleep.
 */
void krc_queue_detach(struct krc_queue *queue, bool gone);

#endif
