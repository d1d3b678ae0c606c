// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

#include "calls.h"
#include "device.h"
#include "host.h"
#include "node.h"
#include "region.h"
#include "sdc.h"

static unsigned int connections;
module_param(connections, uint, 0444);
MODULE_PARM_DESC(connections,
		 "RC QPs to each peer (0: one for each CPU, at most 4)");

static unsigned int sq_depth = 256;
module_param(sq_depth, uint, 0444);
MODULE_PARM_DESC(sq_depth, "requests that a QP takes (16 to 4096)");

static int gid_index = -1;
module_param(gid_index, int, 0444);
MODULE_PARM_DESC(gid_index, "of the GID to use (-1: RoCE v2, IPv4 first)");

#define MAX_CONNECTIONS 64U

/* See device.h. */
DEFINE_MUTEX(krc_devices_lock);
static LIST_HEAD(krc_devices);
static struct ib_client krc_client;

/* How good a GID is as an address: 0, not at all. */
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

/* An active port with an address. */
static bool krc_find_port(struct krc_device *dev)
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

/* What krc_setup begins with. */
static void krc_device_reset(struct krc_device *dev)
{
	memset(&dev->meta, 0, sizeof(dev->meta));
	memset(&dev->table, 0, sizeof(dev->table));
	dev->self = NULL;
	INIT_LIST_HEAD(&dev->hosts);
	dev->host_count = 0;
	dev->hosts_stopped = false;
}

/*
 * A device has its address when its network interface has, which may be later
 * than its arrival: called again at each event until then.
 */
static void krc_setup(struct work_struct *work)
{
	struct krc_device *dev = container_of(work, struct krc_device, setup);
	int err;

	if (dev->ready || !krc_find_port(dev))
		return;
	dev->self = krc_host_create_self(dev);
	err = dev->self ? krc_meta_init(dev) : -ENOMEM;
	if (!err) {
		err = krc_cm_listen(dev);
		if (err)
			dev_warn(&dev->ib->dev,
				 "krcore: hosts cannot connect: %d\n", err);
		err = 0;
	}
	if (err) {
		/* As it was before; the next event tries again. */
		krc_hosts_stop(dev);
		krc_meta_exit(dev);
		krc_hosts_free(dev);
		krc_device_reset(dev);
		return;
	}
	krc_sdc_start(dev);
	dev_info(&dev->ib->dev, "krcore: port %u, GID %pI6c, %u connections\n",
		 dev->port, dev->gid.raw, dev->conn_count);
	/* Pairs with the acquire of krc_device_is_ready. */
	smp_store_release(&dev->ready, true);
}

bool krc_device_is_ready(struct krc_device *dev)
{
	/* Pairs with the release at the end of krc_setup. */
	return smp_load_acquire(&dev->ready);
}

static void krc_event(struct ib_event_handler *handler, struct ib_event *event)
{
	struct krc_device *dev =
		container_of(handler, struct krc_device, events);

	if (event->event == IB_EVENT_PORT_ACTIVE ||
	    event->event == IB_EVENT_GID_CHANGE)
		queue_work(system_long_wq, &dev->setup);
}

/*
 * Whether the driver registers user memory for a caller in the kernel, who has
 * no udata. Most believe that there is one and follow a null pointer. These two
 * were read; only RXE was tried.
 */
static bool krc_is_known_driver(struct ib_device *ib)
{
	return ib->ops.driver_id == RDMA_DRIVER_RXE ||
	       ib->ops.driver_id == RDMA_DRIVER_MLX5;
}

static bool krc_is_supported(struct ib_device *ib)
{
	u32 port;

	if (!krc_is_known_driver(ib)) {
		dev_info(&ib->dev,
			 "krcore: not used: its driver (%d) is neither rxe nor mlx5\n",
			 ib->ops.driver_id);
		return false;
	}
	if (!ib->ops.reg_user_mr || ib->attrs.atomic_cap == IB_ATOMIC_NONE ||
	    ib->attrs.max_send_sge < KRC_MAX_SGE ||
	    ib->attrs.max_sge_rd < KRC_MAX_SGE)
		return false;
	rdma_for_each_port(ib, port)
		if (rdma_protocol_roce(ib, port) || rdma_protocol_ib(ib, port))
			return true;
	return false;
}

static int krc_add(struct ib_device *ib)
{
	struct krc_device *dev;
	u32 i;
	int err;

	if (!krc_is_supported(ib))
		return -EOPNOTSUPP;
	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	dev->ib = ib;
	INIT_LIST_HEAD(&dev->queues);
	xa_init(&dev->regions);
	INIT_WORK(&dev->setup, krc_setup);
	dev->sq_depth = clamp(sq_depth, 16U, 4096U);
	dev->sq_depth = min_t(u32, dev->sq_depth, ib->attrs.max_qp_wr);
	dev->sq_depth = min_t(u32, dev->sq_depth, ib->attrs.max_cqe - 1);
	dev->conn_count = connections ? min(connections, MAX_CONNECTIONS) :
					min(num_online_cpus(), 4U);
	mutex_init(&dev->hosts_lock);
	mutex_init(&dev->peers_lock);
	mutex_init(&dev->ports_lock);
	INIT_LIST_HEAD(&dev->ports);
	krc_device_reset(dev);
	for (i = 0; i < ARRAY_SIZE(dev->peers); i++)
		INIT_LIST_HEAD(&dev->peers[i]);
	krc_cm_init(&dev->acceptor);
	dev->pd = ib_alloc_pd(ib, 0);
	if (IS_ERR(dev->pd)) {
		err = PTR_ERR(dev->pd);
		kfree(dev);
		return err;
	}
	krc_stats_add_device(dev);
	ib_set_client_data(ib, &krc_client, dev);
	INIT_IB_EVENT_HANDLER(&dev->events, ib, krc_event);
	ib_register_event_handler(&dev->events);
	mutex_lock(&krc_devices_lock);
	list_add_tail(&dev->node, &krc_devices);
	mutex_unlock(&krc_devices_lock);
	queue_work(system_long_wq, &dev->setup);
	return 0;
}

/* Takes all queues from a device that no new one can find any more. */
static void krc_detach_queues(struct krc_device *dev)
{
	struct krc_queue *queue;

	for (;;) {
		mutex_lock(&krc_devices_lock);
		queue = list_first_entry_or_null(&dev->queues, struct krc_queue,
						 node);
		if (queue)
			kref_get(&queue->refs);
		mutex_unlock(&krc_devices_lock);
		if (!queue)
			return;
		krc_queue_detach(queue, true);
		krc_queue_put(queue);
	}
}

static void krc_remove(struct ib_device *ib, void *client_data)
{
	struct krc_device *dev = client_data;
	unsigned long key = 0;

	mutex_lock(&krc_devices_lock);
	/* As krc_queue_add_like sees. */
	list_del_init(&dev->node);
	mutex_unlock(&krc_devices_lock);
	ib_unregister_event_handler(&dev->events);
	cancel_work_sync(&dev->setup);
	if (krc_device_is_ready(dev)) {
		krc_cm_stop(dev);
		krc_sdc_stop(dev);
		/* So that nothing is outstanding for long. */
		krc_hosts_stop(dev);
		krc_detach_queues(dev);
	}
	/* Its files show what goes now. */
	krc_stats_remove_device(dev);
	if (krc_device_is_ready(dev)) {
		krc_peers_free(dev);
		krc_sdc_exit(dev);
		krc_meta_exit(dev);
		krc_hosts_free(dev);
	}
	/* Empty nodes may be left, of insertions that found no memory. */
	WARN_ON(xa_find(&dev->regions, &key, ULONG_MAX, XA_PRESENT));
	xa_destroy(&dev->regions);
	ib_dealloc_pd(dev->pd);
	kfree(dev);
}

static struct ib_client krc_client = {
	.name = "krcore",
	.add = krc_add,
	.remove = krc_remove,
};

int krc_devices_init(void)
{
	return ib_register_client(&krc_client);
}

void krc_devices_exit(void)
{
	ib_unregister_client(&krc_client);
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
		 * An address that came just now is seen, too; and what failed
		 * for want of memory is tried again.
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
