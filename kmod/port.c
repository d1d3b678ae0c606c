// SPDX-License-Identifier: GPL-2.0
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "device.h"
#include "meta.h"
#include "node.h"
#include "port.h"
#include "queue.h"
#include "region.h"

#define PORT_TRIES 64

static_assert(sizeof(struct krc_port_value) <= KRC_RECORD_VALUE_BYTES);

/* --- its life --- */

void krc_ports_init(struct krc_ports *ports)
{
	mutex_init(&ports->lock);
	INIT_LIST_HEAD(&ports->all);
}

static void krc_port_free(struct kref *refs)
{
	kfree(container_of(refs, struct krc_port, refs));
}

void krc_port_put(struct krc_port *port)
{
	kref_put(&port->refs, krc_port_free);
}

bool krc_port_use(struct krc_port *port)
{
	return refcount_inc_not_zero(&port->users);
}

void krc_port_unuse(struct krc_port *port)
{
	if (refcount_dec_and_test(&port->users))
		complete(&port->idle);
}

static struct krc_port *krc_port_find_locked(struct krc_device *dev, u64 key)
{
	struct krc_port *port;

	lockdep_assert_held(&dev->ports->lock);
	list_for_each_entry(port, &dev->ports->all, link)
		if (port->key == key)
			return port;
	return NULL;
}

struct krc_port *krc_port_find(struct krc_device *dev, u64 key, u64 owner)
{
	struct krc_port *port;

	mutex_lock(&dev->ports->lock);
	port = krc_port_find_locked(dev, key);
	if (port && port->owner == owner)
		kref_get(&port->refs);
	else
		port = NULL;
	mutex_unlock(&dev->ports->lock);
	return port;
}

/* Of two queues of a node one has it; of nodes the table's record says who. */
static int krc_port_enter(struct krc_port *port, struct krc_node *node)
{
	struct krc_device *dev = port->dev;
	bool automatic = !port->port;
	int tries = 0;
	int err;

	mutex_lock(&dev->ports->lock);
	do {
		if (automatic)
			port->port = KRC_FIRST_AUTOMATIC_PORT +
				     get_random_u32() %
				     (U16_MAX + 1 - KRC_FIRST_AUTOMATIC_PORT);
		port->key = krc_port_key(node->fabric, node->node, port->port);
		err = krc_port_find_locked(dev, port->key) ? -EEXIST : 0;
	} while (err && automatic && tries++ < PORT_TRIES);
	if (!err)
		list_add(&port->link, &dev->ports->all);
	mutex_unlock(&dev->ports->lock);
	return err;
}

static int krc_port_publish(struct krc_port *port, struct krc_node *node)
{
	struct krc_meta *meta = port->dev->meta;
	int err = krc_meta_claim(meta, port->key, port->owner, node->fabric,
				 &port->record);

	if (err)
		return err;
	port->has_record = true;
	return krc_meta_write(meta, port->record, port->key, port->owner,
			      &port->value, sizeof(port->value));
}

/* Of one that was made, wholly or in part, and charged. */
static void krc_port_end(struct krc_port *port, struct krc_queue *queue)
{
	struct krc_device *dev = port->dev;

	/* Best effort, as with all records. */
	if (port->has_record)
		krc_meta_remove(dev->meta, port->record, port->key,
				port->owner);
	krc_port_unuse(port);
	wait_for_completion(&port->idle);
	cancel_delayed_work_sync(&port->look);
	krc_port_free_memory(port);
	/* From here on its number is free again. */
	mutex_lock(&dev->ports->lock);
	list_del_init(&port->link);
	mutex_unlock(&dev->ports->lock);
	krc_uncharge_pages(queue, port->pages);
	atomic64_dec(&dev->stats.ports);
	krc_port_put(port);
}

static int krc_port_open(struct krc_queue *queue, struct krc_bind *bind)
{
	struct krc_node *node = queue->fabric_node;
	struct krc_port *port;
	int err;

	port = kzalloc(sizeof(*port), GFP_KERNEL_ACCOUNT);
	if (!port)
		return -ENOMEM;
	kref_init(&port->refs);
	refcount_set(&port->users, 1);
	init_completion(&port->idle);
	INIT_LIST_HEAD(&port->link);
	INIT_DELAYED_WORK(&port->look, krc_port_look);
	port->queue = queue;
	port->dev = queue->dev;
	port->port = bind->port;
	port->owner = krc_owner(node->node, node->incarnation);
	port->receive_depth = bind->receive_depth;
	port->value.senders = bind->senders;
	port->value.slots = bind->slots;
	port->value.copy_bytes = bind->copy_bytes;
	err = krc_port_divide(port);
	if (!err) {
		port->pages = krc_port_pages(port);
		err = krc_charge_pages(queue, port->pages);
	}
	if (err) {
		krc_port_put(port);
		return err;
	}
	atomic64_inc(&port->dev->stats.ports);
	err = krc_port_make_memory(port);
	if (!err)
		err = krc_port_enter(port, node);
	if (!err)
		err = krc_port_publish(port, node);
	if (err) {
		krc_port_end(port, queue);
		return err;
	}
	bind->port = port->port;
	/* krc_port_poll looks without the lock whether there is one. */
	WRITE_ONCE(queue->port, port);
	return 0;
}

void krc_port_close(struct krc_queue *queue)
{
	lockdep_assert_held(&queue->lock);
	if (!queue->port)
		return;
	krc_port_end(queue->port, queue);
	WRITE_ONCE(queue->port, NULL);
}

int krc_queue_bind(struct krc_queue *queue, struct krc_bind *bind)
{
	int err;

	if (bind->reserved || bind->port > U16_MAX || !bind->senders ||
	    bind->senders > KRC_MAX_SENDERS || !bind->slots ||
	    bind->slots > KRC_MAX_SLOTS ||
	    bind->copy_bytes > KRC_MAX_COPY_BYTES || !bind->receive_depth ||
	    bind->receive_depth > KRC_MAX_DEPTH)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_usable(queue);
	if (!err && queue->port)
		err = -EBADFD;
	/* Without a record its node would seem to be dead. */
	if (!err && (!queue->fabric_node ||
		     !krc_node_is_published(queue->fabric_node)))
		err = -ENOTCONN;
	if (!err)
		err = krc_port_open(queue, bind);
	mutex_unlock(&queue->lock);
	return err;
}

int krc_port_lookup(struct krc_node *node, u32 peer, u32 port, u64 *owner,
		    struct krc_port_value *value)
{
	struct krc_record record;
	int err = krc_meta_lookup(node->dev->meta,
				  krc_port_key(node->fabric, peer, port),
				  &record);

	if (err)
		return err;
	*owner = record.owner;
	memcpy(value, record.value, sizeof(*value));
	/* What other hosts say is not believed where it would be an index. */
	if (!value->senders || value->senders > KRC_MAX_SENDERS ||
	    !value->slots || value->slots > KRC_MAX_SLOTS ||
	    value->copy_bytes > KRC_MAX_COPY_BYTES || !value->per_segment ||
	    DIV_ROUND_UP(value->senders, value->per_segment) > KRC_MAX_SEGMENTS)
		return -EIO;
	return 0;
}

/* --- receives --- */

static int krc_port_push_recv(struct krc_queue *queue,
			      struct krc_push_recv *push)
{
	const struct krc_receive __user *from = u64_to_user_ptr(push->receives);
	struct krc_port *port = queue->port;
	struct krc_region *region;
	struct krc_receive receive;
	u32 i, at;

	if (push->count > port->receive_depth)
		return -E2BIG;
	if (push->count > port->receive_depth - port->receive_count)
		return -EAGAIN;
	for (i = 0; i < push->count; i++) {
		push->bad_index = i;
		if (copy_from_user(&receive, from + i, sizeof(receive)))
			return -EFAULT;
		if (receive.length) {
			/* What it becomes later is its process's affair. */
			region = krc_region_get(queue->dev, queue->mm,
						receive.lkey, receive.addr,
						receive.length,
						KRC_LOCAL_WRITE);
			if (!region)
				return -EACCES;
			krc_region_put(region);
		}
		at = (port->receive_head + port->receive_count + i) %
		     port->receive_depth;
		port->receives[at] = receive;
	}
	port->receive_count += push->count;
	return 0;
}

int krc_queue_bound(struct krc_queue *queue)
{
	int err = krc_queue_usable(queue);

	return err || queue->port ? err : -ENOTCONN;
}

int krc_queue_push_recv(struct krc_queue *queue, struct krc_push_recv *push)
{
	int err;

	push->bad_index = 0;
	if (!push->count)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_bound(queue);
	if (!err)
		err = krc_port_push_recv(queue, push);
	mutex_unlock(&queue->lock);
	return err;
}
