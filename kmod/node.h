/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A node of a fabric: what the queues of a process that joined it are to others.
 * What it has published is removed when its last queue is done: then nothing that
 * it posted executes any more (meta.h). Also, what this host knows of other nodes.
 */
#ifndef KRCORE_NODE_H
#define KRCORE_NODE_H

#include <linux/hashtable.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>

#include <krcore/krcore_ioctl.h>

#include "conn.h"

struct krc_device;
struct mm_struct;

struct krc_node {
	struct kref refs;	/* its queues */
	struct krc_device *dev;
	u8 fabric[KRC_NAME_BYTES];
	u32 node;
	u32 incarnation;
	struct mutex lock;	/* serializes calls, and guards: */
	bool claimed;		/* it has a record ... */
	u32 slot;		/* ... there */
	struct list_head services;
};

/* A node as it has published itself; immutable. */
struct krc_peer {
	struct kref refs;
	struct hlist_node link;	/* of dev->peers, by its lock */
	u64 key;
	u64 owner;
	unsigned long until;	/* jiffies: then it is looked up again */
	union ib_gid gid;
	u32 count;
	struct krc_shared_region regions[KRC_MAX_SHARED];
	u32 rkeys[KRC_MAX_SHARED];	/* the peer's device's */
	struct krc_dc_place dc;
	u32 dc_regions;		/* bits: those that the software DC reaches */
};

/* What a device knows of other nodes. */
struct krc_peers {
	struct mutex lock;	/* guards what follows */
	DECLARE_HASHTABLE(by_key, 8);
	u32 count;
};

/*
 * The calls of krcore_ioctl.h, for joined queues, whose locks are held. `mm`: the
 * current process's.
 */
int krc_node_create(struct krc_device *dev, struct krc_join *join,
		    struct krc_node **made);
void krc_node_put(struct krc_node *node);
bool krc_node_is_published(struct krc_node *node);
int krc_node_publish(struct krc_node *node, const struct mm_struct *mm,
		     const struct krc_publish *publish);
int krc_node_set_service(struct krc_node *node,
			 const struct krc_service *service);
int krc_node_get_service(struct krc_node *node, struct krc_service *service);
int krc_node_peer_state(struct krc_node *node, struct krc_peer_state *state);

/*
 * Returns what is known of a node of the same fabric, with a reference. `fresh`:
 * not from the cache. -ENOENT, and what meta.h says. Context: process, may sleep.
 */
struct krc_peer *krc_peer_get(struct krc_node *node, u32 peer, bool fresh,
			      bool *cached);
void krc_peer_put(struct krc_peer *peer);
/* Makes the next connect look it up. */
void krc_peer_forget(struct krc_device *dev, u64 key);
/*
 * Gets the device's rkey for what a request names at another host, and whether the
 * software DC there reaches it. -EACCES: the peer has published no such memory.
 */
int krc_peer_rkey(const struct krc_peer *peer, u32 key, u64 addr, u64 length,
		  u32 access, u32 *rkey, bool *dc);
void krc_peers_init(struct krc_peers *peers);
void krc_peers_free(struct krc_device *dev);

#endif
