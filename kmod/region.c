// SPDX-License-Identifier: GPL-2.0
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "check.h"
#include "device.h"
#include "region.h"

unsigned int krc_max_regions = 1024;
module_param_named(max_regions, krc_max_regions, uint, 0444);
MODULE_PARM_DESC(max_regions, "memory regions of a queue");

#define KEY_TRIES 16
/* Pages that are pinned, or unpinned, in one go. */
#define BATCH 64

/* --- its pages, as this CPU accesses them --- */

static unsigned long krc_map_pages(const void *map, u64 length)
{
	return (offset_in_page(map) + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
}

/* Without FOLL_WRITE, the page of a copy that is made later would be missed. */
static long krc_pin(u64 addr, unsigned long count, bool writable,
		    struct page **pages)
{
	unsigned int flags = FOLL_LONGTERM | FOLL_WRITE |
			     (writable ? 0 : FOLL_FORCE);
	unsigned long done = 0;
	int got = 0;

	while (done < count) {
		got = fatal_signal_pending(current) ?
			      -EINTR :
			      pin_user_pages_fast(addr + done * PAGE_SIZE,
						  min(count - done, BATCH * 8UL),
						  flags, pages + done);
		if (got <= 0)
			break;
		done += got;
		cond_resched();
	}
	if (done == count)
		return 0;
	unpin_user_pages(pages, done);
	return got < 0 ? got : -EFAULT;
}

/*
 * Pins and maps memory of the current process. RLIMIT_MEMLOCK already counts it,
 * because the MR has pinned it. ERR_PTR.
 */
static void *krc_map_create(u64 addr, u64 length, bool writable)
{
	unsigned long offset = offset_in_page(addr);
	unsigned long count = krc_map_pages((void *)offset, length);
	struct page **pages;
	void *map;
	long err;

	if (count > UINT_MAX)	/* the limit of vmap */
		return ERR_PTR(-E2BIG);
	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages)
		return ERR_PTR(-ENOMEM);
	err = krc_pin(addr - offset, count, writable, pages);
	map = err ? ERR_PTR(err) : vmap(pages, count, VM_MAP, PAGE_KERNEL);
	if (!map) {
		unpin_user_pages(pages, count);
		map = ERR_PTR(-ENOMEM);
	}
	/* The mapping keeps them. */
	kvfree(pages);
	return IS_ERR(map) ? map : map + offset;
}

/* Destroys a map that nobody uses any more. NULL: does nothing. */
static void krc_map_destroy(void *map, u64 length, bool writable)
{
	void *begin = (void *)((unsigned long)map & PAGE_MASK);
	struct page *pages[BATCH];
	unsigned long count, i;
	unsigned int n = 0;

	if (!map)
		return;
	count = krc_map_pages(map, length);
	for (i = 0; i < count; i++) {
		pages[n++] = vmalloc_to_page(begin + i * PAGE_SIZE);
		if (n < BATCH && i + 1 < count)
			continue;
		unpin_user_pages_dirty_lock(pages, n, writable);
		n = 0;
		cond_resched();
	}
	vunmap(begin);
}

bool krc_region_map(struct krc_region *region)
{
	bool writable = region->access & KRC_LOCAL_WRITE;
	void *map;

	/* Pairs with cmpxchg. */
	if (smp_load_acquire(&region->map))
		return true;
	if (!region->dev->sdc || READ_ONCE(region->unmappable))
		return false;
	map = krc_map_create(region->addr, region->length, writable);
	if (IS_ERR(map)) {
		WRITE_ONCE(region->unmappable, true);
		atomic64_inc(&region->dev->stats.unmapped);
		return false;
	}
	/* Another thread of its process may have set it. */
	if (cmpxchg(&region->map, NULL, map))
		krc_map_destroy(map, region->length, writable);
	return true;
}

/* --- its life --- */

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

int krc_region_register(struct krc_device *dev, struct krc_regions *of,
			u64 addr, u64 length, u32 access, u32 *key)
{
	struct krc_region *region;
	int err;

	err = krc_check_access(access);
	if (err)
		return err;
	/* This also makes sure that no end of a range in it can wrap. */
	if (!length || addr + length < addr || addr + length > TASK_SIZE_MAX)
		return -EINVAL;
	if (of->count >= krc_max_regions)
		return -ENOSPC;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return -ENOMEM;
	refcount_set(&region->users, 1);
	init_completion(&region->idle);
	region->of = of;
	region->mm = current->mm;
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
	list_add(&region->node, &of->list);
	of->count++;
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

	xa_erase(&dev->regions, region->key);
	krc_region_put(region);
	wait_for_completion(&region->idle);
	krc_map_destroy(region->map, region->length,
			region->access & KRC_LOCAL_WRITE);
	ib_dereg_mr(region->mr);
	list_del(&region->node);
	region->of->count--;
	atomic64_dec(&dev->stats.regions);
	atomic64_sub(region->length, &dev->stats.region_bytes);
	kfree_rcu(region, rcu);
}

struct krc_region *krc_region_get(struct krc_device *dev,
				  const struct mm_struct *mm, u32 key,
				  u64 addr, u64 length, u32 access)
{
	struct krc_region *region;

	rcu_read_lock();
	region = xa_load(&dev->regions, key);
	if (region &&
	    ((mm && region->mm != mm) ||
	     (region->access & access) != access || addr < region->addr ||
	     length > region->length ||
	     addr - region->addr > region->length - length ||
	     !refcount_inc_not_zero(&region->users)))
		region = NULL;
	rcu_read_unlock();
	return region;
}

int krc_region_describe(struct krc_device *dev, const struct mm_struct *mm,
			u32 key, struct krc_shared_region *shared, u32 *rkey,
			bool *mapped)
{
	const u32 remote = KRC_REMOTE_READ | KRC_REMOTE_WRITE |
			   KRC_REMOTE_ATOMIC;
	struct krc_region *region;

	rcu_read_lock();
	region = xa_load(&dev->regions, key);
	if (region && (region->mm != mm || !(region->access & remote) ||
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
	*mapped = krc_region_map(region);
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
