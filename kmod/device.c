// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

#include "device.h"

static int gid_index = -1;
module_param(gid_index, int, 0444);
MODULE_PARM_DESC(gid_index, "of the GID to use (-1: RoCE v2, IPv4 first)");

/* See device.h. */
DEFINE_MUTEX(krc_devices_lock);
static LIST_HEAD(krc_devices);

/* --- its port and its address --- */

/* How good a GID is as an address; 0: unusable. */
static int krc_gid_rank(struct krc_device *dev, u32 port, u32 index,
			union ib_gid *gid, enum ib_gid_type *type)
{
	const struct ib_gid_attr *attr =
		rdma_get_gid_attr(dev->ib, port, index);
	int rank;

	if (IS_ERR(attr))
		return 0;
	*gid = attr->gid;
	*type = attr->gid_type;
	if (!rdma_protocol_roce(dev->ib, port))
		rank = 4;
	else if (attr->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
		rank = 1;
	else if (!ipv6_addr_v4mapped((const struct in6_addr *)gid->raw))
		rank = 2;
	else
		rank = 3;
	rdma_put_gid_attr(attr);
	return rank;
}

bool krc_device_find_port(struct krc_device *dev)
{
	struct ib_port_attr attr;
	enum ib_gid_type type;
	union ib_gid gid;
	u32 port, i;
	int best = 0;
	int rank;

	rdma_for_each_port(dev->ib, port) {
		if (!rdma_protocol_roce(dev->ib, port) &&
		    !rdma_protocol_ib(dev->ib, port))
			continue;
		if (ib_query_port(dev->ib, port, &attr) ||
		    attr.state != IB_PORT_ACTIVE)
			continue;
		for (i = 0; i < attr.gid_tbl_len; i++) {
			if (gid_index >= 0 && i != gid_index)
				continue;
			rank = krc_gid_rank(dev, port, i, &gid, &type);
			if (rank <= best)
				continue;
			best = rank;
			dev->port = port;
			dev->gid_type = type;
			dev->gid = gid;
			dev->max_message_bytes =
				min_t(u32, attr.max_msg_sz, SZ_1G);
		}
		if (best)
			return true;
	}
	return false;
}

/* --- the list --- */

void krc_device_list(struct krc_device *dev)
{
	mutex_lock(&krc_devices_lock);
	list_add_tail(&dev->node, &krc_devices);
	mutex_unlock(&krc_devices_lock);
}

void krc_device_unlist(struct krc_device *dev)
{
	mutex_lock(&krc_devices_lock);
	list_del_init(&dev->node);
	mutex_unlock(&krc_devices_lock);
}

bool krc_device_is_ready(struct krc_device *dev)
{
	/* Pairs with the release at the end of krc_setup. */
	return smp_load_acquire(&dev->ready);
}

u32 krc_device_count(u32 *max_message_bytes)
{
	struct krc_device *dev;
	u32 count = 0;

	*max_message_bytes = 0;
	mutex_lock(&krc_devices_lock);
	list_for_each_entry(dev, &krc_devices, node) {
		if (!krc_device_is_ready(dev))
			continue;
		if (!count++ || dev->max_message_bytes < *max_message_bytes)
			*max_message_bytes = dev->max_message_bytes;
	}
	mutex_unlock(&krc_devices_lock);
	return count;
}

struct krc_device *krc_device_find(const char *name)
{
	struct krc_device *dev;

	lockdep_assert_held(&krc_devices_lock);
	list_for_each_entry(dev, &krc_devices, node) {
		if (*name && strcmp(name, dev_name(&dev->ib->dev)))
			continue;
		/*
		 * This notices an address that came just now, and tries again what
		 * failed for want of memory.
		 */
		if (!krc_device_is_ready(dev)) {
			queue_work(system_long_wq, &dev->setup);
			flush_work(&dev->setup);
		}
		if (*name || krc_device_is_ready(dev))
			return dev;
	}
	return NULL;
}
