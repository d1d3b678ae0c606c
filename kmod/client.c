// SPDX-License-Identifier: GPL-2.0
/* Devices that come and go. */
#include <linux/module.h>
#include <linux/slab.h>

#include "accept.h"
#include "calls.h"
#include "client.h"
#include "device.h"
#include "host.h"
#include "meta.h"
#include "node.h"
#include "port.h"
#include "sdc.h"

static unsigned int connections;
module_param(connections, uint, 0444);
MODULE_PARM_DESC(connections,
		 "RC QPs to each peer (0: one for each CPU, at most 4)");

static unsigned int sq_depth = 256;
module_param(sq_depth, uint, 0444);
MODULE_PARM_DESC(sq_depth, "requests that a QP takes (16 to 4096)");

#define MAX_CONNECTIONS 64U

/* A device, and what each file of the module keeps for it. */
struct krc_whole_device {
	struct krc_device dev;
	struct ib_event_handler events;
	struct krc_hosts hosts;
	struct krc_acceptor acceptor;
	struct krc_meta meta;
	struct krc_peers peers;
	struct krc_ports ports;
};

static struct ib_client krc_client;

/* Sets the state that krc_setup begins with. */
static void krc_device_reset(struct krc_device *dev)
{
	memset(dev->meta, 0, sizeof(*dev->meta));
	memset(&dev->table, 0, sizeof(dev->table));
	krc_hosts_init(dev->hosts);
}

/*
 * A device has its address when its network interface has one, which may be after
 * the device arrived: this is called again at each event until then.
 */
static void krc_setup(struct work_struct *work)
{
	struct krc_device *dev = container_of(work, struct krc_device, setup);
	int err;

	if (dev->ready || !krc_device_find_port(dev))
		return;
	err = krc_hosts_start(dev);
	if (!err)
		err = krc_meta_init(dev);
	if (!err) {
		err = krc_accept_start(dev);
		if (err)
			dev_warn(&dev->ib->dev,
				 "krcore: hosts cannot connect: %d\n", err);
		err = 0;
	}
	if (err) {
		/* Leave everything as it was; the next event tries again. */
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

static void krc_event(struct ib_event_handler *handler, struct ib_event *event)
{
	struct krc_whole_device *whole =
		container_of(handler, struct krc_whole_device, events);

	if (event->event == IB_EVENT_PORT_ACTIVE ||
	    event->event == IB_EVENT_GID_CHANGE)
		queue_work(system_long_wq, &whole->dev.setup);
}

/*
 * Whether the driver registers user memory for a caller in the kernel, which has no
 * udata. Most drivers assume that there is one and follow a null pointer. The code
 * of these two was read; only RXE was tried.
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
	struct krc_whole_device *whole;
	struct krc_device *dev;
	int err;

	if (!krc_is_supported(ib))
		return -EOPNOTSUPP;
	whole = kzalloc(sizeof(*whole), GFP_KERNEL);
	if (!whole)
		return -ENOMEM;
	dev = &whole->dev;
	dev->ib = ib;
	dev->hosts = &whole->hosts;
	dev->acceptor = &whole->acceptor;
	dev->meta = &whole->meta;
	dev->peers = &whole->peers;
	dev->ports = &whole->ports;
	INIT_LIST_HEAD(&dev->queues);
	xa_init(&dev->regions);
	INIT_WORK(&dev->setup, krc_setup);
	dev->sq_depth = clamp(sq_depth, 16U, 4096U);
	dev->sq_depth = min_t(u32, dev->sq_depth, ib->attrs.max_qp_wr);
	dev->sq_depth = min_t(u32, dev->sq_depth, ib->attrs.max_cqe - 1);
	dev->conn_count = connections ? min(connections, MAX_CONNECTIONS) :
					min(num_online_cpus(), 4U);
	krc_device_reset(dev);
	krc_accept_init(dev->acceptor);
	krc_peers_init(dev->peers);
	krc_ports_init(dev->ports);
	dev->pd = ib_alloc_pd(ib, 0);
	if (IS_ERR(dev->pd)) {
		err = PTR_ERR(dev->pd);
		kfree(whole);
		return err;
	}
	krc_debugfs_add(dev);
	ib_set_client_data(ib, &krc_client, whole);
	INIT_IB_EVENT_HANDLER(&whole->events, ib, krc_event);
	ib_register_event_handler(&whole->events);
	krc_device_list(dev);
	queue_work(system_long_wq, &dev->setup);
	return 0;
}

/* Takes all queues from a device; no new queue can find it any more. */
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
	struct krc_whole_device *whole = client_data;
	struct krc_device *dev = &whole->dev;
	unsigned long key = 0;

	krc_device_unlist(dev);
	ib_unregister_event_handler(&whole->events);
	cancel_work_sync(&dev->setup);
	if (krc_device_is_ready(dev)) {
		krc_accept_stop(dev);
		krc_sdc_stop(dev);
		/* This way nothing is outstanding for long. */
		krc_hosts_stop(dev);
		krc_detach_queues(dev);
	}
	/* Its files show what is freed below. */
	krc_debugfs_remove(dev);
	if (krc_device_is_ready(dev)) {
		krc_peers_free(dev);
		krc_sdc_exit(dev);
		krc_meta_exit(dev);
		krc_hosts_free(dev);
	}
	/* Empty nodes may be left by insertions that found no memory. */
	WARN_ON(xa_find(&dev->regions, &key, ULONG_MAX, XA_PRESENT));
	xa_destroy(&dev->regions);
	ib_dealloc_pd(dev->pd);
	kfree(whole);
}

static struct ib_client krc_client = {
	.name = "krcore",
	.add = krc_add,
	.remove = krc_remove,
};

int krc_client_init(void)
{
	int err;

	krc_debugfs_init();
	err = ib_register_client(&krc_client);
	if (err)
		krc_debugfs_exit();
	return err;
}

void krc_client_exit(void)
{
	ib_unregister_client(&krc_client);
	krc_debugfs_exit();
}
