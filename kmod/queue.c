// SPDX-License-Identifier: GPL-2.0
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "check.h"
#include "conn.h"
#include "device.h"
#include "host.h"
#include "node.h"
#include "queue.h"
#include "region.h"
#include "trace.h"

static struct krc_queue *krc_queue_alloc_empty(void)
{
	struct krc_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);

	if (!queue)
		return NULL;
	kref_init(&queue->refs);
	mutex_init(&queue->lock);
	INIT_LIST_HEAD(&queue->regions);
	INIT_LIST_HEAD(&queue->node);
	INIT_LIST_HEAD(&queue->pending);
	INIT_LIST_HEAD(&queue->turn);
	INIT_LIST_HEAD(&queue->free);
	spin_lock_init(&queue->ring_lock);
	init_waitqueue_head(&queue->wait);
	return queue;
}

struct krc_queue *krc_queue_create(void)
{
	struct krc_queue *queue = krc_queue_alloc_empty();

	if (!queue)
		return NULL;
	queue->mm = current->mm;
	mmgrab(queue->mm);
	return queue;
}

struct krc_queue *krc_queue_create_own(struct krc_device *dev, void *owner,
				       void (*done)(struct krc_queue *queue,
						    u8 status))
{
	struct krc_queue *queue = krc_queue_alloc_empty();

	if (!queue)
		return NULL;
	queue->dev = dev;
	queue->owner = owner;
	queue->done = done;
	return queue;
}

static void krc_queue_free(struct kref *refs)
{
	struct krc_queue *queue = container_of(refs, struct krc_queue, refs);

	if (queue->mm)
		mmdrop(queue->mm);
	vfree(queue->ring);
	kvfree(queue->wrs);
	mutex_destroy(&queue->lock);
	kfree(queue);
}

void krc_queue_put(struct krc_queue *queue)
{
	kref_put(&queue->refs, krc_queue_free);
}

/* The state that calls on an attached queue need. */
static int krc_queue_usable(struct krc_queue *queue)
{
	lockdep_assert_held(&queue->lock);
	if (READ_ONCE(queue->gone))
		return -ENODEV;
	return queue->dev ? 0 : -EBADFD;
}

/* The places for requests, and the ring. */
static int krc_queue_alloc(struct krc_queue *queue, u32 depth)
{
	u32 entries = roundup_pow_of_two(depth);
	u32 bytes = PAGE_ALIGN(sizeof(struct krc_ring_header) +
			       entries * sizeof(struct krc_completion));
	struct krc_ring_header *ring;
	u32 i;

	queue->wrs = kvcalloc(depth, sizeof(*queue->wrs), GFP_KERNEL_ACCOUNT);
	if (!queue->wrs)
		return -ENOMEM;
	ring = vmalloc_user(bytes);
	if (!ring) {
		kvfree(queue->wrs);
		queue->wrs = NULL;
		return -ENOMEM;
	}
	queue->depth = depth;
	queue->ring_bytes = bytes;
	queue->ring_mask = entries - 1;
	for (i = 0; i < depth; i++) {
		krc_wr_init(&queue->wrs[i], queue);
		list_add_tail(&queue->wrs[i].link, &queue->free);
	}
	/* Pairs with the acquire of krc_queue_ring. */
	smp_store_release(&queue->ring, ring);
	return 0;
}

static int krc_queue_attach_locked(struct krc_queue *queue,
				   struct krc_attach *attach)
{
	struct krc_device *dev;
	int err;

	if (READ_ONCE(queue->gone))
		return -ENODEV;
	if (queue->dev)
		return -EBADFD;
	mutex_lock(&krc_devices_lock);
	dev = krc_device_find(attach->device);
	err = !dev ? -ENODEV : !krc_device_is_ready(dev) ? -ENETDOWN : 0;
	if (!err)
		err = krc_queue_alloc(queue, attach->depth);
	if (!err) {
		queue->dev = dev;
		list_add_tail(&queue->node, &dev->queues);
		atomic64_inc(&dev->stats.queues);
		memcpy(attach->gid, dev->gid.raw, sizeof(attach->gid));
		attach->ring_bytes = queue->ring_bytes;
		attach->ring_entries = queue->ring_mask + 1;
	}
	mutex_unlock(&krc_devices_lock);
	return err;
}

int krc_queue_attach(struct krc_queue *queue, struct krc_attach *attach)
{
	int err;

	if (!attach->depth || attach->depth > KRC_MAX_DEPTH ||
	    strnlen((char *)attach->device, sizeof(attach->device)) ==
		    sizeof(attach->device))
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_attach_locked(queue, attach);
	mutex_unlock(&queue->lock);
	return err;
}

static u32 krc_queue_outstanding(struct krc_queue *queue)
{
	u32 outstanding;

	spin_lock_bh(&queue->ring_lock);
	outstanding = queue->outstanding;
	spin_unlock_bh(&queue->ring_lock);
	return outstanding;
}

/*
 * From what it is connected to, to a connection to `host`. Takes the references
 * to both; `peer` may be NULL.
 */
static int krc_queue_move(struct krc_queue *queue, struct krc_host *host,
			  struct krc_peer *peer)
{
	/* The same connection again, if it has one: that is what needs mending. */
	struct krc_conn *conn = queue->host == host ? queue->conn :
						      krc_host_choose_conn(host);
	int err = krc_conn_mend(conn, queue);

	if (err) {
		krc_host_put(host);
		if (peer) {
			krc_peer_forget(queue->dev, peer->key);
			krc_peer_put(peer);
		}
		return err;
	}
	if (queue->host)
		krc_host_put(queue->host);
	if (queue->peer)
		krc_peer_put(queue->peer);
	queue->host = host;
	queue->conn = conn;
	queue->peer = peer;
	return 0;
}

static int krc_queue_connect_device_locked(struct krc_queue *queue,
					   const struct krc_connect_device *to)
{
	struct krc_host *host;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	if (memcmp(to->gid, queue->dev->gid.raw, sizeof(to->gid)))
		return -EHOSTUNREACH;
	if (krc_queue_outstanding(queue))
		return -EBUSY;
	host = krc_host_get(queue->dev, &queue->dev->gid);
	return IS_ERR(host) ? PTR_ERR(host) : krc_queue_move(queue, host, NULL);
}

int krc_queue_connect_device(struct krc_queue *queue,
			     const struct krc_connect_device *connect)
{
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_connect_device_locked(queue, connect);
	mutex_unlock(&queue->lock);
	return err;
}

/* The state that calls on a queue of a node need. */
static int krc_queue_joined(struct krc_queue *queue)
{
	int err = krc_queue_usable(queue);

	return err || queue->fabric_node ? err : -ENOTCONN;
}

static int krc_queue_connect_locked(struct krc_queue *queue,
				    struct krc_connect *connect)
{
	struct krc_peer *peer;
	struct krc_host *host;
	bool cached, again;
	int err = krc_queue_joined(queue);

	if (err)
		return err;
	if (krc_queue_outstanding(queue))
		return -EBUSY;
	again = queue->peer &&
		queue->peer->key ==
			krc_node_key(queue->fabric_node->fabric, connect->node);
	peer = krc_peer_get(queue->fabric_node, connect->node, again, &cached);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	connect->incarnation = peer->owner >> 32;
	connect->cached = cached;
	connect->count = peer->count;
	memcpy(connect->gid, peer->gid.raw, sizeof(connect->gid));
	memcpy(connect->regions, peer->regions, sizeof(connect->regions));
	host = krc_host_get(queue->dev, &peer->gid);
	if (IS_ERR(host)) {
		krc_peer_put(peer);
		return PTR_ERR(host);
	}
	return krc_queue_move(queue, host, peer);
}

int krc_queue_connect(struct krc_queue *queue, struct krc_connect *connect)
{
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_connect_locked(queue, connect);
	trace_krc_connect(queue, connect->node, connect->cached, err);
	mutex_unlock(&queue->lock);
	return err;
}

static bool krc_is_name(const u8 *name)
{
	return *name && strnlen(name, KRC_NAME_BYTES) < KRC_NAME_BYTES;
}

/* What is behind the end of a name is 0, so that equal names are equal bytes. */
static void krc_pad_name(u8 *name)
{
	size_t length = strnlen(name, KRC_NAME_BYTES);

	memset(name + length, 0, KRC_NAME_BYTES - length);
}

/* The node of another file of this process, with a reference. */
static struct krc_node *krc_queue_node_of(struct krc_queue *queue,
					  struct krc_queue *other)
{
	struct krc_node *node = NULL;

	if (other == queue || other->mm != queue->mm)
		return NULL;
	mutex_lock_nested(&other->lock, SINGLE_DEPTH_NESTING);
	if (other->fabric_node && other->dev == queue->dev) {
		node = other->fabric_node;
		kref_get(&node->refs);
	}
	mutex_unlock(&other->lock);
	return node;
}

static int krc_queue_join_locked(struct krc_queue *queue, struct krc_join *join,
				 struct krc_queue *other)
{
	struct krc_node *node;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	if (queue->fabric_node)
		return -EBADFD;
	if (other) {
		node = krc_queue_node_of(queue, other);
		if (!node)
			return -EBADF;
		join->node = node->node;
		join->incarnation = node->incarnation;
	} else {
		err = krc_node_create(queue, join, &node);
		if (err)
			return err;
	}
	queue->fabric_node = node;
	return 0;
}

/* Two files of a process that join one another at the same time: one by one. */
static DEFINE_MUTEX(krc_join_lock);

int krc_queue_join(struct krc_queue *queue, struct krc_join *join,
		   struct krc_queue *other)
{
	int err;

	if (join->reserved || !krc_is_name(join->fabric) ||
	    join->node >= KRC_FIRST_DYNAMIC_NODE)
		return -EINVAL;
	krc_pad_name(join->fabric);
	if (other)
		mutex_lock(&krc_join_lock);
	mutex_lock(&queue->lock);
	err = krc_queue_join_locked(queue, join, other);
	mutex_unlock(&queue->lock);
	if (other)
		mutex_unlock(&krc_join_lock);
	return err;
}

int krc_queue_publish(struct krc_queue *queue,
		      const struct krc_publish *publish)
{
	int err;

	if (publish->reserved || publish->count > KRC_MAX_SHARED)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_joined(queue);
	if (!err)
		err = krc_node_publish(queue->fabric_node, queue, publish);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_queue_set_service(struct krc_queue *queue,
			  const struct krc_service *service)
{
	struct krc_service set = *service;
	int err;

	if (set.reserved || !krc_is_name(set.name) ||
	    set.length > KRC_VALUE_BYTES)
		return -EINVAL;
	krc_pad_name(set.name);
	mutex_lock(&queue->lock);
	err = krc_queue_joined(queue);
	if (!err)
		err = krc_node_set_service(queue->fabric_node, &set);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_queue_get_service(struct krc_queue *queue, struct krc_service *service)
{
	int err;

	if (service->reserved || !krc_is_name(service->name))
		return -EINVAL;
	krc_pad_name(service->name);
	mutex_lock(&queue->lock);
	err = krc_queue_joined(queue);
	if (!err)
		err = krc_node_get_service(queue->fabric_node, service);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_queue_peer_state(struct krc_queue *queue, struct krc_peer_state *state)
{
	int err;

	if (state->reserved)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_joined(queue);
	if (!err)
		err = krc_node_peer_state(queue->fabric_node, state);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_queue_reg_mr(struct krc_queue *queue, struct krc_reg_mr *reg)
{
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_usable(queue);
	if (!err)
		err = krc_region_register(queue, reg->addr, reg->length,
					  reg->access, &reg->key);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_queue_dereg_mr(struct krc_queue *queue,
		       const struct krc_dereg_mr *dereg)
{
	struct krc_region *region;
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_usable(queue);
	if (!err) {
		err = -ENOENT;
		list_for_each_entry(region, &queue->regions, node) {
			if (region->key != dereg->key)
				continue;
			krc_region_deregister(region);
			err = 0;
			break;
		}
	}
	mutex_unlock(&queue->lock);
	return err;
}

static void krc_wr_release(struct krc_wr *wr)
{
	unsigned int i;

	for (i = 0; i < wr->num_sge; i++)
		krc_region_put(wr->local[i]);
	wr->num_sge = 0;
	if (wr->remote)
		krc_region_put(wr->remote);
	wr->remote = NULL;
}

/* The memory that it names: this process's, and the peer's. */
static int krc_wr_resolve(struct krc_wr *wr, const struct krc_request *request,
			  u64 bytes, u32 *rkey)
{
	struct krc_queue *queue = wr->queue;
	struct krc_device *dev = queue->dev;
	u32 access = krc_local_access(request->opcode);

	wr->num_sge = 0;
	wr->remote = NULL;
	while (wr->num_sge < request->num_sge) {
		const struct krc_sge *sge = &request->sges[wr->num_sge];
		struct krc_region *region =
			krc_region_get(dev, queue, sge->lkey, sge->addr,
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
				     request->remote_addr, bytes, access, rkey);
	wr->remote = krc_region_get(dev, NULL, request->rkey,
				    request->remote_addr, bytes, access);
	if (!wr->remote)
		return -EACCES;
	*rkey = wr->remote->mr->rkey;
	return 0;
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
			list_move_tail(queue->free.next, batch);
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
	u64 bytes;
	u32 rkey;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	if (!queue->conn)
		return -ENOTCONN;
	if (push->count > queue->depth)
		return -E2BIG;
	err = krc_queue_take(queue, push->count, &batch);
	if (err)
		return err;
	push->bad_index = 0;
	list_for_each_entry(wr, &batch, link) {
		/* What its user has in memory may change: copied once. */
		if (copy_from_user(&request, from++, sizeof(request)))
			err = -EFAULT;
		else
			err = krc_check_form(&request,
					     queue->dev->max_message_bytes,
					     &bytes);
		if (!err)
			err = krc_wr_resolve(wr, &request, bytes, &rkey);
		if (err)
			break;
		krc_wr_fill(wr, &request, rkey);
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

void krc_queue_detach(struct krc_queue *queue, bool gone)
{
	struct krc_region *region, *next;

	mutex_lock(&queue->lock);
	if (queue->dev) {
		if (queue->conn)
			krc_conn_cancel(queue->conn, queue);
		wait_event(queue->wait, !krc_queue_outstanding(queue));
		list_for_each_entry_safe(region, next, &queue->regions, node)
			krc_region_deregister(region);
		/* Nothing of it executes any more: others may know. */
		if (queue->fabric_node)
			krc_node_put(queue->fabric_node);
		if (queue->peer)
			krc_peer_put(queue->peer);
		if (queue->host)
			krc_host_put(queue->host);
		mutex_lock(&krc_devices_lock);
		atomic64_dec(&queue->dev->stats.queues);
		/* Last: krc_remove frees the device when its list is empty. */
		list_del_init(&queue->node);
		mutex_unlock(&krc_devices_lock);
		queue->dev = NULL;
		queue->fabric_node = NULL;
		queue->peer = NULL;
		queue->host = NULL;
		queue->conn = NULL;
		if (gone) {
			WRITE_ONCE(queue->gone, true);
			wake_up_all(&queue->wait);
		}
	}
	mutex_unlock(&queue->lock);
}
