// SPDX-License-Identifier: GPL-2.0
/* Initiators of the software DC; their core is ../krcore/rnic/sdc/initiator.h. */
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

#include "conn.h"
#include "device.h"
#include "krcore/rnic/sdc/initiator.h"
#include "region.h"
#include "sdc.h"

static bool stand_in = true;
module_param(stand_in, bool, 0644);
MODULE_PARM_DESC(stand_in,
		 "software DC serves until RC QPs to a host are there");

/* If more hosts are connected to at the same time, the rest wait for their QPs. */
#define DCIS 32
/* There is only one peer: the host of the connection. */
#define PEERS SDC_PEER_WAYS
/* The delay before the next look for a buffer to send from. */
#define STARVED_NS NSEC_PER_MSEC

/* The same as for the initiators of user space, see docs/software_dc.md. */
static const struct sdc_timing krc_dci_timing = {
	.limit_ns = 2 * NSEC_PER_SEC,
	.grace_ns = NSEC_PER_SEC,
	.retry_ns = 4 * NSEC_PER_MSEC,
	.retry_max_ns = 64 * NSEC_PER_MSEC,
	.idle_ns = NSEC_PER_SEC,
	.rnr_ns = NSEC_PER_MSEC,
	.retries = 20,
	.rnr_retries = 6,
};

static_assert((int)KRC_FLUSHED == (int)SDC_FLUSHED);
static_assert((int)KRC_RETRY_EXCEEDED == (int)SDC_RETRY_EXCEEDED);

struct krc_dci {
	struct krc_sdc *sdc;
	struct krc_conn *conn;		/* its requests, in this life */
	struct tasklet_struct drive;
	struct timer_list timer;	/* schedules it */
	struct work_struct prepare;	/* makes the address handle */
	struct krc_dc_place place;
	union ib_gid gid;

	/* sdc->lock guards these. */
	bool taken;
	bool running;			/* from begin to end */
	bool ready;			/* `prepare` is done */
	bool starved;			/* it had no buffer */
	struct krc_sdc_handle handle;
	struct sdc_initiator core;
	struct sdc_queued_wr wrs[KRC_STAND_IN_DEPTH];
	struct sdc_peer peers[PEERS];
};

/* --- what the core asks for; all with sdc->lock held --- */

/* The addresses are already those of maps; the request holds the regions. */
static void *krc_dci_local(void *context, u32 lkey, u64 addr, u32 length,
			   bool written)
{
	return (void *)(uintptr_t)addr;
}

static u8 *krc_dci_buffer(void *context)
{
	struct krc_dci *dci = context;
	u8 *buffer = krc_sdc_buffer(dci->sdc);

	dci->starved |= !buffer;
	return buffer;
}

static void krc_dci_send(void *context, const struct sdc_address *to, u32 bytes)
{
	struct krc_dci *dci = context;

	krc_sdc_post_send(dci->sdc, &dci->handle, to->qpn, bytes);
}

static const struct sdc_initiator_ops krc_dci_core_ops = {
	.local = krc_dci_local,
	.buffer = krc_dci_buffer,
	.send = krc_dci_send,
};

/* --- its work --- */

static void krc_dci_set_timer(struct krc_dci *dci, u64 now)
{
	u64 next = dci->starved ? now + STARVED_NS :
				  sdc_initiator_next(&dci->core, now);

	if (next != U64_MAX)
		mod_timer(&dci->timer,
			  jiffies + nsecs_to_jiffies(next - now) + 1);
}

/* Sends, and takes what has ended. Returns whether it failed: then everything has. */
static bool krc_dci_run(struct krc_dci *dci, struct sdc_completion *done,
			u32 *count)
{
	u64 now = krc_sdc_now();
	bool failed;

	lockdep_assert_held(&dci->sdc->lock);
	if (!dci->ready || dci->sdc->stopped)
		return false;
	dci->starved = false;
	sdc_initiator_run(&dci->core, now);
	while (*count < KRC_STAND_IN_DEPTH &&
	       sdc_initiator_poll(&dci->core, &done[*count]))
		++*count;
	failed = dci->core.state == SDC_QUEUE_ERROR;
	if (failed) {
		/* There are no more completions than `done` has places. */
		sdc_initiator_reset(&dci->core, now);
		sdc_initiator_run(&dci->core, now);
	}
	if (dci->running)
		krc_dci_set_timer(dci, now);
	return failed;
}

static void krc_dci_drive(struct tasklet_struct *tasklet)
{
	struct krc_dci *dci = from_tasklet(dci, tasklet, drive);
	struct sdc_completion done[KRC_STAND_IN_DEPTH];
	struct krc_sdc *sdc = dci->sdc;
	struct krc_conn *conn = dci->conn;
	u32 count = 0;
	bool failed;
	u64 begin;
	u32 i;

	spin_lock_bh(&conn->lock);
	spin_lock(&sdc->lock);
	begin = local_clock();
	failed = krc_dci_run(dci, done, &count);
	sdc->stats.cpu_ns += local_clock() - begin;
	spin_unlock(&sdc->lock);
	for (i = 0; i < count; i++)
		krc_conn_dci_done(conn,
				  (struct krc_wr *)(uintptr_t)done[i].wr_id,
				  done[i].status);
	krc_conn_dci_ran(conn, failed);
	spin_unlock_bh(&conn->lock);
	wake_up_all(&sdc->dcis.settled);
}

static void krc_dci_timeout(struct timer_list *timer)
{
	struct krc_dci *dci = container_of(timer, struct krc_dci, timer);

	tasklet_schedule(&dci->drive);
}

static struct ib_ah *krc_dci_make_ah(struct krc_dci *dci)
{
	struct krc_device *dev = dci->sdc->dev;
	struct rdma_ah_attr attr = {
		.type = rdma_ah_find_type(dev->ib, dev->port),
	};
	const struct ib_gid_attr *gid;
	struct ib_ah *ah;

	gid = rdma_find_gid_by_port(dev->ib, &dev->gid, dev->gid_type,
				    dev->port, NULL);
	if (IS_ERR(gid))
		return ERR_CAST(gid);
	rdma_ah_set_port_num(&attr, dev->port);
	rdma_ah_set_grh(&attr, &dci->gid, 0, gid->index, 64, 0);
	/* This call asks the network where the address is. */
	ah = rdma_create_user_ah(dev->pd, &attr, NULL);
	rdma_put_gid_attr(gid);
	return ah;
}

static void krc_dci_prepare(struct work_struct *work)
{
	struct krc_dci *dci = container_of(work, struct krc_dci, prepare);
	struct ib_ah *former = dci->handle.ah;
	struct ib_ah *ah = krc_dci_make_ah(dci);

	spin_lock_bh(&dci->sdc->lock);
	dci->handle.ah = IS_ERR(ah) ? NULL : ah;
	dci->ready = true;
	/* Nothing was sent, so the connection has to wait for its QP. */
	if (IS_ERR(ah))
		sdc_initiator_fail(&dci->core, krc_sdc_now());
	spin_unlock_bh(&dci->sdc->lock);
	if (former)
		rdma_destroy_ah(former, RDMA_DESTROY_AH_SLEEPABLE);
	tasklet_schedule(&dci->drive);
}

bool krc_dci_receive(struct krc_sdc *sdc, const void *packet, u32 bytes)
{
	const struct sdc_header *header = packet;
	struct krc_dci *dci;
	u32 place;

	lockdep_assert_held(&sdc->lock);
	if (bytes < sizeof(*header) || !sdc_is_answer(header->kind))
		return false;
	place = SDC_LE32(header->tag) / PEERS;
	dci = place < DCIS ? &sdc->dcis.all[place] : NULL;
	if (!dci || !dci->running)
		return false;
	sdc_initiator_receive(&dci->core, packet, bytes, krc_sdc_now());
	tasklet_schedule(&dci->drive);
	return true;
}

/* --- its users: connections --- */

void krc_dc_get_place(const struct krc_device *dev, struct krc_dc_place *place)
{
	memset(place, 0, sizeof(*place));
	if (!dev->sdc)
		return;
	place->key = dev->sdc->target.config.key;
	place->number = dev->sdc->target.config.number;
	place->mtu_bytes = dev->sdc->mtu_bytes;
}

static struct krc_dci *krc_dci_take(struct krc_device *dev,
				    const struct krc_dc_place *to,
				    const union ib_gid *gid)
{
	struct krc_sdc *sdc = dev->sdc;
	struct krc_dci *taken = NULL;
	struct krc_dci *dci;

	/* InfiniBand is not supported: a GID does not say which LID it has. */
	if (!READ_ONCE(stand_in) || !sdc || !to->number ||
	    to->mtu_bytes != sdc->mtu_bytes ||
	    !rdma_protocol_roce(dev->ib, dev->port))
		return NULL;
	spin_lock_bh(&sdc->lock);
	for (dci = sdc->dcis.all; dci < sdc->dcis.all + DCIS; dci++) {
		/* Sends of a former life use its address handle. */
		if (sdc->stopped || dci->taken || dci->handle.sends)
			continue;
		dci->taken = true;
		taken = dci;
		break;
	}
	spin_unlock_bh(&sdc->lock);
	if (taken) {
		taken->place = *to;
		taken->gid = *gid;
	}
	return taken;
}

static void krc_dci_put(struct krc_dci *dci)
{
	spin_lock_bh(&dci->sdc->lock);
	dci->taken = false;
	spin_unlock_bh(&dci->sdc->lock);
}

static bool krc_dci_serves(const struct krc_dci *dci,
			   const struct krc_dc_place *to)
{
	return dci->place.key == to->key && dci->place.number == to->number &&
	       dci->place.mtu_bytes == to->mtu_bytes;
}

static void krc_dci_begin(struct krc_dci *dci, struct krc_conn *conn)
{
	struct krc_sdc *sdc = dci->sdc;
	const struct sdc_initiator_config config = {
		.ops = &krc_dci_core_ops,
		.context = dci,
		.life = get_random_u64(),
		.mtu_bytes = sdc->mtu_bytes,
		.max_message_bytes = KRC_STAND_IN_MAX_BYTES,
		.timing = krc_dci_timing,
		.wrs = dci->wrs,
		.depth = KRC_STAND_IN_DEPTH,
		.peers = dci->peers,
		.peer_count = PEERS,
		.first_tag = (dci - sdc->dcis.all) * PEERS,
	};

	lockdep_assert_held(&conn->lock);
	dci->conn = conn;
	spin_lock(&sdc->lock);
	sdc_initiator_init(&dci->core, &config);
	dci->ready = false;
	dci->starved = false;
	dci->running = true;
	spin_unlock(&sdc->lock);
	queue_work(system_long_wq, &dci->prepare);
}

static void krc_dci_post(struct krc_dci *dci, struct krc_wr *wr)
{
	struct sdc_wr posted = {
		.wr_id = (uintptr_t)wr,
		.opcode = (enum sdc_opcode)wr->opcode,
		.flags = SDC_SIGNALED,
		.sge_count = wr->num_sge,
		.rkey = wr->key,
		.to.qpn = dci->place.number,
		.target = dci->place.number,
		.key = dci->place.key,
	};
	const struct krc_region *region;
	u32 i;

	lockdep_assert_held(&dci->conn->lock);
	memcpy(posted.to.bytes, dci->gid.raw, sizeof(dci->gid.raw));
	for (i = 0; i < wr->num_sge; i++) {
		region = wr->local[i];
		posted.sges[i].addr = (uintptr_t)region->map +
				      (wr->sges[i].addr - region->addr);
		posted.sges[i].length = wr->sges[i].length;
	}
	if (wr->opcode == KRC_OP_READ || wr->opcode == KRC_OP_WRITE) {
		posted.remote_addr = wr->rdma.remote_addr;
	} else {
		posted.remote_addr = wr->atomic.remote_addr;
		posted.compare_add = wr->atomic.compare_add;
		posted.swap = wr->atomic.swap;
	}
	spin_lock(&dci->sdc->lock);
	/* The core takes whatever check.h and the connection's credits let through. */
	if (WARN_ON_ONCE(sdc_initiator_post(&dci->core, &posted,
					    krc_sdc_now()) != SDC_POSTED))
		sdc_initiator_fail(&dci->core, krc_sdc_now());
	spin_unlock(&dci->sdc->lock);
	tasklet_schedule(&dci->drive);
}

static void krc_dci_fail(struct krc_dci *dci)
{
	lockdep_assert_held(&dci->conn->lock);
	spin_lock(&dci->sdc->lock);
	sdc_initiator_fail(&dci->core, krc_sdc_now());
	spin_unlock(&dci->sdc->lock);
	tasklet_schedule(&dci->drive);
}

static bool krc_dci_is_settled(struct krc_dci *dci)
{
	bool settled;

	spin_lock_bh(&dci->sdc->lock);
	settled = dci->sdc->stopped ||
		  (dci->core.posted == dci->core.polled &&
		   dci->core.state == SDC_QUEUE_READY);
	spin_unlock_bh(&dci->sdc->lock);
	return settled;
}

static void krc_dci_end(struct krc_dci *dci)
{
	struct krc_sdc *sdc = dci->sdc;

	wait_event(sdc->dcis.settled, krc_dci_is_settled(dci));
	spin_lock_bh(&sdc->lock);
	dci->running = false;	/* answers and the timer see it */
	spin_unlock_bh(&sdc->lock);
	cancel_work_sync(&dci->prepare);
	timer_delete_sync(&dci->timer);
	tasklet_kill(&dci->drive);
	krc_dci_put(dci);
}

const struct krc_stand_in krc_dci_stand_in = {
	.take = krc_dci_take,
	.put = krc_dci_put,
	.serves = krc_dci_serves,
	.begin = krc_dci_begin,
	.post = krc_dci_post,
	.fail = krc_dci_fail,
	.end = krc_dci_end,
};

/* --- those of a device --- */

int krc_dcis_init(struct krc_sdc *sdc)
{
	struct krc_dci *dci;

	init_waitqueue_head(&sdc->dcis.settled);
	sdc->dcis.all = kvcalloc(DCIS, sizeof(*dci), GFP_KERNEL);
	if (!sdc->dcis.all)
		return -ENOMEM;
	for (dci = sdc->dcis.all; dci < sdc->dcis.all + DCIS; dci++) {
		dci->sdc = sdc;
		tasklet_setup(&dci->drive, krc_dci_drive);
		timer_setup(&dci->timer, krc_dci_timeout, 0);
		INIT_WORK(&dci->prepare, krc_dci_prepare);
	}
	return 0;
}

void krc_dcis_stop(struct krc_sdc *sdc)
{
	wake_up_all(&sdc->dcis.settled);
}

void krc_dcis_exit(struct krc_sdc *sdc)
{
	u32 i;

	for (i = 0; sdc->dcis.all && i < DCIS; i++)
		if (sdc->dcis.all[i].handle.ah)
			rdma_destroy_ah(sdc->dcis.all[i].handle.ah,
					RDMA_DESTROY_AH_SLEEPABLE);
	kvfree(sdc->dcis.all);
}
