/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The sending half of messages: a queue's place at a port (wire.h), and its
 * credits. A message is copied when it is pushed. From then on it is a WRITE like
 * any other, in the order of its queue. Credits are what the receiver's memory
 * says, which is READ when they run short. So a receiver that takes nothing holds
 * back its senders, and no QP.
 *
 * A message that failed may have arrived or not. The queue is broken then. When it
 * is connected again, nothing posted before executes any more (conn.h). So all
 * messages in doubt are overwritten by voids: what the receiver has not taken by
 * then, it never will.
 */
#ifndef KRCORE_SENDER_H
#define KRCORE_SENDER_H

#include <linux/atomic.h>
#include <linux/types.h>

#include "verb.h"
#include "wire.h"

struct krc_port;
struct krc_queue;

/* The lock of its queue guards all fields that do not say otherwise. */
struct krc_sender {
	struct krc_device *dev;
	struct krc_verb verb;
	/* verb's request is under way, and is to be looked at when it has ended. */
	bool pulling;
	struct krc_port *local;	/* if it is of this host; else NULL */
	u64 to;			/* owner of the port */
	u64 key;		/* of the port's record */
	u32 port;
	struct krc_port_value value;
	struct krc_card card;	/* its `owner` is also the place's owner word */
	u64 pages;		/* charged to its process */
	/* Its place; `slots` of these ... */
	bool claimed;
	u64 addr;
	u32 rkey;
	struct krc_slot {
		struct krc_message_header *message;
		u64 dma;
	} *slots;
	u64 next;		/* number of the next message */
	atomic64_t released;	/* as READ last; softirq writes it */
	bool closed;		/* the port is closed; softirq sets it, once */
	u64 doubt_from;		/* or U64_MAX; softirq's while any is posted */
};

/*
 * Takes a place for a queue that is connected to the port's host and has none.
 * -EAGAIN: all are taken; -ENOENT: the port is closed. Lock held, may sleep.
 */
int krc_sender_open(struct krc_queue *queue, u32 port, u64 to, u64 key,
		    const struct krc_port_value *value);
/* Whether the queue has a place at just this port. */
bool krc_sender_is_at(const struct krc_queue *queue, u32 port, u64 to,
		      const struct krc_port_value *value);
/* For a queue that was mended: nothing is in doubt any more. Likewise. */
int krc_sender_mend(struct krc_sender *sender);
/* Gives the place back, if it has one. Nothing is outstanding. Likewise. */
void krc_sender_close(struct krc_queue *queue);

/*
 * Makes `wr`, whose opcode is set, the next message: see KRC_IOC_PUSH for errors.
 * krc_sender_undo drops what was staged from `next` on and is not posted.
 */
int krc_sender_stage(struct krc_queue *queue, struct krc_wr *wr,
		     const struct krc_request *request, u32 bytes);
void krc_sender_undo(struct krc_sender *sender, u64 next);
/* Returns where a staged message goes. */
u64 krc_sender_addr(const struct krc_sender *sender, u64 number);
/* Drops a request that will not be posted: a staged message, or no message at all. */
void krc_sender_unstage(struct krc_wr *wr);

/* The call of krcore_ioctl.h. Requires the queue's lock. */
int krc_queue_credits(struct krc_queue *queue, struct krc_credits *credits);

#endif
