/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An RDMA device as all files of the module know it: its PD, its address, its
 * limits and counters. A file above this one keeps its own part of a device to
 * itself, and there is a pointer to it here. client.c makes all of it when a device
 * comes.
 */
#ifndef KRCORE_DEVICE_H
#define KRCORE_DEVICE_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

struct dentry;
struct krc_acceptor;
struct krc_hosts;
struct krc_meta;
struct krc_peers;
struct krc_ports;
struct krc_sdc;
struct krc_stand_in;

/* What debugfs shows. */
#define KRC_STATS(X) \
	X(queues)		/* attached now */ \
	X(regions)		/* registered now */ \
	X(region_bytes) \
	X(ports)		/* bound now */ \
	X(senders)		/* queues with a place at a port now */ \
	X(messages)		/* that were popped */ \
	X(requests)		/* accepted */ \
	X(completed) \
	X(failed)		/* of these, not successful */ \
	X(refused)		/* batches that were not accepted */ \
	X(doorbells)		/* calls of ib_post_send */ \
	X(broken)		/* connections that an error broke */ \
	X(repaired)		/* ... that work again */ \
	X(reposted)		/* READs that were posted again */ \
	X(standing_in)		/* connections that software DC serves now */ \
	X(dc_connects)		/* ... that it has begun to serve */ \
	X(dc_requests)		/* that it has executed for them */ \
	X(lookups)		/* of nodes, at the metadata server */ \
	X(cached_connects)	/* ... that the cache had */

struct krc_stats {
#define KRC_STAT(name) atomic64_t name;
	KRC_STATS(KRC_STAT)
#undef KRC_STAT
	atomic64_t unmapped;	/* regions that software DC cannot reach; shown with its counters */
};

/* Where a host has its table of records, see meta.h. */
struct krc_table_place {
	u64 addr;
	u32 rkey;
	u32 slots;	/* 0: it has none */
};

struct krc_device {
	struct ib_device *ib;
	struct ib_pd *pd;
	struct list_head node;		/* in the list of devices */
	struct list_head queues;	/* attached; by krc_devices_lock */
	struct xarray regions;		/* by key; RCU for readers */
	u32 sq_depth;			/* of a connection */
	u32 conn_count;			/* to each host */
	struct krc_stats stats;
	struct dentry *debugfs;
	u32 slow_connects_ms;		/* the first; for tests. U32_MAX: they fail */
	struct work_struct setup;	/* finds the port, starts all else */

	bool ready;			/* release: what follows is set */
	u32 port;
	u32 max_message_bytes;
	enum ib_gid_type gid_type;
	union ib_gid gid;
	struct krc_table_place table;	/* its own; set before `acceptor` listens */
	struct krc_hosts *hosts;
	struct krc_acceptor *acceptor;
	struct krc_meta *meta;
	struct krc_peers *peers;
	struct krc_ports *ports;
	struct krc_sdc *sdc;		/* NULL: not offered; and with it: */
	const struct krc_stand_in *stand_in;
};

/*
 * Guards the list of devices and their lists of queues. A queue's lock is taken
 * before it.
 */
extern struct mutex krc_devices_lock;

/* Puts it on the list; takes it off, and from then on nobody attaches to it. */
void krc_device_list(struct krc_device *dev);
void krc_device_unlist(struct krc_device *dev);
/* Whether it is on the list. Requires krc_devices_lock. */
static inline bool krc_device_is_listed(const struct krc_device *dev)
{
	return !list_empty(&dev->node);
}

/* Finds an active port with an address, which become the device's. */
bool krc_device_find_port(struct krc_device *dev);
/* Whether its port and connections are set: it can be attached to. */
bool krc_device_is_ready(struct krc_device *dev);
/* Returns how many devices can be attached to. */
u32 krc_device_count(u32 *max_message_bytes);
/* Whether it has that address. */
static inline bool krc_device_is_at(const struct krc_device *dev,
				    const union ib_gid *gid)
{
	return !memcmp(gid, &dev->gid, sizeof(*gid));
}

/*
 * Returns the device of that name; "": the first that is ready. NULL: there is
 * none. Context: krc_devices_lock is held, and must be held until the device is
 * used no more.
 */
struct krc_device *krc_device_find(const char *name);

#endif
