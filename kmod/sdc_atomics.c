// SPDX-License-Identifier: GPL-2.0
/*
 * Atomics of the software DC, executed by the device. The core hands them over with
 * sdc->lock held. They complete with conn.lock held, which is inside of sdc->lock,
 * so a tasklet brings the results to the core.
 *
 * An atomic that is handed over is executed within the initiators' grace of a
 * second, or never. For this, none is taken that could not be posted at once
 * (`prompt`), and the QP's retries end earlier.
 */
#include <linux/log2.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>

#include "device.h"
#include "region.h"
#include "sdc.h"

#define MAX_ATOMICS 256U
#define MEND_AGAIN (HZ / 10)

/* Times 4, times the number of tries: less than a second. */
#define ACK_TIMEOUT 13		/* 34 ms */
static_assert(4ULL * (KRC_RETRIES + 1) * (4096ULL << ACK_TIMEOUT) <
	      NSEC_PER_SEC);

/* The core's statuses are the interface's, both in the order of krcore::WcStatus. */
static_assert((int)KRC_SUCCESS == (int)SDC_SUCCESS);
static_assert((int)KRC_REMOTE_OPERATION_ERROR ==
	      (int)SDC_REMOTE_OPERATION_ERROR);
static_assert((int)KRC_RNR_RETRY_EXCEEDED == (int)SDC_RNR_RETRY_EXCEEDED);

static struct krc_sdc_atomic *krc_sdc_atomic_at(struct krc_sdc_atomics *atomics,
						u32 position)
{
	return &atomics->ring[position & (atomics->size - 1)];
}

/* Asks for it when all are done, because only a queue with nothing outstanding is mended. */
static void krc_sdc_atomics_ask_to_mend(struct krc_sdc *sdc)
{
	struct krc_sdc_atomics *atomics = &sdc->atomics;

	lockdep_assert_held(&sdc->lock);
	if (atomics->broken && atomics->posted == atomics->reported &&
	    !sdc->stopped)
		queue_delayed_work(system_long_wq, &atomics->mend, 0);
}

bool krc_sdc_atomic_post(void *context,
			 const struct sdc_atomic_request *request)
{
	struct krc_sdc *sdc = context;
	struct krc_sdc_atomics *atomics = &sdc->atomics;
	struct krc_sdc_atomic *atomic =
		krc_sdc_atomic_at(atomics, atomics->posted);
	u32 place = atomics->posted & (atomics->size - 1);
	struct krc_wr *wr = &atomic->wr;
	LIST_HEAD(batch);

	lockdep_assert_held(&sdc->lock);
	if (atomics->broken || sdc->stopped ||
	    atomics->posted - atomics->reported == atomics->size)
		return false;
	atomic->token = request->token;
	wr->opcode = request->opcode == SDC_OP_COMPARE_SWAP ?
			     KRC_OP_COMPARE_SWAP :
			     KRC_OP_FETCH_ADD;
	wr->sges[0] = (struct ib_sge){
		.addr = atomics->results_dma + place * sizeof(u64),
		.length = sizeof(u64),
		.lkey = sdc->dev->pd->local_dma_lkey,
	};
	wr->remote = sdc->held;
	krc_wr_address(wr, 1, request->addr, sdc->held->mr->rkey,
		       request->compare_add, request->swap);
	list_add(&wr->link, &batch);
	atomic64_inc(&sdc->dev->stats.requests);
	if (krc_conn_submit(&atomics->conn, atomics->queue, &batch)) {
		atomic64_dec(&sdc->dev->stats.requests);
		atomics->broken = true;
		krc_sdc_atomics_ask_to_mend(sdc);
		return false;
	}
	sdc->held = NULL;
	atomics->posted++;
	sdc->stats.atomics++;
	return true;
}

/* Context: conn->lock is held. */
static void krc_sdc_atomic_ended(struct krc_wr *wr, u8 status)
{
	struct krc_sdc_atomic *atomic =
		container_of(wr, struct krc_sdc_atomic, wr);
	struct krc_sdc_atomics *atomics = atomic->atomics;

	krc_region_put(atomic->wr.remote);
	atomic->status = status;
	/* Pairs with the acquire of krc_sdc_atomics_report. */
	smp_store_release(&atomics->done, atomics->done + 1);
	tasklet_schedule(&atomics->report);
}

static void krc_sdc_atomics_report(struct tasklet_struct *tasklet)
{
	struct krc_sdc *sdc =
		container_of(tasklet, struct krc_sdc, atomics.report);
	struct krc_sdc_atomics *atomics = &sdc->atomics;
	struct krc_sdc_atomic *atomic;
	u64 begin = local_clock();
	u32 done, place;

	/* Pairs with the release of krc_sdc_atomic_ended. */
	done = smp_load_acquire(&atomics->done);
	ib_dma_sync_single_for_cpu(sdc->dev->ib, atomics->results_dma,
				   atomics->size * sizeof(u64),
				   DMA_FROM_DEVICE);
	spin_lock_bh(&sdc->lock);
	for (; atomics->reported != done; atomics->reported++) {
		atomic = krc_sdc_atomic_at(atomics, atomics->reported);
		place = atomics->reported & (atomics->size - 1);
		if (atomic->status)
			atomics->broken = true;
		sdc_target_atomic_done(&sdc->target, &atomic->token,
				       (enum sdc_status)atomic->status,
				       atomics->results[place], krc_sdc_now());
	}
	krc_sdc_atomics_ask_to_mend(sdc);
	sdc->stats.cpu_ns += local_clock() - begin;
	spin_unlock_bh(&sdc->lock);
}

static void krc_sdc_atomics_mend(struct work_struct *work)
{
	struct krc_sdc *sdc =
		container_of(work, struct krc_sdc, atomics.mend.work);
	struct krc_sdc_atomics *atomics = &sdc->atomics;
	int err = krc_conn_mend(&atomics->conn, atomics->queue, NULL);

	spin_lock_bh(&sdc->lock);
	if (!err) {
		atomics->broken = false;
		sdc->stats.repaired++;
	} else if (!sdc->stopped) {
		queue_delayed_work(system_long_wq, &atomics->mend, MEND_AGAIN);
	}
	spin_unlock_bh(&sdc->lock);
}

/* This lock is inside of sdc->lock, which is inside of those of other connections. */
static struct lock_class_key krc_sdc_atomics_lock;

int krc_sdc_atomics_start(struct krc_sdc *sdc)
{
	struct krc_sdc_atomics *atomics = &sdc->atomics;
	struct krc_device *dev = sdc->dev;
	u32 i;
	int err = -ENOMEM;

	/* Make as many as the QP takes, so that none has to wait for a place. */
	atomics->size = rounddown_pow_of_two(min(MAX_ATOMICS, dev->sq_depth));
	atomics->ring = kvcalloc(atomics->size, sizeof(*atomics->ring),
				 GFP_KERNEL);
	atomics->results = kcalloc(atomics->size, sizeof(u64), GFP_KERNEL);
	atomics->queue = krc_queue_create_own(dev);
	if (!atomics->ring || !atomics->results || !atomics->queue)
		goto free;
	atomics->results_dma = ib_dma_map_single(dev->ib, atomics->results,
						 atomics->size * sizeof(u64),
						 DMA_FROM_DEVICE);
	if (ib_dma_mapping_error(dev->ib, atomics->results_dma))
		goto free;
	for (i = 0; i < atomics->size; i++) {
		krc_wr_init(&atomics->ring[i].wr, atomics->queue);
		atomics->ring[i].wr.ended = krc_sdc_atomic_ended;
		atomics->ring[i].atomics = atomics;
	}
	tasklet_setup(&atomics->report, krc_sdc_atomics_report);
	INIT_DELAYED_WORK(&atomics->mend, krc_sdc_atomics_mend);
	krc_conn_init(&atomics->conn, dev, &dev->gid, 0);
	lockdep_set_class(&atomics->conn.lock, &krc_sdc_atomics_lock);
	atomics->conn.ack_timeout = ACK_TIMEOUT;
	atomics->conn.prompt = true;
	krc_conn_start(&atomics->conn);
	return 0;

free:
	if (atomics->queue)
		krc_queue_put(atomics->queue);
	kfree(atomics->results);
	kvfree(atomics->ring);
	return err;
}

void krc_sdc_atomics_stop(struct krc_sdc *sdc)
{
	struct krc_sdc_atomics *atomics = &sdc->atomics;

	krc_conn_stop(&atomics->conn);
	tasklet_kill(&atomics->report);
	cancel_delayed_work_sync(&atomics->mend);
	ib_dma_unmap_single(sdc->dev->ib, atomics->results_dma,
			    atomics->size * sizeof(u64), DMA_FROM_DEVICE);
	krc_queue_put(atomics->queue);
	kfree(atomics->results);
	kvfree(atomics->ring);
}
