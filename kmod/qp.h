/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The QP and CQ of a connection: on the own host connected to itself, to another
 * one through RDMA CM (cm.h).
 */
#ifndef KRCORE_QP_H
#define KRCORE_QP_H

struct ib_cq;
struct krc_conn;

/*
 * Retries of a QP: 6 after 67 ms each, which NICs may stretch fourfold. 7
 * would be without end on some.
 */
#define KRC_ACK_TIMEOUT 14
#define KRC_RETRIES 6
#define KRC_RD_ATOMIC 16

/*
 * All: conn->build is held. Context: process, may sleep; to another host for
 * seconds.
 */
int krc_qp_create(struct krc_conn *conn);
/* Behind it this host executes nothing of the QP, and no completion comes. */
void krc_qp_destroy(struct krc_conn *conn);
/* What it has not executed is flushed, and so is what is posted from now on. */
int krc_qp_break(struct krc_conn *conn);
/*
 * Of a CQ that is polled in softirq context and gets no more completions.
 * ib_free_cq waits until nobody polls it, but not for the end of ib_poll_handler,
 * which arms the CQ once more behind that. RCU waits for softirqs.
 */
void krc_cq_free(struct ib_cq *cq);

#endif
