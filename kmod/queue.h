/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A VirtualQueue: an open file of /dev/krcore. It has places for requests, a
 * completion ring that its process maps, and regions; once attached to a device, it
 * uses one of that device's connections. The calls of krcore_ioctl.h are above it
 * (calls.h).
 *
 * The life of a request (struct krc_wr), whose memory belongs to its queue:
 *
 *   queue's free list -> its pending -> posted -> completed: free list
 *                             ^           |
 *                             `- repost --'  a READ that another queue's fault
 *                                            flushed
 */
#ifndef KRCORE_QUEUE_H
#define KRCORE_QUEUE_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <rdma/ib_verbs.h>

#include <krcore/krcore_ioctl.h>

#include "region.h"

struct krc_conn;
struct krc_host;
struct krc_device;
struct krc_node;
struct krc_peer;
struct krc_port;
struct krc_sender;
struct mm_struct;

struct krc_wr {
	struct ib_cqe cqe;
	struct list_head link;
	struct krc_queue *queue;
	u64 wr_id;
	u8 opcode;	/* of krc_opcode */
	u8 flags;	/* of krc_request_flag */
	u8 num_sge;
	u8 status;	/* of krc_status: how it ends, unless its QP decides */
	bool dc;	/* it may go over software DC, with: */
	u32 key;	/* of the peer's region */
	struct krc_region *local[KRC_MAX_SGE];
	struct krc_region *remote;	/* NULL: another host's */
	struct krc_port *port;	/* a message's; NULL: another host's */
	u64 number;		/* a message's */
	/*
	 * If not NULL, it is told of the request's end. One of the module's own
	 * requests may be freed then. Context: conn->lock is held.
	 */
	void (*ended)(struct krc_wr *wr, u8 status);
	struct ib_sge sges[KRC_MAX_SGE];
	union {
		struct ib_rdma_wr rdma;
		struct ib_atomic_wr atomic;
		struct ib_reg_wr reg;	/* for the module's own requests, see verb.h */
	};
};

struct krc_queue {
	struct kref refs;	/* the file; krc_remove, while it detaches it */
	/* Its process; never changes. NULL: it is the module's own. */
	struct mm_struct *mm;

	struct mutex lock;	/* serializes calls, and guards: */
	struct krc_device *dev;	/* NULL: not attached, or gone */
	struct krc_node *fabric_node;	/* NULL: not joined; set once */
	struct krc_host *host;	/* NULL: not connected */
	struct krc_conn *conn;	/* likewise */
	struct krc_peer *peer;	/* NULL: connected to a device */
	struct krc_port *port;	/* NULL: not bound; set once */
	/* NULL: connected to no port. It does not change while requests are outstanding. */
	struct krc_sender *sender;
	struct krc_regions regions;
	/* NULL until something is pushed; then `depth` of them, `used` of which are made. */
	struct krc_wr *wrs;
	u32 depth;

	struct list_head node;	/* of dev->queues, by krc_devices_lock */
	bool gone;		/* the device was removed; set once */
	bool broken;		/* conn->lock guards these: */
	struct list_head pending; /* requests that are not posted */
	struct list_head turn;	/* of conn->turns, if there are any */
	u32 fetching;		/* READs and atomics that are posted */

	spinlock_t ring_lock;	/* guards all that follows; softirqs take it */
	struct list_head free;	/* of wrs that are made */
	u32 used;
	u32 outstanding;	/* requests that are not on the free list */
	u32 head;		/* completions written to the ring */
	struct krc_ring_header *ring;	/* set once, by krc_queue_make_ring */
	u32 ring_bytes;		/* 0: not attached; set once */
	u32 ring_mask;
	wait_queue_head_t wait;	/* for a completion, nothing outstanding, or gone */
};

struct krc_queue *krc_queue_create(void);
/* Makes a queue for the module's own requests, without a ring. NULL: no memory. */
struct krc_queue *krc_queue_create_own(struct krc_device *dev);
void krc_queue_put(struct krc_queue *queue);

/*
 * Makes its ring, if it has none yet; mmap and the first push need it. -EBADFD: the
 * queue is not attached; -ENOMEM. Takes no lock.
 */
int krc_queue_make_ring(struct krc_queue *queue);
/* Returns its ring; NULL: it has none. */
static inline struct krc_ring_header *krc_queue_ring(struct krc_queue *queue)
{
	/* Pairs with the release at the end of krc_queue_make_ring. */
	return smp_load_acquire(&queue->ring);
}

/*
 * Sets how many places it has for requests, and in the ring. Their memory is made
 * when it is first needed: many queues push nothing, and a process waits for
 * attaching. If it were made at once, `open` and START would take 72 us instead of
 * 48 (bench_connect).
 */
void krc_queue_set_depth(struct krc_queue *queue, u32 depth);
/* Makes the ring, and the places for requests. -ENOMEM. Requires the lock. */
int krc_queue_make_places(struct krc_queue *queue);
/*
 * Takes `count` places for a batch. -EAGAIN: there are not that many; -EINVAL: its
 * process has spoiled the ring.
 */
int krc_queue_take(struct krc_queue *queue, u32 count,
		   struct list_head *batch);
/* Gives back a batch that was not accepted. */
void krc_queue_give_back(struct krc_queue *queue, u32 count,
			 struct list_head *batch);

void krc_wr_init(struct krc_wr *wr, struct krc_queue *queue);
/* Makes the request hold no region any more. */
void krc_wr_release(struct krc_wr *wr);

/* Checks the state that calls on an attached queue need. Requires the lock. */
int krc_queue_usable(struct krc_queue *queue);
/* Returns how many requests have no completion yet. */
u32 krc_queue_outstanding(struct krc_queue *queue);
/*
 * Ends a request: releases what it used, and its place.
 * Context: conn->lock is held.
 */
void krc_queue_complete(struct krc_wr *wr, u8 status);

#endif
