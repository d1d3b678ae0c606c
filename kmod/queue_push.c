// SPDX-License-Identifier: GPL-2.0
/* The data path of a queue: requests come in, completions go out. */
#include <linux/uaccess.h>

#include "check.h"
#include "conn.h"
#include "device.h"
#include "host.h"
#include "node.h"
#include "port.h"
#include "queue.h"
#include "region.h"
#include "sender.h"
#include "trace.h"

/* Regions that are longer are not mapped for what stands in for a QP for a while. */
#define MAX_MAPPED SZ_64M

static void krc_wr_release(struct krc_wr *wr)
{
	unsigned int i;

	for (i = 0; i < wr->num_sge; i++)
		krc_region_put(wr->local[i]);
	wr->num_sge = 0;
	if (wr->remote)
		krc_region_put(wr->remote);
	wr->remote = NULL;
	if (wr->port)
		krc_port_unuse(wr->port);
	wr->port = NULL;
}

/* The memory that it names: this process's, and the peer's. */
static int krc_wr_resolve(struct krc_wr *wr, const struct krc_request *request,
			  u64 bytes, u32 *rkey, bool *dc)
{
	struct krc_queue *queue = wr->queue;
	struct krc_device *dev = queue->dev;
	u32 access = krc_local_access(request->opcode);

	wr->num_sge = 0;
	wr->remote = NULL;
	while (wr->num_sge < request->num_sge) {
		const struct krc_sge *sge = &request->sges[wr->num_sge];
		struct krc_region *region =
			krc_region_get(dev, queue->mm, sge->lkey, sge->addr,
				       sge->length, access);

		if (!region)
			return -EACCES;
		wr->local[wr->num_sge] = region;
		wr->sges[wr->num_sge] = (struct ib_sge){
			.addr = sge->addr,
			.length = sge->length,
			.lkey = region->mr->lkey,
		};
		wr->num_sge++;
	}
	access = krc_remote_access(request->opcode);
	if (!krc_host_is_self(queue->host))
		return krc_peer_rkey(queue->peer, request->rkey,
				     request->remote_addr, bytes, access, rkey,
				     dc);
	wr->remote = krc_region_get(dev, NULL, request->rkey,
				    request->remote_addr, bytes, access);
	if (!wr->remote)
		return -EACCES;
	*rkey = wr->remote->mr->rkey;
	*dc = false;
	return 0;
}

/*
 * Whether it may go over software DC, if that stands in for the connection's QP
 * (which another thread's CONNECT may bring about until it is posted): it is
 * short, and this CPU reaches its memory. Else it waits for the QP.
 */
static bool krc_wr_fits_dc(const struct krc_wr *wr, u64 bytes)
{
	unsigned int i;

	if (READ_ONCE(wr->queue->conn->was_up) || bytes > KRC_STAND_IN_MAX_BYTES)
		return false;
	for (i = 0; i < wr->num_sge; i++) {
		struct krc_region *region = wr->local[i];

		if (region->length > MAX_MAPPED && !READ_ONCE(region->map))
			return false;
		if (!krc_region_map(region))
			return false;
	}
	return true;
}

static void krc_wr_fill(struct krc_wr *wr, const struct krc_request *request,
			u32 rkey)
{
	wr->wr_id = request->wr_id;
	wr->opcode = request->opcode;
	wr->flags = request->flags;
	krc_wr_address(wr, wr->num_sge, request->remote_addr, rkey,
		       request->compare_add, request->swap);
}

/* Checks one that was copied, and makes it ready to be posted. */
static int krc_wr_make(struct krc_wr *wr, const struct krc_request *request)
{
	struct krc_queue *queue = wr->queue;
	bool is_send = krc_is_send(request->opcode);
	u32 most = queue->dev->max_message_bytes;
	u64 bytes;
	u32 rkey;
	bool dc;
	int err;

	if (is_send && queue->sender)
		most = queue->sender->value.copy_bytes;
	err = krc_check_form(request, most, &bytes);
	if (err)
		return err;
	if (!is_send) {
		err = krc_wr_resolve(wr, request, bytes, &rkey, &dc);
		if (err)
			return err;
		krc_wr_fill(wr, request, rkey);
		wr->key = request->rkey;
		wr->dc = dc && krc_wr_fits_dc(wr, bytes);
		return 0;
	}
	if (!queue->sender)
		return -ENOTCONN;
	err = krc_sender_stage(queue, wr, request, bytes);
	if (err)
		return err;
	wr->wr_id = request->wr_id;
	wr->opcode = request->opcode;
	wr->flags = request->flags;
	krc_wr_address(wr, 1, krc_sender_addr(queue->sender, wr->number),
		       queue->sender->rkey, 0, 0);
	return 0;
}

/* There is one: `outstanding` says so. */
static struct krc_wr *krc_queue_place(struct krc_queue *queue)
{
	struct krc_wr *wr;

	lockdep_assert_held(&queue->ring_lock);
	wr = list_first_entry_or_null(&queue->free, struct krc_wr, link);
	if (wr) {
		list_del(&wr->link);
	} else {
		wr = &queue->wrs[queue->used++];
		krc_wr_init(wr, queue);
	}
	return wr;
}

/* Takes `count` places for a batch. */
static int krc_queue_take(struct krc_queue *queue, u32 count,
			  struct list_head *batch)
{
	u32 unread, i;
	int err = 0;

	spin_lock_bh(&queue->ring_lock);
	/* Whatever its user wrote there is read once, and only believed here. */
	unread = queue->head - READ_ONCE(queue->ring->tail);
	if (unread > queue->ring_mask + 1) {
		err = -EINVAL;
	} else if (unread > queue->depth ||
		   queue->outstanding > queue->depth - unread ||
		   count > queue->depth - unread - queue->outstanding) {
		err = -EAGAIN;
	} else {
		queue->outstanding += count;
		for (i = 0; i < count; i++)
			list_add_tail(&krc_queue_place(queue)->link, batch);
	}
	spin_unlock_bh(&queue->ring_lock);
	return err;
}

/* Gives a batch back that was not accepted. */
static void krc_queue_give_back(struct krc_queue *queue, u32 count,
				struct list_head *batch)
{
	spin_lock_bh(&queue->ring_lock);
	queue->outstanding -= count;
	list_splice(batch, &queue->free);
	spin_unlock_bh(&queue->ring_lock);
}

static int krc_queue_push_locked(struct krc_queue *queue, struct krc_push *push)
{
	const struct krc_request __user *from = u64_to_user_ptr(push->requests);
	struct krc_request request;
	struct krc_wr *wr;
	LIST_HEAD(batch);
	u64 next = 0;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	if (!queue->conn)
		return -ENOTCONN;
	if (push->count > queue->depth)
		return -E2BIG;
	err = krc_queue_make_places(queue);
	if (err)
		return err;
	err = krc_queue_take(queue, push->count, &batch);
	if (err)
		return err;
	push->bad_index = 0;
	if (queue->sender)
		next = queue->sender->next;
	list_for_each_entry(wr, &batch, link) {
		/* What its user has in memory may change: copied once. */
		if (copy_from_user(&request, from++, sizeof(request)))
			err = -EFAULT;
		else
			err = krc_wr_make(wr, &request);
		if (err)
			break;
		push->bad_index++;
	}
	if (!err) {
		err = krc_conn_submit(queue->conn, queue, &batch);
		if (!err) {
			atomic64_add(push->count, &queue->dev->stats.requests);
			return 0;
		}
		push->bad_index = 0;
	}
	/* Those that were not looked at hold nothing. */
	list_for_each_entry(wr, &batch, link)
		krc_wr_release(wr);
	krc_queue_give_back(queue, push->count, &batch);
	if (queue->sender)
		krc_sender_undo(queue->sender, next);
	atomic64_inc(&queue->dev->stats.refused);
	return err;
}

int krc_queue_push(struct krc_queue *queue, struct krc_push *push)
{
	int err;

	if (!push->count)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_push_locked(queue, push);
	trace_krc_push(queue, push->count, err);
	mutex_unlock(&queue->lock);
	return err;
}

void krc_queue_complete(struct krc_wr *wr, u8 status)
{
	struct krc_queue *queue = wr->queue;
	struct krc_stats *stats = &queue->dev->stats;
	struct krc_completion *entries, *entry;

	trace_krc_complete(wr, status);
	atomic64_inc(&stats->completed);
	if (status)
		atomic64_inc(&stats->failed);
	if (queue->done) {
		queue->done(queue, status);
		return;
	}
	if (status && krc_is_send(wr->opcode))
		krc_sender_failed(queue->sender, wr->number);
	if (wr->port)
		krc_port_arrived(wr->port);
	krc_wr_release(wr);
	spin_lock(&queue->ring_lock);
	if (status || (wr->flags & KRC_SIGNALED)) {
		entries = (struct krc_completion *)(queue->ring + 1);
		entry = &entries[queue->head & queue->ring_mask];
		*entry = (struct krc_completion){
			.wr_id = wr->wr_id,
			.status = status,
			.opcode = wr->opcode,
		};
		/* krc_poll reads it without the lock. */
		WRITE_ONCE(queue->head, queue->head + 1);
		/* Pairs with the acquire of its user. */
		smp_store_release(&queue->ring->head, queue->head);
	}
	list_add(&wr->link, &queue->free);
	queue->outstanding--;
	/* Its barrier pairs with that of krc_poll. */
	if (wq_has_sleeper(&queue->wait))
		wake_up_all(&queue->wait);
	/* From here on a queue that is being detached may go. */
	spin_unlock(&queue->ring_lock);
}
