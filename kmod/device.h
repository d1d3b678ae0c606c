/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An RDMA device: the PD, connections and regions that the module has on it,
 * from its arrival to its removal.
 */
#ifndef KRCORE_DEVICE_H
#define KRCORE_DEVICE_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#include "cm.h"
#include "conn.h"
#include "meta.h"
#include "stats.h"

struct krc_host;
struct krc_sdc;

struct krc_device {
	struct ib_device *ib;
	struct ib_pd *pd;
	struct list_head node;		/* of krc_devices */
	struct list_head queues;	/* attached, by krc_devices_lock */
	struct xarray regions;		/* by key; RCU for readers */
	u32 max_message_bytes;
	u32 sq_depth;			/* of a connection */
	struct krc_stats stats;
	struct dentry *debugfs;
	u32 slow_connects_ms;		/* the first; for tests. U32_MAX: they fail */

	struct ib_event_handler events;
	struct work_struct setup;	/* finds the port, starts all else */
	bool ready;			/* release: what follows is set */
	u32 port;
	enum ib_gid_type gid_type;
	union ib_gid gid;
	u32 conn_count;			/* to each host */
	struct krc_host *self;
	struct krc_acceptor acceptor;
	struct krc_meta meta;
	struct krc_table_place table;	/* the own one; set before `listener` */
	struct krc_sdc *sdc;		/* NULL: not offered; and with it: */
	const struct krc_stand_in *stand_in;

	struct mutex hosts_lock;	/* of what follows */
	struct list_head hosts;
	u32 host_count;
	bool hosts_stopped;

	struct mutex peers_lock;	/* likewise */
	struct list_head peers[256];
	u32 peer_count;

	struct mutex ports_lock;	/* likewise */
	struct list_head ports;
};

/*
 * Guards the list of devices and their lists of queues. Taken inside of a
 * queue's lock.
 */
extern struct mutex krc_devices_lock;

int krc_devices_init(void);
void krc_devices_exit(void);

/* Whether its port and connections are set: it can be attached to. */
bool krc_device_is_ready(struct krc_device *dev);
/* How many there are that can be attached to. */
u32 krc_device_count(u32 *max_message_bytes);
/* Whether it has that address. */
static inline bool krc_device_is_at(const struct krc_device *dev,
				    const union ib_gid *gid)
{
	return !memcmp(gid, &dev->gid, sizeof(*gid));
}
/*
 * The device of that name, "": the first that is ready. NULL: none such.
 * Context: krc_devices_lock is held, and must be until it is used no more.
 */
struct krc_device *krc_device_find(const char *name);

#endif
