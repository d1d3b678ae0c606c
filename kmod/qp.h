/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The QP and CQ of a connection: on the own host connected to itself, to another
 * one through RDMA CM (cm.h).
 */
#ifndef KRCORE_QP_H
#define KRCORE_QP_H

struct krc_conn;

/*
 * Retries of a QP: 6 after 67 ms each, which NICs may stretch fourfold. 7
 * would be without end on some.
 */
#define KRC_ACK_TIMEOUT 14
#define KRC_RETRIES 6
#define KRC_RD_ATOMIC 16

/*
 * Both: of krc_conn_repair and krc_conn_stop alone. Context: process, may sleep;
 * to another host for seconds.
 */
int krc_qp_create(struct krc_conn *conn);
/* Behind it this host executes nothing of the QP, and no completion comes. */
void krc_qp_destroy(struct krc_conn *conn);

#endif
