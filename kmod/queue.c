// SPDX-License-Identifier: GPL-2.0
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "conn.h"
#include "device.h"
#include "host.h"
#include "node.h"
#include "port.h"
#include "queue.h"
#include "region.h"
#include "sender.h"

static struct krc_queue *krc_queue_alloc_empty(void)
{
	struct krc_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);

	if (!queue)
		return NULL;
	kref_init(&queue->refs);
	mutex_init(&queue->lock);
	INIT_LIST_HEAD(&queue->regions.list);
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

/* One page, which most are, costs less to make and to map than what vmalloc makes. */
static struct krc_ring_header *krc_ring_alloc(u32 bytes)
{
	return bytes == PAGE_SIZE ?
		       (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT) :
		       vmalloc_user(bytes);
}

static void krc_ring_free(struct krc_ring_header *ring)
{
	if (is_vmalloc_addr(ring))
		vfree(ring);
	else
		free_page((unsigned long)ring);
}

static void krc_queue_free(struct kref *refs)
{
	struct krc_queue *queue = container_of(refs, struct krc_queue, refs);

	if (queue->mm)
		mmdrop(queue->mm);
	krc_ring_free(queue->ring);
	kvfree(queue->wrs);
	mutex_destroy(&queue->lock);
	kfree(queue);
}

void krc_queue_put(struct krc_queue *queue)
{
	kref_put(&queue->refs, krc_queue_free);
}

int krc_queue_usable(struct krc_queue *queue)
{
	lockdep_assert_held(&queue->lock);
	if (READ_ONCE(queue->gone))
		return -ENODEV;
	return queue->dev ? 0 : -EBADFD;
}

/*
 * How many places for requests it has, and in the ring. Their memory is made when
 * it is first needed: many queues push nothing, and a process waits for attaching.
 */
static void krc_queue_set_depth(struct krc_queue *queue, u32 depth)
{
	u32 entries = roundup_pow_of_two(depth);
	u32 bytes = PAGE_ALIGN(sizeof(struct krc_ring_header) +
			       entries * sizeof(struct krc_completion));

	queue->depth = depth;
	queue->ring_mask = entries - 1;
	/* Pairs with the acquire of krc_queue_make_ring. */
	smp_store_release(&queue->ring_bytes, bytes);
}

int krc_queue_make_ring(struct krc_queue *queue)
{
	/* Pairs with the release of krc_queue_set_depth. */
	u32 bytes = smp_load_acquire(&queue->ring_bytes);
	struct krc_ring_header *ring;

	if (!bytes)
		return -EBADFD;
	if (krc_queue_ring(queue))
		return 0;
	ring = krc_ring_alloc(bytes);
	if (!ring)
		return -ENOMEM;
	/*
	 * A push and an mmap may both have made one. Pairs with the acquire of
	 * krc_queue_ring.
	 */
	if (cmpxchg_release(&queue->ring, NULL, ring))
		krc_ring_free(ring);
	return 0;
}

int krc_queue_make_places(struct krc_queue *queue)
{
	int err;

	lockdep_assert_held(&queue->lock);
	if (queue->wrs)
		return 0;
	err = krc_queue_make_ring(queue);
	if (err)
		return err;
	/* What a queue never uses is never touched. */
	queue->wrs = kvmalloc_array(queue->depth, sizeof(*queue->wrs),
				    GFP_KERNEL_ACCOUNT);
	return queue->wrs ? 0 : -ENOMEM;
}

static void krc_queue_add(struct krc_queue *queue, struct krc_device *dev,
			  u32 depth)
{
	lockdep_assert_held(&krc_devices_lock);
	krc_queue_set_depth(queue, depth);
	queue->dev = dev;
	list_add_tail(&queue->node, &dev->queues);
	atomic64_inc(&dev->stats.queues);
}

static bool krc_is_depth(u32 depth)
{
	return depth && depth <= KRC_MAX_DEPTH;
}

int krc_queue_add_like(struct krc_queue *queue, struct krc_device *dev,
		       u32 depth)
{
	int err;

	if (!krc_is_depth(depth))
		return -EINVAL;
	mutex_lock(&krc_devices_lock);
	/* One that is being removed takes no more queues. */
	err = list_empty(&dev->node) ? -ENODEV : 0;
	if (!err)
		krc_queue_add(queue, dev, depth);
	mutex_unlock(&krc_devices_lock);
	return err;
}

int krc_queue_attach_locked(struct krc_queue *queue, struct krc_attach *attach)
{
	struct krc_device *dev;
	int err;

	if (!krc_is_depth(attach->depth) ||
	    strnlen((char *)attach->device, sizeof(attach->device)) ==
		    sizeof(attach->device))
		return -EINVAL;
	if (READ_ONCE(queue->gone))
		return -ENODEV;
	if (queue->dev)
		return -EBADFD;
	mutex_lock(&krc_devices_lock);
	dev = krc_device_find(attach->device);
	err = !dev ? -ENODEV : !krc_device_is_ready(dev) ? -ENETDOWN : 0;
	if (!err)
		krc_queue_add(queue, dev, attach->depth);
	mutex_unlock(&krc_devices_lock);
	if (err)
		return err;
	memcpy(attach->gid, dev->gid.raw, sizeof(attach->gid));
	attach->ring_bytes = queue->ring_bytes;
	attach->ring_entries = queue->ring_mask + 1;
	return 0;
}

int krc_queue_attach(struct krc_queue *queue, struct krc_attach *attach)
{
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_attach_locked(queue, attach);
	mutex_unlock(&queue->lock);
	return err;
}

u32 krc_queue_outstanding(struct krc_queue *queue)
{
	u32 outstanding;

	spin_lock_bh(&queue->ring_lock);
	outstanding = queue->outstanding;
	spin_unlock_bh(&queue->ring_lock);
	return outstanding;
}

int krc_queue_move(struct krc_queue *queue, struct krc_host *host,
		   struct krc_peer *peer, const struct krc_dc_place *dc)
{
	/* The same connection again, if it has one: that is what needs mending. */
	struct krc_conn *conn = queue->host == host ? queue->conn :
						      krc_host_choose_conn(host);
	int err = krc_conn_mend(conn, queue,
				krc_host_is_self(host) ? NULL : dc);

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
	krc_sender_close(queue);
	host = krc_host_get(queue->dev, &queue->dev->gid);
	return IS_ERR(host) ? PTR_ERR(host) :
			      krc_queue_move(queue, host, NULL, NULL);
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

int krc_queue_reg_mr(struct krc_queue *queue, struct krc_reg_mr *reg)
{
	int err;

	mutex_lock(&queue->lock);
	err = krc_queue_usable(queue);
	if (!err)
		err = krc_region_register(queue->dev, &queue->regions,
					  reg->addr, reg->length, reg->access,
					  &reg->key);
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
		list_for_each_entry(region, &queue->regions.list, node) {
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

void krc_queue_detach(struct krc_queue *queue, bool gone)
{
	struct krc_region *region, *next;

	mutex_lock(&queue->lock);
	if (queue->dev) {
		if (queue->conn)
			krc_conn_cancel(queue->conn, queue);
		wait_event(queue->wait, !krc_queue_outstanding(queue));
		krc_sender_close(queue);
		krc_port_close(queue);
		list_for_each_entry_safe(region, next, &queue->regions.list,
					 node)
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
