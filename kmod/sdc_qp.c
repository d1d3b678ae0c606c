// SPDX-License-Identifier: GPL-2.0
/* The QP of the software DC, its buffers, and the address handles of those it sends to. */
#include <linux/jhash.h>
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "device.h"
#include "sdc.h"

#define RECEIVES 512
#define SENDS 256
#define DRAIN_TIMEOUT (3 * HZ)
#define REPAIR_AGAIN (HZ / 10)

/* After a handle could not be made, its sender is tried again only after a while. */
#define MAX_HANDLES 1024
#define AGAIN HZ

static u32 krc_sdc_buffer_bytes(const struct krc_sdc *sdc)
{
	return sizeof(struct ib_grh) + sdc->mtu_bytes;
}

/* --- what is posted, and what becomes of it --- */

void krc_sdc_broke(struct krc_sdc *sdc)
{
	lockdep_assert_held(&sdc->lock);
	if (sdc->broken || sdc->stopped)
		return;
	sdc->broken = true;
	queue_delayed_work(system_long_wq, &sdc->repair, 0);
}

void krc_sdc_post_receive(struct krc_sdc *sdc, struct krc_sdc_receive *receive)
{
	lockdep_assert_held(&sdc->lock);
	ib_dma_sync_single_for_device(sdc->dev->ib, receive->sge.addr,
				      receive->sge.length, DMA_FROM_DEVICE);
	if (sdc->broken || sdc->stopped) {
		list_add(&receive->link, &sdc->idle);
	} else if (ib_post_recv(sdc->qp, &receive->wr, NULL)) {
		list_add(&receive->link, &sdc->idle);
		krc_sdc_broke(sdc);
	} else {
		sdc->receiving++;
	}
}

void krc_sdc_completed(struct krc_sdc *sdc, u32 *posted,
		       enum ib_wc_status status)
{
	lockdep_assert_held(&sdc->lock);
	if (status != IB_WC_SUCCESS)
		krc_sdc_broke(sdc);
	if (!--*posted)
		wake_up_all(&sdc->drained);
}

/* Waits until nothing of `posted` is posted any more. */
static bool krc_sdc_await(struct krc_sdc *sdc, const u32 *posted)
{
	return wait_event_timeout(sdc->drained, !READ_ONCE(*posted),
				  DRAIN_TIMEOUT);
}

/*
 * Whether all that was posted has completed. Nothing is posted any more. Sends end
 * by themselves, and must end first: rxe (6.1) flushes those of a UD QP in the
 * caller of ib_modify_qp, while the tasklet that completes them runs, and so one
 * completes twice.
 */
static bool krc_sdc_drain(struct krc_sdc *sdc)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	krc_sdc_await(sdc, &sdc->sending);
	ib_modify_qp(sdc->qp, &attr, IB_QP_STATE);
	return krc_sdc_await(sdc, &sdc->sending) &&
	       krc_sdc_await(sdc, &sdc->receiving);
}

int krc_sdc_bring_up(struct krc_sdc *sdc)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RESET,
		.port_num = sdc->dev->port,
		.qkey = SDC_QKEY,
	};
	LIST_HEAD(idle);
	struct krc_sdc_receive *receive, *next;
	int err;

	err = ib_modify_qp(sdc->qp, &attr, IB_QP_STATE);
	attr.qp_state = IB_QPS_INIT;
	if (!err)
		err = ib_modify_qp(sdc->qp, &attr,
				   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
					   IB_QP_QKEY);
	attr.qp_state = IB_QPS_RTR;
	if (!err)
		err = ib_modify_qp(sdc->qp, &attr, IB_QP_STATE);
	attr.qp_state = IB_QPS_RTS;
	if (!err)
		err = ib_modify_qp(sdc->qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
	if (err)
		return err;
	spin_lock_bh(&sdc->lock);
	sdc->broken = false;
	list_splice_init(&sdc->idle, &idle);
	list_for_each_entry_safe(receive, next, &idle, link)
		krc_sdc_post_receive(sdc, receive);
	spin_unlock_bh(&sdc->lock);
	return 0;
}

void krc_sdc_repair(struct work_struct *work)
{
	struct krc_sdc *sdc = container_of(work, struct krc_sdc, repair.work);
	bool up = krc_sdc_drain(sdc) && !krc_sdc_bring_up(sdc);

	spin_lock_bh(&sdc->lock);
	if (up)
		sdc->stats.repaired++;
	else if (!sdc->stopped)
		queue_delayed_work(system_long_wq, &sdc->repair, REPAIR_AGAIN);
	spin_unlock_bh(&sdc->lock);
}

/* --- its life --- */

static int krc_sdc_map(struct krc_sdc *sdc, u8 **buffer, struct ib_sge *sge,
		       enum dma_data_direction direction)
{
	struct ib_device *ib = sdc->dev->ib;
	u32 bytes = krc_sdc_buffer_bytes(sdc);

	*buffer = kmalloc(bytes, GFP_KERNEL);
	if (!*buffer)
		return -ENOMEM;
	sge->addr = ib_dma_map_single(ib, *buffer, bytes, direction);
	if (ib_dma_mapping_error(ib, sge->addr)) {
		kfree(*buffer);
		*buffer = NULL;
		return -ENOMEM;
	}
	sge->length = bytes;
	sge->lkey = sdc->dev->pd->local_dma_lkey;
	return 0;
}

static void krc_sdc_unmap(struct krc_sdc *sdc, u8 *buffer, struct ib_sge *sge,
			  enum dma_data_direction direction)
{
	if (buffer)
		ib_dma_unmap_single(sdc->dev->ib, sge->addr,
				    krc_sdc_buffer_bytes(sdc), direction);
	kfree(buffer);
}

int krc_sdc_alloc_buffers(struct krc_sdc *sdc)
{
	struct krc_sdc_receive *receive;
	struct krc_sdc_send *send;
	u32 i;
	int err = 0;

	sdc->receives = kvcalloc(RECEIVES, sizeof(*sdc->receives), GFP_KERNEL);
	sdc->sends = kvcalloc(SENDS, sizeof(*sdc->sends), GFP_KERNEL);
	if (!sdc->receives || !sdc->sends)
		return -ENOMEM;
	for (i = 0; i < RECEIVES && !err; i++) {
		receive = &sdc->receives[i];
		err = krc_sdc_map(sdc, &receive->buffer, &receive->sge,
				  DMA_FROM_DEVICE);
		receive->cqe.done = krc_sdc_received;
		receive->wr.wr_cqe = &receive->cqe;
		receive->wr.sg_list = &receive->sge;
		receive->wr.num_sge = 1;
		list_add_tail(&receive->link, &sdc->idle);
	}
	for (i = 0; i < SENDS && !err; i++) {
		send = &sdc->sends[i];
		err = krc_sdc_map(sdc, &send->buffer, &send->sge,
				  DMA_TO_DEVICE);
		send->cqe.done = krc_sdc_sent;
		send->wr.wr.wr_cqe = &send->cqe;
		send->wr.wr.sg_list = &send->sge;
		send->wr.wr.num_sge = 1;
		send->wr.wr.opcode = IB_WR_SEND;
		send->wr.wr.send_flags = IB_SEND_SIGNALED;
		send->wr.remote_qkey = SDC_QKEY;
		list_add_tail(&send->link, &sdc->free);
	}
	return err;
}

void krc_sdc_free_buffers(struct krc_sdc *sdc)
{
	u32 i;

	for (i = 0; sdc->receives && i < RECEIVES; i++)
		krc_sdc_unmap(sdc, sdc->receives[i].buffer,
			      &sdc->receives[i].sge, DMA_FROM_DEVICE);
	for (i = 0; sdc->sends && i < SENDS; i++)
		krc_sdc_unmap(sdc, sdc->sends[i].buffer, &sdc->sends[i].sge,
			      DMA_TO_DEVICE);
	kvfree(sdc->sends);
	kvfree(sdc->receives);
}

int krc_sdc_create_qp(struct krc_sdc *sdc)
{
	struct ib_device *ib = sdc->dev->ib;
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_UD,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = SENDS,
			.max_recv_wr = RECEIVES,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	/* Make room for all that can be posted, so that it cannot overflow. */
	sdc->cq = ib_alloc_cq_any(ib, sdc, SENDS + RECEIVES, IB_POLL_SOFTIRQ);
	if (IS_ERR(sdc->cq))
		return PTR_ERR(sdc->cq);
	init.send_cq = sdc->cq;
	init.recv_cq = sdc->cq;
	sdc->qp = ib_create_qp(sdc->dev->pd, &init);
	if (IS_ERR(sdc->qp)) {
		ib_free_cq(sdc->cq);
		return PTR_ERR(sdc->qp);
	}
	return 0;
}

void krc_sdc_destroy_qp(struct krc_sdc *sdc)
{
	krc_sdc_drain(sdc);
	ib_destroy_qp(sdc->qp);
	krc_cq_free(sdc->cq);
}

/* --- who is answered --- */

static u32 krc_sdc_hash(const u8 *address)
{
	return jhash(address, sizeof_field(struct krc_sdc_handle, address), 0);
}

void krc_sdc_handles_init(struct krc_sdc_handles *handles)
{
	hash_init(handles->by_address);
	INIT_LIST_HEAD(&handles->recent);
}

struct krc_sdc_handle *krc_sdc_handle_find(struct krc_sdc *sdc,
					   const struct sdc_address *address)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *handle;

	lockdep_assert_held(&sdc->lock);
	hash_for_each_possible(handles->by_address, handle, hash,
			       krc_sdc_hash(address->bytes)) {
		if (memcmp(handle->address, address->bytes,
			   sizeof(handle->address)))
			continue;
		list_move(&handle->link, &handles->recent);
		return handle;
	}
	return NULL;
}

bool krc_sdc_handle_is_settled(const struct krc_sdc_handle *handle)
{
	return handle && (handle->ah || time_before(jiffies, handle->again));
}

static void krc_sdc_handle_free(struct krc_sdc_handle *handle)
{
	if (!handle)
		return;
	if (handle->ah)
		rdma_destroy_ah(handle->ah, RDMA_DESTROY_AH_SLEEPABLE);
	kfree(handle);
}

static void krc_sdc_handle_remove(struct krc_sdc_handles *handles,
				  struct krc_sdc_handle *handle)
{
	hash_del(&handle->hash);
	list_del(&handle->link);
	handles->count--;
}

/* Makes room: takes the handle that was used longest ago and has nothing posted. */
static struct krc_sdc_handle *krc_sdc_handle_evict(struct krc_sdc *sdc)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *handle;

	lockdep_assert_held(&sdc->lock);
	if (handles->count < MAX_HANDLES)
		return NULL;
	list_for_each_entry_reverse(handle, &handles->recent, link) {
		if (handle->sends)
			continue;
		krc_sdc_handle_remove(handles, handle);
		return handle;
	}
	return NULL;
}

void krc_sdc_handle_make(struct krc_sdc *sdc,
			 const struct krc_sdc_receive *receive)
{
	struct krc_sdc_handles *handles = &sdc->handles;
	struct krc_sdc_handle *made, *old, *evicted;
	struct ib_ah *ah;

	made = kzalloc(sizeof(*made), GFP_KERNEL);
	if (!made)
		return;
	/* For RoCE, this call asks the network where the address is. */
	ah = ib_create_ah_from_wc(sdc->dev->pd, &receive->wc,
				  (struct ib_grh *)receive->buffer,
				  sdc->dev->port);
	made->ah = IS_ERR(ah) ? NULL : ah;
	made->again = jiffies + AGAIN;
	memcpy(made->address, receive->from.bytes, sizeof(made->address));
	spin_lock_bh(&sdc->lock);
	/* The old handle has no `ah`, so nothing is posted with it. */
	old = krc_sdc_handle_find(sdc, &receive->from);
	if (old)
		krc_sdc_handle_remove(handles, old);
	evicted = krc_sdc_handle_evict(sdc);
	if (handles->count < MAX_HANDLES) {
		hash_add(handles->by_address, &made->hash,
			 krc_sdc_hash(made->address));
		list_add(&made->link, &handles->recent);
		handles->count++;
		made = NULL;
	}
	spin_unlock_bh(&sdc->lock);
	krc_sdc_handle_free(old);
	krc_sdc_handle_free(evicted);
	krc_sdc_handle_free(made);
}

void krc_sdc_handles_destroy(struct krc_sdc *sdc)
{
	struct krc_sdc_handle *handle, *next;

	list_for_each_entry_safe(handle, next, &sdc->handles.recent, link)
		krc_sdc_handle_free(handle);
}
