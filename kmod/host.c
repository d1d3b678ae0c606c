// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>

#include "device.h"
#include "host.h"

/* More hosts are kept only while they are in use; unused ones make room. */
#define KEPT_HOSTS 256
#define MAX_HOSTS 1024

static struct krc_host *krc_host_create(struct krc_device *dev,
					const union ib_gid *gid)
{
	struct krc_host *host;
	u32 i;

	host = kzalloc(struct_size(host, conns, dev->conn_count),
		       GFP_KERNEL_ACCOUNT);
	if (!host)
		return NULL;
	host->dev = dev;
	host->gid = *gid;
	host->users = 1;
	host->conn_count = dev->conn_count;
	for (i = 0; i < host->conn_count; i++)
		krc_conn_init(&host->conns[i], dev, gid, i);
	return host;
}

bool krc_host_is_self(const struct krc_host *host)
{
	return krc_device_is_at(host->dev, &host->gid);
}

void krc_hosts_init(struct krc_hosts *hosts)
{
	memset(hosts, 0, sizeof(*hosts));
	mutex_init(&hosts->lock);
	INIT_LIST_HEAD(&hosts->all);
}

static void krc_hosts_add(struct krc_hosts *hosts, struct krc_host *host)
{
	lockdep_assert_held(&hosts->lock);
	list_add_tail(&host->node, &hosts->all);
	hosts->count++;
}

int krc_hosts_start(struct krc_device *dev)
{
	struct krc_host *self = krc_host_create(dev, &dev->gid);
	u32 i;

	if (!self)
		return -ENOMEM;
	mutex_lock(&dev->hosts->lock);
	krc_hosts_add(dev->hosts, self);
	mutex_unlock(&dev->hosts->lock);
	dev->hosts->self = self;
	for (i = 0; i < self->conn_count; i++)
		krc_conn_start(&self->conns[i]);
	return 0;
}

static void krc_host_stop(struct krc_host *host)
{
	u32 i;

	for (i = 0; i < host->conn_count; i++)
		krc_conn_stop(&host->conns[i]);
}

static struct krc_host *krc_host_find(struct krc_device *dev,
				      const union ib_gid *gid)
{
	struct krc_host *host;

	lockdep_assert_held(&dev->hosts->lock);
	list_for_each_entry(host, &dev->hosts->all, node)
		if (!memcmp(&host->gid, gid, sizeof(*gid)))
			return host;
	return NULL;
}

/* Takes an unused host out of the list, if there are many. The oldest is first. */
static struct krc_host *krc_host_evict(struct krc_device *dev)
{
	struct krc_host *host;

	lockdep_assert_held(&dev->hosts->lock);
	if (dev->hosts->count < KEPT_HOSTS)
		return NULL;
	list_for_each_entry(host, &dev->hosts->all, node) {
		if (host->users)
			continue;
		list_del(&host->node);
		dev->hosts->count--;
		return host;
	}
	return NULL;
}

struct krc_host *krc_host_get(struct krc_device *dev, const union ib_gid *gid)
{
	struct krc_host *evicted = NULL;
	struct krc_host *host;

	mutex_lock(&dev->hosts->lock);
	host = krc_host_find(dev, gid);
	if (dev->hosts->stopped) {
		host = ERR_PTR(-ENODEV);
	} else if (host) {
		host->users++;
	} else {
		evicted = krc_host_evict(dev);
		if (dev->hosts->count >= MAX_HOSTS)
			host = ERR_PTR(-ENOSPC);
		else
			host = krc_host_create(dev, gid) ?: ERR_PTR(-ENOMEM);
		if (!IS_ERR(host))
			krc_hosts_add(dev->hosts, host);
	}
	mutex_unlock(&dev->hosts->lock);
	if (evicted) {
		krc_host_stop(evicted);
		kfree(evicted);
	}
	return host;
}

void krc_host_put(struct krc_host *host)
{
	mutex_lock(&host->dev->hosts->lock);
	host->users--;
	mutex_unlock(&host->dev->hosts->lock);
}

struct krc_conn *krc_host_choose_conn(struct krc_host *host)
{
	u32 next = atomic_inc_return(&host->next_conn);

	return &host->conns[next % host->conn_count];
}

void krc_hosts_break(struct krc_device *dev,
		     void (*break_conn)(struct krc_conn *conn))
{
	struct krc_host *host;
	u32 i;

	mutex_lock(&dev->hosts->lock);
	list_for_each_entry(host, &dev->hosts->all, node)
		for (i = 0; i < host->conn_count; i++)
			break_conn(&host->conns[i]);
	mutex_unlock(&dev->hosts->lock);
}

void krc_hosts_stop(struct krc_device *dev)
{
	struct krc_host *host;

	mutex_lock(&dev->hosts->lock);
	dev->hosts->stopped = true;
	mutex_unlock(&dev->hosts->lock);
	/* From here on the list does not change. */
	list_for_each_entry(host, &dev->hosts->all, node)
		krc_host_stop(host);
}

void krc_hosts_free(struct krc_device *dev)
{
	struct krc_host *host, *next;

	list_for_each_entry_safe(host, next, &dev->hosts->all, node)
		kfree(host);
}
