// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/siphash.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <net/net_namespace.h>
#include <rdma/ib_addr.h>

#include "device.h"
#include "host.h"
#include "meta.h"
#include "queue.h"

static char *metaserver = "";
module_param(metaserver, charp, 0444);
MODULE_PARM_DESC(metaserver,
		 "IP address of the host with the table of records (\"\": this one)");

#define WINDOW 8
#define WINDOW_BYTES (WINDOW * KRC_RECORD_BYTES)
/* The first slot is the header: the next incarnation. */
#define TABLE_SLOTS 2048
#define TABLE_BYTES (TABLE_SLOTS * KRC_RECORD_BYTES)
/* A host takes so many at once. */
#define INCARNATIONS 16
/* Records that are read by one READ to see whose they are. */
#define SWEPT_AT_ONCE (PAGE_SIZE / KRC_RECORD_BYTES)
#define TRIES 8
/* A record that is just being written is whole soon. */
#define TORN_TRIES 100
#define CLAIM_TRIES 64
/* A server that could not be reached is asked again after that. */
#define UNREACHABLE HZ

static_assert(sizeof(struct krc_record) == KRC_RECORD_BYTES);
static_assert(TABLE_BYTES % PAGE_SIZE == 0);
static_assert(TABLE_SLOTS % SWEPT_AT_ONCE == 0);

/* An owner's word while its slot is given back: of no node, and nobody else's. */
static u64 krc_vacating(u64 owner)
{
	return owner | U32_MAX;
}

static bool krc_is_vacating(u64 owner)
{
	return (u32)owner == U32_MAX;
}

/* The same on all hosts: a hash, no secret. */
static const siphash_key_t hash_key = { { 0x6b72636f7265, 1 } };

static u64 krc_hash_name(u8 kind, const u8 *fabric, const void *name,
			 size_t bytes)
{
	u8 all[1 + KRC_NAME_BYTES + KRC_NAME_BYTES] = { kind };

	memcpy(all + 1, fabric, KRC_NAME_BYTES);
	memcpy(all + 1 + KRC_NAME_BYTES, name, bytes);
	return siphash(all, sizeof(all), &hash_key) ?: 1;
}

u64 krc_node_key(const u8 *fabric, u32 node)
{
	return krc_hash_name('n', fabric, &node, sizeof(node));
}

u64 krc_port_key(const u8 *fabric, u32 node, u32 port)
{
	u32 both[2] = { node, port };

	return krc_hash_name('p', fabric, both, sizeof(both));
}

u64 krc_service_key(const u8 *fabric, const u8 *name)
{
	return krc_hash_name('s', fabric, name, KRC_NAME_BYTES);
}

static u64 krc_record_checksum(const struct krc_record *record)
{
	struct krc_record copy = *record;

	copy.checksum = 0;
	return siphash(&copy, sizeof(copy), &hash_key);
}

/* --- one verb each; meta->lock is held --- */

/* Of the module's own queue. Context: conn->lock is held. */
static void krc_meta_done(struct krc_queue *queue, u8 status)
{
	struct krc_meta *meta = queue->owner;

	meta->status = status;
	complete(&meta->done);
}

static int krc_meta_connect(struct krc_meta *meta)
{
	struct krc_host *host;

	if (time_before(jiffies, meta->unreachable_until))
		return -ENETDOWN;
	if (meta->host)
		return 0;
	host = krc_host_get(meta->dev, &meta->gid);
	if (IS_ERR(host))
		return PTR_ERR(host);
	meta->host = host;
	meta->queue->conn = krc_host_choose_conn(host);
	return 0;
}

static int krc_meta_submit(struct krc_meta *meta)
{
	LIST_HEAD(batch);
	int err;

	reinit_completion(&meta->done);
	list_add(&meta->wr.link, &batch);
	atomic64_inc(&meta->dev->stats.requests);
	err = krc_conn_submit(meta->queue->conn, meta->queue, &batch);
	if (err) {
		atomic64_dec(&meta->dev->stats.requests);
		return err;
	}
	/* A QP's retries end it, if nothing else does. */
	wait_for_completion(&meta->done);
	return meta->status == KRC_SUCCESS ? 0 : -EIO;
}

/* `offset` in the table; the local side is meta->buffer. */
static int krc_meta_verb(struct krc_meta *meta, u8 opcode, u64 offset,
			 u32 bytes, u64 compare, u64 swap)
{
	struct krc_table_place table;
	struct krc_wr *wr = &meta->wr;
	int tries, err;

	err = krc_meta_connect(meta);
	for (tries = 0; !err; tries++) {
		err = krc_conn_mend(meta->queue->conn, meta->queue);
		/* Those who wait for the lock need not try, too. */
		if (err == -ENETDOWN)
			meta->unreachable_until = jiffies + UNREACHABLE;
		if (err)
			break;
		krc_host_get_table(meta->host, &table);
		if (table.slots != TABLE_SLOTS)
			return -EIO;
		wr->opcode = opcode;
		wr->sges[0] = (struct ib_sge){
			.addr = meta->buffer_dma,
			.length = bytes,
			.lkey = meta->dev->pd->local_dma_lkey,
		};
		krc_wr_address(wr, 1, table.addr + offset, table.rkey, compare,
			       swap);
		ib_dma_sync_single_for_device(meta->dev->ib, meta->buffer_dma,
					      PAGE_SIZE, DMA_BIDIRECTIONAL);
		err = krc_meta_submit(meta);
		ib_dma_sync_single_for_cpu(meta->dev->ib, meta->buffer_dma,
					   PAGE_SIZE, DMA_BIDIRECTIONAL);
		/*
		 * All may be done twice: a WRITE, which only the owner does; a
		 * FETCH_ADD, which skips some numbers; a CAS, see there.
		 */
		if (!err || err == -ENODEV || tries == TRIES)
			break;
		/* A QP that is built anew may fail again at once. */
		msleep(4 * tries);
		err = 0;
	}
	return err;
}

/*
 * Won if `swap` is there: an earlier try, without an answer, may have put it
 * there. Nobody else writes that word but who claims the same key, which is as
 * good.
 */
static int krc_meta_cas(struct krc_meta *meta, u64 offset, u64 compare,
			u64 swap, bool *won)
{
	const u64 *former = meta->buffer;
	int err = krc_meta_verb(meta, KRC_OP_COMPARE_SWAP, offset, sizeof(u64),
				compare, swap);

	*won = !err && (*former == compare || *former == swap);
	return err;
}

/* --- records; meta->lock is held --- */

static u32 krc_first_slot(u64 key)
{
	/* The key's low bits tell nothing of these. */
	return 1 + (key >> 32) % (TABLE_SLOTS - WINDOW);
}

static u64 krc_slot_offset(u32 slot)
{
	return (u64)slot * KRC_RECORD_BYTES;
}

/* Reads the window of `key` to the buffer. */
static int krc_meta_read_window(struct krc_meta *meta, u64 key)
{
	return krc_meta_verb(meta, KRC_OP_READ,
			     krc_slot_offset(krc_first_slot(key)), WINDOW_BYTES,
			     0, 0);
}

/* The slot in the buffer's window whose key is `wanted`, from the n-th on; -1. */
static int krc_meta_find(struct krc_meta *meta, u64 wanted, int from)
{
	const struct krc_record *records = meta->buffer;
	int i;

	for (i = from; i < WINDOW; i++)
		if (records[i].key == wanted)
			return i;
	return -1;
}

static int krc_meta_lookup_locked(struct krc_meta *meta, u64 key,
				  struct krc_record *record)
{
	const struct krc_record *records = meta->buffer;
	int tries, at, err;
	bool owned;

	for (tries = 0; tries < TORN_TRIES; tries++) {
		err = krc_meta_read_window(meta, key);
		if (err)
			return err;
		owned = false;
		/* There are two while somebody who came too late withdraws. */
		for (at = krc_meta_find(meta, key, 0); at >= 0;
		     at = krc_meta_find(meta, key, at + 1)) {
			if (!records[at].owner ||
			    krc_is_vacating(records[at].owner))
				continue;
			owned = true;
			*record = records[at];
			if (record->checksum == krc_record_checksum(record) &&
			    record->length <= sizeof(record->value))
				return 0;
		}
		if (!owned)
			return -ENOENT;
		usleep_range(100, 200);
	}
	return -EIO;
}

static int krc_meta_is_dead_locked(struct krc_meta *meta, const u8 *fabric,
				   u64 owner)
{
	struct krc_record record;
	int err = krc_meta_lookup_locked(meta, krc_node_key(fabric, (u32)owner),
					 &record);

	if (err)
		return err == -ENOENT ? 1 : err;
	return record.owner != owner;
}

/*
 * Of a slot of one's own, if it still is: the table may have been made anew since.
 * Nobody claims it before its last word is 0.
 */
static int krc_meta_vacate(struct krc_meta *meta, u32 slot, u64 key, u64 owner)
{
	const u32 head = offsetof(struct krc_record, checksum);
	u64 offset = krc_slot_offset(slot);
	u64 at_owner = offset + offsetof(struct krc_record, owner);
	bool won;
	int err;

	err = krc_meta_cas(meta, at_owner, owner, krc_vacating(owner), &won);
	if (err || !won)
		return err;
	memset(meta->buffer, 0, sizeof(struct krc_record) - head);
	err = krc_meta_verb(meta, KRC_OP_WRITE, offset + head,
			    sizeof(struct krc_record) - head, 0, 0);
	if (!err)
		err = krc_meta_cas(meta, offset, key, 0, &won);
	if (!err)
		err = krc_meta_cas(meta, at_owner, krc_vacating(owner), 0,
				   &won);
	return err;
}

/*
 * One step: the slot of `key`, or a free one, is claimed. -EAGAIN: somebody else
 * was faster.
 */
static int krc_meta_claim_once(struct krc_meta *meta, u64 key, u64 owner,
			       const u8 *fabric, u32 *slot)
{
	const struct krc_record *records = meta->buffer;
	u32 first = krc_first_slot(key);
	u64 former = 0;
	bool won;
	int at, err;

	err = krc_meta_read_window(meta, key);
	if (err)
		return err;
	at = krc_meta_find(meta, key, 0);
	if (at >= 0) {
		former = records[at].owner;
		*slot = first + at;
	} else {
		at = krc_meta_find(meta, 0, 0);
		while (at >= 0 && records[at].owner)
			at = krc_meta_find(meta, 0, at + 1);
		if (at < 0)
			return -ENOSPC;
		*slot = first + at;
		err = krc_meta_cas(meta, krc_slot_offset(*slot), 0, key, &won);
		if (err || !won)
			return err ?: -EAGAIN;
	}
	if (krc_is_vacating(former))
		return -EAGAIN;
	if (former && former != owner) {
		if (!fabric)
			return -EEXIST;
		err = krc_meta_is_dead_locked(meta, fabric, former);
		if (err <= 0)
			return err ?: -EEXIST;
	}
	if (former != owner) {
		err = krc_meta_cas(meta,
				   krc_slot_offset(*slot) +
					   offsetof(struct krc_record, owner),
				   former, owner, &won);
		if (err || !won)
			return err ?: -EAGAIN;
	}
	/* Has somebody claimed another slot for it? */
	err = krc_meta_read_window(meta, key);
	if (err)
		return err;
	at = krc_meta_find(meta, key, 0);
	if (krc_meta_find(meta, key, at + 1) < 0)
		return 0;
	return krc_meta_vacate(meta, *slot, key, owner) ?: -EAGAIN;
}

static int krc_meta_claim_locked(struct krc_meta *meta, u64 key, u64 owner,
				 const u8 *fabric, u32 *slot)
{
	int tries, err;

	for (tries = 0; tries < CLAIM_TRIES; tries++) {
		err = krc_meta_claim_once(meta, key, owner, fabric, slot);
		if (err != -EAGAIN)
			return err;
		msleep(1 + get_random_u32() % 8);
	}
	return -EIO;
}

/* The next whole record of that host in the buffer, from the n-th on; -1. */
static int krc_meta_find_of_host(struct krc_meta *meta,
				 const union ib_gid *gid, int from)
{
	const struct krc_record *records = meta->buffer;
	int i;

	for (i = from; i < SWEPT_AT_ONCE; i++)
		if (records[i].owner && !krc_is_vacating(records[i].owner) &&
		    !memcmp(records[i].gid, gid->raw, sizeof(gid->raw)) &&
		    records[i].checksum == krc_record_checksum(&records[i]))
			return i;
	return -1;
}

/* Vacates all records of a host of which nothing executes any more. */
static int krc_meta_sweep(struct krc_meta *meta, const union ib_gid *gid)
{
	const struct krc_record *records = meta->buffer;
	u32 first, count = 0;
	u64 key, owner;
	int at, err;

	for (first = 0; first < TABLE_SLOTS; first += SWEPT_AT_ONCE) {
		/* The first slot of all is no record. */
		for (at = first ? 0 : 1;; at++) {
			err = krc_meta_verb(meta, KRC_OP_READ,
					    krc_slot_offset(first),
					    SWEPT_AT_ONCE * KRC_RECORD_BYTES, 0,
					    0);
			if (err)
				return err;
			at = krc_meta_find_of_host(meta, gid, at);
			if (at < 0)
				break;
			key = records[at].key;
			owner = records[at].owner;
			err = krc_meta_vacate(meta, first + at, key, owner);
			if (err)
				return err;
			count++;
		}
		cond_resched();
	}
	if (count)
		dev_info(&meta->dev->ib->dev,
			 "krcore: %u records of %pI6c removed\n", count,
			 gid->raw);
	return 0;
}

/* --- calls --- */

/*
 * Begins one, with the lock held from here on. Whatever this device had entered
 * before it came, or came again, is of nodes that are gone with its former QPs: its
 * machine died, or it went under its users. Nothing is entered before that is
 * removed.
 */
static int krc_meta_begin(struct krc_meta *meta)
{
	int err = 0;

	mutex_lock(&meta->lock);
	if (!meta->swept) {
		err = krc_meta_sweep(meta, &meta->dev->gid);
		meta->swept = !err;
	}
	return err;
}

int krc_meta_forget_host(struct krc_meta *meta, const union ib_gid *gid)
{
	int err;

	if (!memcmp(gid, &meta->dev->gid, sizeof(*gid)))
		return -EINVAL;
	err = krc_meta_begin(meta);
	if (!err)
		err = krc_meta_sweep(meta, gid);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_new_incarnation(struct krc_meta *meta, u32 *incarnation)
{
	int err = krc_meta_begin(meta);

	if (!err && meta->next_incarnation == meta->last_incarnation) {
		err = krc_meta_verb(meta, KRC_OP_FETCH_ADD, 0, sizeof(u64),
				    INCARNATIONS, 0);
		if (!err) {
			meta->next_incarnation = *(u64 *)meta->buffer;
			meta->last_incarnation =
				meta->next_incarnation + INCARNATIONS;
		}
	}
	if (!err)
		*incarnation = meta->next_incarnation++;
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_lookup(struct krc_meta *meta, u64 key, struct krc_record *record)
{
	int err = krc_meta_begin(meta);

	if (!err)
		err = krc_meta_lookup_locked(meta, key, record);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_claim(struct krc_meta *meta, u64 key, u64 owner, const u8 *fabric,
		   u32 *slot)
{
	int err = krc_meta_begin(meta);

	if (!err)
		err = krc_meta_claim_locked(meta, key, owner, fabric, slot);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_write(struct krc_meta *meta, u32 slot, u64 key, u64 owner,
		   const void *value, u32 length)
{
	const u32 head = offsetof(struct krc_record, checksum);
	u64 offset = krc_slot_offset(slot);
	struct krc_record record = {
		.key = key,
		.owner = owner,
		.length = length,
	};
	bool owned;
	int err;

	memcpy(record.gid, meta->dev->gid.raw, sizeof(record.gid));
	memcpy(record.value, value, length);
	record.checksum = krc_record_checksum(&record);
	mutex_lock(&meta->lock);
	/* Not if the table has been made anew since. */
	err = krc_meta_cas(meta, offset + offsetof(struct krc_record, owner),
			   owner, owner, &owned);
	if (!err && !owned)
		err = -EIO;
	if (!err) {
		memcpy(meta->buffer, (u8 *)&record + head,
		       sizeof(record) - head);
		err = krc_meta_verb(meta, KRC_OP_WRITE, offset + head,
				    sizeof(record) - head, 0, 0);
	}
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_remove(struct krc_meta *meta, u32 slot, u64 key, u64 owner)
{
	int err;

	mutex_lock(&meta->lock);
	err = krc_meta_vacate(meta, slot, key, owner);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_is_dead(struct krc_meta *meta, const u8 *fabric, u64 owner)
{
	int dead = krc_meta_begin(meta);

	if (!dead)
		dead = krc_meta_is_dead_locked(meta, fabric, owner);
	mutex_unlock(&meta->lock);
	return dead;
}

/* --- the table, and the way to it --- */

u32 krc_meta_records(const struct krc_meta *meta)
{
	const struct krc_record *records = meta->table;
	u32 count = 0;
	u32 slot;

	for (slot = 1; records && slot < TABLE_SLOTS; slot++)
		count += READ_ONCE(records[slot].key) ||
			 READ_ONCE(records[slot].owner);
	return count;
}

/* Gives the table a key, by a request on a QP of its own host. */
static int krc_meta_register(struct krc_meta *meta, struct krc_host *self)
{
	struct krc_wr *wr = &meta->wr;
	struct krc_table_place place = { .slots = TABLE_SLOTS };
	struct scatterlist sg;
	int err;

	sg_init_table(&sg, 1);
	sg_dma_address(&sg) = meta->table_dma;
	sg_dma_len(&sg) = TABLE_BYTES;
	if (ib_map_mr_sg(meta->table_mr, &sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	meta->queue->conn = krc_host_choose_conn(self);
	err = krc_conn_mend(meta->queue->conn, meta->queue);
	if (err)
		return err;
	memset(&wr->reg, 0, sizeof(wr->reg));
	wr->opcode = KRC_OP_WRITE;
	wr->reg.wr.wr_cqe = &wr->cqe;
	wr->reg.wr.opcode = IB_WR_REG_MR;
	wr->reg.wr.send_flags = IB_SEND_SIGNALED;
	wr->reg.mr = meta->table_mr;
	wr->reg.key = meta->table_mr->rkey;
	wr->reg.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC;
	err = krc_meta_submit(meta);
	meta->queue->conn = NULL;
	if (err)
		return err;
	place.addr = meta->table_mr->iova;
	place.rkey = meta->table_mr->rkey;
	krc_host_set_table(self, &place);
	return 0;
}

static int krc_meta_make_table(struct krc_meta *meta)
{
	struct krc_device *dev = meta->dev;
	int err;

	meta->table = alloc_pages_exact(TABLE_BYTES, GFP_KERNEL | __GFP_ZERO);
	if (!meta->table)
		return -ENOMEM;
	/*
	 * So that those of a former life of this module are not given again:
	 * nobody takes a thousand a second for long.
	 */
	*(u64 *)meta->table = (u32)(ktime_get_real_ns() >> 20);
	meta->table_dma = ib_dma_map_single(dev->ib, meta->table, TABLE_BYTES,
					    DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(dev->ib, meta->table_dma)) {
		meta->table_dma = 0;
		return -ENOMEM;
	}
	meta->table_mr = ib_alloc_mr(dev->pd, IB_MR_TYPE_MEM_REG,
				     TABLE_BYTES / PAGE_SIZE);
	if (IS_ERR(meta->table_mr)) {
		err = PTR_ERR(meta->table_mr);
		meta->table_mr = NULL;
		return err;
	}
	meta->swept = true;
	return krc_meta_register(meta, dev->self);
}

/* The host that has the table: the own one but if a parameter says so. */
static int krc_meta_find_server(struct krc_meta *meta)
{
	struct sockaddr_storage address;
	int err;

	meta->gid = meta->dev->gid;
	if (!*metaserver)
		return 0;
	err = inet_pton_with_scope(&init_net, AF_UNSPEC, metaserver, NULL,
				   &address);
	if (!err)
		err = rdma_ip2gid((struct sockaddr *)&address, &meta->gid);
	return err;
}

int krc_meta_init(struct krc_device *dev)
{
	struct krc_meta *meta = &dev->meta;
	int err;

	meta->dev = dev;
	mutex_init(&meta->lock);
	init_completion(&meta->done);
	meta->queue = krc_queue_create_own(dev, meta, krc_meta_done);
	if (!meta->queue)
		return -ENOMEM;
	krc_wr_init(&meta->wr, meta->queue);
	meta->buffer = (void *)get_zeroed_page(GFP_KERNEL);
	if (!meta->buffer)
		return -ENOMEM;
	meta->buffer_dma = ib_dma_map_single(dev->ib, meta->buffer, PAGE_SIZE,
					     DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(dev->ib, meta->buffer_dma)) {
		meta->buffer_dma = 0;
		return -ENOMEM;
	}
	meta->unreachable_until = jiffies;
	err = krc_meta_find_server(meta);
	if (err) {
		dev_err(&dev->ib->dev, "krcore: metaserver=%s: no IP address\n",
			metaserver);
		return err;
	}
	if (memcmp(&meta->gid, &dev->gid, sizeof(meta->gid)))
		return 0;
	err = krc_meta_make_table(meta);
	if (err)
		dev_warn(&dev->ib->dev, "krcore: no table of records: %d\n",
			 err);
	return err;
}

/* Also behind a failure of krc_meta_init. No connection has anything of it. */
void krc_meta_exit(struct krc_device *dev)
{
	struct krc_meta *meta = &dev->meta;

	if (meta->host)
		krc_host_put(meta->host);
	if (meta->table_mr)
		ib_dereg_mr(meta->table_mr);
	if (meta->table_dma)
		ib_dma_unmap_single(dev->ib, meta->table_dma, TABLE_BYTES,
				    DMA_BIDIRECTIONAL);
	if (meta->table)
		free_pages_exact(meta->table, TABLE_BYTES);
	if (meta->buffer_dma)
		ib_dma_unmap_single(dev->ib, meta->buffer_dma, PAGE_SIZE,
				    DMA_BIDIRECTIONAL);
	free_page((unsigned long)meta->buffer);
	if (meta->queue)
		krc_queue_put(meta->queue);
}
