/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Initiators of the software DC (../krcore/rnic/sdc/initiator.h, the protocol's
 * core). One stands in for the QP of a connection to another host while RDMA CM
 * makes that, so that the first queue that connects there waits for nothing: it
 * takes requests as the QP would, in the order in which they are posted, and ends
 * before the QP gets the first. What it was told to do is done, or never will be,
 * by the end of krc_dci_end.
 *
 * All of them send and receive on the device's one QP of the software DC, beside
 * its target. One works in a tasklet, which posts, answers and a timer schedule:
 * there is no thread, and nothing polls.
 *
 * Each has places for KRC_DCI_DEPTH requests, of KRC_DCI_MAX_BYTES at most: those
 * are through long before the protocol's limit of two seconds. Their memory is
 * read and written by this CPU, which region_map.h is for.
 */
#ifndef KRCORE_DCI_H
#define KRCORE_DCI_H

#include <linux/interrupt.h>
#include <linux/timer.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

struct krc_conn;
struct krc_dci;
struct krc_device;
struct krc_sdc;
struct krc_wr;

#define KRC_DCI_DEPTH 16
#define KRC_DCI_MAX_BYTES 16384

/* Where the software DC of a device is reached, beside its GID. */
struct krc_dc_place {
	u64 key;
	u32 number;		/* of the QP and the target; 0: it has none */
	u32 mtu_bytes;
};

/* Those of a device. */
struct krc_dcis {
	struct krc_dci *all;
	wait_queue_head_t settled;	/* one may be, see krc_dci_end */
};

/* Of krc_sdc_create, krc_sdc_stop, krc_sdc_exit. Context: process. */
int krc_dcis_init(struct krc_sdc *sdc);
void krc_dcis_stop(struct krc_sdc *sdc);
void krc_dcis_exit(struct krc_sdc *sdc);

/* Of the own device. */
void krc_dc_get_place(const struct krc_device *dev, struct krc_dc_place *place);
/*
 * One for the device at `to` and `gid`. NULL: all are in use, or the software DC
 * of one of the two cannot be used. Then krc_dci_begin, or krc_dci_put.
 * Context: process.
 */
struct krc_dci *krc_dci_take(struct krc_device *dev,
			     const struct krc_dc_place *to,
			     const union ib_gid *gid);
void krc_dci_put(struct krc_dci *dci);
/* Whether it was taken for that place. */
bool krc_dci_serves(const struct krc_dci *dci, const struct krc_dc_place *to);

/* These with the lock of its connection held. */
void krc_dci_begin(struct krc_dci *dci, struct krc_conn *conn);
/*
 * Of no more than KRC_DCI_DEPTH at a time; the region of each SGE has a map. Their
 * ends krc_conn_dci_done hears of.
 */
void krc_dci_post(struct krc_dci *dci, struct krc_wr *wr);
/* All that is posted ends as flushed. */
void krc_dci_fail(struct krc_dci *dci);

/*
 * Waits until all that was posted has ended, and nothing of it can be executed
 * any more: seconds if the other side does not answer. Nothing is posted any more.
 * If the device's software DC has stopped it waits for nothing, and what is posted
 * stays so. It is free for others then. Context: process, may sleep.
 */
void krc_dci_end(struct krc_dci *dci);

/*
 * Whether the datagram is an answer to one of them, which has taken it.
 * Context: sdc->lock is held.
 */
bool krc_dci_receive(struct krc_sdc *sdc, const void *packet, u32 bytes);

#endif
