// SPDX-License-Identifier: GPL-2.0
/* A connection's requests: in line, posted, completed. */
#include "check.h"
#include "conn_parts.h"
#include "device.h"
#include "trace.h"

/* Of an error that did not flush the request. */
static u8 krc_status_of(enum ib_wc_status status)
{
	static const u8 known[] = {
		[IB_WC_LOC_LEN_ERR] = KRC_LOCAL_LENGTH_ERROR,
		[IB_WC_LOC_QP_OP_ERR] = KRC_LOCAL_QP_ERROR,
		[IB_WC_LOC_PROT_ERR] = KRC_LOCAL_PROTECTION_ERROR,
		[IB_WC_REM_INV_REQ_ERR] = KRC_REMOTE_INVALID_REQUEST,
		[IB_WC_REM_ACCESS_ERR] = KRC_REMOTE_ACCESS_ERROR,
		[IB_WC_REM_OP_ERR] = KRC_REMOTE_OPERATION_ERROR,
		[IB_WC_RETRY_EXC_ERR] = KRC_RETRY_EXCEEDED,
		[IB_WC_RNR_RETRY_EXC_ERR] = KRC_RNR_RETRY_EXCEEDED,
	};

	if (status < ARRAY_SIZE(known) && known[status])
		return known[status];
	return KRC_GENERAL_ERROR;
}

void krc_conn_broke(struct krc_conn *conn)
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

/* Whether a fence waits for it: a READ or an atomic. */
static bool krc_wr_fetches(const struct krc_wr *wr)
{
	return wr->opcode != KRC_OP_WRITE && !krc_is_send(wr->opcode);
}

/*
 * Fences wait here: IB_SEND_FENCE would wait for other queues' READs as well, and
 * makes rxe (6.1) hang. After a timeout, rxe sends again what is not acknowledged
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

void krc_conn_line_up(struct krc_conn *conn, struct krc_queue *queue)
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

void krc_conn_from_posted(struct krc_conn *conn, struct krc_wr *wr)
{
	conn->credits++;
	if (krc_wr_fetches(wr) && !--wr->queue->fetching)
		krc_conn_line_up(conn, wr->queue);
	list_del(&wr->link);
}

/* Takes what may be posted now, and returns it as a list for ib_post_send. */
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

/* Posts the same to what stands in for the QP. */
static void krc_conn_post_dci(struct krc_conn *conn)
{
	struct ib_send_wr *send, *next;

	for (send = krc_conn_take(conn); send; send = next) {
		next = send->next;
		conn->dev->stand_in->post(conn->dci,
					  container_of(send, struct krc_wr,
						       rdma.wr));
	}
}

void krc_conn_post(struct krc_conn *conn)
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
	 * From `bad` on nothing was posted. The request itself may be the reason,
	 * so its queue is broken; the others are posted after the repair.
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
	 * Until `dci` ends it may still be executed: krc_conn_settle reports it, in
	 * the queue's order.
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

void krc_wr_address(struct krc_wr *wr, u32 num_sge, u64 remote_addr, u32 rkey,
		    u64 compare_add, u64 swap)
{
	struct ib_send_wr *send = &wr->rdma.wr;

	wr->status = KRC_FLUSHED;
	wr->dc = false;
	memset(&wr->atomic, 0, sizeof(wr->atomic));
	wr->cqe.done = krc_conn_done;
	send->wr_cqe = &wr->cqe;
	send->sg_list = wr->sges;
	send->num_sge = num_sge;
	/* Fences are kept by krc_conn_is_fenced, not by the QP. */
	send->send_flags = IB_SEND_SIGNALED;
	switch (wr->opcode) {
	case KRC_OP_READ:
	case KRC_OP_WRITE:
	case KRC_OP_SEND:	/* the QP knows nothing of it, see sender.h */
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

void krc_wr_register(struct krc_wr *wr, struct ib_mr *mr)
{
	wr->status = KRC_FLUSHED;
	wr->dc = false;
	/* As a WRITE, it is not repeated by the connection. */
	wr->opcode = KRC_OP_WRITE;
	wr->cqe.done = krc_conn_done;
	memset(&wr->reg, 0, sizeof(wr->reg));
	wr->reg.wr.wr_cqe = &wr->cqe;
	wr->reg.wr.opcode = IB_WR_REG_MR;
	wr->reg.wr.send_flags = IB_SEND_SIGNALED;
	wr->reg.mr = mr;
	wr->reg.key = mr->rkey;
	wr->reg.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC;
}
