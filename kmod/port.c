// SPDX-License-Identifier: GPL-2.0
/* A port's memory, and its life. */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "device.h"
#include "host.h"
#include "meta.h"
#include "node.h"
#include "port.h"
#include "queue.h"
#include "verb.h"

#define PORT_TRIES 64
#define MAX_SEGMENT_PAGES 512U
#define REGISTER_TRIES 8

static_assert(sizeof(struct krc_port_value) <= KRC_RECORD_VALUE_BYTES);

/* --- its memory --- */

int krc_charge_pages(struct krc_queue *queue, u64 pages)
{
	u64 limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	u64 pinned = atomic64_add_return(pages, &queue->mm->pinned_vm);

	if (pinned <= limit || capable(CAP_IPC_LOCK))
		return 0;
	krc_uncharge_pages(queue, pages);
	return -ENOMEM;
}

void krc_uncharge_pages(struct krc_queue *queue, u64 pages)
{
	atomic64_sub(pages, &queue->mm->pinned_vm);
}

static int krc_segment_map(struct krc_segment *segment, struct krc_device *dev)
{
	u32 pages = segment->bytes / PAGE_SIZE;
	struct scatterlist *sg;
	u32 i;
	int err;

	segment->memory = __vmalloc(segment->bytes,
				    GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!segment->memory)
		return -ENOMEM;
	err = sg_alloc_table(&segment->sg, pages, GFP_KERNEL_ACCOUNT);
	if (err)
		return err;
	for_each_sg(segment->sg.sgl, sg, pages, i)
		sg_set_page(sg,
			    vmalloc_to_page(segment->memory + i * PAGE_SIZE),
			    PAGE_SIZE, 0);
	err = ib_dma_map_sgtable_attrs(dev->ib, &segment->sg,
				       DMA_BIDIRECTIONAL, 0);
	segment->is_mapped = !err;
	return err;
}

static int krc_segment_register_once(struct krc_segment *segment,
				     struct krc_device *dev,
				     struct krc_verb *verb)
{
	u32 pages = segment->bytes / PAGE_SIZE;
	struct ib_mr *mr = ib_alloc_mr(dev->pd, IB_MR_TYPE_MEM_REG, pages);
	int err;

	if (IS_ERR(mr))
		return PTR_ERR(mr);
	err = ib_map_mr_sg(mr, segment->sg.sgl, segment->sg.nents, NULL,
			   PAGE_SIZE);
	if (err == segment->sg.nents)
		err = krc_verb_register(verb, mr);
	else
		err = -EINVAL;
	if (err)
		ib_dereg_mr(mr);
	else
		segment->mr = mr;
	return err;
}

static int krc_segment_init(struct krc_segment *segment,
			    struct krc_device *dev, struct krc_verb *verb,
			    u32 bytes)
{
	int tries = 0;
	int err;

	segment->bytes = PAGE_ALIGN(bytes);
	err = krc_segment_map(segment, dev);
	if (err)
		return err;
	/* Faults of others may flush the request. */
	do {
		err = krc_segment_register_once(segment, dev, verb);
	} while ((err == -EIO || err == -ECONNRESET) &&
		 tries++ < REGISTER_TRIES);
	return err;
}

static void krc_segment_exit(struct krc_segment *segment,
			     struct krc_device *dev)
{
	if (segment->mr)
		ib_dereg_mr(segment->mr);
	if (segment->is_mapped)
		ib_dma_unmap_sgtable_attrs(dev->ib, &segment->sg,
					   DMA_BIDIRECTIONAL, 0);
	sg_free_table(&segment->sg);
	vfree(segment->memory);
}

/* Computes how many places a segment has, and how many segments there are. -E2BIG. */
static int krc_port_divide(struct krc_port *port)
{
	u32 most = min(port->dev->ib->attrs.max_fast_reg_page_list_len,
		       MAX_SEGMENT_PAGES) * PAGE_SIZE;
	u32 place = krc_place_bytes(&port->value);

	if (place + krc_owners_bytes(1) > most)
		return -E2BIG;
	/* Take one fewer than may fit, because the owners' words are padded. */
	port->value.per_segment =
		max_t(u32, 1,
		      (most - krc_owners_bytes(1)) / (place + sizeof(u64)));
	port->value.per_segment =
		min(port->value.per_segment, port->value.senders);
	port->segment_count = DIV_ROUND_UP(port->value.senders,
					   port->value.per_segment);
	return port->segment_count > KRC_MAX_SEGMENTS ? -E2BIG : 0;
}

static int krc_port_make_segments(struct krc_port *port, struct krc_verb *verb)
{
	struct krc_segment_place *told;
	u32 i, count;
	int err;

	for (i = 0; i < port->segment_count; i++) {
		count = krc_segment_count(&port->value, i);
		err = krc_segment_init(&port->segments[i], port->dev, verb,
				       krc_place_offset(&port->value, i,
							count));
		if (err)
			return err;
		told = &port->value.segments[i];
		told->addr = port->segments[i].mr->iova;
		told->rkey = port->segments[i].mr->rkey;
	}
	return 0;
}

/* Returns how many pages it takes, once it is divided. */
static u64 krc_port_pages(const struct krc_port *port)
{
	u64 pages = 0;
	u32 i, count;

	for (i = 0; i < port->segment_count; i++) {
		count = krc_segment_count(&port->value, i);
		pages += PFN_UP(krc_place_offset(&port->value, i, count));
	}
	return pages;
}

/* Sleeps for a registration of each segment. Free it even after a failure. */
static int krc_port_make_memory(struct krc_port *port)
{
	struct krc_verb verb = {};
	int err;

	port->inboxes = kvcalloc(port->value.senders, sizeof(*port->inboxes),
				 GFP_KERNEL_ACCOUNT);
	port->receives = kvmalloc_array(port->receive_depth,
					sizeof(*port->receives),
					GFP_KERNEL_ACCOUNT);
	port->message = kmalloc(krc_slot_bytes(&port->value),
				GFP_KERNEL_ACCOUNT);
	if (!port->inboxes || !port->receives || !port->message)
		return -ENOMEM;
	err = krc_verb_init(&verb, port->dev);
	if (!err) {
		verb.conn = krc_host_choose_conn(port->dev->hosts->self);
		err = krc_port_make_segments(port, &verb);
	}
	krc_verb_exit(&verb);
	return err == -ECONNRESET ? -EIO : err;
}

static void krc_port_free_memory(struct krc_port *port)
{
	u32 i;

	for (i = 0; i < port->segment_count; i++)
		krc_segment_exit(&port->segments[i], port->dev);
	kvfree(port->inboxes);
	kvfree(port->receives);
	kfree(port->message);
}

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

/* Of two queues of a node only one gets it; between nodes, the table's record decides. */
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

/* Ends a port that was charged, and made wholly or in part. */
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
	/* From here on the port's number is free again. */
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
	/* krc_port_poll looks without the lock for a port. */
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
	err = krc_queue_usable(queue);
	if (err)
		return err;
	if (queue->port)
		return -EBADFD;
	/* Without a record the port's node would seem to be dead. */
	if (!queue->fabric_node || !krc_node_is_published(queue->fabric_node))
		return -ENOTCONN;
	return krc_port_open(queue, bind);
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
	/* Do not trust what other hosts say where it would be used as an index. */
	if (!value->senders || value->senders > KRC_MAX_SENDERS ||
	    !value->slots || value->slots > KRC_MAX_SLOTS ||
	    value->copy_bytes > KRC_MAX_COPY_BYTES || !value->per_segment ||
	    DIV_ROUND_UP(value->senders, value->per_segment) > KRC_MAX_SEGMENTS)
		return -EIO;
	return 0;
}
