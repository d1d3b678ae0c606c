/*
 * krcore's C interface: the shim for C programs and other languages (KRCORE, USENIX ATC'22, section 3.1).
 *
 *   krcore_queue_t *q;
 *   queue(pool, 64, &q);                                  a queue
 *   qconnect(q, peer, KRCORE_NO_PORT, timeout_ns);        to a node; with a port, for messages too
 *   qpush(q, wrs, 1, NULL);                               requests
 *   while (qpop(q, completions, 1) == 0) qpoll(pool);     their completions
 *   qclose(q);
 *
 * The names are the paper's with the prefix krcore_, which KRCORE_SHORT_NAMES makes optional, as above. Semantics and
 * errors are those of the C++ classes that this wraps (node.h, queue_pool.h, virtual_queue.h, message.h).
 *
 * Errors: 0 is success, otherwise one of enum krcore_error; krcore_strerror names it, and
 * krcore_last_error() says more about the last failure of the calling thread. No call throws, aborts or sets errno.
 * Ownership: what a call hands out through its last argument belongs to the caller until the matching close. Close
 * queues before their pool, pools and memory before their node. Closing NULL does nothing. Buffers named by requests
 * and receives are borrowed until their completion or message is popped; arrays of requests only during the call.
 * Threads: a node may be used from several threads. A pool and its queues belong to one thread at a time.
 * Fork: what is open belongs to the process that opened it. In a child that was forked since, calls on it return
 * KRCORE_EBADSTATE, or 0 where they return a number of things; closing it there does nothing, and the child may end in
 * any way. The parent goes on with it. A child opens its own node after the fork (krcore/fork.h).
 * Blocking: open, close, register, qconnect, qbind and publish may block, up to their timeout where they have one
 * (negative: for ever); the others never do and make no system call.
 */
#ifndef KRCORE_KRCORE_H_
#define KRCORE_KRCORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum krcore_error { /* krcore::StatusCode, negated */
                    KRCORE_OK = 0,
                    KRCORE_ENOTFOUND = -1,
                    KRCORE_EEXISTS = -2,
                    KRCORE_EINVALID = -3,
                    KRCORE_ENOMEM = -4,
                    KRCORE_EUNAVAILABLE = -5,
                    KRCORE_ETIMEOUT = -6,
                    KRCORE_EUNKNOWN = -7, /* a WRITE or atomic may or may not have happened */
                    KRCORE_EUNSUPPORTED = -8,
                    KRCORE_EPERMISSION = -9,
                    KRCORE_EQUEUEFULL = -10,
                    KRCORE_EBADSTATE = -11,
                    KRCORE_ECORRUPT = -12,
                    KRCORE_EINTERNAL = -13
};

enum krcore_opcode { /* krcore::Opcode */
                     KRCORE_READ = 0,
                     KRCORE_WRITE = 1,
                     KRCORE_WRITE_IMM = 2,
                     KRCORE_SEND = 3,
                     KRCORE_SEND_IMM = 4,
                     KRCORE_COMPARE_SWAP = 5,
                     KRCORE_FETCH_ADD = 6,
                     KRCORE_RECV = 7,         /* messages only */
                     KRCORE_RECV_WITH_IMM = 8 /* messages only */
};

enum krcore_send_flags { KRCORE_SIGNALED = 1, KRCORE_FENCE = 2, KRCORE_INLINE = 4, KRCORE_SOLICITED = 8 };

enum krcore_access { KRCORE_REMOTE_READ = 2, KRCORE_REMOTE_WRITE = 4, KRCORE_REMOTE_ATOMIC = 8 };

enum krcore_wc_status { /* krcore::WcStatus */
                        KRCORE_WC_SUCCESS = 0,
                        KRCORE_WC_LOCAL_LENGTH_ERROR = 1,
                        KRCORE_WC_LOCAL_QP_ERROR = 2,
                        KRCORE_WC_LOCAL_PROTECTION_ERROR = 3,
                        KRCORE_WC_FLUSHED = 4, /* the outcome of a WRITE, atomic or message is unknown */
                        KRCORE_WC_REMOTE_INVALID_REQUEST = 5,
                        KRCORE_WC_REMOTE_ACCESS_ERROR = 6,
                        KRCORE_WC_REMOTE_OPERATION_ERROR = 7,
                        KRCORE_WC_RETRY_EXCEEDED = 8, /* likewise */
                        KRCORE_WC_RNR_RETRY_EXCEEDED = 9,
                        KRCORE_WC_GENERAL_ERROR = 10
};

enum krcore_wc_flags { KRCORE_WITH_IMM = 1 };

#define KRCORE_NO_NODE ((uint32_t)0) /* krcore_open: the fabric assigns an id */
#define KRCORE_NO_PORT ((uint16_t)0) /* qconnect: one-sided requests only; qbind: krcore chooses */

typedef struct krcore_node krcore_node_t;   /* a process on a fabric */
typedef struct krcore_pool krcore_pool_t;   /* the connections of one thread */
typedef struct krcore_queue krcore_queue_t; /* a queue to one peer, and of a port if bound */
typedef struct krcore_mr krcore_mr_t;       /* registered memory */

struct krcore_sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};

struct krcore_wr {
  uint64_t wr_id;
  const struct krcore_sge* sg_list;
  uint8_t num_sge;
  uint8_t opcode; /* enum krcore_opcode */
  uint8_t flags;  /* of enum krcore_send_flags */
  uint8_t reserved;
  uint32_t imm;
  uint64_t remote_addr;
  uint32_t rkey;
  uint32_t reserved2;
  uint64_t compare_add; /* COMPARE_SWAP: expected; FETCH_ADD: addend */
  uint64_t swap;        /* COMPARE_SWAP: desired */
};

struct krcore_completion {
  uint64_t wr_id;
  uint8_t status; /* enum krcore_wc_status */
  uint8_t opcode; /* valid on success */
  uint8_t flags;
  uint8_t reserved;
  uint32_t byte_len;
};

struct krcore_recv {
  uint64_t wr_id;
  struct krcore_sge buffer;
};

struct krcore_sender { /* who sent a message; `route` is krcore's own */
  uint32_t node;
  uint32_t incarnation;
  uint32_t queue; /* tells connected queues of one node apart */
  uint16_t port;  /* KRCORE_NO_PORT: it cannot be replied to */
  uint16_t reserved;
  uint64_t route[12];
};

struct krcore_message {
  uint64_t wr_id; /* of the krcore_recv it is in */
  uint8_t status; /* enum krcore_wc_status */
  uint8_t opcode; /* KRCORE_RECV, KRCORE_RECV_WITH_IMM */
  uint8_t flags;  /* of enum krcore_wc_flags */
  uint8_t zero_copy;
  uint32_t byte_len;
  uint32_t imm;
  uint32_t reserved;
  struct krcore_sender sender;
};

struct krcore_region { /* memory of a peer */
  uint64_t addr;
  uint64_t length;
  uint32_t rkey;
  uint32_t tag;
};

/* Fields that are 0 have the defaults of the C++ options. */
struct krcore_node_options {
  const char* rnic;       /* provider; NULL: "sw" */
  const char* fabric;     /* name of the fabric */
  uint32_t node;          /* KRCORE_NO_NODE: assigned */
  uint32_t create_fabric; /* 0: a missing fabric is KRCORE_ENOTFOUND */
  /* Provider "verbs"; NULL: none. */
  const char* fabric_address; /* of the fabric's membership service: "host[:port]" */
  const char* rnic_port;      /* "device[:port[:gid_index[:mtu]]]"; NULL: the first active one */
};

struct krcore_pool_options {
  uint32_t dc_initiators;
  uint32_t sq_depth;
  uint32_t copy_bytes; /* longer messages go by zero-copy; 0: the default, 1 or more: that */
  uint32_t reserved;
};

struct krcore_bind_options {
  uint16_t senders;
  uint16_t slots;
  uint32_t copy_bytes;
  uint32_t receive_depth;
  uint32_t reserved;
};

struct krcore_mr_info {
  void* addr;
  uint64_t length;
  uint32_t lkey;
  uint32_t rkey; /* 0: no remote rights */
};

const char* krcore_strerror(int error);            /* never NULL; static */
const char* krcore_wc_strerror(uint8_t wc_status); /* likewise */
/* More about this thread's last failed call, of krcore or kvs; "" if there is nothing to add. Valid until the thread's
 * next failure. */
const char* krcore_last_error(void);

/* ---- node */
int krcore_open(const struct krcore_node_options* options, krcore_node_t** node);
void krcore_close(krcore_node_t* node);
uint32_t krcore_node_id(const krcore_node_t* node);
/* Makes this node the fabric's metadata server, for `capacity` nodes and services. */
int krcore_host_meta(krcore_node_t* node, uint32_t capacity);
/* Announces this node and its memory with remote rights; peers can qconnect to it from then on. */
int krcore_publish(krcore_node_t* node, int64_t timeout_ns);

/* ---- memory */
/* With `addr` NULL allocates `length` zeroed bytes; otherwise registers the caller's, for local use only. `access`:
 * rights of peers, of enum krcore_access; they need allocated memory, and krcore_publish. */
int krcore_qreg_mr(krcore_node_t* node, void* addr, uint64_t length, uint32_t access, krcore_mr_t** mr);
void krcore_qdereg_mr(krcore_mr_t* mr); /* frees what was allocated. No request may be using it. */
void krcore_mr_info(const krcore_mr_t* mr, struct krcore_mr_info* info);

/* ---- queues */
int krcore_pool_open(krcore_node_t* node, const struct krcore_pool_options* options /* or NULL */,
                     krcore_pool_t** pool);
void krcore_pool_close(krcore_pool_t* pool);
/* Rings doorbells, moves completions and messages to their queues; returns how many it found. */
size_t krcore_qpoll(krcore_pool_t* pool);

int krcore_queue(krcore_pool_t* pool, uint32_t depth, krcore_queue_t** queue);
void krcore_qclose(krcore_queue_t* queue);
int krcore_qconnect(krcore_queue_t* queue, uint32_t peer, uint16_t port, int64_t timeout_ns);
int krcore_qconnect_sender(krcore_queue_t* queue, const struct krcore_sender* sender, int64_t timeout_ns);
/* What the peer published: writes up to `count` and returns how many there are. */
size_t krcore_qregions(const krcore_queue_t* queue, struct krcore_region* regions, size_t count);

/* All or none; *bad_index, if not NULL, is the first offender of a refused batch. */
int krcore_qpush(krcore_queue_t* queue, const struct krcore_wr* wrs, size_t count, size_t* bad_index);
size_t krcore_qpop(krcore_queue_t* queue, struct krcore_completion* completions, size_t count);
/* Messages that qpush would accept now. */
uint32_t krcore_qcredits(const krcore_queue_t* queue);

int krcore_qbind(krcore_queue_t* queue, uint16_t port, const struct krcore_bind_options* options /* or NULL */,
                 int64_t timeout_ns);
uint16_t krcore_qport(const krcore_queue_t* queue); /* KRCORE_NO_PORT: not bound */
int krcore_qpush_recv(krcore_queue_t* queue, const struct krcore_recv* receives, size_t count, size_t* bad_index);
size_t krcore_qpop_msgs(krcore_queue_t* queue, struct krcore_message* messages, size_t count);

#ifdef KRCORE_SHORT_NAMES
#  define queue(pool, depth, out) krcore_queue(pool, depth, out)
#  define qclose(q) krcore_qclose(q)
#  define qconnect(q, peer, port, timeout_ns) krcore_qconnect(q, peer, port, timeout_ns)
#  define qbind(q, port, options, timeout_ns) krcore_qbind(q, port, options, timeout_ns)
#  define qreg_mr(node, addr, length, access, out) krcore_qreg_mr(node, addr, length, access, out)
#  define qdereg_mr(mr) krcore_qdereg_mr(mr)
#  define qpush(q, wrs, count, bad_index) krcore_qpush(q, wrs, count, bad_index)
#  define qpop(q, completions, count) krcore_qpop(q, completions, count)
#  define qpush_recv(q, receives, count, bad_index) krcore_qpush_recv(q, receives, count, bad_index)
#  define qpop_msgs(q, messages, count) krcore_qpop_msgs(q, messages, count)
#  define qpoll(pool) krcore_qpoll(pool)
#endif

#ifdef __cplusplus
}
#endif

#endif /* KRCORE_KRCORE_H_ */
