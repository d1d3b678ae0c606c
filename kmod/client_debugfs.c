// SPDX-License-Identifier: GPL-2.0
/* A device's counters, and controls for tests; the tracepoints. */
#include <linux/debugfs.h>
#include <linux/inet.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <rdma/ib_addr.h>

#include "client.h"
#include "conn.h"
#include "device.h"
#include "host.h"
#include "meta.h"
#include "node.h"
#include "sdc.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static struct dentry *krc_root;

static int stats_show(struct seq_file *file, void *unused)
{
	struct krc_device *dev = file->private;

#define KRC_STAT(name) \
	seq_printf(file, #name " %lld\n", atomic64_read(&dev->stats.name));
	KRC_STATS(KRC_STAT)
#undef KRC_STAT
	if (krc_device_is_ready(dev))
		seq_printf(file, "records %u\n", krc_meta_records(dev->meta));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

/* Writing any number breaks all connections, as a fault of a peer would. */
static int break_set(void *data, u64 any)
{
	struct krc_device *dev = data;

	if (!krc_device_is_ready(dev))
		return -ENETDOWN;
	krc_hosts_break(dev, krc_conn_break_any);
	krc_sdc_break(dev);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(break_fops, NULL, break_set, "%llu\n");

/* Does the same, but nobody hears of it until the connections are used. */
static int break_unheard_set(void *data, u64 any)
{
	struct krc_device *dev = data;

	if (!krc_device_is_ready(dev))
		return -ENETDOWN;
	krc_hosts_break(dev, krc_conn_break_unheard);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(break_unheard_fops, NULL, break_unheard_set, "%llu\n");

/*
 * Takes the IP address of a host that is gone and never comes again, and removes
 * its records. Nobody here can know that; the writer must.
 */
static ssize_t forget_write(struct file *file, const char __user *from,
			    size_t count, loff_t *offset)
{
	struct krc_device *dev = file_inode(file)->i_private;
	struct sockaddr_storage address;
	union ib_gid gid;
	char text[64];
	int err;

	if (!krc_device_is_ready(dev))
		return -ENETDOWN;
	if (count >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, count))
		return -EFAULT;
	text[count] = 0;
	err = inet_pton_with_scope(&init_net, AF_UNSPEC, strim(text), NULL,
				   &address);
	if (!err)
		err = rdma_ip2gid((struct sockaddr *)&address, &gid);
	if (!err)
		err = krc_meta_forget_host(dev->meta, &gid);
	krc_peers_free(dev);
	return err ?: count;
}

static const struct file_operations forget_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = forget_write,
	.llseek = noop_llseek,
};

void krc_debugfs_init(void)
{
	krc_root = debugfs_create_dir("krcore", NULL);
}

void krc_debugfs_exit(void)
{
	debugfs_remove_recursive(krc_root);
}

void krc_debugfs_add(struct krc_device *dev)
{
	dev->debugfs = debugfs_create_dir(dev_name(&dev->ib->dev), krc_root);
	debugfs_create_file("stats", 0444, dev->debugfs, dev, &stats_fops);
	debugfs_create_file("break", 0200, dev->debugfs, dev, &break_fops);
	debugfs_create_file("break_unheard", 0200, dev->debugfs, dev,
			    &break_unheard_fops);
	/* Milliseconds by which a QP to another host takes longer, for tests. */
	debugfs_create_u32("slow_connects", 0600, dev->debugfs,
			   &dev->slow_connects_ms);
	debugfs_create_file("forget_host", 0200, dev->debugfs, dev,
			    &forget_fops);
}

void krc_debugfs_remove(struct krc_device *dev)
{
	struct krc_stats *stats = &dev->stats;

	WARN_ON(atomic64_read(&stats->queues));
	WARN_ON(atomic64_read(&stats->regions));
	WARN_ON(atomic64_read(&stats->region_bytes));
	WARN_ON(atomic64_read(&stats->ports));
	WARN_ON(atomic64_read(&stats->senders));
	WARN_ON(atomic64_read(&stats->standing_in));
	WARN_ON(atomic64_read(&stats->requests) !=
		atomic64_read(&stats->completed));
	debugfs_remove_recursive(dev->debugfs);
}
