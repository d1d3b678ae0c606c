// SPDX-License-Identifier: GPL-2.0
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "device.h"
#include "host.h"
#include "port.h"
#include "queue.h"
#include "verb.h"

#define MAX_SEGMENT_PAGES 512U
#define REGISTER_TRIES 8

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

int krc_port_divide(struct krc_port *port)
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

u64 krc_port_pages(const struct krc_port *port)
{
	u64 pages = 0;
	u32 i, count;

	for (i = 0; i < port->segment_count; i++) {
		count = krc_segment_count(&port->value, i);
		pages += PFN_UP(krc_place_offset(&port->value, i, count));
	}
	return pages;
}

int krc_port_make_memory(struct krc_port *port)
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

void krc_port_free_memory(struct krc_port *port)
{
	u32 i;

	for (i = 0; i < port->segment_count; i++)
		krc_segment_exit(&port->segments[i], port->dev);
	kvfree(port->inboxes);
	kvfree(port->receives);
	kfree(port->message);
}
