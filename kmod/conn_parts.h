/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of a connection (conn.h) share, and nobody else uses. */
#ifndef KRCORE_CONN_PARTS_H
#define KRCORE_CONN_PARTS_H

#include "conn.h"

/*
 * Requests that a queue may post before it is another one's turn, and that are
 * flushed in one go with a lock held.
 */
#define TURN 16

/* conn_post.c: all with conn->lock held */

/* A fault was reported: nothing more is posted until the repair. */
void krc_conn_broke(struct krc_conn *conn);
/* Puts the queue in line, if it has something that may be posted. */
void krc_conn_line_up(struct krc_conn *conn, struct krc_queue *queue);
/* Takes it off `posted`, for its caller. What a fence held back is in line again. */
void krc_conn_from_posted(struct krc_conn *conn, struct krc_wr *wr);
/* Posts what is pending, as far as the QP has places. */
void krc_conn_post(struct krc_conn *conn);

/*
 * conn_qp.c: the QP and CQ. On this host the QP is connected to itself; to another
 * host it is connected through RDMA CM. These require conn->build. Context:
 * process, may sleep; to another host for seconds.
 */
int krc_qp_create(struct krc_conn *conn);
/* After it, this host executes nothing of the QP, and no completion comes. */
void krc_qp_destroy(struct krc_conn *conn);
/* Flushes what it has not executed, and what is posted from now on. */
int krc_qp_break(struct krc_conn *conn);

/* conn_repair.c */

/* Breaks the queue, and takes what it has pending. Context: conn->lock is held. */
void krc_conn_take_pending(struct krc_queue *queue, struct list_head *flushed);
/*
 * Completes, in order, what krc_conn_take_pending took. Only the requests keep
 * their queues alive: after the last request of a queue is completed, nothing of
 * that queue is touched.
 * Context: process, may sleep; conn->lock is not held.
 */
void krc_conn_flush(struct krc_conn *conn, struct list_head *flushed);
/*
 * Called after the end of a QP. Decides what becomes of requests that it did not
 * execute, or of which nobody knows whether it did. A queue that may have lost a
 * WRITE or an atomic is broken, and all that it has outstanding is flushed, in
 * order. A queue of which only READs were flushed does not hear of it: they are
 * posted again. Without a new QP (`up` is false) all are flushed.
 * Context: conn->lock is held.
 */
void krc_conn_settle(struct krc_conn *conn, bool up, struct list_head *flushed);
/*
 * Ends the initiator that stands in: what was posted there has ended, or is
 * reported as unknown. Context: process, may sleep.
 */
void krc_conn_end_dci(struct krc_conn *conn);
/* Builds the QP, or builds it anew if it is broken. A work item. */
void krc_conn_repair(struct work_struct *work);

#endif
