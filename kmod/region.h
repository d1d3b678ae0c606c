/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Registered memory of a process: pinned pages and the device's MR of them.
 *
 * A region belongs to the queue that registered it. Each request that names it
 * holds a reference until it completes. So the MR outlives all that use it, and a
 * shared QP meets no key that its own host has withdrawn. User space reaches
 * nothing of it except by its key, which is random.
 */
#ifndef KRCORE_REGION_H
#define KRCORE_REGION_H

#include <linux/completion.h>
#include <linux/list.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>

struct krc_device;
struct krc_shared_region;
struct mm_struct;

/* The regions of a queue, by its lock. */
struct krc_regions {
	struct list_head list;
	u32 count;
};

struct krc_region {
	refcount_t users;	/* requests, and 1 until it is deregistered */
	struct completion idle;	/* nobody uses it, and nobody will */
	struct krc_regions *of;
	struct mm_struct *mm;	/* its process, to be compared only */
	struct krc_device *dev;
	struct list_head node;	/* of `of` */
	u64 addr;
	u64 length;
	u32 key;
	u32 access;		/* of krc_access */
	struct ib_mr *mr;
	void *map;		/* for this CPU, see below; set once */
	bool unmappable;	/* mapping it has failed */
	bool published;		/* open to other hosts' software DC; stays so */
	struct rcu_head rcu;
};

extern unsigned int krc_max_regions;	/* of a queue */

/*
 * Registers memory of the current process. Both functions: the queue's lock is
 * held. Context: process, may sleep.
 */
int krc_region_register(struct krc_device *dev, struct krc_regions *of,
			u64 addr, u64 length, u32 access, u32 *key);
/* Ends it, once the requests that use it have completed. */
void krc_region_deregister(struct krc_region *region);

/*
 * Returns the region that `key` names, with a reference, if it covers the range and
 * grants `access`; else NULL. `mm`: it must be of this process; NULL: of any.
 * Context: any.
 */
struct krc_region *krc_region_get(struct krc_device *dev,
				  const struct mm_struct *mm, u32 key,
				  u64 addr, u64 length, u32 access);
void krc_region_put(struct krc_region *region);

/*
 * Whether region->map is there, by which this CPU reaches its pages; the page
 * tables of its process take no part. The map is made if it is missing, for memory
 * of the current process, and stays until the region ends. Memory that cannot be
 * mapped is counted, and not tried again. No map is made where the device has no
 * software DC, which is what it is for. Context: process, may sleep; mmap_lock is
 * not held.
 */
bool krc_region_map(struct krc_region *region);
/*
 * Tells what peers need to know of a region with remote rights of the current
 * process, which is `mm`; the tag stays. `mapped`: it is open to software DC from
 * now on. -ENOENT.
 */
int krc_region_describe(struct krc_device *dev, const struct mm_struct *mm,
			u32 key, struct krc_shared_region *shared, u32 *rkey,
			bool *mapped);

#endif
