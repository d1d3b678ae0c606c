// SPDX-License-Identifier: GPL-2.0
/* The calls on a queue except PUSH: attach, join, connect, detach. */
#include <linux/string.h>

#include "calls.h"
#include "device.h"
#include "host.h"
#include "meta.h"
#include "node.h"
#include "port.h"
#include "sender.h"
#include "trace.h"

/* --- a queue and its device --- */

static void krc_queue_add(struct krc_queue *queue, struct krc_device *dev,
			  u32 depth)
{
	lockdep_assert_held(&krc_devices_lock);
	krc_queue_set_depth(queue, depth);
	queue->dev = dev;
	list_add_tail(&queue->node, &dev->queues);
	atomic64_inc(&dev->stats.queues);
}

static bool krc_is_depth(u32 depth)
{
	return depth && depth <= KRC_MAX_DEPTH;
}

/*
 * Attaches a fresh queue to the device of another one, whose lock is held as well.
 * -EINVAL; -ENODEV: the device is going.
 */
static int krc_queue_add_like(struct krc_queue *queue, struct krc_device *dev,
			      u32 depth)
{
	int err;

	if (!krc_is_depth(depth))
		return -EINVAL;
	mutex_lock(&krc_devices_lock);
	/* A device that is being removed takes no more queues. */
	err = krc_device_is_listed(dev) ? 0 : -ENODEV;
	if (!err)
		krc_queue_add(queue, dev, depth);
	mutex_unlock(&krc_devices_lock);
	return err;
}

int krc_queue_attach(struct krc_queue *queue, struct krc_attach *attach)
{
	struct krc_device *dev;
	int err;

	if (!krc_is_depth(attach->depth) ||
	    strnlen((char *)attach->device, sizeof(attach->device)) ==
		    sizeof(attach->device))
		return -EINVAL;
	if (READ_ONCE(queue->gone))
		return -ENODEV;
	if (queue->dev)
		return -EBADFD;
	mutex_lock(&krc_devices_lock);
	dev = krc_device_find(attach->device);
	err = !dev ? -ENODEV : !krc_device_is_ready(dev) ? -ENETDOWN : 0;
	if (!err)
		krc_queue_add(queue, dev, attach->depth);
	mutex_unlock(&krc_devices_lock);
	if (err)
		return err;
	memcpy(attach->gid, dev->gid.raw, sizeof(attach->gid));
	attach->ring_bytes = queue->ring_bytes;
	attach->ring_entries = queue->ring_mask + 1;
	return 0;
}

/*
 * Moves the queue from what it is connected to, to a connection to `host`. Takes
 * over the references to both; `peer` may be NULL. `dc`: it need not wait for QPs
 * to another host, see krc_conn_mend.
 */
static int krc_queue_move(struct krc_queue *queue, struct krc_host *host,
			  struct krc_peer *peer,
			  const struct krc_dc_place *dc)
{
	/* Use the same connection again, if it has one: that one needs mending. */
	struct krc_conn *conn = queue->host == host ? queue->conn :
						      krc_host_choose_conn(host);
	int err = krc_conn_mend(conn, queue,
				krc_host_is_self(host) ? NULL : dc);

	if (err) {
		krc_host_put(host);
		if (peer) {
			krc_peer_forget(queue->dev, peer->key);
			krc_peer_put(peer);
		}
		return err;
	}
	if (queue->host)
		krc_host_put(queue->host);
	if (queue->peer)
		krc_peer_put(queue->peer);
	queue->host = host;
	queue->conn = conn;
	queue->peer = peer;
	return 0;
}

int krc_queue_connect_device(struct krc_queue *queue,
			     const struct krc_connect_device *to)
{
	struct krc_host *host;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	if (memcmp(to->gid, queue->dev->gid.raw, sizeof(to->gid)))
		return -EHOSTUNREACH;
	if (krc_queue_outstanding(queue))
		return -EBUSY;
	krc_sender_close(queue);
	host = krc_host_get(queue->dev, &queue->dev->gid);
	return IS_ERR(host) ? PTR_ERR(host) :
			      krc_queue_move(queue, host, NULL, NULL);
}

int krc_queue_reg_mr(struct krc_queue *queue, struct krc_reg_mr *reg)
{
	int err = krc_queue_usable(queue);

	return err ?: krc_region_register(queue->dev, &queue->regions, reg->addr,
					  reg->length, reg->access, &reg->key);
}

int krc_queue_dereg_mr(struct krc_queue *queue,
		       const struct krc_dereg_mr *dereg)
{
	struct krc_region *region;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	list_for_each_entry(region, &queue->regions.list, node) {
		if (region->key == dereg->key) {
			krc_region_deregister(region);
			return 0;
		}
	}
	return -ENOENT;
}

void krc_queue_detach(struct krc_queue *queue, bool gone)
{
	struct krc_region *region, *next;

	mutex_lock(&queue->lock);
	if (queue->dev) {
		if (queue->conn)
			krc_conn_cancel(queue->conn, queue);
		wait_event(queue->wait, !krc_queue_outstanding(queue));
		krc_sender_close(queue);
		krc_port_close(queue);
		list_for_each_entry_safe(region, next, &queue->regions.list,
					 node)
			krc_region_deregister(region);
		/* Nothing of it executes any more: now others may know. */
		if (queue->fabric_node)
			krc_node_put(queue->fabric_node);
		if (queue->peer)
			krc_peer_put(queue->peer);
		if (queue->host)
			krc_host_put(queue->host);
		mutex_lock(&krc_devices_lock);
		atomic64_dec(&queue->dev->stats.queues);
		/* Do this last: krc_remove frees the device when its list is empty. */
		list_del_init(&queue->node);
		mutex_unlock(&krc_devices_lock);
		queue->dev = NULL;
		queue->fabric_node = NULL;
		queue->peer = NULL;
		queue->host = NULL;
		queue->conn = NULL;
		if (gone) {
			WRITE_ONCE(queue->gone, true);
			wake_up_all(&queue->wait);
		}
	}
	mutex_unlock(&queue->lock);
}

/* --- a queue that has joined a fabric, as one of its nodes --- */

/* Checks the state that calls on a queue of a node need. */
static int krc_queue_joined(struct krc_queue *queue)
{
	int err = krc_queue_usable(queue);

	return err || queue->fabric_node ? err : -ENOTCONN;
}

static bool krc_is_name(const u8 *name)
{
	return *name && strnlen(name, KRC_NAME_BYTES) < KRC_NAME_BYTES;
}

/* The bytes after the end of a name are 0, so that equal names are equal bytes. */
static void krc_pad_name(u8 *name)
{
	size_t length = strnlen(name, KRC_NAME_BYTES);

	memset(name + length, 0, KRC_NAME_BYTES - length);
}

int krc_queue_join(struct krc_queue *queue, struct krc_join *join)
{
	int err = krc_queue_usable(queue);

	if (!krc_is_name(join->fabric) || join->node >= KRC_FIRST_DYNAMIC_NODE)
		return -EINVAL;
	if (err)
		return err;
	if (queue->fabric_node)
		return -EBADFD;
	krc_pad_name(join->fabric);
	return krc_node_create(queue->dev, join, &queue->fabric_node);
}

int krc_queue_join_like(struct krc_queue *queue, struct krc_queue *other,
			u32 depth)
{
	int err;

	mutex_lock(&other->lock);
	err = krc_queue_joined(other);
	if (!err) {
		mutex_lock_nested(&queue->lock, SINGLE_DEPTH_NESTING);
		err = krc_queue_add_like(queue, other->dev, depth);
		if (!err) {
			queue->fabric_node = other->fabric_node;
			kref_get(&queue->fabric_node->refs);
		}
		mutex_unlock(&queue->lock);
	}
	mutex_unlock(&other->lock);
	return err;
}

int krc_queue_publish(struct krc_queue *queue,
		      const struct krc_publish *publish)
{
	int err;

	if (publish->reserved || publish->count > KRC_MAX_SHARED)
		return -EINVAL;
	err = krc_queue_joined(queue);
	return err ?: krc_node_publish(queue->fabric_node, queue->mm, publish);
}

int krc_queue_set_service(struct krc_queue *queue, struct krc_service *service)
{
	int err;

	if (service->reserved || !krc_is_name(service->name) ||
	    service->length > KRC_VALUE_BYTES)
		return -EINVAL;
	krc_pad_name(service->name);
	err = krc_queue_joined(queue);
	return err ?: krc_node_set_service(queue->fabric_node, service);
}

int krc_queue_get_service(struct krc_queue *queue, struct krc_service *service)
{
	int err;

	if (service->reserved || !krc_is_name(service->name))
		return -EINVAL;
	krc_pad_name(service->name);
	err = krc_queue_joined(queue);
	return err ?: krc_node_get_service(queue->fabric_node, service);
}

int krc_queue_peer_state(struct krc_queue *queue, struct krc_peer_state *state)
{
	int err;

	if (state->reserved)
		return -EINVAL;
	err = krc_queue_joined(queue);
	return err ?: krc_node_peer_state(queue->fabric_node, state);
}

/*
 * Looks up the port that `connect` names, if it names one. It must belong to the
 * peer as that was found; otherwise the peer is looked up again.
 */
static int krc_queue_find_port(struct krc_queue *queue, struct krc_peer **peer,
			       bool *cached, struct krc_connect *connect,
			       struct krc_port_value *value)
{
	struct krc_node *node = queue->fabric_node;
	u64 owner;
	int err;

	if (!connect->port)
		return 0;
	err = krc_port_lookup(node, connect->node, connect->port, &owner,
			      value);
	if (!err && (*peer)->owner != owner && *cached) {
		krc_peer_put(*peer);
		*peer = krc_peer_get(node, connect->node, true, cached);
		if (IS_ERR(*peer))
			return PTR_ERR(*peer);
	}
	if (!err && (*peer)->owner != owner)
		err = -ENOENT;
	return err;
}

static int krc_queue_find_and_move(struct krc_queue *queue,
				   struct krc_connect *connect)
{
	struct krc_port_value value;
	struct krc_peer *peer;
	struct krc_host *host;
	bool cached, again;
	u64 owner;
	int err = krc_queue_joined(queue);

	if (connect->reserved || connect->port > U16_MAX)
		return -EINVAL;
	if (err)
		return err;
	if (krc_queue_outstanding(queue))
		return -EBUSY;
	again = queue->peer &&
		queue->peer->key ==
			krc_node_key(queue->fabric_node->fabric, connect->node);
	peer = krc_peer_get(queue->fabric_node, connect->node, again, &cached);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	err = krc_queue_find_port(queue, &peer, &cached, connect, &value);
	if (err) {
		if (!IS_ERR(peer))
			krc_peer_put(peer);
		return err;
	}
	owner = peer->owner;
	if (!connect->port ||
	    !krc_sender_is_at(queue, connect->port, owner, &value))
		krc_sender_close(queue);
	connect->incarnation = peer->owner >> 32;
	connect->cached = cached;
	connect->count = peer->count;
	memcpy(connect->gid, peer->gid.raw, sizeof(connect->gid));
	memcpy(connect->regions, peer->regions, sizeof(connect->regions));
	host = krc_host_get(queue->dev, &peer->gid);
	if (IS_ERR(host)) {
		krc_peer_put(peer);
		return PTR_ERR(host);
	}
	/* A port is not memory that the software DC reaches. */
	err = krc_queue_move(queue, host, peer,
			     connect->port ? NULL : &peer->dc);
	if (err || !connect->port)
		return err;
	connect->slots = value.slots;
	connect->copy_bytes = value.copy_bytes;
	if (queue->sender)
		return krc_sender_mend(queue->sender);
	return krc_sender_open(queue, connect->port, owner,
			       krc_port_key(queue->fabric_node->fabric,
					    connect->node, connect->port),
			       &value);
}

int krc_queue_connect(struct krc_queue *queue, struct krc_connect *connect)
{
	int err = krc_queue_find_and_move(queue, connect);

	trace_krc_connect(queue, connect->node, connect->cached, err);
	return err;
}

int krc_queue_start(struct krc_queue *queue, struct krc_start *start)
{
	int err;

	start->done = KRC_NOT_STARTED;
	if (start->abi_version != KRC_ABI_VERSION)
		return -ENOTTY;
	err = krc_queue_attach(queue, &start->attach);
	if (err)
		return err;
	start->done = KRC_ATTACHED;
	start->max_message_bytes = queue->dev->max_message_bytes;
	err = krc_queue_join(queue, &start->join);
	if (err)
		return err;
	start->done = KRC_JOINED;
	if (!start->connect.node)
		return 0;
	err = krc_queue_connect(queue, &start->connect);
	if (!err)
		start->done = KRC_CONNECTED;
	return err;
}
