// SPDX-License-Identifier: GPL-2.0
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <net/net_namespace.h>
#include <rdma/ib_addr.h>

#include "device.h"
#include "host.h"
#include "meta.h"

static char *metaserver = "";
module_param(metaserver, charp, 0444);
MODULE_PARM_DESC(metaserver,
		 "IP address of the host with the table of records (\"\": this one)");

#define TABLE_BYTES (KRC_TABLE_SLOTS * KRC_RECORD_BYTES)
/* A server that could not be reached is asked again only after this. */
#define UNREACHABLE HZ

static_assert(TABLE_BYTES % PAGE_SIZE == 0);

/* --- one verb each; meta->lock is held --- */

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
	meta->verb.conn = krc_host_choose_conn(host);
	return 0;
}

static void krc_meta_place(struct krc_meta *meta, struct krc_table_place *table)
{
	if (meta->table)
		*table = meta->dev->table;
	else
		krc_conn_get_table(meta->verb.conn, table);
}

int krc_meta_verb(struct krc_meta *meta, u8 opcode, u64 offset, u32 bytes,
		  u64 compare_add, u64 swap)
{
	struct krc_verb_op op = {
		.opcode = opcode,
		.bytes = bytes,
		.compare_add = compare_add,
		.swap = swap,
	};
	struct krc_table_place table;
	int tries, err;

	err = krc_meta_connect(meta);
	if (err)
		return err;
	/*
	 * Everything may be done twice: a WRITE, because only the owner does it; a
	 * FETCH_ADD, which skips some numbers; a CAS, see krc_meta_cas.
	 */
	for (tries = 0;; tries++) {
		err = krc_verb_mend(&meta->verb);
		/* Callers that wait for the lock need not try as well. */
		if (err == -ENETDOWN)
			meta->unreachable_until = jiffies + UNREACHABLE;
		if (err)
			return err;
		/* The server may have made the table anew. */
		krc_meta_place(meta, &table);
		if (table.slots != KRC_TABLE_SLOTS)
			return -EIO;
		op.addr = table.addr + offset;
		op.rkey = table.rkey;
		err = krc_verb_try(&meta->verb, &op);
		if (!err || err == -ENODEV)
			return err;
		if (tries == KRC_VERB_TRIES)
			return -EIO;
		krc_verb_pause(tries);
	}
}

int krc_meta_cas(struct krc_meta *meta, u64 offset, u64 compare, u64 swap,
		 bool *won)
{
	const u64 *former = meta->verb.buffer;
	int err = krc_meta_verb(meta, KRC_OP_COMPARE_SWAP, offset, sizeof(u64),
				compare, swap);

	*won = !err && (*former == compare || *former == swap);
	return err;
}

/* --- the table, and the way to it --- */

u32 krc_meta_records(const struct krc_meta *meta)
{
	const struct krc_record *records = meta->table;
	u32 count = 0;
	u32 slot;

	for (slot = 1; records && slot < KRC_TABLE_SLOTS; slot++)
		count += READ_ONCE(records[slot].key) ||
			 READ_ONCE(records[slot].owner);
	return count;
}

/* Gives the table a key, by a request on a QP of its own host. */
static int krc_meta_register(struct krc_meta *meta, struct krc_host *self)
{
	struct scatterlist sg;
	int err;

	sg_init_table(&sg, 1);
	sg_dma_address(&sg) = meta->table_dma;
	sg_dma_len(&sg) = TABLE_BYTES;
	if (ib_map_mr_sg(meta->table_mr, &sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	meta->verb.conn = krc_host_choose_conn(self);
	err = krc_verb_register(&meta->verb, meta->table_mr);
	if (err)
		return err;
	meta->dev->table.addr = meta->table_mr->iova;
	meta->dev->table.rkey = meta->table_mr->rkey;
	meta->dev->table.slots = KRC_TABLE_SLOTS;
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
	 * Numbers of a former life of this module must not be given out again:
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
	return krc_meta_register(meta, dev->hosts->self);
}

/* Finds the host that has the table: this host unless a parameter says otherwise. */
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
	struct krc_meta *meta = dev->meta;
	int err;

	meta->dev = dev;
	mutex_init(&meta->lock);
	err = krc_verb_init(&meta->verb, dev);
	if (err)
		return err;
	meta->unreachable_until = jiffies;
	err = krc_meta_find_server(meta);
	if (err) {
		dev_err(&dev->ib->dev, "krcore: metaserver=%s: no IP address\n",
			metaserver);
		return err;
	}
	if (!krc_device_is_at(dev, &meta->gid))
		return 0;
	err = krc_meta_make_table(meta);
	if (err)
		dev_warn(&dev->ib->dev, "krcore: no table of records: %d\n",
			 err);
	return err;
}

/* May be called after a failure of krc_meta_init. No connection uses it any more. */
void krc_meta_exit(struct krc_device *dev)
{
	struct krc_meta *meta = dev->meta;

	if (!meta->dev)
		return;		/* krc_meta_init was not called */
	if (meta->host)
		krc_host_put(meta->host);
	if (meta->table_mr)
		ib_dereg_mr(meta->table_mr);
	if (meta->table_dma)
		ib_dma_unmap_single(dev->ib, meta->table_dma, TABLE_BYTES,
				    DMA_BIDIRECTIONAL);
	if (meta->table)
		free_pages_exact(meta->table, TABLE_BYTES);
	krc_verb_exit(&meta->verb);
}
