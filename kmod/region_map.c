// SPDX-License-Identifier: GPL-2.0
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "region_map.h"

/* Pages that are pinned, or unpinned, in one go. */
#define BATCH 64

static unsigned long krc_map_pages(const void *map, u64 length)
{
	return (offset_in_page(map) + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
}

/* Without FOLL_WRITE the page of a copy that is made later would be missed. */
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

void *krc_map_create(u64 addr, u64 length, bool writable)
{
	unsigned long offset = offset_in_page(addr);
	unsigned long count = krc_map_pages((void *)offset, length);
	struct page **pages;
	void *map;
	long err;

	if (count > UINT_MAX)	/* what vmap takes */
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
	/* The mapping knows them. */
	kvfree(pages);
	return IS_ERR(map) ? map : map + offset;
}

void krc_map_destroy(void *map, u64 length, bool writable)
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
