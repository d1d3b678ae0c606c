// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>
#include <rdma/rdma_cm.h>

#include "accept.h"
#include "conn.h"
#include "device.h"
#include "wire.h"

#define BACKLOG 128
#define MAX_ACCEPTED 4096

/* A connection that another host asked for. */
struct krc_accepted {
	struct list_head node;
	struct krc_device *dev;
	struct rdma_cm_id *id;
	struct krc_cm_hello hello;
};

/* From now on it serves nothing, and it is freed later. */
static void krc_cm_end(struct krc_accepted *accepted)
{
	struct krc_acceptor *acceptor = accepted->dev->acceptor;
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	lockdep_assert_held(&acceptor->lock);
	ib_modify_qp(accepted->id->qp, &attr, IB_QP_STATE);
	list_move_tail(&accepted->node, &acceptor->ended);
	queue_work(system_long_wq, &acceptor->reaper);
}

static void krc_cm_reap(struct work_struct *work)
{
	struct krc_acceptor *acceptor =
		container_of(work, struct krc_acceptor, reaper);
	struct krc_accepted *accepted;

	for (;;) {
		mutex_lock(&acceptor->lock);
		accepted = list_first_entry_or_null(&acceptor->ended,
						    struct krc_accepted, node);
		if (accepted) {
			list_del_init(&accepted->node);
			acceptor->count--;
		}
		mutex_unlock(&acceptor->lock);
		if (!accepted)
			return;
		rdma_disconnect(accepted->id);
		rdma_destroy_qp(accepted->id);
		rdma_destroy_id(accepted->id);	/* waits for its events */
		kfree(accepted);
	}
}

static void krc_cm_ended(struct krc_accepted *accepted)
{
	struct krc_acceptor *acceptor = accepted->dev->acceptor;
	struct krc_accepted *other;

	mutex_lock(&acceptor->lock);
	/* The reaper may have it already. */
	list_for_each_entry(other, &acceptor->accepted, node) {
		if (other != accepted)
			continue;
		krc_cm_end(accepted);
		break;
	}
	mutex_unlock(&acceptor->lock);
}

/* Enters the connection, in place of an earlier life of the same one. */
static int krc_cm_enter(struct krc_accepted *accepted)
{
	struct krc_acceptor *acceptor = accepted->dev->acceptor;
	struct krc_accepted *other, *next;
	bool replaces = false;
	int err = 0;

	mutex_lock(&acceptor->lock);
	list_for_each_entry_safe(other, next, &acceptor->accepted, node) {
		if (memcmp(&other->hello, &accepted->hello,
			   sizeof(other->hello)))
			continue;
		krc_cm_end(other);
		replaces = true;
	}
	if (acceptor->stopped ||
	    (acceptor->count >= MAX_ACCEPTED && !replaces)) {
		err = -ENOSPC;
	} else {
		list_add_tail(&accepted->node, &acceptor->accepted);
		acceptor->count++;
	}
	mutex_unlock(&acceptor->lock);
	return err;
}

static int krc_cm_welcome(struct krc_accepted *accepted)
{
	struct ib_device_attr *limits = &accepted->dev->ib->attrs;
	const struct krc_table_place *table = &accepted->dev->table;
	struct krc_cm_welcome welcome = {
		.magic = cpu_to_be32(KRC_CM_MAGIC),
		.table_addr = cpu_to_be64(table->addr),
		.table_rkey = cpu_to_be32(table->rkey),
		.table_slots = cpu_to_be32(table->slots),
	};
	struct rdma_conn_param param = {
		.private_data = &welcome,
		.private_data_len = sizeof(welcome),
		.responder_resources = min(limits->max_qp_rd_atom,
					   KRC_RD_ATOMIC),
		.initiator_depth = 1,
		.rnr_retry_count = KRC_RETRIES,
	};

	return rdma_accept(accepted->id, &param);
}

static int krc_cm_accept(struct krc_device *dev, struct rdma_cm_id *id,
			 const struct rdma_conn_param *param)
{
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.send_cq = dev->acceptor->cq,
		.recv_cq = dev->acceptor->cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct krc_accepted *accepted;
	int err;

	if (id->device != dev->ib ||
	    param->private_data_len < sizeof(accepted->hello))
		return -EPROTO;
	accepted = kzalloc(sizeof(*accepted), GFP_KERNEL);
	if (!accepted)
		return -ENOMEM;
	accepted->dev = dev;
	accepted->id = id;
	memcpy(&accepted->hello, param->private_data, sizeof(accepted->hello));
	if (accepted->hello.magic != cpu_to_be32(KRC_CM_MAGIC)) {
		err = -EPROTO;
		goto free;
	}
	err = rdma_create_qp(id, dev->pd, &init);
	if (err)
		goto free;
	id->context = accepted;
	err = krc_cm_enter(accepted);
	if (err)
		goto destroy_qp;
	/* From here on it is the reaper's. */
	if (krc_cm_welcome(accepted))
		krc_cm_ended(accepted);
	return 0;

destroy_qp:
	rdma_destroy_qp(id);
free:
	kfree(accepted);
	return err;
}

/* Handles events of the listener and of what it accepts. An error destroys the new id. */
static int krc_cm_passive(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return krc_cm_accept(id->context, id, &event->param.conn);
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		krc_cm_ended(id->context);
		return 0;
	default:
		return 0;
	}
}

void krc_accept_init(struct krc_acceptor *acceptor)
{
	mutex_init(&acceptor->lock);
	INIT_LIST_HEAD(&acceptor->accepted);
	INIT_LIST_HEAD(&acceptor->ended);
	INIT_WORK(&acceptor->reaper, krc_cm_reap);
}

int krc_accept_start(struct krc_device *dev)
{
	struct krc_acceptor *acceptor = dev->acceptor;
	struct sockaddr_storage addr = {};
	struct rdma_cm_id *id;
	struct ib_cq *cq;
	int err = krc_sockaddr(&dev->gid, krc_cm_port, &addr);

	if (err)
		return err;
	cq = ib_alloc_cq(dev->ib, acceptor, 1, 0, IB_POLL_DIRECT);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	acceptor->cq = cq;
	id = rdma_create_id(&init_net, krc_cm_passive, dev, RDMA_PS_TCP,
			    IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	err = rdma_bind_addr(id, (struct sockaddr *)&addr);
	if (!err)
		err = rdma_listen(id, BACKLOG);
	if (err)
		rdma_destroy_id(id);
	else
		acceptor->listener = id;
	return err;
}

void krc_accept_stop(struct krc_device *dev)
{
	struct krc_acceptor *acceptor = dev->acceptor;
	struct krc_accepted *accepted, *next;

	mutex_lock(&acceptor->lock);
	acceptor->stopped = true;
	mutex_unlock(&acceptor->lock);
	if (acceptor->listener)
		rdma_destroy_id(acceptor->listener);
	mutex_lock(&acceptor->lock);
	list_for_each_entry_safe(accepted, next, &acceptor->accepted, node)
		krc_cm_end(accepted);
	mutex_unlock(&acceptor->lock);
	flush_work(&acceptor->reaper);
	if (acceptor->cq)
		ib_free_cq(acceptor->cq);
}
