// SPDX-License-Identifier: GPL-2.0
/* The QP and CQ of a connection. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <rdma/ib_cache.h>
#include <rdma/rdma_cm.h>

#include "conn_parts.h"
#include "wire.h"

ushort krc_cm_port = 18703;
module_param_named(cm_port, krc_cm_port, ushort, 0444);
MODULE_PARM_DESC(cm_port, "of RDMA CM, where hosts connect to one another");

#define RESOLVE_MS 1000
#define CONNECT_MS 3000
/* A broken QP that has not flushed everything within this time is destroyed anyway. */
#define DRAIN_TIMEOUT (3 * HZ)

/* --- to another host, through RDMA CM; the other side is accept.c --- */

int krc_sockaddr(const union ib_gid *gid, u16 port,
		 struct sockaddr_storage *addr)
{
	const struct in6_addr *in6 = (const struct in6_addr *)gid->raw;

	if (ipv6_addr_type(in6) & IPV6_ADDR_LINKLOCAL)
		return -EADDRNOTAVAIL;	/* a GID does not say which interface */
	rdma_gid2ip((struct sockaddr *)addr, gid);
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
	return 0;
}

static int krc_cm_active(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct krc_conn *conn = id->context;
	const struct krc_cm_welcome *welcome;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		conn->cm_error = 0;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		welcome = event->param.conn.private_data;
		conn->cm_error = -EPROTO;
		if (event->param.conn.private_data_len < sizeof(*welcome) ||
		    welcome->magic != cpu_to_be32(KRC_CM_MAGIC))
			break;
		spin_lock_bh(&conn->lock);
		conn->table.addr = be64_to_cpu(welcome->table_addr);
		conn->table.rkey = be32_to_cpu(welcome->table_rkey);
		conn->table.slots = be32_to_cpu(welcome->table_slots);
		spin_unlock_bh(&conn->lock);
		conn->cm_error = 0;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		conn->cm_error = -ECONNRESET;
		krc_conn_break(conn);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return 0;
	default:
		conn->cm_error = -EHOSTUNREACH;
	}
	complete(&conn->cm_event);
	return 0;
}

static int krc_cm_wait(struct krc_conn *conn, int err, unsigned int ms)
{
	if (err)
		return err;
	if (!wait_for_completion_timeout(&conn->cm_event, msecs_to_jiffies(ms)))
		return -ETIMEDOUT;
	return conn->cm_error;
}

/* Before the connection is first up, makes the network as slow as a test wants. */
static int krc_cm_slow_down(struct krc_conn *conn)
{
	u32 ms = READ_ONCE(conn->dev->slow_connects_ms);
	u32 slept;

	if (conn->was_up)
		return 0;
	if (ms == U32_MAX)
		return -EHOSTUNREACH;
	for (slept = 0; slept < ms; slept += 20) {
		if (READ_ONCE(conn->state) == KRC_CONN_GONE)
			return -ENODEV;
		msleep(20);
	}
	return 0;
}

static int krc_cm_connect(struct krc_conn *conn,
			  struct ib_qp_init_attr *init)
{
	struct krc_device *dev = conn->dev;
	struct sockaddr_storage to = {}, from = {};
	struct krc_cm_hello hello = {
		.magic = cpu_to_be32(KRC_CM_MAGIC),
		.index = cpu_to_be32(conn->index),
	};
	struct rdma_conn_param param = {
		.private_data = &hello,
		.private_data_len = sizeof(hello),
		.responder_resources = 1,
		.initiator_depth = min(dev->ib->attrs.max_qp_init_rd_atom,
				       KRC_RD_ATOMIC),
		.retry_count = KRC_RETRIES,
		.rnr_retry_count = KRC_RETRIES,
	};
	struct rdma_cm_id *id;
	int err = krc_sockaddr(&conn->gid, krc_cm_port, &to);

	if (!err)
		err = krc_sockaddr(&dev->gid, 0, &from);
	if (!err)
		err = krc_cm_slow_down(conn);
	if (err)
		return err;
	memcpy(hello.gid, dev->gid.raw, sizeof(hello.gid));
	reinit_completion(&conn->cm_event);
	id = rdma_create_id(&init_net, krc_cm_active, conn, RDMA_PS_TCP,
			    IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	conn->cm = id;
	err = rdma_resolve_addr(id, (struct sockaddr *)&from,
				(struct sockaddr *)&to, RESOLVE_MS);
	err = krc_cm_wait(conn, err, 2 * RESOLVE_MS);
	if (!err && id->device != dev->ib)
		err = -EHOSTUNREACH;
	if (!err)
		err = krc_cm_wait(conn, rdma_resolve_route(id, RESOLVE_MS),
				  2 * RESOLVE_MS);
	if (!err)
		err = rdma_set_ack_timeout(id, KRC_ACK_TIMEOUT);
	if (!err)
		err = rdma_create_qp(id, dev->pd, init);
	if (err)
		return err;
	conn->qp = id->qp;
	return krc_cm_wait(conn, rdma_connect(id, &param), CONNECT_MS);
}

static void krc_cm_disconnect(struct krc_conn *conn)
{
	if (!conn->cm)
		return;
	rdma_destroy_id(conn->cm);
	conn->cm = NULL;
}

/* --- to this host itself --- */

static int krc_qp_to_itself(struct krc_conn *conn)
{
	struct krc_device *dev = conn->dev;
	struct ib_device_attr *limits = &dev->ib->attrs;
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = dev->port,
		.qp_access_flags = IB_ACCESS_REMOTE_READ |
				   IB_ACCESS_REMOTE_WRITE |
				   IB_ACCESS_REMOTE_ATOMIC,
	};
	const struct ib_gid_attr *gid_attr;
	struct ib_port_attr port;
	u32 psn = get_random_u32() & 0xffffff;
	int err;

	err = ib_query_port(dev->ib, dev->port, &port);
	if (err)
		return err;
	err = ib_modify_qp(conn->qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
				   IB_QP_ACCESS_FLAGS);
	if (err)
		return err;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = conn->qp->qp_num;	/* connected to itself */
	attr.rq_psn = psn;
	attr.max_dest_rd_atomic = min(limits->max_qp_rd_atom, KRC_RD_ATOMIC);
	attr.min_rnr_timer = 12;
	attr.ah_attr.type = rdma_ah_find_type(dev->ib, dev->port);
	rdma_ah_set_port_num(&attr.ah_attr, dev->port);
	/* Its place in the table may have changed since it was chosen. */
	gid_attr = rdma_find_gid_by_port(dev->ib, &dev->gid, dev->gid_type,
					 dev->port, NULL);
	if (IS_ERR(gid_attr))
		return PTR_ERR(gid_attr);
	rdma_ah_set_grh(&attr.ah_attr, &dev->gid, 0, gid_attr->index, 64, 0);
	attr.ah_attr.grh.sgid_attr = gid_attr;
	/*
	 * RoCE: nobody resolves the peer's MAC for kernel users. Without it
	 * everything succeeds, and nothing ever completes. Here it is our own.
	 */
	if (attr.ah_attr.type == RDMA_AH_ATTR_TYPE_ROCE)
		err = rdma_read_gid_l2_fields(gid_attr, NULL,
					      attr.ah_attr.roce.dmac);
	else
		rdma_ah_set_dlid(&attr.ah_attr, port.lid);
	if (!err)
		err = ib_modify_qp(conn->qp, &attr,
				   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
					   IB_QP_DEST_QPN | IB_QP_RQ_PSN |
					   IB_QP_MAX_DEST_RD_ATOMIC |
					   IB_QP_MIN_RNR_TIMER);
	rdma_put_gid_attr(gid_attr);
	if (err)
		return err;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTS;
	attr.timeout = conn->ack_timeout;
	attr.retry_cnt = KRC_RETRIES;
	attr.rnr_retry = KRC_RETRIES;
	attr.sq_psn = psn;
	attr.max_rd_atomic = min(limits->max_qp_init_rd_atom, KRC_RD_ATOMIC);
	return ib_modify_qp(conn->qp, &attr,
			    IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				    IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
				    IB_QP_MAX_QP_RD_ATOMIC);
}

static int krc_qp_create_own(struct krc_conn *conn,
			     struct ib_qp_init_attr *init)
{
	conn->qp = ib_create_qp(conn->dev->pd, init);
	if (IS_ERR(conn->qp)) {
		int err = PTR_ERR(conn->qp);

		conn->qp = NULL;
		return err;
	}
	return krc_qp_to_itself(conn);
}

/* --- for both --- */

static bool krc_qp_is_drained(struct krc_conn *conn)
{
	bool drained;

	spin_lock_bh(&conn->lock);
	/* What the initiator that stands in has posted is not the QP's. */
	drained = conn->dci || list_empty(&conn->posted);
	spin_unlock_bh(&conn->lock);
	return drained;
}

void krc_cq_free(struct ib_cq *cq)
{
	irq_poll_disable(&cq->iop);
	synchronize_rcu();
	irq_poll_enable(&cq->iop);
	ib_free_cq(cq);
}

int krc_qp_break(struct krc_conn *conn)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(conn->qp, &attr, IB_QP_STATE);
}

void krc_qp_destroy(struct krc_conn *conn)
{
	if (conn->qp) {
		if (!krc_qp_break(conn))
			wait_event_timeout(conn->drained,
					   krc_qp_is_drained(conn),
					   DRAIN_TIMEOUT);
		if (conn->cm)
			rdma_destroy_qp(conn->cm);
		else
			ib_destroy_qp(conn->qp);
		conn->qp = NULL;
	}
	krc_cm_disconnect(conn);
	if (conn->cq) {
		krc_cq_free(conn->cq);
		conn->cq = NULL;
	}
}

int krc_qp_create(struct krc_conn *conn)
{
	struct krc_device *dev = conn->dev;
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = dev->sq_depth,
			.max_recv_wr = 1,
			.max_send_sge = KRC_MAX_SGE,
			.max_recv_sge = 1,
		},
	};
	int err;

	/* Make room for every request, so that the CQ cannot overflow. */
	conn->cq = ib_alloc_cq(dev->ib, conn, dev->sq_depth + 1,
			       conn->index % dev->ib->num_comp_vectors,
			       IB_POLL_SOFTIRQ);
	if (IS_ERR(conn->cq)) {
		err = PTR_ERR(conn->cq);
		conn->cq = NULL;
		return err;
	}
	init.send_cq = conn->cq;
	init.recv_cq = conn->cq;
	err = krc_device_is_at(dev, &conn->gid) ?
		      krc_qp_create_own(conn, &init) :
		      krc_cm_connect(conn, &init);
	if (err)
		krc_qp_destroy(conn);
	return err;
}
