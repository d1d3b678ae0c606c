/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A connection: a physical RC QP with its CQ, which VirtualQueues of all processes
 * share. It takes requests that have passed all checks, posts no more of them than
 * its QP has places, and brings each completion to its queue. A connection that an
 * error broke is built anew, see krc_conn_repair. A connection to another host that
 * has never been up lets the software DC stand in until it is.
 *
 * Queues that have something pending take turns, so that a queue with many requests
 * does not keep others from a place in the QP.
 */
#ifndef KRCORE_CONN_H
#define KRCORE_CONN_H

#include <linux/completion.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "device.h"
#include "queue.h"

struct krc_dci;
struct rdma_cm_id;

/* Where the software DC of a device is reached, besides its GID. */
struct krc_dc_place {
	u64 key;
	u32 number;		/* of the QP and the target; 0: it has none */
	u32 mtu_bytes;
};

/*
 * Sets what the QP is to execute, with wr->opcode and the first `num_sge` of
 * wr->sges. The request does not go over software DC.
 */
void krc_wr_address(struct krc_wr *wr, u32 num_sge, u64 remote_addr, u32 rkey,
		    u64 compare_add, u64 swap);

/* Makes it a request that gives `mr` its key, with all rights. */
void krc_wr_register(struct krc_wr *wr, struct ib_mr *mr);

enum krc_conn_state {
	KRC_CONN_DOWN,		/* could not be built; repair tries again */
	KRC_CONN_UP,
	KRC_CONN_BROKEN,	/* until krc_conn_repair has run */
	KRC_CONN_STOOD_IN,	/* `dci` stands in until krc_conn_repair has built it */
	KRC_CONN_GONE,		/* with its device, for good */
};

/*
 * Retries of a QP: 6, each after 67 ms, which NICs may stretch fourfold. On some
 * NICs 7 means without end.
 */
#define KRC_ACK_TIMEOUT 14
#define KRC_RETRIES 6
#define KRC_RD_ATOMIC 16

struct krc_conn {
	struct krc_device *dev;
	union ib_gid gid;		/* of the device that it leads to */
	u32 index;			/* among those that lead there */
	u8 ack_timeout;			/* of its QP, as verbs define it */
	bool prompt;			/* refuses what it cannot post at once */
	struct delayed_work repair;
	struct mutex build;		/* held while the QP is built or ends; guards: */
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct rdma_cm_id *cm;		/* to another host: owns the QP */
	struct completion cm_event;	/* an event came, with: */
	int cm_error;

	spinlock_t lock;	/* guards all that follows; softirqs take it */
	enum krc_conn_state state;
	bool broke;		/* has not worked since */
	bool was_up;
	bool lost;		/* what has just been built broke before it was up */
	struct krc_table_place table;	/* as the other host reported last */
	/* Stands in for the QP; NULL again before the QP gets the first request. */
	struct krc_dci *dci;
	unsigned long used;	/* when `dci` served last; jiffies */
	u32 credits;		/* places in the QP */
	struct list_head turns;		/* queues with something to post */
	struct list_head later;		/* ... that waits for the QP, not for `dci` */
	struct list_head posted;	/* in the order of their posting */
	struct list_head repost;
	wait_queue_head_t drained;	/* `posted` has become empty */
};

/* Initializes it; it is built when krc_conn_mend or krc_conn_start asks for it. */
void krc_conn_init(struct krc_conn *conn, struct krc_device *dev,
		   const union ib_gid *gid, u32 index);
/* Returns where the host that it leads to has its table. Context: process. */
void krc_conn_get_table(struct krc_conn *conn, struct krc_table_place *table);
/* Begins to build it, in the background. */
void krc_conn_start(struct krc_conn *conn);
/*
 * Completes everything and releases the QP. From then on nothing is accepted.
 * Context: process, may sleep.
 */
void krc_conn_stop(struct krc_conn *conn);
/*
 * Takes all requests of `batch`, all of one queue, or none. Returns 0, -ECONNRESET:
 * the queue is broken, -ENODEV.
 * Context: process; does not sleep.
 */
int krc_conn_submit(struct krc_conn *conn, struct krc_queue *queue,
		    struct list_head *batch);
/*
 * Mends a queue that a fault broke and that has nothing outstanding. Waits until
 * the connection is up, or until the software DC at `dc`, where its host has it,
 * stands in (NULL: it must not). Returns 0, -ENETDOWN, -ENODEV.
 * Context: process, may sleep.
 */
int krc_conn_mend(struct krc_conn *conn, struct krc_queue *queue,
		  const struct krc_dc_place *dc);
/*
 * Flushes what the queue has pending; what is posted completes as usual. For a
 * queue that ends.
 */
void krc_conn_cancel(struct krc_conn *conn, struct krc_queue *queue);
/*
 * A fault of the QP was reported, or of one that is about to become it. Context:
 * any but hard interrupts.
 */
void krc_conn_break(struct krc_conn *conn);
/* Does the same to the QP or what stands in for it, for tests. */
void krc_conn_break_any(struct krc_conn *conn);
/*
 * Causes a fault that nobody hears of until something is posted, or was: for tests.
 * Context: process, may sleep.
 */
void krc_conn_break_unheard(struct krc_conn *conn);

/* The IP address at which RDMA CM reaches the module of a host. -EADDRNOTAVAIL. */
struct sockaddr_storage;
int krc_sockaddr(const union ib_gid *gid, u16 port,
		 struct sockaddr_storage *addr);
extern ushort krc_cm_port;
/*
 * Frees a CQ that is polled in softirq context and gets no more completions.
 * ib_free_cq waits until nobody polls it, but not for the end of ib_poll_handler,
 * which arms the CQ once more after the poll. RCU waits for softirqs.
 */
void krc_cq_free(struct ib_cq *cq);

/*
 * What may stand in for a QP to another host: an initiator of the software DC
 * (sdc.h). The software DC is above connections, so its device names its functions
 * in dev->stand_in. An initiator takes requests as the QP would, in the order in
 * which they are posted, and ends before the QP gets the first. When `end` has
 * returned, what it was told to do is done, or never will be.
 *
 * It has places for KRC_STAND_IN_DEPTH requests of at most KRC_STAND_IN_MAX_BYTES:
 * these finish long before the protocol's limit of two seconds. This CPU reads and
 * writes their memory through the maps of regions.
 */
#define KRC_STAND_IN_DEPTH 16
#define KRC_STAND_IN_MAX_BYTES 16384

struct krc_stand_in {
	/*
	 * Takes one for the device at `to` and `gid`. NULL: all are in use, or the
	 * software DC of one of the two cannot be used. Call `begin` or `put` next.
	 * Context: process.
	 */
	struct krc_dci *(*take)(struct krc_device *dev,
				const struct krc_dc_place *to,
				const union ib_gid *gid);
	void (*put)(struct krc_dci *dci);
	/* Whether it was taken for that place. */
	bool (*serves)(const struct krc_dci *dci,
		       const struct krc_dc_place *to);

	/* These require the lock of its connection. */
	void (*begin)(struct krc_dci *dci, struct krc_conn *conn);
	/*
	 * Posts a request, at most KRC_STAND_IN_DEPTH at a time; the region of each
	 * SGE has a map. krc_conn_dci_done hears of its end.
	 */
	void (*post)(struct krc_dci *dci, struct krc_wr *wr);
	/* Makes all that is posted end as flushed. */
	void (*fail)(struct krc_dci *dci);

	/*
	 * Waits until everything posted has ended and can no longer be executed:
	 * seconds if the other side does not answer. Nothing may be posted any
	 * more. If the device's software DC has stopped, it waits for nothing, and
	 * what is posted stays posted. Afterwards the initiator is free for others.
	 * Context: process, may sleep.
	 */
	void (*end)(struct krc_dci *dci);
};

/*
 * Called by conn->dci: a posted request has ended; the initiator has run, and
 * `failed` says whether it is broken. Context: conn->lock is held.
 */
void krc_conn_dci_done(struct krc_conn *conn, struct krc_wr *wr, u8 status);
void krc_conn_dci_ran(struct krc_conn *conn, bool failed);

#endif
