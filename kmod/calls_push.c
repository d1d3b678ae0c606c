// SPDX-License-Identifier: GPL-2.0
/* PUSH: requests are copied, checked and resolved, and go to the queue's connection. */
#include <linux/uaccess.h>

#include "calls.h"
#include "check.h"
#include "conn.h"
#include "device.h"
#include "host.h"
#include "node.h"
#include "sender.h"
#include "trace.h"

/* Longer regions are not mapped for the short time in which a QP is stood in for. */
#define MAX_MAPPED SZ_64M

/* Resolves the memory that the request names: this process's, and the peer's. */
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
 * Whether the request may go over software DC, if that stands in for the
 * connection's QP (until it is posted, another thread's CONNECT may bring that
 * about): it is short, and this CPU reaches its memory. Otherwise it waits for the
 * QP.
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

/* Checks a request that was copied, and makes it ready to be posted. */
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

static int krc_queue_push_batch(struct krc_queue *queue, struct krc_push *push)
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
		/* Its user may change what is in memory, so copy it only once. */
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
	/* Requests that were not looked at hold nothing. */
	list_for_each_entry(wr, &batch, link) {
		krc_wr_release(wr);
		krc_sender_unstage(wr);
	}
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
	err = krc_queue_push_batch(queue, push);
	trace_krc_push(queue, push->count, err);
	return err;
}
