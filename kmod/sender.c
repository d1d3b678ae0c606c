// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "device.h"
#include "host.h"
#include "meta.h"
#include "node.h"
#include "port.h"
#include "queue.h"
#include "region.h"
#include "sender.h"

/* --- one verb to the port's memory --- */

static bool krc_sender_use(struct krc_sender *sender)
{
	return !READ_ONCE(sender->closed) &&
	       (!sender->local || krc_port_use(sender->local));
}

static void krc_sender_unuse(struct krc_sender *sender)
{
	if (sender->local)
		krc_port_unuse(sender->local);
}

/* -EPIPE: the port is closed; also what krc_verb_run returns. */
static int krc_sender_run(struct krc_sender *sender, u8 opcode, u64 addr,
			  u32 bytes, u64 swap)
{
	const struct krc_verb_op op = {
		.opcode = opcode,
		.addr = addr,
		.rkey = sender->rkey,
		.bytes = bytes,
		.swap = swap,	/* in the place of 0 */
	};
	int err;

	/* A pull may be under way. */
	wait_for_completion(&sender->verb.done);
	if (!krc_sender_use(sender))
		return -EPIPE;
	err = krc_verb_run(&sender->verb, &op);
	krc_sender_unuse(sender);
	if (err == -EPIPE)
		WRITE_ONCE(sender->closed, true);
	return err;
}

/* --- its place --- */

static int krc_sender_try_claim(struct krc_sender *sender, u32 segment, u32 at)
{
	const struct krc_segment_place *where = &sender->value.segments[segment];
	const u64 *former = sender->verb.buffer;
	int err;

	err = krc_sender_run(sender, KRC_OP_COMPARE_SWAP,
			     where->addr + at * sizeof(u64), sizeof(u64),
			     sender->card.owner);
	if (err)
		return err;
	/* An earlier try, without an answer, may have put it there. */
	if (*former && *former != sender->card.owner)
		return -EAGAIN;
	sender->claimed = true;
	sender->addr = where->addr +
		       krc_place_offset(&sender->value, segment, at);
	return 0;
}

static int krc_sender_claim_in(struct krc_sender *sender, u32 segment)
{
	u32 count = krc_segment_count(&sender->value, segment);
	u64 *owners;
	u32 at;
	int err;

	sender->rkey = sender->value.segments[segment].rkey;
	owners = kmalloc_array(count, sizeof(*owners), GFP_KERNEL_ACCOUNT);
	if (!owners)
		return -ENOMEM;
	err = krc_sender_run(sender, KRC_OP_READ,
			     sender->value.segments[segment].addr,
			     count * sizeof(*owners), 0);
	if (!err)
		memcpy(owners, sender->verb.buffer, count * sizeof(*owners));
	else
		count = 0;
	if (!err)
		err = -EAGAIN;
	for (at = 0; at < count && err == -EAGAIN; at++)
		if (!owners[at])
			err = krc_sender_try_claim(sender, segment, at);
	kfree(owners);
	return err;
}

static int krc_sender_claim(struct krc_sender *sender)
{
	u32 segments = DIV_ROUND_UP(sender->value.senders,
				    sender->value.per_segment);
	int err = -EAGAIN;
	u32 i;

	for (i = 0; i < segments && err == -EAGAIN; i++)
		err = krc_sender_claim_in(sender, i);
	return err;
}

/* Reads what the receiver has released. */
static int krc_sender_read(struct krc_sender *sender)
{
	int err = krc_sender_run(sender, KRC_OP_READ,
				 sender->addr +
				 offsetof(struct krc_place, released),
				 sizeof(u64), 0);

	if (!err)
		atomic64_set(&sender->released, *(u64 *)sender->verb.buffer);
	return err;
}

/* Writes the sender's half of the place. */
static int krc_sender_tell(struct krc_sender *sender, u64 closing)
{
	const u32 from = offsetof(struct krc_place, closing);
	struct krc_place place = {
		.closing = closing,
		.card = sender->card,
	};

	wait_for_completion(&sender->verb.done);
	memcpy(sender->verb.buffer, (u8 *)&place + from, sizeof(place) - from);
	return krc_sender_run(sender, KRC_OP_WRITE, sender->addr + from,
			      sizeof(place) - from, 0);
}

/* --- pulling credits --- */

static void krc_sender_pulled(struct krc_verb *verb)
{
	struct krc_sender *sender =
		container_of(verb, struct krc_sender, verb);

	if (!sender->pulling)
		return;
	sender->pulling = false;
	if (verb->status == KRC_SUCCESS) {
		ib_dma_sync_single_for_cpu(verb->dev->ib, verb->dma, PAGE_SIZE,
					   DMA_BIDIRECTIONAL);
		atomic64_set(&sender->released, *(u64 *)verb->buffer);
	} else if (verb->status == KRC_REMOTE_ACCESS_ERROR) {
		WRITE_ONCE(sender->closed, true);
	}
	krc_sender_unuse(sender);
}

static u32 krc_sender_credits(const struct krc_sender *sender)
{
	return sender->value.slots -
	       (u32)(sender->next - atomic64_read(&sender->released));
}

/* Begins to ask, unless that is under way. -EPIPE, -ECONNRESET, -ENODEV. */
static int krc_sender_pull(struct krc_sender *sender)
{
	const struct krc_verb_op op = {
		.opcode = KRC_OP_READ,
		.addr = sender->addr + offsetof(struct krc_place, released),
		.rkey = sender->rkey,
		.bytes = sizeof(u64),
	};
	int err;

	if (!krc_verb_is_idle(&sender->verb))
		return 0;
	if (!krc_sender_use(sender))
		return -EPIPE;
	sender->pulling = true;
	err = krc_verb_begin(&sender->verb, &op);
	if (err) {
		sender->pulling = false;
		krc_sender_unuse(sender);
	}
	return err;
}

static int krc_sender_usable(struct krc_sender *sender)
{
	if (READ_ONCE(sender->closed))
		return -EPIPE;
	return READ_ONCE(sender->doubt_from) == U64_MAX ? 0 : -ECONNRESET;
}

int krc_queue_credits(struct krc_queue *queue, struct krc_credits *credits)
{
	int err;

	if (credits->reserved)
		return -EINVAL;
	err = krc_queue_usable(queue);
	if (!err && !queue->sender)
		err = -ENOTCONN;
	if (!err)
		err = krc_sender_usable(queue->sender);
	if (!err && krc_sender_credits(queue->sender) <
		    queue->sender->value.slots)
		err = krc_sender_pull(queue->sender);
	if (!err)
		credits->credits = krc_sender_credits(queue->sender);
	return err;
}

/* --- its life --- */

static void krc_sender_free(struct krc_sender *sender, struct krc_queue *queue)
{
	u32 i;

	krc_verb_exit(&sender->verb);
	for (i = 0; sender->slots && i < sender->value.slots; i++) {
		if (sender->slots[i].dma)
			ib_dma_unmap_single(sender->dev->ib,
					    sender->slots[i].dma,
					    krc_slot_bytes(&sender->value),
					    DMA_TO_DEVICE);
		kfree(sender->slots[i].message);
	}
	kvfree(sender->slots);
	if (sender->local)
		krc_port_put(sender->local);
	krc_uncharge_pages(queue, sender->pages);
	atomic64_dec(&sender->dev->stats.senders);
	kfree(sender);
}

static int krc_sender_make_slots(struct krc_sender *sender)
{
	u32 bytes = krc_slot_bytes(&sender->value);
	struct krc_slot *slot;
	u32 i;

	sender->slots = kvcalloc(sender->value.slots, sizeof(*sender->slots),
				 GFP_KERNEL_ACCOUNT);
	if (!sender->slots)
		return -ENOMEM;
	for (i = 0; i < sender->value.slots; i++) {
		slot = &sender->slots[i];
		slot->message = kzalloc(bytes, GFP_KERNEL_ACCOUNT);
		if (!slot->message)
			return -ENOMEM;
		slot->dma = ib_dma_map_single(sender->dev->ib, slot->message,
					      bytes, DMA_TO_DEVICE);
		if (ib_dma_mapping_error(sender->dev->ib, slot->dma)) {
			slot->dma = 0;
			return -ENOMEM;
		}
	}
	return 0;
}

static void krc_sender_introduce(struct krc_sender *sender,
				 struct krc_queue *queue)
{
	static atomic_t last_queue;
	struct krc_node *node = queue->fabric_node;

	sender->card.node = node->node;
	sender->card.incarnation = node->incarnation;
	sender->card.queue = atomic_inc_return(&last_queue);
	sender->card.port = queue->port ? queue->port->port : 0;
	/* This is not KRC_BEING_FREED, because incarnations are not 0. */
	sender->card.owner = (u64)node->incarnation << 32 | sender->card.queue;
	sender->card.checksum = krc_card_checksum(&sender->card);
}

int krc_sender_open(struct krc_queue *queue, u32 port, u64 to, u64 key,
		    const struct krc_port_value *value)
{
	struct krc_device *dev = queue->dev;
	struct krc_sender *sender;
	int err;

	sender = kzalloc(sizeof(*sender), GFP_KERNEL_ACCOUNT);
	if (!sender)
		return -ENOMEM;
	sender->dev = dev;
	sender->port = port;
	sender->to = to;
	sender->key = key;
	sender->value = *value;
	sender->doubt_from = U64_MAX;
	krc_sender_introduce(sender, queue);
	atomic64_inc(&dev->stats.senders);
	err = krc_verb_init(&sender->verb, dev);
	sender->verb.conn = queue->conn;
	sender->verb.ended = krc_sender_pulled;
	if (!err) {
		u64 pages = PFN_UP((u64)value->slots * krc_slot_bytes(value));

		err = krc_charge_pages(queue, pages);
		if (!err)
			sender->pages = pages;
	}
	if (!err)
		err = krc_sender_make_slots(sender);
	if (!err && krc_host_is_self(queue->host)) {
		sender->local = krc_port_find(dev, key, to);
		if (!sender->local)
			err = -ENOENT;
	}
	if (!err)
		err = krc_sender_claim(sender);
	if (!err)
		err = krc_sender_read(sender);
	if (!err) {
		sender->next = atomic64_read(&sender->released);
		err = krc_sender_tell(sender, 0);
	}
	queue->sender = sender;
	if (err)
		krc_sender_close(queue);
	return err == -EPIPE ? -ENOENT : err;
}

bool krc_sender_is_at(const struct krc_queue *queue, u32 port, u64 to,
		      const struct krc_port_value *value)
{
	const struct krc_sender *sender = queue->sender;

	return sender && sender->port == port && sender->to == to &&
	       !READ_ONCE(sender->closed) &&
	       sender->card.port == (queue->port ? queue->port->port : 0) &&
	       !memcmp(&sender->value, value, sizeof(*value));
}

int krc_sender_mend(struct krc_sender *sender)
{
	struct krc_message_header *header = sender->verb.buffer;
	u64 number;
	int err;

	err = krc_sender_read(sender);
	/* The receiver does not look before what it has released. */
	for (number = sender->doubt_from; !err && number < sender->next;
	     number++) {
		memset(header, 0, sizeof(*header));
		header->number = number;
		header->kind = KRC_MESSAGE_VOID;
		header->checksum = krc_message_checksum(header);
		err = krc_sender_run(sender, KRC_OP_WRITE,
				     krc_sender_addr(sender, number),
				     sizeof(*header), 0);
	}
	if (!err)
		sender->doubt_from = U64_MAX;
	return err == -EPIPE ? -ENOENT : err;
}

/*
 * Whether the port is still there. For a port at another host, its record shows
 * that: the record is removed before the memory, because a WRITE to memory that is
 * gone would break the shared QP.
 */
static bool krc_sender_has_port(struct krc_sender *sender)
{
	struct krc_record record;

	if (sender->local)
		return true;	/* krc_port_use tells */
	return !krc_meta_lookup(sender->dev->meta, sender->key, &record) &&
	       record.owner == sender->to &&
	       !memcmp(record.value, &sender->value, sizeof(sender->value));
}

void krc_sender_close(struct krc_queue *queue)
{
	struct krc_sender *sender = queue->sender;

	lockdep_assert_held(&queue->lock);
	if (!sender)
		return;
	/*
	 * Best effort: without an answer the place stays taken until the port is
	 * closed. The card is written as well, since that may not have happened
	 * before.
	 */
	if (sender->claimed && krc_sender_has_port(sender))
		krc_sender_tell(sender,
				krc_closing(sender->card.owner,
					    min(sender->next,
						sender->doubt_from)));
	queue->sender = NULL;
	krc_sender_free(sender, queue);
}

/* --- messages --- */

u64 krc_sender_addr(const struct krc_sender *sender, u64 number)
{
	return sender->addr + krc_message_offset(&sender->value, number);
}

/* Gathers from registered memory; its content may change, and is copied once. */
static int krc_sender_gather(struct krc_queue *queue, void *to,
			     const struct krc_request *request)
{
	struct krc_region *region;
	const struct krc_sge *sge;
	u32 i;

	for (i = 0; i < request->num_sge; i++) {
		sge = &request->sges[i];
		region = krc_region_get(queue->dev, queue->mm, sge->lkey,
					sge->addr, sge->length, 0);
		if (!region)
			return -EACCES;
		krc_region_put(region);
		if (copy_from_user(to, u64_to_user_ptr(sge->addr), sge->length))
			return -EFAULT;
		to += sge->length;
	}
	return 0;
}

/* A message has completed. Context: conn->lock is held. */
static void krc_sender_ended(struct krc_wr *wr, u8 status)
{
	struct krc_sender *sender = wr->queue->sender;

	if (status && wr->number < sender->doubt_from)
		WRITE_ONCE(sender->doubt_from, wr->number);
	if (wr->port)
		krc_port_arrived(wr->port);
	krc_sender_unstage(wr);
}

void krc_sender_unstage(struct krc_wr *wr)
{
	if (wr->port)
		krc_port_unuse(wr->port);
	wr->port = NULL;
	wr->ended = NULL;
}

int krc_sender_stage(struct krc_queue *queue, struct krc_wr *wr,
		     const struct krc_request *request, u32 bytes)
{
	struct krc_sender *sender = queue->sender;
	struct krc_message_header *header;
	struct krc_slot *slot;
	u32 at;
	int err;

	err = krc_sender_usable(sender);
	/* The credits are running short. */
	if (!err && 2 * krc_sender_credits(sender) <= sender->value.slots)
		err = krc_sender_pull(sender);
	if (err)
		return err;
	if (!krc_sender_credits(sender))
		return -EAGAIN;
	div_u64_rem(sender->next, sender->value.slots, &at);
	slot = &sender->slots[at];
	header = slot->message;
	ib_dma_sync_single_for_cpu(sender->dev->ib, slot->dma,
				   krc_slot_bytes(&sender->value),
				   DMA_TO_DEVICE);
	err = krc_sender_gather(queue, header + 1, request);
	if (err)
		return err;
	memset(header, 0, sizeof(*header));
	header->number = sender->next;
	header->length = bytes;
	header->kind = KRC_MESSAGE_COPY;
	header->with_imm = request->opcode == KRC_OP_SEND_IMM;
	header->imm = header->with_imm ? request->compare_add : 0;
	header->checksum = krc_message_checksum(header);
	ib_dma_sync_single_for_device(sender->dev->ib, slot->dma,
				      krc_slot_bytes(&sender->value),
				      DMA_TO_DEVICE);
	if (!krc_sender_use(sender))
		return -EPIPE;
	wr->port = sender->local;
	wr->ended = krc_sender_ended;
	wr->number = sender->next++;
	wr->sges[0] = (struct ib_sge){
		.addr = slot->dma,
		.length = sizeof(*header) + bytes,
		.lkey = sender->dev->pd->local_dma_lkey,
	};
	return 0;
}

void krc_sender_undo(struct krc_sender *sender, u64 next)
{
	sender->next = next;
}
