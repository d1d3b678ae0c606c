/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A request of the module's own, one at a time, over a connection that is shared
 * with the queues of processes. A page of memory is its local side.
 */
#ifndef KRCORE_VERB_H
#define KRCORE_VERB_H

#include <linux/completion.h>
#include <linux/types.h>

#include "conn.h"

struct krc_device;
struct krc_queue;

struct krc_verb {
	struct krc_device *dev;
	struct krc_conn *conn;	/* set by its owner */
	/* If not NULL, it is told of the end of each request. Context: conn->lock is held. */
	void (*ended)(struct krc_verb *verb);
	struct krc_queue *queue;
	struct krc_wr wr;
	struct completion done;	/* none is under way */
	u8 status;		/* of krc_status; the last request's */
	void *buffer;		/* a page */
	u64 dma;
};

#define KRC_VERB_TRIES 8

/* What the request is to do at the peer. */
struct krc_verb_op {
	u8 opcode;		/* KRC_OP_READ, _WRITE, or an atomic */
	u32 bytes;		/* from the start of the buffer */
	u64 addr;
	u32 rkey;
	u64 compare_add;
	u64 swap;
};

/* -ENOMEM. Call krc_verb_exit in either case. */
int krc_verb_init(struct krc_verb *verb, struct krc_device *dev);
/* Waits for what is under way. */
void krc_verb_exit(struct krc_verb *verb);
bool krc_verb_is_idle(struct krc_verb *verb);
/*
 * Begins a request, whose end `ended` is told of; none may be under way.
 * -ECONNRESET: an earlier one failed, and krc_verb_mend mends that; -ENODEV.
 * Context: process; does not sleep.
 */
int krc_verb_begin(struct krc_verb *verb, const struct krc_verb_op *op);
/* Waits until the connection is up. -ENETDOWN, -ENODEV. */
int krc_verb_mend(struct krc_verb *verb);
/*
 * Does a request, once. -EPIPE: the peer does not allow it; -EIO: no answer;
 * -ECONNRESET, -ENODEV. Context: process, may sleep.
 */
int krc_verb_try(struct krc_verb *verb, const struct krc_verb_op *op);
/* Pauses before the next try: a QP that is built anew may fail again at once. */
void krc_verb_pause(int tries);
/*
 * Does a request, and repeats it if there was no answer: it may be executed twice.
 * -EPIPE: the peer does not allow it; -EIO: no answer; -ENETDOWN, -ENODEV.
 * Context: process, may sleep.
 */
int krc_verb_run(struct krc_verb *verb, const struct krc_verb_op *op);
/*
 * Gives `mr`, to which memory is mapped, its key, with all rights. Call it once:
 * after a failure another MR has to be tried. Context: process, may sleep.
 */
int krc_verb_register(struct krc_verb *verb, struct ib_mr *mr);

#endif
