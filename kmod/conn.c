// SPDX-License-Identifier: GPL-2.0
/* A connection's life, and what its users ask of it. */
#include "conn_parts.h"
#include "device.h"
#include "trace.h"

/* Delays building a QP that is stood in for, to keep clear of the first requests. */
#define BUILD_LATER (HZ / 50)

void krc_conn_init(struct krc_conn *conn, struct krc_device *dev,
		   const union ib_gid *gid, u32 index)
{
	conn->dev = dev;
	conn->gid = *gid;
	conn->index = index;
	conn->ack_timeout = KRC_ACK_TIMEOUT;
	init_completion(&conn->cm_event);
	mutex_init(&conn->build);
	INIT_DELAYED_WORK(&conn->repair, krc_conn_repair);
	spin_lock_init(&conn->lock);
	conn->state = KRC_CONN_DOWN;
	INIT_LIST_HEAD(&conn->turns);
	INIT_LIST_HEAD(&conn->later);
	INIT_LIST_HEAD(&conn->posted);
	INIT_LIST_HEAD(&conn->repost);
	init_waitqueue_head(&conn->drained);
}

void krc_conn_start(struct krc_conn *conn)
{
	queue_delayed_work(system_long_wq, &conn->repair, 0);
}

void krc_conn_stop(struct krc_conn *conn)
{
	LIST_HEAD(flushed);

	spin_lock_bh(&conn->lock);
	conn->state = KRC_CONN_GONE;
	spin_unlock_bh(&conn->lock);
	cancel_delayed_work_sync(&conn->repair);
	krc_conn_end_dci(conn);
	mutex_lock(&conn->build);
	krc_qp_destroy(conn);
	mutex_unlock(&conn->build);
	spin_lock_bh(&conn->lock);
	krc_conn_settle(conn, false, &flushed);
	spin_unlock_bh(&conn->lock);
	krc_conn_flush(conn, &flushed);
}

int krc_conn_submit(struct krc_conn *conn, struct krc_queue *queue,
		    struct list_head *batch)
{
	int err = 0;

	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_GONE) {
		err = -ENODEV;
	} else if (queue->broken || conn->state == KRC_CONN_DOWN ||
		   (conn->prompt && conn->state != KRC_CONN_UP)) {
		queue->broken = true;
		err = -ECONNRESET;
	} else {
		list_splice_tail_init(batch, &queue->pending);
		krc_conn_line_up(conn, queue);
		krc_conn_post(conn);
	}
	spin_unlock_bh(&conn->lock);
	return err;
}

/* The initiator stands in until krc_conn_repair has built the QP. */
static void krc_conn_begin_dci(struct krc_conn *conn, struct krc_dci *dci)
{
	lockdep_assert_held(&conn->lock);
	conn->dci = dci;
	conn->state = KRC_CONN_STOOD_IN;
	conn->used = jiffies;
	conn->credits = KRC_STAND_IN_DEPTH;
	conn->dev->stand_in->begin(dci, conn);
	trace_krc_conn(conn, 0);
	atomic64_inc(&conn->dev->stats.standing_in);
	atomic64_inc(&conn->dev->stats.dc_connects);
}

int krc_conn_mend(struct krc_conn *conn, struct krc_queue *queue,
		  const struct krc_dc_place *dc)
{
	const struct krc_stand_in *stand_in = conn->dev->stand_in;
	struct krc_dci *dci = NULL;
	unsigned long delay = 0;
	bool stood_in;
	int err = 0;

	/* Another caller may be faster: the state is looked at again below. */
	if (dc && stand_in && READ_ONCE(conn->state) == KRC_CONN_DOWN)
		dci = stand_in->take(conn->dev, dc, &conn->gid);
	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_DOWN) {
		/*
		 * Something of a former life of the QP may be executed until the
		 * next one is there: nothing may come before that.
		 */
		if (dci && !conn->was_up) {
			krc_conn_begin_dci(conn, dci);
			dci = NULL;
			delay = BUILD_LATER;
		}
		queue_delayed_work(system_long_wq, &conn->repair, delay);
	}
	stood_in = conn->state == KRC_CONN_STOOD_IN;
	/* Nodes of one host may publish different lives of its software DC. */
	if (stood_in && dc && !stand_in->serves(conn->dci, dc))
		dc = NULL;
	spin_unlock_bh(&conn->lock);
	if (dci)
		stand_in->put(dci);
	if (!dc || !stood_in)
		flush_delayed_work(&conn->repair);
	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_GONE)
		err = -ENODEV;
	else if (conn->state == KRC_CONN_DOWN ||
		 (conn->state == KRC_CONN_STOOD_IN && !dc))
		err = -ENETDOWN;
	else
		queue->broken = false;
	spin_unlock_bh(&conn->lock);
	return err;
}

void krc_conn_cancel(struct krc_conn *conn, struct krc_queue *queue)
{
	LIST_HEAD(flushed);

	spin_lock_bh(&conn->lock);
	krc_conn_take_pending(queue, &flushed);
	spin_unlock_bh(&conn->lock);
	krc_conn_flush(conn, &flushed);
}

void krc_conn_get_table(struct krc_conn *conn, struct krc_table_place *table)
{
	spin_lock_bh(&conn->lock);
	*table = conn->table;
	spin_unlock_bh(&conn->lock);
}

void krc_conn_break(struct krc_conn *conn)
{
	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_UP)
		krc_conn_broke(conn);
	else
		conn->lost = true;
	spin_unlock_bh(&conn->lock);
}

void krc_conn_break_any(struct krc_conn *conn)
{
	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_STOOD_IN)
		conn->dev->stand_in->fail(conn->dci);
	krc_conn_broke(conn);
	spin_unlock_bh(&conn->lock);
}

void krc_conn_break_unheard(struct krc_conn *conn)
{
	/* While its QP is being built, a connection counts as broken already. */
	if (!mutex_trylock(&conn->build))
		return;
	if (conn->qp)
		krc_qp_break(conn);
	mutex_unlock(&conn->build);
}
