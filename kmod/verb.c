// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/slab.h>

#include "device.h"
#include "verb.h"

/* Context: conn->lock is held. */
static void krc_verb_ended(struct krc_wr *wr, u8 status)
{
	struct krc_verb *verb = container_of(wr, struct krc_verb, wr);

	verb->status = status;
	if (verb->ended)
		verb->ended(verb);
	/* From here on it may be freed. */
	complete_all(&verb->done);
}

int krc_verb_init(struct krc_verb *verb, struct krc_device *dev)
{
	verb->dev = dev;
	init_completion(&verb->done);
	complete_all(&verb->done);
	verb->queue = krc_queue_create_own(dev);
	if (!verb->queue)
		return -ENOMEM;
	krc_wr_init(&verb->wr, verb->queue);
	verb->wr.ended = krc_verb_ended;
	verb->buffer = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!verb->buffer)
		return -ENOMEM;
	verb->dma = ib_dma_map_single(dev->ib, verb->buffer, PAGE_SIZE,
				      DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(dev->ib, verb->dma)) {
		verb->dma = 0;
		return -ENOMEM;
	}
	return 0;
}

void krc_verb_exit(struct krc_verb *verb)
{
	wait_for_completion(&verb->done);
	if (verb->dma)
		ib_dma_unmap_single(verb->dev->ib, verb->dma, PAGE_SIZE,
				    DMA_BIDIRECTIONAL);
	free_page((unsigned long)verb->buffer);
	if (verb->queue)
		krc_queue_put(verb->queue);
}

bool krc_verb_is_idle(struct krc_verb *verb)
{
	return completion_done(&verb->done);
}

static int krc_verb_submit(struct krc_verb *verb)
{
	LIST_HEAD(batch);
	int err;

	reinit_completion(&verb->done);
	list_add(&verb->wr.link, &batch);
	atomic64_inc(&verb->dev->stats.requests);
	err = krc_conn_submit(verb->conn, verb->queue, &batch);
	if (err) {
		atomic64_dec(&verb->dev->stats.requests);
		complete_all(&verb->done);
	}
	return err;
}

int krc_verb_begin(struct krc_verb *verb, const struct krc_verb_op *op)
{
	struct krc_wr *wr = &verb->wr;

	wr->opcode = op->opcode;
	wr->sges[0] = (struct ib_sge){
		.addr = verb->dma,
		.length = op->bytes,
		.lkey = verb->dev->pd->local_dma_lkey,
	};
	krc_wr_address(wr, 1, op->addr, op->rkey, op->compare_add, op->swap);
	ib_dma_sync_single_for_device(verb->dev->ib, verb->dma, PAGE_SIZE,
				      DMA_BIDIRECTIONAL);
	return krc_verb_submit(verb);
}

/* How it ended. */
static int krc_verb_wait(struct krc_verb *verb)
{
	/* A QP's retries end it if nothing else does. */
	wait_for_completion(&verb->done);
	ib_dma_sync_single_for_cpu(verb->dev->ib, verb->dma, PAGE_SIZE,
				   DMA_BIDIRECTIONAL);
	switch (verb->status) {
	case KRC_SUCCESS:
		return 0;
	case KRC_REMOTE_ACCESS_ERROR:
		return -EPIPE;
	default:
		return -EIO;
	}
}

int krc_verb_mend(struct krc_verb *verb)
{
	return krc_conn_mend(verb->conn, verb->queue, NULL);
}

int krc_verb_try(struct krc_verb *verb, const struct krc_verb_op *op)
{
	int err = krc_verb_begin(verb, op);

	return err ?: krc_verb_wait(verb);
}

void krc_verb_pause(int tries)
{
	msleep(4 * tries);
}

int krc_verb_run(struct krc_verb *verb, const struct krc_verb_op *op)
{
	int tries, err;

	for (tries = 0;; tries++) {
		err = krc_verb_mend(verb);
		if (err)
			return err;
		err = krc_verb_try(verb, op);
		if (!err || err == -ENODEV || err == -EPIPE ||
		    tries == KRC_VERB_TRIES)
			return err == -ECONNRESET ? -EIO : err;
		krc_verb_pause(tries);
	}
}

int krc_verb_register(struct krc_verb *verb, struct ib_mr *mr)
{
	int err = krc_verb_mend(verb);

	if (err)
		return err;
	krc_wr_register(&verb->wr, mr);
	err = krc_verb_submit(verb);
	return err ?: krc_verb_wait(verb);
}
