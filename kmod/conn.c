// SPDX-License-Identifier: GPL-2.0
#include "check.h"
#include "conn.h"
#include "dci.h"
#include "device.h"
#include "host.h"
#include "qp.h"
#include "queue.h"
#include "trace.h"

/*
 * Requests that a queue may post until it is another one's turn, and that are
 * flushed in one go with a lock held.
 */
#define TURN 16
/*
 * While the software DC stands in, the QP is built so much later, not beside the
 * first requests; it is tried again after that, so long without a request.
 */
#define BUILD_LATER (HZ / 50)
#define BUILD_AGAIN HZ
#define IDLE_LIMIT (20 * HZ)

static u8 krc_status_of(enum ib_wc_status status)
{
	switch (status) {
	case IB_WC_SUCCESS:
		return KRC_SUCCESS;
	case IB_WC_LOC_LEN_ERR:
		return KRC_LOCAL_LENGTH_ERROR;
	case IB_WC_LOC_QP_OP_ERR:
		return KRC_LOCAL_QP_ERROR;
	case IB_WC_LOC_PROT_ERR:
		return KRC_LOCAL_PROTECTION_ERROR;
	case IB_WC_WR_FLUSH_ERR:
		return KRC_FLUSHED;
	case IB_WC_REM_INV_REQ_ERR:
		return KRC_REMOTE_INVALID_REQUEST;
	case IB_WC_REM_ACCESS_ERR:
		return KRC_REMOTE_ACCESS_ERROR;
	case IB_WC_REM_OP_ERR:
		return KRC_REMOTE_OPERATION_ERROR;
	case IB_WC_RETRY_EXC_ERR:
		return KRC_RETRY_EXCEEDED;
	case IB_WC_RNR_RETRY_EXC_ERR:
		return KRC_RNR_RETRY_EXCEEDED;
	default:
		return KRC_GENERAL_ERROR;
	}
}

static void krc_conn_broke(struct krc_conn *conn)
{
	lockdep_assert_held(&conn->lock);
	if (conn->state != KRC_CONN_UP && conn->state != KRC_CONN_STOOD_IN)
		return;
	conn->state = KRC_CONN_BROKEN;
	conn->broke = true;
	trace_krc_conn(conn, 0);
	atomic64_inc(&conn->dev->stats.broken);
	mod_delayed_work(system_long_wq, &conn->repair, 0);
}

/* What a fence waits for: a READ or an atomic. */
static bool krc_wr_fetches(const struct krc_wr *wr)
{
	return wr->opcode != KRC_OP_WRITE && !krc_is_send(wr->opcode);
}

/*
 * Fences wait here: IB_SEND_FENCE would wait for other queues' READs as well,
 * and rxe (6.1) hangs. Behind a timeout it sends again what is not acknowledged
 * yet; a fenced request then waits for READs and atomics that come later, or for
 * itself, and no timer runs.
 */
static bool krc_conn_is_fenced(const struct krc_wr *wr)
{
	return (wr->flags & KRC_FENCE) && wr->queue->fetching;
}

static struct krc_wr *krc_conn_next(struct krc_queue *queue)
{
	struct krc_wr *wr = list_first_entry_or_null(&queue->pending,
						     struct krc_wr, link);

	return wr && !krc_conn_is_fenced(wr) ? wr : NULL;
}

/* Whether it need not wait for the QP. */
static bool krc_conn_takes(const struct krc_conn *conn, const struct krc_wr *wr)
{
	return !conn->dci || wr->dc;
}

/* Puts the queue in line, if it has something that may be posted. */
static void krc_conn_line_up(struct krc_conn *conn, struct krc_queue *queue)
{
	const struct krc_wr *wr = krc_conn_next(queue);

	if (!wr || !list_empty(&queue->turn))
		return;
	if (krc_conn_takes(conn, wr)) {
		list_add_tail(&queue->turn, &conn->turns);
		return;
	}
	list_add_tail(&queue->turn, &conn->later);
	if (conn->state == KRC_CONN_STOOD_IN)
		mod_delayed_work(system_long_wq, &conn->repair, 0);
}

static void krc_conn_to_posted(struct krc_conn *conn, struct krc_wr *wr)
{
	conn->credits--;
	if (krc_wr_fetches(wr))
		wr->queue->fetching++;
	list_move_tail(&wr->link, &conn->posted);
}

/* Its caller puts it elsewhere. What a fence held back is in line again. */
static void krc_conn_from_posted(struct krc_conn *conn, struct krc_wr *wr)
{
	conn->credits++;
	if (krc_wr_fetches(wr) && !--wr->queue->fetching)
		krc_conn_line_up(conn, wr->queue);
	list_del(&wr->link);
}

/* Takes what may be posted now, as a list for ib_post_send. */
static struct ib_send_wr *krc_conn_take(struct krc_conn *conn)
{
	struct ib_send_wr *first = NULL;
	struct ib_send_wr **link = &first;
	struct krc_queue *queue;
	struct krc_wr *wr;
	unsigned int i;

	while (conn->credits && !list_empty(&conn->turns)) {
		queue = list_first_entry(&conn->turns, struct krc_queue, turn);
		list_del_init(&queue->turn);
		for (i = 0; i < TURN && conn->credits; i++) {
			wr = krc_conn_next(queue);
			if (!wr || !krc_conn_takes(conn, wr))
				break;
			krc_conn_to_posted(conn, wr);
			*link = &wr->rdma.wr;
			link = &wr->rdma.wr.next;
		}
		krc_conn_line_up(conn, queue);
	}
	*link = NULL;
	return first;
}

/* The same to what stands in for the QP. */
static void krc_conn_post_dci(struct krc_conn *conn)
{
	struct ib_send_wr *send, *next;

	for (send = krc_conn_take(conn); send; send = next) {
		next = send->next;
		krc_dci_post(conn->dci,
			     container_of(send, struct krc_wr, rdma.wr));
	}
}

/* Posts what is pending, as far as the QP has places. */
static void krc_conn_post(struct krc_conn *conn)
{
	const struct ib_send_wr *bad = NULL;
	struct ib_send_wr *first;
	struct krc_wr *wr, *next;
	bool last;

	lockdep_assert_held(&conn->lock);
	if (conn->state == KRC_CONN_STOOD_IN)
		krc_conn_post_dci(conn);
	if (conn->state != KRC_CONN_UP)
		return;
	first = krc_conn_take(conn);
	if (!first)
		return;
	atomic64_inc(&conn->dev->stats.doorbells);
	if (!ib_post_send(conn->qp, first, &bad))
		return;
	/*
	 * From `bad` on nothing was posted. The request itself may be the
	 * reason, so its queue is broken for it; the others go out after the
	 * repair.
	 */
	container_of(bad, struct krc_wr, rdma.wr)->queue->broken = true;
	list_for_each_entry_safe_reverse(wr, next, &conn->posted, link) {
		last = &wr->rdma.wr == bad;
		krc_conn_from_posted(conn, wr);
		list_add(&wr->link, &wr->queue->pending);
		krc_conn_line_up(conn, wr->queue);
		if (last)
			break;
	}
	krc_conn_broke(conn);
}

static void krc_conn_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krc_wr *wr = container_of(wc->wr_cqe, struct krc_wr, cqe);
	struct krc_conn *conn = cq->cq_context;

	spin_lock_bh(&conn->lock);
	krc_conn_from_posted(conn, wr);
	if (likely(wc->status == IB_WC_SUCCESS)) {
		krc_queue_complete(wr, KRC_SUCCESS);
	} else {
		krc_conn_broke(conn);
		if (wc->status == IB_WC_WR_FLUSH_ERR || wr->queue->broken) {
			list_add_tail(&wr->link, &conn->repost);
		} else {
			wr->queue->broken = true;
			krc_queue_complete(wr, krc_status_of(wc->status));
		}
	}
	krc_conn_post(conn);
	if (list_empty(&conn->posted))
		wake_up(&conn->drained);
	spin_unlock_bh(&conn->lock);
}

void krc_conn_dci_done(struct krc_conn *conn, struct krc_wr *wr, u8 status)
{
	lockdep_assert_held(&conn->lock);
	krc_conn_from_posted(conn, wr);
	if (status == KRC_SUCCESS) {
		conn->used = jiffies;
		atomic64_inc(&conn->dev->stats.dc_requests);
		krc_queue_complete(wr, KRC_SUCCESS);
		return;
	}
	/*
	 * Until the end of `dci` it may be executed yet: krc_conn_settle tells,
	 * in the queue's order.
	 */
	if (status != KRC_FLUSHED)
		wr->queue->broken = true;
	wr->status = status;
	list_add_tail(&wr->link, &conn->repost);
}

void krc_conn_dci_ran(struct krc_conn *conn, bool failed)
{
	if (failed)
		krc_conn_broke(conn);
	krc_conn_post(conn);
}

void krc_wr_init(struct krc_wr *wr, struct krc_queue *queue)
{
	wr->cqe.done = krc_conn_done;
	wr->queue = queue;
	wr->status = KRC_FLUSHED;
	wr->dc = false;
	wr->num_sge = 0;
	wr->remote = NULL;
	wr->port = NULL;
}

void krc_wr_address(struct krc_wr *wr, u32 num_sge, u64 remote_addr, u32 rkey,
		    u64 compare_add, u64 swap)
{
	struct ib_send_wr *send = &wr->rdma.wr;

	wr->status = KRC_FLUSHED;
	wr->dc = false;
	memset(&wr->atomic, 0, sizeof(wr->atomic));
	send->wr_cqe = &wr->cqe;
	send->sg_list = wr->sges;
	send->num_sge = num_sge;
	/* Fences are kept by krc_conn_is_fenced, not by the QP. */
	send->send_flags = IB_SEND_SIGNALED;
	switch (wr->opcode) {
	case KRC_OP_READ:
	case KRC_OP_WRITE:
	case KRC_OP_SEND:	/* of which the QP knows nothing, see sender.h */
	case KRC_OP_SEND_IMM:
		send->opcode = wr->opcode == KRC_OP_READ ? IB_WR_RDMA_READ :
							   IB_WR_RDMA_WRITE;
		wr->rdma.remote_addr = remote_addr;
		wr->rdma.rkey = rkey;
		break;
	default:
		send->opcode = wr->opcode == KRC_OP_COMPARE_SWAP ?
				       IB_WR_ATOMIC_CMP_AND_SWP :
				       IB_WR_ATOMIC_FETCH_AND_ADD;
		wr->atomic.remote_addr = remote_addr;
		wr->atomic.rkey = rkey;
		wr->atomic.compare_add = compare_add;
		wr->atomic.swap = swap;
	}
}

/* Breaks the queue, and takes what it has pending. */
static void krc_conn_take_pending(struct krc_queue *queue,
				  struct list_head *flushed)
{
	queue->broken = true;
	list_del_init(&queue->turn);
	list_splice_tail_init(&queue->pending, flushed);
}

/*
 * Completes, in order, what krc_conn_take_pending took. The requests are what
 * keeps their queues: of one whose last request is completed nothing is touched
 * any more.
 * Context: process, may sleep; conn->lock is not held.
 */
static void krc_conn_flush(struct krc_conn *conn, struct list_head *flushed)
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

/*
 * Behind the end of a QP: what becomes of requests that it did not execute, or
 * that nobody knows whether it did. A queue that may have lost a WRITE or an
 * atomic is broken, and all that it has outstanding is flushed, in order. A
 * queue of which only READs were flushed does not hear of it: they are posted
 * again. Without a new QP (`up`) all are flushed.
 */
static void krc_conn_settle(struct krc_conn *conn, bool up,
			    struct list_head *flushed)
{
	struct krc_queue *queue, *next_queue;
	struct krc_wr *wr, *next;

	lockdep_assert_held(&conn->lock);
	list_splice_tail_init(&conn->later, &conn->turns);
	/* Behind it no queue is fenced: all with something pending are in line. */
	list_for_each_entry_safe(wr, next, &conn->posted, link) {
		krc_conn_from_posted(conn, wr);
		list_add_tail(&wr->link, &conn->repost);
	}
	list_for_each_entry(wr, &conn->repost, link)
		if (wr->opcode != KRC_OP_READ)
			wr->queue->broken = true;
	/* Each before what its queue had pending. */
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
 * Whether what stands in goes on, since there is no QP. It does as long as it is
 * used and works, and nothing needs the QP. Else nothing more is posted there,
 * and no other one begins, until the connection is up or down.
 */
static bool krc_conn_keep_dci(struct krc_conn *conn, int err)
{
	bool keep;

	spin_lock_bh(&conn->lock);
	keep = conn->state == KRC_CONN_STOOD_IN && err &&
	       time_before(jiffies, conn->used + IDLE_LIMIT) &&
	       list_empty(&conn->later);
	if (keep) {
		queue_delayed_work(system_long_wq, &conn->repair, BUILD_AGAIN);
	} else if (conn->state != KRC_CONN_GONE) {
		conn->state = KRC_CONN_BROKEN;
		trace_krc_conn(conn, err);
	}
	spin_unlock_bh(&conn->lock);
	return keep;
}

/* What was posted there has ended behind it, or is told as unknown. */
static void krc_conn_end_dci(struct krc_conn *conn)
{
	if (!conn->dci)
		return;
	krc_dci_end(conn->dci);
	spin_lock_bh(&conn->lock);
	conn->dci = NULL;
	spin_unlock_bh(&conn->lock);
	atomic64_dec(&conn->dev->stats.standing_in);
}

/* Builds the QP; anew, if it is broken. */
static void krc_conn_repair(struct work_struct *work)
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
	 * Several that find it down ask for a repair each, and one may begin
	 * when another has succeeded: what works is left alone.
	 */
	if (before == KRC_CONN_UP || before == KRC_CONN_GONE)
		return;
	mutex_lock(&conn->build);
	krc_qp_destroy(conn);
	/* From here on what is heard is of the new one. */
	spin_lock_bh(&conn->lock);
	conn->lost = false;
	spin_unlock_bh(&conn->lock);
	err = krc_qp_create(conn);
	mutex_unlock(&conn->build);
	if (err)
		dev_warn_ratelimited(&conn->dev->ib->dev,
				     "krcore: no connection to %pI6c: %d\n",
				     conn->host->gid.raw, err);
	if (krc_conn_keep_dci(conn, err))
		return;
	krc_conn_end_dci(conn);
	spin_lock_bh(&conn->lock);
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

void krc_conn_init(struct krc_conn *conn, struct krc_host *host, u32 index)
{
	conn->dev = host->dev;
	conn->host = host;
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

/* It stands in until krc_conn_repair has built the QP. */
static void krc_conn_begin_dci(struct krc_conn *conn, struct krc_dci *dci)
{
	lockdep_assert_held(&conn->lock);
	conn->dci = dci;
	conn->state = KRC_CONN_STOOD_IN;
	conn->used = jiffies;
	conn->credits = KRC_DCI_DEPTH;
	krc_dci_begin(dci, conn);
	trace_krc_conn(conn, 0);
	atomic64_inc(&conn->dev->stats.standing_in);
	atomic64_inc(&conn->dev->stats.dc_connects);
}

int krc_conn_mend(struct krc_conn *conn, struct krc_queue *queue,
		  const struct krc_dc_place *dc)
{
	struct krc_dci *dci = NULL;
	unsigned long delay = 0;
	bool stood_in;
	int err = 0;

	/* Another one may come between. */
	if (dc && READ_ONCE(conn->state) == KRC_CONN_DOWN)
		dci = krc_dci_take(conn->dev, dc, &conn->host->gid);
	spin_lock_bh(&conn->lock);
	if (conn->state == KRC_CONN_DOWN) {
		/*
		 * Of a former life of the QP something may be executed until the
		 * next one: nothing may come before that.
		 */
		if (dci && !conn->was_up) {
			krc_conn_begin_dci(conn, dci);
			dci = NULL;
			delay = BUILD_LATER;
		}
		queue_delayed_work(system_long_wq, &conn->repair, delay);
	}
	stood_in = conn->state == KRC_CONN_STOOD_IN;
	/* Nodes of a host may tell of it at different times of its life. */
	if (stood_in && dc && !krc_dci_serves(conn->dci, dc))
		dc = NULL;
	spin_unlock_bh(&conn->lock);
	if (dci)
		krc_dci_put(dci);
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
		krc_dci_fail(conn->dci);
	krc_conn_broke(conn);
	spin_unlock_bh(&conn->lock);
}

void krc_conn_break_unheard(struct krc_conn *conn)
{
	/* What is being built is broken. */
	if (!mutex_trylock(&conn->build))
		return;
	if (conn->qp)
		krc_qp_break(conn);
	mutex_unlock(&conn->build);
}
