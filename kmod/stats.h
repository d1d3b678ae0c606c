/* SPDX-License-Identifier: GPL-2.0 */
/* Counters of a device, in debugfs: krcore/<device>/. */
#ifndef KRCORE_STATS_H
#define KRCORE_STATS_H

#include <linux/atomic.h>

struct dentry;
struct krc_device;

struct krc_stats {
	atomic64_t queues;	/* attached now */
	atomic64_t regions;	/* registered now */
	atomic64_t region_bytes;
	atomic64_t ports;	/* bound now */
	atomic64_t senders;	/* queues with a place at a port now */
	atomic64_t messages;	/* that were popped */
	atomic64_t requests;	/* accepted */
	atomic64_t completed;
	atomic64_t failed;	/* of them, with another status than success */
	atomic64_t refused;	/* batches that were not accepted */
	atomic64_t doorbells;	/* calls of ib_post_send */
	atomic64_t broken;	/* connections that an error broke */
	atomic64_t repaired;	/* ... that work again */
	atomic64_t reposted;	/* READs that were posted again */
	atomic64_t standing_in;	/* connections that software DC serves now */
	atomic64_t dc_connects;	/* ... that it began to serve */
	atomic64_t dc_requests;	/* that it executed for them */
	atomic64_t unmapped;	/* regions that software DC cannot reach */
	atomic64_t lookups;	/* of nodes, at the metadata server */
	atomic64_t cached_connects; /* ... that the cache had */
};

void krc_stats_init(void);
void krc_stats_exit(void);
void krc_stats_add_device(struct krc_device *dev);
void krc_stats_remove_device(struct krc_device *dev);

#endif
