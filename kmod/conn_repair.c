// SPDX-License-Identifier: GPL-2.0
/* What becomes of a connection that broke, and of its requests. */
#include "conn_parts.h"
#include "device.h"
#include "trace.h"

/*
 * While the software DC stands in: how long until the QP is tried again, and how
 * long it goes on without a request.
 */
#define BUILD_AGAIN HZ
#define IDLE_LIMIT (5 * HZ)

void krc_conn_take_pending(struct krc_queue *queue, struct list_head *flushed)
{
	queue->broken = true;
	list_del_init(&queue->turn);
	list_splice_tail_init(&queue->pending, flushed);
}

void krc_conn_flush(struct krc_conn *conn, struct list_head *flushed)
{
	struct krc_wr *wr;
	unsigned int i;

	while (!list_empty(flushed)) {
		spin_lock_bh(&conn->lock);
		for (i = 0; i < TURN && !list_empty(flushed); i++) {
			wr = list_first_entry(flushed, struct krc_wr, link);
			list_del(&wr->link);
			krc_queue_complete(wr, wr->status);
		}
		spin_unlock_bh(&conn->lock);
		cond_resched();
	}
}

void krc_conn_settle(struct krc_conn *conn, bool up, struct list_head *flushed)
{
	struct krc_queue *queue, *next_queue;
	struct krc_wr *wr, *next;

	lockdep_assert_held(&conn->lock);
	list_splice_tail_init(&conn->later, &conn->turns);
	/* After this loop no queue is fenced: all with something pending are in line. */
	list_for_each_entry_safe(wr, next, &conn->posted, link) {
		krc_conn_from_posted(conn, wr);
		list_add_tail(&wr->link, &conn->repost);
	}
	list_for_each_entry(wr, &conn->repost, link)
		if (wr->opcode != KRC_OP_READ)
			wr->queue->broken = true;
	/* Put each before what its queue had pending. */
	list_for_each_entry_safe_reverse(wr, next, &conn->repost, link) {
		list_move(&wr->link, &wr->queue->pending);
		krc_conn_line_up(conn, wr->queue);
		if (up && !wr->queue->broken)
			atomic64_inc(&conn->dev->stats.reposted);
	}
	list_for_each_entry_safe(queue, next_queue, &conn->turns, turn)
		if (!up || queue->broken)
			krc_conn_take_pending(queue, flushed);
	conn->credits = conn->dev->sq_depth;
}

/*
 * Whether the initiator goes on standing in while there is no QP. It does as long
 * as it is used and works, and nothing needs the QP.
 */
static bool krc_conn_keeps_dci(struct krc_conn *conn)
{
	lockdep_assert_held(&conn->lock);
	return conn->state == KRC_CONN_STOOD_IN &&
	       time_before(jiffies, conn->used + IDLE_LIMIT) &&
	       list_empty(&conn->later);
}

void krc_conn_end_dci(struct krc_conn *conn)
{
	if (!conn->dci)
		return;
	conn->dev->stand_in->end(conn->dci);
	spin_lock_bh(&conn->lock);
	conn->dci = NULL;
	spin_unlock_bh(&conn->lock);
	atomic64_dec(&conn->dev->stats.standing_in);
}

void krc_conn_repair(struct work_struct *work)
{
	struct krc_conn *conn =
		container_of(work, struct krc_conn, repair.work);
	enum krc_conn_state before;
	LIST_HEAD(flushed);
	int err;

	spin_lock_bh(&conn->lock);
	before = conn->state;
	spin_unlock_bh(&conn->lock);
	/*
	 * Several callers that find it down ask for a repair each, and one repair
	 * may begin after another has succeeded: a connection that works is left
	 * alone.
	 */
	if (before == KRC_CONN_UP || before == KRC_CONN_GONE)
		return;
	mutex_lock(&conn->build);
	krc_qp_destroy(conn);
	/* Faults that are reported from here on are those of the new QP. */
	spin_lock_bh(&conn->lock);
	conn->lost = false;
	spin_unlock_bh(&conn->lock);
	err = krc_qp_create(conn);
	mutex_unlock(&conn->build);
	if (err)
		dev_warn_ratelimited(&conn->dev->ib->dev,
				     "krcore: no connection to %pI6c: %d\n",
				     conn->gid.raw, err);
	spin_lock_bh(&conn->lock);
	if (err && krc_conn_keeps_dci(conn)) {
		queue_delayed_work(system_long_wq, &conn->repair, BUILD_AGAIN);
		spin_unlock_bh(&conn->lock);
		return;
	}
	/*
	 * From here until the connection is up or down, nothing more is posted to
	 * the initiator, and no other one begins. A connection without an initiator
	 * stays down until it is up: a caller that asks for it must not be told
	 * that it works before that is known.
	 */
	if (conn->dci) {
		if (conn->state != KRC_CONN_GONE) {
			conn->state = KRC_CONN_BROKEN;
			trace_krc_conn(conn, err);
		}
		spin_unlock_bh(&conn->lock);
		krc_conn_end_dci(conn);
		spin_lock_bh(&conn->lock);
	}
	if (conn->state != KRC_CONN_GONE) {
		krc_conn_settle(conn, !err, &flushed);
		/* From here on new requests meet the new state. */
		conn->state = err ? KRC_CONN_DOWN : KRC_CONN_UP;
		conn->was_up |= !err;
		trace_krc_conn(conn, err);
		if (!err && conn->broke) {
			conn->broke = false;
			atomic64_inc(&conn->dev->stats.repaired);
		}
		if (conn->lost)
			krc_conn_broke(conn);
		krc_conn_post(conn);
	}
	spin_unlock_bh(&conn->lock);
	krc_conn_flush(conn, &flushed);
}
