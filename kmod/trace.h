/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints: events/krcore in tracefs. A queue is identified by its address, hashed. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM krcore

#if !defined(KRCORE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define KRCORE_TRACE_H

#include <linux/tracepoint.h>

/* The file that creates the tracepoints (client_debugfs.c) has their definitions. */
struct krc_conn;
struct krc_queue;
struct krc_wr;

/* A queue's connect to a node: from the cache, or looked up. */
TRACE_EVENT(krc_connect,
	TP_PROTO(const struct krc_queue *queue, u32 node, bool cached, int err),
	TP_ARGS(queue, node, cached, err),
	TP_STRUCT__entry(
		__field(const void *, queue)
		__field(u32, node)
		__field(bool, cached)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->queue = queue;
		__entry->node = node;
		__entry->cached = cached;
		__entry->err = err;
	),
	TP_printk("queue=%p node=%u cached=%d err=%d", __entry->queue,
		  __entry->node, __entry->cached, __entry->err)
);

/* A batch that was accepted (err 0) or refused. */
TRACE_EVENT(krc_push,
	TP_PROTO(const struct krc_queue *queue, u32 count, int err),
	TP_ARGS(queue, count, err),
	TP_STRUCT__entry(
		__field(const void *, queue)
		__field(u32, count)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->queue = queue;
		__entry->count = count;
		__entry->err = err;
	),
	TP_printk("queue=%p count=%u err=%d", __entry->queue, __entry->count,
		  __entry->err)
);

/* A request is done, with a krc_status. */
TRACE_EVENT(krc_complete,
	TP_PROTO(const struct krc_wr *wr, u8 status),
	TP_ARGS(wr, status),
	TP_STRUCT__entry(
		__field(const void *, queue)
		__field(u64, wr_id)
		__field(u8, opcode)
		__field(u8, status)
	),
	TP_fast_assign(
		__entry->queue = wr->queue;
		__entry->wr_id = wr->wr_id;
		__entry->opcode = wr->opcode;
		__entry->status = status;
	),
	TP_printk("queue=%p wr_id=%llu opcode=%u status=%u", __entry->queue,
		  __entry->wr_id, __entry->opcode, __entry->status)
);

/* A connection has changed its krc_conn_state; `err` is the result of building it. */
TRACE_EVENT(krc_conn,
	TP_PROTO(const struct krc_conn *conn, int err),
	TP_ARGS(conn, err),
	TP_STRUCT__entry(
		__array(u8, gid, 16)
		__field(u32, index)
		__field(int, state)
		__field(int, err)
	),
	TP_fast_assign(
		memcpy(__entry->gid, conn->gid.raw, 16);
		__entry->index = conn->index;
		__entry->state = conn->state;
		__entry->err = err;
	),
	TP_printk("host=%pI6c index=%u state=%d err=%d", __entry->gid,
		  __entry->index, __entry->state, __entry->err)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
