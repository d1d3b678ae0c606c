// SPDX-License-Identifier: GPL-2.0
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "check.h"
#include "device.h"
#include "queue.h"
#include "region.h"
#include "region_map.h"
#include "sdc.h"

#define KEY_TRIES 16

static int ib_access(u32 access)
{
	int flags = 0;

	if (access & KRC_LOCAL_WRITE)
		flags |= IB_ACCESS_LOCAL_WRITE;
	if (access & KRC_REMOTE_READ)
		flags |= IB_ACCESS_REMOTE_READ;
	if (access & KRC_REMOTE_WRITE)
		flags |= IB_ACCESS_REMOTE_WRITE;
	if (access & KRC_REMOTE_ATOMIC)
		flags |= IB_ACCESS_REMOTE_ATOMIC;
	return flags;
}

/* A random key, so that a stale or guessed one names nothing. */
static int insert_key(struct krc_region *region)
{
	int err = -EBUSY;
	int i;

	for (i = 0; i < KEY_TRIES && err == -EBUSY; i++) {
		region->key = get_random_u32();
		if (region->key)
			err = xa_insert(&region->dev->regions, region->key,
					region, GFP_KERNEL_ACCOUNT);
	}
	return err;
}

int krc_region_register(struct krc_queue *queue, u64 addr, u64 length,
			u32 access, u32 *key)
{
	struct krc_device *dev = queue->dev;
	struct krc_region *region;
	int err;

	lockdep_assert_held(&queue->lock);
	err = krc_check_access(access);
	if (err)
		return err;
	/* Also that no end of a range in it can wrap. */
	if (!length || addr + length < addr || addr + length > TASK_SIZE_MAX)
		return -EINVAL;
	if (queue->region_count >= krc_max_regions)
		return -ENOSPC;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return -ENOMEM;
	refcount_set(&region->users, 1);
	init_completion(&region->idle);
	region->queue = queue;
	region->mm = queue->mm;
	region->dev = dev;
	region->addr = addr;
	region->length = length;
	region->access = access;
	/* Pins the pages, and charges them to the process. */
	region->mr = ib_reg_user_mr(dev->pd, addr, length, addr,
				    ib_access(access));
	if (IS_ERR(region->mr)) {
		err = PTR_ERR(region->mr);
		goto free_region;
	}
	err = insert_key(region);
	if (err)
		goto dereg_mr;
	list_add(&region->node, &queue->regions);
	queue->region_count++;
	atomic64_inc(&dev->stats.regions);
	atomic64_add(length, &dev->stats.region_bytes);
	*key = region->key;
	return 0;

dereg_mr:
	ib_dereg_mr(region->mr);
free_region:
	kfree(region);
	return err;
}

void krc_region_deregister(struct krc_region *region)
{
	struct krc_device *dev = region->dev;

	lockdep_assert_held(&region->queue->lock);
	xa_erase(&dev->regions, region->key);
	krc_region_put(region);
	wait_for_completion(&region->idle);
	krc_map_destroy(region->map, region->length,
			region->access & KRC_LOCAL_WRITE);
	ib_dereg_mr(region->mr);
	list_del(&region->node);
	region->queue->region_count--;
	atomic64_dec(&dev->stats.regions);
	atomic64_sub(region->length, &dev->stats.region_bytes);
	kfree_rcu(region, rcu);
}

struct krc_region *krc_region_get(struct krc_device *dev,
				  const struct krc_queue *queue, u32 key,
				  u64 addr, u64 length, u32 access)
{
	struct krc_region *region;

	rcu_read_lock();
	region = xa_load(&dev->regions, key);
	if (region &&
	    ((queue && region->mm != queue->mm) ||
	     (region->access & access) != access || addr < region->addr ||
	     length > region->length ||
	     addr - region->addr > region->length - length ||
	     !refcount_inc_not_zero(&region->users)))
		region = NULL;
	rcu_read_unlock();
	return region;
}

int krc_region_describe(struct krc_queue *queue, u32 key,
			struct krc_shared_region *shared, u32 *rkey,
			bool *mapped)
{
	const u32 remote = KRC_REMOTE_READ | KRC_REMOTE_WRITE |
			   KRC_REMOTE_ATOMIC;
	struct krc_region *region;

	rcu_read_lock();
	region = xa_load(&queue->dev->regions, key);
	if (region && (region->mm != queue->mm || !(region->access & remote) ||
		       !refcount_inc_not_zero(&region->users)))
		region = NULL;
	rcu_read_unlock();
	if (!region)
		return -ENOENT;
	shared->addr = region->addr;
	shared->length = region->length;
	shared->key = key;
	shared->access = region->access & remote;
	*rkey = region->mr->rkey;
	*mapped = krc_sdc_map_region(region);
	if (*mapped) {
		/* Pairs with the load of krc_sdc_memory. */
		smp_store_release(&region->published, true);
	}
	krc_region_put(region);
	return 0;
}

void krc_region_put(struct krc_region *region)
{
	if (refcount_dec_and_test(&region->users))
		complete(&region->idle);
}
