// SPDX-License-Identifier: GPL-2.0
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "device.h"
#include "meta.h"
#include "node.h"
#include "region.h"
#include "sdc.h"

/* How long a connect may rely on an earlier look-up, and how many are kept. */
#define LEASE HZ
#define MAX_PEERS 1024
#define MAX_SERVICES 64

/* The value of a node's record. */
struct krc_node_value {
	u32 count;
	u32 dc_number;
	struct krc_shared_region regions[KRC_MAX_SHARED];
	u32 rkeys[KRC_MAX_SHARED];
	u16 dc_mtu_bytes;
	u16 dc_regions;
	u64 dc_key;
};

static_assert(sizeof(struct krc_node_value) <= KRC_RECORD_VALUE_BYTES);

/* The value of a service's. */
struct krc_service_value {
	u8 value[KRC_VALUE_BYTES];
	u32 length;
};

struct krc_owned_service {
	struct list_head link;
	u64 key;
	u32 slot;
};

static u64 krc_node_owner(const struct krc_node *node)
{
	return krc_owner(node->node, node->incarnation);
}

static u64 krc_own_key(const struct krc_node *node)
{
	return krc_node_key(node->fabric, node->node);
}

/* --- its life --- */

static int krc_node_claim(struct krc_node *node)
{
	int err;

	if (node->claimed)
		return 0;
	err = krc_meta_claim(node->dev->meta, krc_own_key(node),
			     krc_node_owner(node), NULL, &node->slot);
	node->claimed = !err;
	return err;
}

static void krc_node_tell_dc(const struct krc_device *dev,
			     struct krc_node_value *value)
{
	struct krc_dc_place dc;

	krc_dc_get_place(dev, &dc);
	value->dc_key = dc.key;
	value->dc_number = dc.number;
	value->dc_mtu_bytes = dc.mtu_bytes;
}

int krc_node_create(struct krc_device *dev, struct krc_join *join,
		    struct krc_node **made)
{
	struct krc_node_value value = {};
	struct krc_node *node;
	int err;

	/* A peer that connects before the node publishes need not wait for RDMA CM either. */
	krc_node_tell_dc(dev, &value);
	node = kzalloc(sizeof(*node), GFP_KERNEL_ACCOUNT);
	if (!node)
		return -ENOMEM;
	kref_init(&node->refs);
	mutex_init(&node->lock);
	INIT_LIST_HEAD(&node->services);
	node->dev = dev;
	memcpy(node->fabric, join->fabric, sizeof(node->fabric));
	err = krc_meta_new_incarnation(dev->meta, &node->incarnation);
	node->node = join->node ?: KRC_FIRST_DYNAMIC_NODE +
				   (node->incarnation & 0x7fffffff);
	/* An id that was asked for is claimed at once. */
	if (!err && join->node) {
		err = krc_node_claim(node);
		if (!err)
			err = krc_meta_write(dev->meta, node->slot,
					     krc_own_key(node),
					     krc_node_owner(node), &value,
					     sizeof(value));
	}
	if (err) {
		krc_node_put(node);
		return err;
	}
	join->node = node->node;
	join->incarnation = node->incarnation;
	*made = node;
	return 0;
}

/* Best effort: after one call without an answer, the remaining records stay. */
static void krc_node_free(struct kref *refs)
{
	struct krc_node *node = container_of(refs, struct krc_node, refs);
	struct krc_meta *meta = node->dev->meta;
	struct krc_owned_service *service, *next;
	u64 owner = krc_node_owner(node);
	int err = 0;

	list_for_each_entry_safe(service, next, &node->services, link) {
		if (!err)
			err = krc_meta_remove(meta, service->slot, service->key,
					      owner);
		kfree(service);
	}
	/* Remove it last: others may take a service when its node is not found. */
	if (node->claimed && !err)
		krc_meta_remove(meta, node->slot, krc_own_key(node), owner);
	krc_peer_forget(node->dev, krc_own_key(node));
	mutex_destroy(&node->lock);
	kfree(node);
}

void krc_node_put(struct krc_node *node)
{
	kref_put(&node->refs, krc_node_free);
}

/* --- what it tells --- */

int krc_node_publish(struct krc_node *node, const struct mm_struct *mm,
		     const struct krc_publish *publish)
{
	struct krc_node_value value = { .count = publish->count };
	bool mapped;
	u32 i;
	int err = 0;

	krc_node_tell_dc(node->dev, &value);
	for (i = 0; i < publish->count && !err; i++) {
		value.regions[i].tag = publish->regions[i].tag;
		err = krc_region_describe(node->dev, mm,
					  publish->regions[i].key,
					  &value.regions[i], &value.rkeys[i],
					  &mapped);
		if (!err && mapped)
			value.dc_regions |= 1 << i;
	}
	if (err)
		return err;
	mutex_lock(&node->lock);
	err = krc_node_claim(node);
	if (!err)
		err = krc_meta_write(node->dev->meta, node->slot,
				     krc_own_key(node), krc_node_owner(node),
				     &value, sizeof(value));
	mutex_unlock(&node->lock);
	krc_peer_forget(node->dev, krc_own_key(node));
	return err;
}

bool krc_node_is_published(struct krc_node *node)
{
	bool claimed;

	mutex_lock(&node->lock);
	claimed = node->claimed;
	mutex_unlock(&node->lock);
	return claimed;
}

static struct krc_owned_service *krc_node_own_service(struct krc_node *node,
						      u64 key)
{
	struct krc_owned_service *service;
	u32 count = 0;
	int err;

	list_for_each_entry(service, &node->services, link) {
		if (service->key == key)
			return service;
		count++;
	}
	if (count == MAX_SERVICES)
		return ERR_PTR(-ENOSPC);
	service = kzalloc(sizeof(*service), GFP_KERNEL_ACCOUNT);
	if (!service)
		return ERR_PTR(-ENOMEM);
	service->key = key;
	err = krc_meta_claim(node->dev->meta, key, krc_node_owner(node),
			     node->fabric, &service->slot);
	if (err) {
		kfree(service);
		return ERR_PTR(err);
	}
	list_add(&service->link, &node->services);
	return service;
}

int krc_node_set_service(struct krc_node *node,
			 const struct krc_service *set)
{
	struct krc_service_value value = { .length = set->length };
	struct krc_owned_service *service;
	int err;

	memcpy(value.value, set->value, sizeof(value.value));
	mutex_lock(&node->lock);
	/* Without a record the service's owner would seem to be dead. */
	err = node->claimed ? 0 : -ENOTCONN;
	if (!err) {
		service = krc_node_own_service(node,
					       krc_service_key(node->fabric,
							       set->name));
		if (IS_ERR(service))
			err = PTR_ERR(service);
		else
			err = krc_meta_write(node->dev->meta, service->slot,
					     service->key, krc_node_owner(node),
					     &value, sizeof(value));
	}
	mutex_unlock(&node->lock);
	return err;
}

int krc_node_get_service(struct krc_node *node, struct krc_service *get)
{
	struct krc_service_value *value;
	struct krc_record record;
	int err;

	err = krc_meta_lookup(node->dev->meta,
			      krc_service_key(node->fabric, get->name),
			      &record);
	if (err)
		return err;
	value = (struct krc_service_value *)record.value;
	get->length = min_t(u32, value->length, sizeof(get->value));
	memcpy(get->value, value->value, sizeof(get->value));
	return 0;
}

int krc_node_peer_state(struct krc_node *node, struct krc_peer_state *state)
{
	int dead = krc_meta_is_dead(node->dev->meta, node->fabric,
				    krc_owner(state->node, state->incarnation));

	state->dead = dead > 0;
	return dead < 0 ? dead : 0;
}

/* --- what is known of others --- */

static void krc_peer_free(struct kref *refs)
{
	kfree(container_of(refs, struct krc_peer, refs));
}

void krc_peer_put(struct krc_peer *peer)
{
	kref_put(&peer->refs, krc_peer_free);
}

static void krc_peer_unlink(struct krc_device *dev, struct krc_peer *peer)
{
	lockdep_assert_held(&dev->peers->lock);
	hash_del(&peer->link);
	dev->peers->count--;
	krc_peer_put(peer);
}

static struct krc_peer *krc_peer_find(struct krc_device *dev, u64 key)
{
	struct krc_peer *peer;

	lockdep_assert_held(&dev->peers->lock);
	hash_for_each_possible(dev->peers->by_key, peer, link, key)
		if (peer->key == key)
			return peer;
	return NULL;
}

void krc_peer_forget(struct krc_device *dev, u64 key)
{
	struct krc_peer *peer;

	mutex_lock(&dev->peers->lock);
	peer = krc_peer_find(dev, key);
	if (peer)
		krc_peer_unlink(dev, peer);
	mutex_unlock(&dev->peers->lock);
}

void krc_peers_init(struct krc_peers *peers)
{
	mutex_init(&peers->lock);
	hash_init(peers->by_key);
}

void krc_peers_free(struct krc_device *dev)
{
	struct hlist_node *next;
	struct krc_peer *peer;
	u32 i;

	mutex_lock(&dev->peers->lock);
	hash_for_each_safe(dev->peers->by_key, i, next, peer, link)
		krc_peer_unlink(dev, peer);
	mutex_unlock(&dev->peers->lock);
}

static struct krc_peer *krc_peer_lookup(struct krc_node *node, u64 key)
{
	struct krc_node_value *value;
	struct krc_record record;
	struct krc_peer *peer;
	int err;

	/* Take the time before the READ: what it finds may be withdrawn right after. */
	unsigned long until = jiffies + LEASE;

	err = krc_meta_lookup(node->dev->meta, key, &record);
	if (err)
		return ERR_PTR(err);
	value = (struct krc_node_value *)record.value;
	peer = kzalloc(sizeof(*peer), GFP_KERNEL_ACCOUNT);
	if (!peer)
		return ERR_PTR(-ENOMEM);
	kref_init(&peer->refs);
	peer->key = key;
	peer->owner = record.owner;
	peer->until = until;
	memcpy(peer->gid.raw, record.gid, sizeof(peer->gid.raw));
	peer->count = min_t(u32, value->count, KRC_MAX_SHARED);
	memcpy(peer->regions, value->regions, sizeof(peer->regions));
	memcpy(peer->rkeys, value->rkeys, sizeof(peer->rkeys));
	peer->dc.key = value->dc_key;
	peer->dc.number = value->dc_number;
	peer->dc.mtu_bytes = value->dc_mtu_bytes;
	peer->dc_regions = value->dc_regions;
	return peer;
}

struct krc_peer *krc_peer_get(struct krc_node *node, u32 id, bool fresh,
			      bool *cached)
{
	struct krc_device *dev = node->dev;
	u64 key = krc_node_key(node->fabric, id);
	struct krc_peer *peer = NULL;
	struct krc_peer *former;

	if (!fresh) {
		mutex_lock(&dev->peers->lock);
		peer = krc_peer_find(dev, key);
		if (peer && time_before(jiffies, peer->until))
			kref_get(&peer->refs);
		else
			peer = NULL;
		mutex_unlock(&dev->peers->lock);
	}
	*cached = peer;
	if (peer) {
		atomic64_inc(&dev->stats.cached_connects);
		return peer;
	}
	atomic64_inc(&dev->stats.lookups);
	peer = krc_peer_lookup(node, key);
	if (IS_ERR(peer)) {
		krc_peer_forget(dev, key);
		return peer;
	}
	if (READ_ONCE(dev->peers->count) >= MAX_PEERS)
		krc_peers_free(dev);
	mutex_lock(&dev->peers->lock);
	former = krc_peer_find(dev, key);
	if (former)
		krc_peer_unlink(dev, former);
	kref_get(&peer->refs);
	hash_add(dev->peers->by_key, &peer->link, key);
	dev->peers->count++;
	mutex_unlock(&dev->peers->lock);
	return peer;
}

int krc_peer_rkey(const struct krc_peer *peer, u32 key, u64 addr, u64 length,
		  u32 access, u32 *rkey, bool *dc)
{
	const struct krc_shared_region *region;
	u32 i;

	for (i = 0; i < peer->count; i++) {
		region = &peer->regions[i];
		if (region->key != key || (region->access & access) != access ||
		    addr < region->addr || length > region->length ||
		    addr - region->addr > region->length - length)
			continue;
		*rkey = peer->rkeys[i];
		*dc = peer->dc_regions & 1 << i;
		return 0;
	}
	return -EACCES;
}
