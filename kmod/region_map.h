/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A region's pages as the kernel's own CPU reaches them: what the software DC
 * reads and writes. Its process's page tables take no part.
 */
#ifndef KRCORE_REGION_MAP_H
#define KRCORE_REGION_MAP_H

#include <linux/types.h>

/*
 * Pins and maps memory of the current process, which RLIMIT_MEMLOCK knows of
 * already: the MR has pinned it. ERR_PTR.
 * Context: process, may sleep; mmap_lock is not held.
 */
void *krc_map_create(u64 addr, u64 length, bool writable);
/* Nobody uses it any more. NULL: nothing. Context: process, may sleep. */
void krc_map_destroy(void *map, u64 length, bool writable);

#endif
