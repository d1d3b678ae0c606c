/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections that other hosts ask for, through RDMA CM. A connection serves only
 * the requests of the side that asked for it (conn_qp.c); this side accepts it and
 * takes no further part.
 *
 * The side that asks says who it is and which of its connections this is. The new
 * connection replaces an earlier one of that name, whose QP takes nothing from then
 * on: so once a broken connection works again, nothing of its former life executes.
 */
#ifndef KRCORE_ACCEPT_H
#define KRCORE_ACCEPT_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

struct krc_device;
struct rdma_cm_id;

/* What a device has accepted. */
struct krc_acceptor {
	struct ib_cq *cq;		/* of all that is accepted; nothing completes */
	struct rdma_cm_id *listener;	/* NULL: nobody can connect */
	struct mutex lock;		/* guards all that follows */
	struct list_head accepted;
	struct list_head ended;		/* for the reaper */
	u32 count;			/* of both */
	bool stopped;
	struct work_struct reaper;
};

void krc_accept_init(struct krc_acceptor *acceptor);
/* -EADDRNOTAVAIL: the device's address is not an IP address. */
int krc_accept_start(struct krc_device *dev);
/* Ends everything that was accepted. Call it also after a failure of krc_accept_start. */
void krc_accept_stop(struct krc_device *dev);

#endif
