// SPDX-License-Identifier: GPL-2.0
#include <linux/debugfs.h>
#include <linux/random.h>
#include <linux/sched/clock.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

#include "device.h"
#include "queue.h"
#include "region.h"
#include "sdc.h"

#define SESSIONS 1024
#define MAX_STRANGERS 64
/* Twice the idle time within which initiators rely on a session. */
#define HOLD_NS (2 * NSEC_PER_SEC)

static_assert((int)SDC_ACCESS_READ == (int)KRC_REMOTE_READ);
static_assert((int)SDC_ACCESS_WRITE == (int)KRC_REMOTE_WRITE);
static_assert((int)SDC_ACCESS_ATOMIC == (int)KRC_REMOTE_ATOMIC);

u64 krc_sdc_now(void)
{
	return ktime_get_boottime_ns();
}

/* --- what the core asks for; all with sdc->lock held --- */

static void krc_sdc_let_go(struct krc_sdc *sdc)
{
	if (sdc->held)
		krc_region_put(sdc->held);
	sdc->held = NULL;
}

static void *krc_sdc_memory(void *context, u32 rkey, u64 addr, u32 length,
			    u32 access)
{
	struct krc_sdc *sdc = context;

	krc_sdc_let_go(sdc);
	sdc->held = krc_region_get(sdc->dev, NULL, rkey, addr, length, access);
	/* Pairs with the store of krc_region_describe: a published region has a map. */
	if (!sdc->held || !smp_load_acquire(&sdc->held->published))
		return NULL;
	return sdc->held->map + (addr - sdc->held->addr);
}

u8 *krc_sdc_buffer(void *context)
{
	struct krc_sdc *sdc = context;
	struct krc_sdc_send *send;

	send = list_first_entry_or_null(&sdc->free, struct krc_sdc_send, link);
	if (!send) {
		sdc->stats.congested++;
		return NULL;
	}
	ib_dma_sync_single_for_cpu(sdc->dev->ib, send->sge.addr, sdc->mtu_bytes,
				   DMA_TO_DEVICE);
	return send->buffer;
}

void krc_sdc_post_send(struct krc_sdc *sdc, struct krc_sdc_handle *handle,
		       u32 qpn, u32 bytes)
{
	struct krc_sdc_send *send;

	lockdep_assert_held(&sdc->lock);
	if (!handle || !handle->ah || sdc->broken || sdc->stopped) {
		sdc->stats.unreachable++;
		return;
	}
	/* It is the one that krc_sdc_buffer returned. */
	send = list_first_entry(&sdc->free, struct krc_sdc_send, link);
	send->sge.length = bytes;
	send->wr.ah = handle->ah;
	send->wr.remote_qpn = qpn;
	ib_dma_sync_single_for_device(sdc->dev->ib, send->sge.addr,
				      sdc->mtu_bytes, DMA_TO_DEVICE);
	if (ib_post_send(sdc->qp, &send->wr.wr, NULL)) {
		krc_sdc_broke(sdc);
		return;
	}
	list_del(&send->link);
	send->handle = handle;
	handle->sends++;
	sdc->sending++;
}

static void krc_sdc_answer(void *context, const struct sdc_address *to,
			   u32 bytes)
{
	struct krc_sdc *sdc = context;

	krc_sdc_post_send(sdc, krc_sdc_handle_find(sdc, to), to->qpn, bytes);
}

static const struct sdc_target_ops krc_sdc_ops = {
	.memory = krc_sdc_memory,
	.atomic = krc_sdc_atomic_post,
	.buffer = krc_sdc_buffer,
	.send = krc_sdc_answer,
};

/* --- datagrams --- */

static void *krc_sdc_payload(const struct krc_sdc_receive *receive)
{
	return receive->buffer + sizeof(struct ib_grh);
}

static void krc_sdc_serve(struct krc_sdc *sdc, struct krc_sdc_receive *receive,
			  u32 bytes)
{
	lockdep_assert_held(&sdc->lock);
	if (!krc_dci_receive(sdc, krc_sdc_payload(receive), bytes)) {
		sdc_target_receive(&sdc->target, &receive->from,
				   krc_sdc_payload(receive), bytes,
				   krc_sdc_now());
		krc_sdc_let_go(sdc);
	}
	krc_sdc_post_receive(sdc, receive);
}

/* Returns how long the datagram of a completed receive is. */
static u32 krc_sdc_bytes(const struct ib_wc *wc)
{
	return wc->byte_len - min_t(u32, wc->byte_len, sizeof(struct ib_grh));
}

/* Finds where it came from; what it says of that is trusted for nothing else. */
static bool krc_sdc_find_sender(const struct krc_sdc *sdc,
				const struct ib_wc *wc, const void *header,
				struct sdc_address *from)
{
	const struct krc_device *dev = sdc->dev;
	enum rdma_network_type type = RDMA_NETWORK_IB;
	union ib_gid source, destination;

	memset(from, 0, sizeof(*from));
	from->qpn = wc->src_qp;
	if (rdma_protocol_roce(dev->ib, dev->port)) {
		if (wc->wc_flags & IB_WC_WITH_NETWORK_HDR_TYPE)
			type = wc->network_hdr_type;
		else if (dev->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
			type = RDMA_NETWORK_ROCE_V1;
		else if (ipv6_addr_v4mapped((struct in6_addr *)dev->gid.raw))
			type = RDMA_NETWORK_IPV4;
		else
			type = RDMA_NETWORK_IPV6;
	} else {
		memcpy(from->bytes + sizeof(source), &wc->slid,
		       sizeof(wc->slid));
	}
	if (!(wc->wc_flags & IB_WC_GRH))
		return type == RDMA_NETWORK_IB;
	if (ib_get_gids_from_rdma_hdr(header, type, &source, &destination))
		return false;
	memcpy(from->bytes, source.raw, sizeof(source));
	return true;
}

/* Whether it is worth asking where its sender is. */
static bool krc_sdc_is_request(struct krc_sdc *sdc,
			       const struct krc_sdc_receive *receive, u32 bytes)
{
	struct sdc_packet packet;

	return sdc_parse(krc_sdc_payload(receive), bytes, &packet) &&
	       sdc_is_request(packet.kind) &&
	       packet.target == sdc->target.config.number;
}

static void krc_sdc_arrived(struct krc_sdc *sdc,
			    struct krc_sdc_receive *receive,
			    const struct ib_wc *wc)
{
	u32 bytes = krc_sdc_bytes(wc);

	lockdep_assert_held(&sdc->lock);
	ib_dma_sync_single_for_cpu(sdc->dev->ib, receive->sge.addr,
				   receive->sge.length, DMA_FROM_DEVICE);
	if (!krc_sdc_find_sender(sdc, wc, receive->buffer, &receive->from)) {
		sdc->stats.dropped++;
		krc_sdc_post_receive(sdc, receive);
		return;
	}
	if (krc_sdc_handle_is_settled(krc_sdc_handle_find(sdc,
							  &receive->from)) ||
	    !krc_sdc_is_request(sdc, receive, bytes)) {
		krc_sdc_serve(sdc, receive, bytes);
		return;
	}
	if (sdc->stranger_count == MAX_STRANGERS || sdc->stopped) {
		sdc->stats.dropped++;
		krc_sdc_post_receive(sdc, receive);
		return;
	}
	receive->wc = *wc;
	list_add_tail(&receive->link, &sdc->strangers);
	sdc->stranger_count++;
	queue_work(system_long_wq, &sdc->greet);
}

void krc_sdc_received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krc_sdc_receive *receive =
		container_of(wc->wr_cqe, struct krc_sdc_receive, cqe);
	struct krc_sdc *sdc = cq->cq_context;
	u64 begin = local_clock();

	spin_lock_bh(&sdc->lock);
	krc_sdc_completed(sdc, &sdc->receiving, wc->status);
	if (wc->status == IB_WC_SUCCESS)
		krc_sdc_arrived(sdc, receive, wc);
	else
		list_add(&receive->link, &sdc->idle);
	sdc->stats.cpu_ns += local_clock() - begin;
	spin_unlock_bh(&sdc->lock);
}

void krc_sdc_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krc_sdc_send *send =
		container_of(wc->wr_cqe, struct krc_sdc_send, cqe);
	struct krc_sdc *sdc = cq->cq_context;

	spin_lock_bh(&sdc->lock);
	krc_sdc_completed(sdc, &sdc->sending, wc->status);
	send->handle->sends--;
	list_add(&send->link, &sdc->free);
	spin_unlock_bh(&sdc->lock);
}

/* Handles new senders, one after the other: each may take the network's time. */
static void krc_sdc_greet(struct work_struct *work)
{
	struct krc_sdc *sdc = container_of(work, struct krc_sdc, greet);
	struct krc_sdc_receive *receive;
	bool settled;
	u64 begin;

	for (;;) {
		spin_lock_bh(&sdc->lock);
		receive = list_first_entry_or_null(&sdc->strangers,
						   struct krc_sdc_receive,
						   link);
		if (!receive || sdc->stopped) {
			spin_unlock_bh(&sdc->lock);
			return;
		}
		list_del(&receive->link);
		sdc->stranger_count--;
		settled = krc_sdc_handle_is_settled(krc_sdc_handle_find(sdc,
									&receive->from));
		spin_unlock_bh(&sdc->lock);
		if (!settled)
			krc_sdc_handle_make(sdc, receive);
		spin_lock_bh(&sdc->lock);
		begin = local_clock();
		krc_sdc_serve(sdc, receive, krc_sdc_bytes(&receive->wc));
		sdc->stats.cpu_ns += local_clock() - begin;
		spin_unlock_bh(&sdc->lock);
	}
}

/* --- its life --- */

static int stats_show(struct seq_file *file, void *unused)
{
	struct krc_sdc *sdc = file->private;
	struct sdc_target_stats core;
	struct krc_sdc_stats own;
	u32 handles;

	spin_lock_bh(&sdc->lock);
	core = sdc->target.stats;
	own = sdc->stats;
	handles = sdc->handles.count;
	spin_unlock_bh(&sdc->lock);
	seq_printf(file, "packets %llu\nmalformed %llu\nexecuted %llu\n",
		   core.packets, core.malformed, core.executed);
	seq_printf(file, "repeated %llu\nearly %llu\nexpired %llu\n",
		   core.repeated, core.early, core.expired);
	seq_printf(file, "strangers %llu\n", core.strangers);
	seq_printf(file, "sessions_made %llu\nsessions_evicted %llu\n",
		   core.sessions_made, core.sessions_evicted);
	seq_printf(file, "busy %llu\natomics %llu\nhandles %u\n", core.busy,
		   own.atomics, handles);
	seq_printf(file, "dropped %llu\nunreachable %llu\ncongested %llu\n",
		   own.dropped, own.unreachable, own.congested);
	seq_printf(file, "unmapped %lld\nrepaired %llu\ncpu_ns %llu\n",
		   atomic64_read(&sdc->dev->stats.unmapped), own.repaired,
		   own.cpu_ns);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static void krc_sdc_free(struct krc_sdc *sdc)
{
	krc_dcis_exit(sdc);
	krc_sdc_free_buffers(sdc);
	kvfree(sdc->sessions);
	kfree(sdc);
}

static int krc_sdc_create(struct krc_device *dev)
{
	struct sdc_target_config config = {
		.ops = &krc_sdc_ops,
		.seed = get_random_u64(),
		.key = get_random_u64(),
		.access = SDC_ACCESS_READ | SDC_ACCESS_WRITE |
			  SDC_ACCESS_ATOMIC,
		.hold_ns = HOLD_NS,
		.session_count = SESSIONS,
	};
	struct ib_port_attr port;
	struct krc_sdc *sdc;
	int err;

	err = ib_query_port(dev->ib, dev->port, &port);
	if (err)
		return err;
	sdc = kzalloc(sizeof(*sdc), GFP_KERNEL);
	if (!sdc)
		return -ENOMEM;
	sdc->dev = dev;
	sdc->mtu_bytes = ib_mtu_enum_to_int(port.active_mtu);
	sdc->broken = true;	/* until krc_sdc_bring_up */
	spin_lock_init(&sdc->lock);
	INIT_LIST_HEAD(&sdc->idle);
	INIT_LIST_HEAD(&sdc->strangers);
	INIT_LIST_HEAD(&sdc->free);
	init_waitqueue_head(&sdc->drained);
	INIT_WORK(&sdc->greet, krc_sdc_greet);
	INIT_DELAYED_WORK(&sdc->repair, krc_sdc_repair);
	krc_sdc_handles_init(&sdc->handles);
	sdc->sessions = kvcalloc(SESSIONS, sizeof(*sdc->sessions), GFP_KERNEL);
	err = sdc->sessions ? krc_sdc_alloc_buffers(sdc) : -ENOMEM;
	if (!err)
		err = krc_dcis_init(sdc);
	if (err)
		goto free;
	err = krc_sdc_create_qp(sdc);
	if (err)
		goto free;
	err = krc_sdc_atomics_start(sdc);
	if (err)
		goto destroy_qp;
	config.context = sdc;
	config.number = sdc->qp->qp_num;
	config.mtu_bytes = sdc->mtu_bytes;
	config.sessions = sdc->sessions;
	sdc_target_init(&sdc->target, &config);
	err = krc_sdc_bring_up(sdc);
	if (err)
		goto stop_atomics;
	sdc->debugfs = debugfs_create_file("software_dc", 0444, dev->debugfs,
					   sdc, &stats_fops);
	dev->sdc = sdc;
	dev->stand_in = &krc_dci_stand_in;
	return 0;

stop_atomics:
	krc_sdc_atomics_stop(sdc);
destroy_qp:
	krc_sdc_destroy_qp(sdc);
free:
	krc_sdc_free(sdc);
	return err;
}

void krc_sdc_start(struct krc_device *dev)
{
	int err = krc_sdc_create(dev);

	if (err)
		dev_warn(&dev->ib->dev, "krcore: no software DC: %d\n", err);
}

void krc_sdc_stop(struct krc_device *dev)
{
	struct krc_sdc *sdc = dev->sdc;

	if (!sdc)
		return;
	debugfs_remove(sdc->debugfs);	/* waits for its readers */
	spin_lock_bh(&sdc->lock);
	sdc->stopped = true;
	spin_unlock_bh(&sdc->lock);
	krc_dcis_stop(sdc);
	cancel_work_sync(&sdc->greet);
	cancel_delayed_work_sync(&sdc->repair);
	krc_sdc_destroy_qp(sdc);
	krc_sdc_atomics_stop(sdc);
}

void krc_sdc_exit(struct krc_device *dev)
{
	if (!dev->sdc)
		return;
	krc_sdc_handles_destroy(dev->sdc);
	krc_sdc_free(dev->sdc);
}

void krc_sdc_break(struct krc_device *dev)
{
	if (!dev->sdc)
		return;
	krc_conn_break(&dev->sdc->atomics.conn);
	spin_lock_bh(&dev->sdc->lock);
	krc_sdc_broke(dev->sdc);
	spin_unlock_bh(&dev->sdc->lock);
}

int krc_queue_dc_target(struct krc_queue *queue, struct krc_dc_target *target)
{
	const struct krc_sdc *sdc;
	int err = krc_queue_usable(queue);

	if (err)
		return err;
	sdc = queue->dev->sdc;
	if (!sdc)
		return -EOPNOTSUPP;
	*target = (struct krc_dc_target){
		.key = sdc->target.config.key,
		.number = sdc->target.config.number,
	};
	memcpy(target->gid, queue->dev->gid.raw, sizeof(target->gid));
	return 0;
}
