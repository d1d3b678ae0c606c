// SPDX-License-Identifier: GPL-2.0
/* Receives that are posted, and messages that have come. */
#include <linux/uaccess.h>

#include "device.h"
#include "port.h"
#include "queue.h"
#include "region.h"

/* The longest that a message from another host waits before a sleeper is woken. */
#define LONGEST_LOOK (HZ / 50)

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
			/* What becomes of the memory later is its process's concern. */
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

/* Returns 0 if the queue can be used and has a port. */
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
	err = krc_queue_bound(queue);
	return err ?: krc_port_push_recv(queue, push);
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

/* Whether some sender owns the place and has written its card. */
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
	/* From here on its sender may write to the slot. */
	smp_store_release(&spot->place->released, next);
}

/* Frees the place, if its sender has gone and nothing of it is left. */
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
	/* This way nothing that is left passes for a message of the next owner. */
	krc_spot_release(spot, inbox->next + port->value.slots);
	place->closing = 0;
	memset(&place->card, 0, sizeof(place->card));
	inbox->owner = 0;
	/* Pairs with the CAS of the next owner. */
	smp_store_release(spot->owner, 0);
}

/*
 * Whether the next message is there. It is copied to port->message, because what is
 * in the slot may be made void meanwhile.
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

/* Finds the next place with a message, starting with the one whose turn it is. */
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

/* --- waking those who sleep until there is a message --- */

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
 * Runs until nobody sleeps any more, or sleepers are woken. It is cancelled with
 * the lock held, so it cannot wait for the lock.
 */
void krc_port_look(struct work_struct *work)
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
	/* The queue is freed after the last user of its port. */
	if (wq_has_sleeper(&port->queue->wait))
		wake_up_all(&port->queue->wait);
}

/* --- popping --- */

/* Gives the message to the oldest receive. -EFAULT: its user cannot be told. */
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
		/* Places are freed even if there is no receive. */
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
	err = krc_queue_bound(queue);
	return err ?: krc_port_pop(queue->port, pop);
}
