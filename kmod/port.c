// SPDX-License-Identifier: GPL-2.0
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
#include "region.h"
#include "verb.h"

#define MAX_SEGMENT_PAGES 512U
#define REGISTER_TRIES 8
#define PORT_TRIES 64
/* The longest that a message of another host lies before a sleeper is woken. */
#define LONGEST_LOOK (HZ / 50)

static_assert(sizeof(struct krc_port_value) <= KRC_RECORD_VALUE_BYTES);

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

/* --- its memory --- */

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
	/* Others' faults may flush it. */
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

/* How many places a segment has, and how many segments there are. -E2BIG. */
static int krc_port_divide(struct krc_port *port)
{
	u32 most = min(port->dev->ib->attrs.max_fast_reg_page_list_len,
		       MAX_SEGMENT_PAGES) * PAGE_SIZE;
	u32 place = krc_place_bytes(&port->value);

	if (place + krc_owners_bytes(1) > most)
		return -E2BIG;
	/* One fewer than may fit: the owners' words are padded. */
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
		verb.conn = krc_host_choose_conn(port->dev->self);
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

	lockdep_assert_held(&dev->ports_lock);
	list_for_each_entry(port, &dev->ports, link)
		if (port->key == key)
			return port;
	return NULL;
}

struct krc_port *krc_port_find(struct krc_device *dev, u64 key, u64 owner)
{
	struct krc_port *port;

	mutex_lock(&dev->ports_lock);
	port = krc_port_find_locked(dev, key);
	if (port && port->owner == owner)
		kref_get(&port->refs);
	else
		port = NULL;
	mutex_unlock(&dev->ports_lock);
	return port;
}

/* Of two queues of a node one has it; of nodes the table's record says who. */
static int krc_port_enter(struct krc_port *port, struct krc_node *node)
{
	struct krc_device *dev = port->dev;
	bool automatic = !port->port;
	int tries = 0;
	int err;

	mutex_lock(&dev->ports_lock);
	do {
		if (automatic)
			port->port = KRC_FIRST_AUTOMATIC_PORT +
				     get_random_u32() %
				     (U16_MAX + 1 - KRC_FIRST_AUTOMATIC_PORT);
		port->key = krc_port_key(node->fabric, node->node, port->port);
		err = krc_port_find_locked(dev, port->key) ? -EEXIST : 0;
	} while (err && automatic && tries++ < PORT_TRIES);
	if (!err)
		list_add(&port->link, &dev->ports);
	mutex_unlock(&dev->ports_lock);
	return err;
}

static int krc_port_publish(struct krc_port *port, struct krc_node *node)
{
	struct krc_meta *meta = &port->dev->meta;
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
		krc_meta_remove(&dev->meta, port->record, port->key,
				port->owner);
	krc_port_unuse(port);
	wait_for_completion(&port->idle);
	cancel_delayed_work_sync(&port->look);
	krc_port_free_memory(port);
	/* From here on its number is free again. */
	mutex_lock(&dev->ports_lock);
	list_del_init(&port->link);
	mutex_unlock(&dev->ports_lock);
	krc_uncharge_pages(queue, port->pages);
	atomic64_dec(&dev->stats.ports);
	krc_port_put(port);
}

static void krc_port_look(struct work_struct *work);

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
	int err = krc_meta_lookup(&node->dev->meta,
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
			region = krc_region_get(queue->dev, queue, receive.lkey,
						receive.addr, receive.length,
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

static int krc_queue_bound(struct krc_queue *queue)
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

/* --- messages --- */

/* One place, as it is looked at. */
struct krc_spot {
	struct krc_inbox *inbox;
	u64 *owner;
	struct krc_place *place;
};

static struct krc_spot krc_port_spot(struct krc_port *port, u32 index)
{
	u32 segment = index / port->value.per_segment;
	u32 at = index % port->value.per_segment;
	void *memory = port->segments[segment].memory;

	return (struct krc_spot){
		.inbox = &port->inboxes[index],
		.owner = (u64 *)memory + at,
		.place = memory + krc_place_offset(&port->value, segment, at),
	};
}

/* Whether it is some sender's, whose card is there. */
static bool krc_spot_is_open(struct krc_spot *spot)
{
	struct krc_inbox *inbox = spot->inbox;
	u64 owner = READ_ONCE(*spot->owner);

	if (!owner || owner == KRC_BEING_FREED)
		return false;
	if (inbox->owner == owner)
		return true;
	memcpy(&inbox->card, &spot->place->card, sizeof(inbox->card));
	if (inbox->card.owner != owner ||
	    inbox->card.checksum != krc_card_checksum(&inbox->card))
		return false;
	inbox->owner = owner;
	return true;
}

static void krc_spot_release(struct krc_spot *spot, u64 next)
{
	spot->inbox->next = next;
	/* Its sender may write to the slot from here on. */
	smp_store_release(&spot->place->released, next);
}

/* Frees it, if its sender has gone and nothing of his is left. */
static void krc_spot_end(struct krc_port *port, struct krc_spot *spot)
{
	struct krc_inbox *inbox = spot->inbox;
	struct krc_place *place = spot->place;
	u64 closing = READ_ONCE(place->closing);
	u64 owner = inbox->owner;

	if (!closing ||
	    (closing ^ krc_closing(owner, 0)) >> 32 ||
	    (s32)((u32)inbox->next - ((u32)closing - 1)) < 0)
		return;
	WRITE_ONCE(*spot->owner, KRC_BEING_FREED);
	/* So that nothing that is left passes for one of the next owner's. */
	krc_spot_release(spot, inbox->next + port->value.slots);
	place->closing = 0;
	memset(&place->card, 0, sizeof(place->card));
	inbox->owner = 0;
	/* Pairs with the CAS of the next owner. */
	smp_store_release(spot->owner, 0);
}

/*
 * Whether the next message is there, which is copied to port->message: what is in
 * the slot may be made void meanwhile.
 */
static bool krc_spot_look(struct krc_port *port, struct krc_spot *spot)
{
	const u64 next = spot->inbox->next;
	struct krc_message_header *header = port->message;
	const void *slot = (void *)spot->place +
			   krc_message_offset(&port->value, next);

	if (READ_ONCE(*(const u64 *)slot) != next)
		return false;
	memcpy(header, slot, sizeof(*header));
	if (header->number != next || header->length > port->value.copy_bytes)
		return false;
	memcpy(header + 1, slot + sizeof(*header), header->length);
	return header->checksum == krc_message_checksum(header);
}

/* The next place with a message, from the one whose turn it is on. */
static bool krc_port_find_message(struct krc_port *port, struct krc_spot *spot)
{
	u32 index = port->turn;
	u32 i;

	for (i = 0; i < port->value.senders; i++) {
		*spot = krc_port_spot(port, index);
		index = index + 1 == port->value.senders ? 0 : index + 1;
		if (!krc_spot_is_open(spot))
			continue;
		while (krc_spot_look(port, spot)) {
			if (port->message->kind == KRC_MESSAGE_COPY) {
				port->turn = index;
				return true;
			}
			krc_spot_release(spot, spot->inbox->next + 1);
		}
		krc_spot_end(port, spot);
	}
	return false;
}

/* --- those who sleep until there is one --- */

static bool krc_port_has_message(struct krc_port *port)
{
	struct krc_spot spot;
	u32 turn = port->turn;
	bool found;

	lockdep_assert_held(&port->queue->lock);
	found = port->receive_count && krc_port_find_message(port, &spot);
	port->turn = turn;
	return found;
}

/*
 * Until nobody sleeps any more, or is woken. It is cancelled with the lock held,
 * so it cannot wait for that.
 */
static void krc_port_look(struct work_struct *work)
{
	struct krc_port *port =
		container_of(to_delayed_work(work), struct krc_port, look);
	struct krc_queue *queue = port->queue;
	bool found = false;

	if (!wq_has_sleeper(&queue->wait))
		return;
	if (mutex_trylock(&queue->lock)) {
		found = krc_port_has_message(port);
		port->look_in = min_t(unsigned long, port->look_in + 1,
				      LONGEST_LOOK);
		mutex_unlock(&queue->lock);
	}
	if (found)
		wake_up_all(&queue->wait);
	else
		queue_delayed_work(system_wq, &port->look,
				   READ_ONCE(port->look_in));
}

__poll_t krc_port_poll(struct krc_queue *queue)
{
	__poll_t events = 0;
	struct krc_port *port;

	if (!READ_ONCE(queue->port))
		return 0;
	mutex_lock(&queue->lock);
	port = queue->port;
	if (port && krc_port_has_message(port)) {
		events = EPOLLPRI;
	} else if (port) {
		port->look_in = 1;
		queue_delayed_work(system_wq, &port->look, port->look_in);
	}
	mutex_unlock(&queue->lock);
	return events;
}

void krc_port_arrived(struct krc_port *port)
{
	/* The queue's, which is freed behind the last user of its port. */
	if (wq_has_sleeper(&port->queue->wait))
		wake_up_all(&port->queue->wait);
}

/* --- popping --- */

/* Gives the message to the oldest receive. -EFAULT: nobody hears of it. */
static int krc_port_deliver(struct krc_port *port, struct krc_spot *spot,
			    struct krc_message __user *to)
{
	const struct krc_receive *receive = &port->receives[port->receive_head];
	const struct krc_message_header *header = port->message;
	const struct krc_card *card = &spot->inbox->card;
	struct krc_message message = {
		.wr_id = receive->wr_id,
		.byte_len = header->length,
		.imm = header->imm,
		.node = card->node,
		.incarnation = card->incarnation,
		.queue = card->queue,
		.port = card->port,
		.with_imm = header->with_imm,
	};

	if (header->length > receive->length)
		message.status = KRC_LOCAL_LENGTH_ERROR;
	else if (copy_to_user(u64_to_user_ptr(receive->addr), header + 1,
			      header->length))
		message.status = KRC_LOCAL_PROTECTION_ERROR;
	if (copy_to_user(to, &message, sizeof(message)))
		return -EFAULT;
	port->receive_head = (port->receive_head + 1) % port->receive_depth;
	port->receive_count--;
	if (!message.status) {
		krc_spot_release(spot, spot->inbox->next + 1);
		atomic64_inc(&port->dev->stats.messages);
	}
	return 0;
}

static int krc_port_pop(struct krc_port *port, struct krc_pop_msgs *pop)
{
	struct krc_message __user *to = u64_to_user_ptr(pop->messages);
	struct krc_spot spot;
	u32 count = 0;
	int err = 0;

	while (!err && count < pop->count) {
		cond_resched();
		/* Places are freed all the same. */
		if (!krc_port_find_message(port, &spot) || !port->receive_count)
			break;
		err = krc_port_deliver(port, &spot, to + count);
		if (!err)
			count++;
	}
	pop->count = count;
	return count ? 0 : err;
}

int krc_queue_pop_msgs(struct krc_queue *queue, struct krc_pop_msgs *pop)
{
	int err;

	if (pop->reserved || !pop->count)
		return -EINVAL;
	mutex_lock(&queue->lock);
	err = krc_queue_bound(queue);
	if (!err)
		err = krc_port_pop(queue->port, pop);
	mutex_unlock(&queue->lock);
	return err;
}
