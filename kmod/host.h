/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A host that the connections of a device lead to. The device's own host is made
 * with the device. Others are made when somebody connects to one of their nodes,
 * and are kept for the next connect.
 */
#ifndef KRCORE_HOST_H
#define KRCORE_HOST_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>

#include "conn.h"

struct krc_device;

struct krc_host {
	struct krc_device *dev;
	union ib_gid gid;
	struct list_head node;		/* of dev->hosts, by its lock */
	u32 users;			/* likewise */
	atomic_t next_conn;
	u32 conn_count;
	struct krc_conn conns[];
};

struct krc_hosts {
	struct krc_host *self;		/* the device's own host */
	struct mutex lock;		/* guards what follows */
	struct list_head all;
	u32 count;
	bool stopped;
};

void krc_hosts_init(struct krc_hosts *hosts);
/* Makes the device's own host; its connections are on their way. -ENOMEM. */
int krc_hosts_start(struct krc_device *dev);
bool krc_host_is_self(const struct krc_host *host);

/*
 * Returns the host whose device has that address, with a reference. -ENODEV: the
 * device is going; -ENOSPC: too many hosts are in use; -ENOMEM.
 * Context: process, may sleep.
 */
struct krc_host *krc_host_get(struct krc_device *dev, const union ib_gid *gid);
void krc_host_put(struct krc_host *host);
/* Returns one of its connections. */
struct krc_conn *krc_host_choose_conn(struct krc_host *host);

/* Breaks all connections of a device, for tests. */
void krc_hosts_break(struct krc_device *dev,
		     void (*break_conn)(struct krc_conn *conn));
/*
 * Ends all connections, and takes no new host: this comes first when a device goes.
 * krc_hosts_free frees them when nobody refers to them any more.
 */
void krc_hosts_stop(struct krc_device *dev);
void krc_hosts_free(struct krc_device *dev);

#endif
