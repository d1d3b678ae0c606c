/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections that other hosts ask for, through RDMA CM. A connection serves the
 * requests of the side that asked for it alone (conn_qp.c); this one accepts and takes
 * no further part.
 *
 * Who asks says who he is and which of his connections it is. That replaces an
 * earlier one of that name, whose QP takes nothing any more from then on: so once
 * a broken connection works again, nothing of its former life executes.
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
	struct rdma_cm_id *listener;	/* NULL: nobody can connect */
	struct mutex lock;		/* of all that follows */
	struct list_head accepted;
	struct list_head ended;		/* for the reaper */
	u32 count;			/* of both */
	bool stopped;
	struct work_struct reaper;
};

void krc_accept_init(struct krc_acceptor *acceptor);
/* -EADDRNOTAVAIL: the device's address is not one of IP. */
int krc_accept_start(struct krc_device *dev);
/* Ends all that was accepted. Also after a failure of krc_accept_start. */
void krc_accept_stop(struct krc_device *dev);

#endif
