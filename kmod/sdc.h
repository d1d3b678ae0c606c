/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The software DC of a device: a target (../krcore/rnic/sdc/target.h, the core of
 * the protocol, which user space uses as well) on one UD QP, whose number is the
 * target's. It serves READ, WRITE and atomics on the regions that this host's nodes
 * have published, to any initiator that knows the number, the key and a region's
 * key. It receives no messages.
 *
 * Everything runs in softirq: a datagram arrives, the core judges it, its bytes are
 * copied from or to the pages of the region, and the answer is posted. Atomics are
 * posted on an RC QP of its own, connected to itself (sdc_atomics.c), because NICs
 * are atomic only against themselves. A new sender needs an address handle, which
 * may ask the network: a work item makes it while the datagram waits (sdc_qp.c).
 *
 * The same QP serves the initiators of this host's own connections (sdc_dci.c, and
 * struct krc_stand_in of conn.h). An initiator works in a tasklet, which posts,
 * answers and a timer schedule: there is no thread, and nothing polls.
 *
 * Its resources are fixed when the device comes: sessions, buffers, address
 * handles, places for atomics, initiators. What does not fit is dropped, and its
 * sender asks again.
 */
#ifndef KRCORE_SDC_H
#define KRCORE_SDC_H

#include <linux/hashtable.h>
#include <linux/interrupt.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include <krcore/krcore_ioctl.h>

#include "conn.h"
#include "krcore/rnic/sdc/target.h"

struct krc_dci;
struct krc_queue;
struct krc_region;

/* How a sender is reached: the input for an address handle, and the handle. */
struct krc_sdc_handle {
	struct hlist_node hash;
	struct list_head link;		/* the one used last is first */
	u8 address[sizeof_field(struct sdc_address, bytes)];
	struct ib_ah *ah;		/* NULL: making it failed ... */
	unsigned long again;		/* jiffies: ... and is not tried again before */
	u32 sends;			/* posted sends */
};

struct krc_sdc_handles {
	DECLARE_HASHTABLE(by_address, 8);
	struct list_head recent;
	u32 count;
};

struct krc_sdc_atomics;

struct krc_sdc_atomic {
	struct krc_wr wr;
	struct krc_sdc_atomics *atomics;
	struct sdc_token token;
	u8 status;			/* of krc_status */
};

/* The atomics that the core has handed over: a ring, in the order of their posting. */
struct krc_sdc_atomics {
	struct krc_conn conn;
	struct krc_queue *queue;	/* the module's own */
	struct krc_sdc_atomic *ring;
	u64 *results;			/* the words that they found */
	u64 results_dma;
	u32 size;			/* of the ring; a power of two */
	u32 posted, reported;		/* by sdc->lock; both only grow */
	bool broken;			/* likewise: no more are taken until `mend` */
	u32 done;			/* by conn.lock; also only grows */
	struct tasklet_struct report;
	struct delayed_work mend;
};

struct krc_sdc_receive {
	struct ib_cqe cqe;
	struct ib_recv_wr wr;
	struct ib_sge sge;
	struct list_head link;
	struct ib_wc wc;		/* while its sender's handle is being made */
	struct sdc_address from;
	u8 *buffer;			/* GRH, datagram */
};

struct krc_sdc_send {
	struct ib_cqe cqe;
	struct ib_ud_wr wr;
	struct ib_sge sge;
	struct list_head link;
	struct krc_sdc_handle *handle;
	u8 *buffer;
};

/* The initiators of a device. */
struct krc_dcis {
	struct krc_dci *all;
	wait_queue_head_t settled;	/* one may have settled, see krc_stand_in::end */
};

struct krc_sdc_stats {
	u64 dropped;			/* datagrams: too many new senders */
	u64 unreachable;		/* datagrams to senders without a handle */
	u64 congested;			/* ... for which there was no buffer */
	u64 atomics;
	u64 repaired;			/* the QP; that of the atomics */
	u64 cpu_ns;			/* CPU time of serving, and of its initiators */
};

struct krc_sdc {
	struct krc_device *dev;
	struct dentry *debugfs;
	struct ib_cq *cq;
	struct ib_qp *qp;
	u32 mtu_bytes;
	u64 key;
	struct sdc_session *sessions;
	struct krc_sdc_receive *receives;
	struct krc_sdc_send *sends;
	struct work_struct greet;	/* makes handles for `strangers` */
	struct delayed_work repair;
	wait_queue_head_t drained;	/* `receiving` or `sending` is 0 */

	spinlock_t lock;		/* guards all that follows; softirqs take it */
	bool broken;			/* nothing is posted until `repair` */
	bool stopped;			/* for good */
	u32 receiving;			/* receives that are posted */
	u32 sending;			/* likewise */
	struct list_head idle;		/* receives that are not posted */
	struct list_head strangers;
	u32 stranger_count;
	struct list_head free;		/* sends */
	struct sdc_target target;
	struct krc_region *held;	/* the one that the core works on */
	struct krc_sdc_handles handles;
	struct krc_sdc_atomics atomics;
	struct krc_dcis dcis;
	struct krc_sdc_stats stats;
};

/*
 * `start` offers it on a device whose port is known. A failure is logged, and the
 * device works without it. `stop`: nothing more is executed, and no region is held.
 * `exit` frees it, when no region is left that could be opened. All three: Context:
 * process, may sleep.
 */
void krc_sdc_start(struct krc_device *dev);
void krc_sdc_stop(struct krc_device *dev);
void krc_sdc_exit(struct krc_device *dev);
/* Breaks its QPs, for tests. Context: process. */
void krc_sdc_break(struct krc_device *dev);
/* The call of krcore_ioctl.h. Requires the queue's lock. */
int krc_queue_dc_target(struct krc_queue *queue, struct krc_dc_target *target);

/* Gets the place of this device. */
void krc_dc_get_place(const struct krc_device *dev, struct krc_dc_place *place);

/* --- what the files share; all require sdc->lock unless they say otherwise --- */

u64 krc_sdc_now(void);
/* Returns the next buffer to send from, of the MTU's length. NULL: there is none now. */
u8 *krc_sdc_buffer(void *sdc);
/* Sends what is in it, if possible; otherwise it is as good as lost. */
void krc_sdc_post_send(struct krc_sdc *sdc, struct krc_sdc_handle *handle,
		       u32 qpn, u32 bytes);

/* sdc.c: handle completions; these take the lock. Context: softirq. */
void krc_sdc_received(struct ib_cq *cq, struct ib_wc *wc);
void krc_sdc_sent(struct ib_cq *cq, struct ib_wc *wc);

/* sdc_qp.c */
/* Free the buffers even after a failure. Context: process, may sleep; lock not held. */
int krc_sdc_alloc_buffers(struct krc_sdc *sdc);
void krc_sdc_free_buffers(struct krc_sdc *sdc);
int krc_sdc_create_qp(struct krc_sdc *sdc);
/* Works from any state, with nothing posted; it stays the QP with that number. */
int krc_sdc_bring_up(struct krc_sdc *sdc);
/* After it, nothing is posted, and no completion comes. */
void krc_sdc_destroy_qp(struct krc_sdc *sdc);
/* The work of krc_sdc::repair. */
void krc_sdc_repair(struct work_struct *work);
/* Marks it as broken: nothing is posted until it is repaired. */
void krc_sdc_broke(struct krc_sdc *sdc);
void krc_sdc_post_receive(struct krc_sdc *sdc, struct krc_sdc_receive *receive);
/* Handles a completion: one less of `posted` is posted. */
void krc_sdc_completed(struct krc_sdc *sdc, u32 *posted,
		       enum ib_wc_status status);

/* ... the handles of the peers that it sends to */
void krc_sdc_handles_init(struct krc_sdc_handles *handles);
/* Returns one, which becomes the one used last. NULL: there is none. */
struct krc_sdc_handle *krc_sdc_handle_find(struct krc_sdc *sdc,
					   const struct sdc_address *address);
/* Whether none is to be made: there is one, or making it failed and is retried later. */
bool krc_sdc_handle_is_settled(const struct krc_sdc_handle *handle);
/* Makes one from a datagram. Context: process, may sleep; lock not held. */
void krc_sdc_handle_make(struct krc_sdc *sdc,
			 const struct krc_sdc_receive *receive);
/* Call it when nothing is posted any more. Context: process, may sleep; lock not held. */
void krc_sdc_handles_destroy(struct krc_sdc *sdc);

/* sdc_atomics.c */
int krc_sdc_atomics_start(struct krc_sdc *sdc);
/* Call it when nothing is handed over any more. Context: process, may sleep; lock not held. */
void krc_sdc_atomics_stop(struct krc_sdc *sdc);
/* For sdc_target_ops; takes over sdc->held. */
bool krc_sdc_atomic_post(void *sdc,
			 const struct sdc_atomic_request *request);

/* sdc_dci.c */
extern const struct krc_stand_in krc_dci_stand_in;
/* For krc_sdc_create, krc_sdc_stop, krc_sdc_exit. Context: process; lock not held. */
int krc_dcis_init(struct krc_sdc *sdc);
void krc_dcis_stop(struct krc_sdc *sdc);
void krc_dcis_exit(struct krc_sdc *sdc);
/* Whether the datagram is an answer to one of the initiators, which has then taken it. */
bool krc_dci_receive(struct krc_sdc *sdc, const void *packet, u32 bytes);

#endif
