// SPDX-License-Identifier: GPL-2.0
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "device.h"
#include "queue.h"
#include "trace.h"

/* --- its life --- */

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

struct krc_queue *krc_queue_create_own(struct krc_device *dev)
{
	struct krc_queue *queue = krc_queue_alloc_empty();

	if (!queue)
		return NULL;
	queue->dev = dev;
	return queue;
}

/*
 * One page, which most rings are, costs less to make and to map than what vmalloc
 * makes: the first READ of a queue takes 103 us, and 122 us with vmalloc
 * (bench_connect).
 */
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

/* --- places for requests, and for completions --- */

void krc_queue_set_depth(struct krc_queue *queue, u32 depth)
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
	 * A push and an mmap may both have made a ring. Pairs with the acquire of
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
	/* Entries that a queue never uses are never touched. */
	queue->wrs = kvmalloc_array(queue->depth, sizeof(*queue->wrs),
				    GFP_KERNEL_ACCOUNT);
	return queue->wrs ? 0 : -ENOMEM;
}

u32 krc_queue_outstanding(struct krc_queue *queue)
{
	u32 outstanding;

	spin_lock_bh(&queue->ring_lock);
	outstanding = queue->outstanding;
	spin_unlock_bh(&queue->ring_lock);
	return outstanding;
}

/* Takes a free place. There is one: `outstanding` says so. */
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

int krc_queue_take(struct krc_queue *queue, u32 count, struct list_head *batch)
{
	u32 unread, i;
	int err = 0;

	spin_lock_bh(&queue->ring_lock);
	/* Whatever its user wrote there is read once, and trusted only here. */
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

void krc_queue_give_back(struct krc_queue *queue, u32 count,
			 struct list_head *batch)
{
	spin_lock_bh(&queue->ring_lock);
	queue->outstanding -= count;
	list_splice(batch, &queue->free);
	spin_unlock_bh(&queue->ring_lock);
}

/* --- requests --- */

void krc_wr_init(struct krc_wr *wr, struct krc_queue *queue)
{
	wr->queue = queue;
	wr->status = KRC_FLUSHED;
	wr->dc = false;
	wr->num_sge = 0;
	wr->remote = NULL;
	wr->port = NULL;
	wr->ended = NULL;
}

void krc_wr_release(struct krc_wr *wr)
{
	unsigned int i;

	for (i = 0; i < wr->num_sge; i++)
		krc_region_put(wr->local[i]);
	wr->num_sge = 0;
	if (wr->remote)
		krc_region_put(wr->remote);
	wr->remote = NULL;
}

void krc_queue_complete(struct krc_wr *wr, u8 status)
{
	struct krc_queue *queue = wr->queue;
	struct krc_stats *stats = &queue->dev->stats;
	struct krc_completion *entries, *entry;
	bool is_own = !queue->mm;

	trace_krc_complete(wr, status);
	atomic64_inc(&stats->completed);
	if (status)
		atomic64_inc(&stats->failed);
	if (wr->ended)
		wr->ended(wr, status);
	if (is_own)
		return;
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
	/* The barrier of wq_has_sleeper pairs with that of krc_poll. */
	if (wq_has_sleeper(&queue->wait))
		wake_up_all(&queue->wait);
	/* From here on a queue that is being detached may disappear. */
	spin_unlock(&queue->ring_lock);
}
