// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/inet.h>
#include <linux/module.h>
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

#define TABLE_BYTES (KRC_TABLE_SLOTS * KRC_RECORD_BYTES)
#define TRIES 8
/* A server that could not be reached is asked again after that. */
#define UNREACHABLE HZ

static_assert(TABLE_BYTES % PAGE_SIZE == 0);

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

int krc_meta_verb(struct krc_meta *meta, u8 opcode, u64 offset, u32 bytes,
		  u64 compare, u64 swap)
{
	struct krc_table_place table;
	struct krc_wr *wr = &meta->wr;
	int tries, err;

	err = krc_meta_connect(meta);
	for (tries = 0; !err; tries++) {
		err = krc_conn_mend(meta->queue->conn, meta->queue, NULL);
		/* Those who wait for the lock need not try, too. */
		if (err == -ENETDOWN)
			meta->unreachable_until = jiffies + UNREACHABLE;
		if (err)
			break;
		krc_host_get_table(meta->host, &table);
		if (table.slots != KRC_TABLE_SLOTS)
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

int krc_meta_cas(struct krc_meta *meta, u64 offset, u64 compare, u64 swap,
		 bool *won)
{
	const u64 *former = meta->buffer;
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
	struct krc_wr *wr = &meta->wr;
	struct krc_table_place place = { .slots = KRC_TABLE_SLOTS };
	struct scatterlist sg;
	int err;

	sg_init_table(&sg, 1);
	sg_dma_address(&sg) = meta->table_dma;
	sg_dma_len(&sg) = TABLE_BYTES;
	if (ib_map_mr_sg(meta->table_mr, &sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	meta->queue->conn = krc_host_choose_conn(self);
	err = krc_conn_mend(meta->queue->conn, meta->queue, NULL);
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
