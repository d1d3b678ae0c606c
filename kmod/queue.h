/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A VirtualQueue: what an open file of /dev/krcore is. It has places for
 * requests, a completion ring that its process maps, and regions; once attached
 * to a device it goes through one of that device's connections.
 */
#ifndef KRCORE_QUEUE_H
#define KRCORE_QUEUE_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

#include <krcore/krcore_ioctl.h>

#include "region.h"

struct krc_conn;
struct krc_dc_place;
struct krc_host;
struct krc_device;
struct krc_node;
struct krc_peer;
struct krc_port;
struct krc_sender;
struct krc_wr;
struct mm_struct;

struct krc_queue {
	struct kref refs;	/* the file; krc_remove, while it detaches it */
	struct mm_struct *mm;	/* whose process it is; never changes */

	struct mutex lock;	/* of calls, and of: */
	struct krc_device *dev;	/* NULL: not attached, or gone */
	struct krc_node *fabric_node;	/* NULL: not joined; set once */
	struct krc_host *host;	/* NULL: not connected */
	struct krc_conn *conn;	/* likewise */
	struct krc_peer *peer;	/* NULL: connected to a device */
	struct krc_port *port;	/* NULL: not bound; set once */
	/* NULL: to no port. It does not change while requests are outstanding. */
	struct krc_sender *sender;
	struct krc_regions regions;
	/* The module's own (krc_queue_create_own) has these, and no ring. */
	void (*done)(struct krc_queue *queue, u8 status);
	void *owner;
	/* NULL until something is pushed; then `depth`, of which `used` are made. */
	struct krc_wr *wrs;
	u32 depth;

	struct list_head node;	/* of dev->queues, by krc_devices_lock */
	bool gone;		/* the device was removed; set once */
	bool broken;		/* these by conn->lock: */
	struct list_head pending; /* requests that are not posted */
	struct list_head turn;	/* of conn->turns, if there are any */
	u32 fetching;		/* READs and atomics that are posted */

	spinlock_t ring_lock;	/* of all that follows; softirqs take it */
	struct list_head free;	/* of wrs that are made */
	u32 used;
	u32 outstanding;	/* requests that are not on the free list */
	u32 head;		/* completions written to the ring */
	struct krc_ring_header *ring;	/* set once, by krc_queue_make_ring */
	u32 ring_bytes;		/* 0: not attached; set once */
	u32 ring_mask;
	wait_queue_head_t wait;	/* a completion; nothing outstanding; gone */
};

struct krc_queue *krc_queue_create(void);
/*
 * For the module's own requests, of which `done` hears with conn->lock held.
 * NULL: no memory.
 */
struct krc_queue *krc_queue_create_own(struct krc_device *dev, void *owner,
				       void (*done)(struct krc_queue *queue,
						    u8 status));
void krc_queue_put(struct krc_queue *queue);

/*
 * Its ring, if it has none yet, which mmap and the first push need. -EBADFD: it is
 * not attached; -ENOMEM. Takes no lock.
 */
int krc_queue_make_ring(struct krc_queue *queue);
/* NULL: it has none. */
static inline struct krc_ring_header *krc_queue_ring(struct krc_queue *queue)
{
	/* Pairs with the release at the end of krc_queue_make_ring. */
	return smp_load_acquire(&queue->ring);
}

/* The ring, and the places for requests. -ENOMEM. With the lock held. */
int krc_queue_make_places(struct krc_queue *queue);

/* The calls of krcore_ioctl.h. Each takes the lock. */
int krc_queue_attach(struct krc_queue *queue, struct krc_attach *attach);
int krc_queue_connect_device(struct krc_queue *queue,
			     const struct krc_connect_device *connect);
int krc_queue_join(struct krc_queue *queue, struct krc_join *join);
/*
 * Makes a fresh queue, which nobody else can name yet, one of the node and the
 * device of `other`, whose lock it takes first. -EINVAL: `depth`.
 */
int krc_queue_join_like(struct krc_queue *queue, struct krc_queue *other,
			u32 depth);
int krc_queue_publish(struct krc_queue *queue,
		      const struct krc_publish *publish);
int krc_queue_connect(struct krc_queue *queue, struct krc_connect *connect);
int krc_queue_start(struct krc_queue *queue, struct krc_start *start);
int krc_queue_set_service(struct krc_queue *queue,
			  const struct krc_service *service);
int krc_queue_get_service(struct krc_queue *queue, struct krc_service *service);
int krc_queue_peer_state(struct krc_queue *queue, struct krc_peer_state *state);
int krc_queue_reg_mr(struct krc_queue *queue, struct krc_reg_mr *reg);
int krc_queue_dereg_mr(struct krc_queue *queue,
		       const struct krc_dereg_mr *dereg);
int krc_queue_push(struct krc_queue *queue, struct krc_push *push);

/*
 * Attaches a fresh queue to the device of another one, whose lock is held as
 * well. -EINVAL, -ENODEV: that goes.
 */
int krc_queue_add_like(struct krc_queue *queue, struct krc_device *dev,
		       u32 depth);
/* With the lock held. */
int krc_queue_attach_locked(struct krc_queue *queue, struct krc_attach *attach);
/* The state that calls on an attached queue need, with the lock held. */
int krc_queue_usable(struct krc_queue *queue);
/* Requests without a completion yet. */
u32 krc_queue_outstanding(struct krc_queue *queue);
/*
 * From what it is connected to, to a connection to `host`. Takes the references
 * to both; `peer` may be NULL. `dc`: it need not wait for QPs to another host, see
 * krc_conn_mend. With the lock held.
 */
int krc_queue_move(struct krc_queue *queue, struct krc_host *host,
		   struct krc_peer *peer, const struct krc_dc_place *dc);

/*
 * Takes it from its device: its regions end, when what uses them has completed.
 * `gone`: since the device is removed. Once or more.
 * Context: process, may sleep.
 */
void krc_queue_detach(struct krc_queue *queue, bool gone);

/*
 * A request is done. Releases what it used, and its place.
 * Context: conn->lock is held.
 */
void krc_queue_complete(struct krc_wr *wr, u8 status);

#endif
