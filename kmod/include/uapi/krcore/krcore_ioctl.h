/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/krcore: the one definition of it, for the module and
 * for user space.
 *
 * One file is one VirtualQueue. In the order of their use:
 *
 *   KRC_IOC_QUERY     what the module can do; at any time
 *   KRC_IOC_ATTACH    gives the file an RDMA device, its places for requests
 *                     and its completion ring; once
 *   mmap(offset 0)    the completion ring, shared and writable; when it is read
 *   KRC_IOC_REG_MR    registers memory of the process, pinned until
 *   KRC_IOC_DEREG_MR  it is deregistered, or the file closed
 *   KRC_IOC_JOIN      makes it a node of a fabric: what follows needs it
 *   KRC_IOC_NEW_QUEUE gives a further file of the same node, attached: a
 *                     process that has one needs no open, ATTACH or JOIN for it
 *   KRC_IOC_PUBLISH   tells the fabric's nodes which regions this one has
 *   KRC_IOC_CONNECT   chooses the peer by its node id, or by its device's
 *   KRC_IOC_CONNECT_DEVICE  address, or repairs a queue that a fault broke
 *   KRC_IOC_PUSH      a batch of requests: all are accepted, or none
 *   KRC_IOC_BIND      makes it receive messages, at a port of its node
 *   KRC_IOC_PUSH_RECV memory that messages are put into
 *   KRC_IOC_POP_MSGS  takes the messages that have come
 *   KRC_IOC_CREDITS   how many messages the peer's port takes now
 *   KRC_IOC_START     of a fresh file: ATTACH, JOIN and CONNECT by one call
 *   poll(2)           readable: the ring holds completions. Priority: POP_MSGS
 *                     has a message; one from another host may have come up to
 *                     20 ms ago. Error, hang-up: the device is gone
 *
 * A file belongs to the address space that opened it: with any other (a forked
 * child, a receiver of the descriptor, the program after execve) every request and
 * mmap is refused with EPERM. A forked child inherits the mapping of the ring,
 * unless its parent used MADV_DONTFORK.
 *
 * Every field has a fixed width, and the layouts are the same for programs of 32
 * and of 64 bits. Any change to them changes KRC_ABI_VERSION.
 *
 * Errors of all requests: EPERM (see above), EFAULT, EINVAL (malformed), ENOTTY
 * (no such request, also one of another KRC_ABI_VERSION), ENODEV (no such
 * device, or the device is gone), EBADFD (not attached, or attached twice).
 * Other errors are listed at the request they belong to.
 */
#ifndef _UAPI_KRCORE_KRCORE_IOCTL_H
#define _UAPI_KRCORE_KRCORE_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define KRC_DEVICE_PATH "/dev/krcore"
#define KRC_ABI_VERSION 6

#define KRC_MAX_SGE 4
#define KRC_MAX_DEPTH 4096
#define KRC_DEVICE_NAME_BYTES 64
#define KRC_GID_BYTES 16
#define KRC_NAME_BYTES 64	/* of a fabric, of a service; padded with 0 */
#define KRC_VALUE_BYTES 64	/* of a service */
#define KRC_MAX_SHARED 5	/* regions that a node publishes */
#define KRC_FIRST_DYNAMIC_NODE 256
#define KRC_MAX_SENDERS 512	/* of a port, at a time */
#define KRC_MAX_SLOTS 1024	/* messages of a sender under way */
#define KRC_MAX_COPY_BYTES 61440 /* of a message */
#define KRC_FIRST_AUTOMATIC_PORT 49152

/* Rights of a memory region, the bits of krcore::AccessRights. */
enum krc_access {
	KRC_LOCAL_WRITE = 1,
	KRC_REMOTE_READ = 2,
	KRC_REMOTE_WRITE = 4,	/* with KRC_LOCAL_WRITE */
	KRC_REMOTE_ATOMIC = 8,	/* with KRC_LOCAL_WRITE */
};

/* In the order of krcore::Opcode. */
enum krc_opcode {
	KRC_OP_READ = 0,
	KRC_OP_WRITE = 1,
	KRC_OP_WRITE_IMM = 2,
	KRC_OP_SEND = 3,
	KRC_OP_SEND_IMM = 4,
	KRC_OP_COMPARE_SWAP = 5,
	KRC_OP_FETCH_ADD = 6,
};

/* Of a request, the bits of krcore::SendFlags. */
enum krc_request_flag {
	KRC_SIGNALED = 1,	/* success is reported as well as failure */
	KRC_FENCE = 2,		/* begins after all earlier READs and atomics */
	KRC_INLINE = 4,		/* not offered: EOPNOTSUPP */
	KRC_SOLICITED = 8,	/* has no effect */
};

/* In the order of krcore::WcStatus. */
enum krc_status {
	KRC_SUCCESS = 0,
	KRC_LOCAL_LENGTH_ERROR,
	KRC_LOCAL_QP_ERROR,
	KRC_LOCAL_PROTECTION_ERROR,
	KRC_FLUSHED,		/* a WRITE or atomic: its outcome is unknown */
	KRC_REMOTE_INVALID_REQUEST,
	KRC_REMOTE_ACCESS_ERROR,
	KRC_REMOTE_OPERATION_ERROR,
	KRC_RETRY_EXCEEDED,	/* likewise unknown */
	KRC_RNR_RETRY_EXCEEDED,
	KRC_GENERAL_ERROR,
};

/* KRC_IOC_QUERY; all fields are answers. */
struct krc_query {
	__u32 abi_version;		/* KRC_ABI_VERSION of the module */
	__u32 devices;			/* that can be attached to now */
	__u32 max_regions;		/* of a queue */
	__u32 max_message_bytes;	/* of a request, all SGEs together */
};

/*
 * KRC_IOC_ATTACH. `depth` is how many requests may be accepted and not yet popped,
 * up to KRC_MAX_DEPTH. The ring has `ring_entries` places, a power of two, after
 * its header; it takes `ring_bytes`, a multiple of the page size, and is made by
 * the first mmap or push.
 * ENETDOWN: the device has no active port, or no address.
 */
struct krc_attach {
	__u8 device[KRC_DEVICE_NAME_BYTES]; /* in; "": the first one */
	__u32 depth;			/* in */
	__u8 gid[KRC_GID_BYTES];	/* out: the address of the device */
	__u32 ring_bytes;		/* out */
	__u32 ring_entries;		/* out */
};

/*
 * KRC_IOC_CONNECT_DEVICE. The peer is this host, whose device has that address; a
 * request's rkey says which of its memory is meant. EHOSTUNREACH: no such peer.
 * EBUSY: requests are outstanding. ENETDOWN: there is no connection to it.
 */
struct krc_connect_device {
	__u8 gid[KRC_GID_BYTES];
};

/*
 * KRC_IOC_JOIN, once per file. A node is what this file and those that
 * KRC_IOC_NEW_QUEUE makes from it share. `node` is its id, or 0 for one from
 * KRC_FIRST_DYNAMIC_NODE up that nobody had before. A node keeps an id below that
 * for itself (EEXIST for others) until its last file is closed and all its requests
 * are done; then what the node has published is removed. `incarnation` differs between two
 * holders of an id. This call and those on names below also fail with EIO: no
 * answer from the metadata server.
 */
struct krc_join {
	__u8 fabric[KRC_NAME_BYTES];	/* in, not empty */
	__u32 node;			/* in and out */
	__u32 incarnation;		/* out */
};

/*
 * KRC_IOC_NEW_QUEUE: a further file of this process, closed by execve, which is
 * attached to the device of this one, part of its node, and not connected. `depth`
 * and the ring are as with KRC_IOC_ATTACH. ENOTCONN: this file has joined no node.
 * EMFILE, ENFILE.
 */
struct krc_new_queue {
	__u32 depth;			/* in */
	__s32 file;			/* out: its descriptor */
	__u32 ring_bytes;		/* out */
	__u32 ring_entries;		/* out */
};

/* Memory that a node has published, with the rights of peers. */
struct krc_shared_region {
	__u64 addr;
	__u64 length;
	__u32 key;			/* of KRC_IOC_REG_MR */
	__u32 tag;			/* the owner's word for what it is */
	__u32 access;			/* of krc_access */
	__u32 reserved;
};

/*
 * KRC_IOC_PUBLISH: publishes the node and `count` regions of this process with
 * remote rights, instead of what it had published before. Only `key` and `tag` of
 * the structs are looked at. ENOENT: no such region. ENOSPC: the table of the
 * metadata server is full.
 */
struct krc_publish {
	__u32 count;
	__u32 reserved;			/* 0 */
	struct krc_shared_region regions[KRC_MAX_SHARED];
};

/*
 * KRC_IOC_CONNECT. The peer is a node of the same fabric, as it has published
 * itself: it is found in the host's cache, or by one READ of the metadata server.
 * Connecting again to the same peer always reads. Requests may name what is in
 * `regions`, and on this host any region whose key is known. ENOENT: no such node.
 * EBUSY: requests are outstanding. ENETDOWN: there is no connection to its host.
 * (Without a `port`, of a host that nobody has reached before, the first requests
 * say so instead: KRC_RETRY_EXCEEDED, KRC_FLUSHED; or their PUSH does, with
 * ECONNRESET.) ENOSPC: connections to 1024 hosts are in use. EIO: no answer from
 * the metadata server. ENOTCONN: this file has joined no node.
 *
 * With a `port` the queue also takes a sender's place there, for SENDs in addition
 * to one-sided requests: some round trips, in which the peer's process takes no
 * part. The place is given back when the queue connects elsewhere or closes; what
 * was completed with success is still delivered. Connecting a broken queue to the
 * same port keeps its place, and with it the order of its messages. ENOENT: nobody
 * is bound to it. EAGAIN: all its places are taken. ENOMEM: also beyond
 * RLIMIT_MEMLOCK, against which about `slots` * `copy_bytes` count. After these two
 * errors the queue is connected to the node, and to no port.
 */
struct krc_connect {
	__u32 node;			/* in */
	__u32 incarnation;		/* out */
	__u8 gid[KRC_GID_BYTES];	/* out: of its device */
	__u32 cached;			/* out: whether the cache had it */
	__u32 count;			/* out: of regions */
	struct krc_shared_region regions[KRC_MAX_SHARED];
	__u32 port;			/* in; 0: none */
	__u32 slots;			/* out: messages that may be under way */
	__u32 copy_bytes;		/* out: the longest message */
	__u32 reserved;			/* 0 */
};

/* How far KRC_IOC_START came. */
enum krc_start_step {
	KRC_NOT_STARTED = 0,
	KRC_ATTACHED = 1,
	KRC_JOINED = 2,
	KRC_CONNECTED = 3,
};

/*
 * KRC_IOC_START, on a fresh file: does KRC_IOC_ATTACH, KRC_IOC_JOIN and, unless
 * `connect.node` is 0, KRC_IOC_CONNECT in one call, and answers what a process asks
 * KRC_IOC_QUERY for. `done` is the last of them that was done, also when the call
 * fails: the error is the next one's, which may be tried again by itself, and what
 * was done stands. ENOTTY: the module is of another version than `abi_version`.
 */
struct krc_start {
	__u32 abi_version;		/* in: KRC_ABI_VERSION of the caller */
	__u32 done;			/* out, of krc_start_step */
	__u32 max_message_bytes;	/* out, as in krc_query */
	struct krc_attach attach;
	struct krc_join join;
	struct krc_connect connect;
};

/*
 * KRC_IOC_BIND, once per file. Until it is closed, the file receives what is sent
 * to `port` of its node, or, if that is 0, to one that the module chooses from
 * KRC_FIRST_AUTOMATIC_PORT up. Each of `senders` queues at a time has room there
 * for `slots` messages of up to `copy_bytes`. That memory counts against
 * RLIMIT_MEMLOCK (ENOMEM). ENOTCONN: the node has not published itself. EEXIST: the
 * port is bound. E2BIG: more memory than a port may have, which the device limits.
 * ENOSPC: the table of the metadata server is full.
 */
struct krc_bind {
	__u32 port;			/* in and out; up to 65535 */
	__u32 senders;			/* in; 1 to KRC_MAX_SENDERS */
	__u32 slots;			/* in; 1 to KRC_MAX_SLOTS */
	__u32 copy_bytes;		/* in; up to KRC_MAX_COPY_BYTES */
	__u32 receive_depth;		/* in; 1 to KRC_MAX_DEPTH */
	__u32 reserved;			/* 0 */
};

/* Memory for a message. A length of 0: for empty ones. */
struct krc_receive {
	__u64 wr_id;
	__u64 addr;
	__u32 length;
	__u32 lkey;
};

/*
 * KRC_IOC_PUSH_RECV: takes all of `count` structs krc_receive, or none. `bad_index`
 * is as with KRC_IOC_PUSH. EACCES: memory that is not in a region of this process
 * that it may write. EAGAIN: more than receive_depth would be outstanding. E2BIG:
 * more than that in one call. ENOTCONN: not bound.
 */
struct krc_push_recv {
	__u64 receives;
	__u32 count;
	__u32 bad_index;		/* out */
};

/* A message that came. */
struct krc_message {
	__u64 wr_id;			/* of the receive that it is in */
	__u32 byte_len;
	__u32 imm;
	/* The sender: its node, which queue of its host, the port it is bound to. */
	__u32 node;
	__u32 incarnation;
	__u32 queue;
	__u16 port;			/* 0: none */
	__u8 status;			/* of krc_status, see KRC_IOC_POP_MSGS */
	__u8 with_imm;
};

/*
 * KRC_IOC_POP_MSGS: copies up to `count` messages that have come to `messages`;
 * `count` becomes how many. Those of a sender come in the order in which they were
 * pushed, each once. A message waits, and its sender has one credit less, until
 * there is a receive for it. Never waits. Status KRC_LOCAL_LENGTH_ERROR: the
 * receive is too short; it comes back unused, `byte_len` says what is needed, and
 * the message waits for the next one. KRC_LOCAL_PROTECTION_ERROR: the same, because
 * its memory cannot be written any more. ENOTCONN: not bound. EFAULT: `messages`
 * cannot be written; nothing was popped.
 */
struct krc_pop_msgs {
	__u64 messages;
	__u32 count;			/* in and out */
	__u32 reserved;			/* 0 */
};

/*
 * KRC_IOC_CREDITS: how many messages KRC_IOC_PUSH takes now, as far as is known. If
 * not all credits are there, it begins to ask the receiver's memory, without
 * waiting; KRC_IOC_PUSH does so when half are left. ENOTCONN: connected to no port.
 * ECONNRESET: see KRC_IOC_PUSH. EPIPE: the port is closed.
 */
struct krc_credits {
	__u32 credits;			/* out */
	__u32 reserved;			/* 0 */
};

/*
 * KRC_IOC_SET_SERVICE, KRC_IOC_GET_SERVICE: a named value of the fabric. It has one
 * owner, a node that has published itself, and is removed with it. EEXIST: another
 * node that lives owns it. ENOENT: nobody has set it. ENOTCONN. ENOSPC.
 */
struct krc_service {
	__u8 name[KRC_NAME_BYTES];	/* in, not empty */
	__u8 value[KRC_VALUE_BYTES];	/* in, or out */
	__u32 length;			/* likewise: bytes of it */
	__u32 reserved;			/* 0 */
};

/*
 * KRC_IOC_PEER_STATE: whether an incarnation of a node that had published itself is
 * gone, so that nothing it posted executes any more. The node's own kernel reports
 * that. (A table of records that was made anew knows no nodes, and so reports all
 * of them as gone.)
 */
struct krc_peer_state {
	__u32 node;
	__u32 incarnation;
	__u32 dead;			/* out; 0: not, or nobody knows */
	__u32 reserved;			/* 0 */
};

/*
 * KRC_IOC_REG_MR. The memory's pages are pinned and count against RLIMIT_MEMLOCK of
 * this address space (ENOMEM). `key` names the region: as lkey in SGEs of any file
 * of this process on the same device; with remote rights as rkey for everybody who
 * knows it. Keys are random numbers of 32 bits: a stale one names something only by
 * chance, but whoever tries them all finds one. ENOSPC: the queue has max_regions
 * of them.
 */
struct krc_reg_mr {
	__u64 addr;
	__u64 length;
	__u32 access;			/* of krc_access */
	__u32 key;			/* out */
};

/*
 * KRC_IOC_DEREG_MR. New requests for the region are refused from now on; waits
 * for those that were accepted before. ENOENT: no region of this file.
 */
struct krc_dereg_mr {
	__u32 key;
};

/*
 * KRC_IOC_DC_TARGET: where the software DC of this file's device is reached, by the
 * protocol of docs/software_dc.md: at `gid`, UD QP and target `number`, with `key`.
 * Whoever knows these may READ, WRITE and do atomics on the regions that this
 * host's nodes have published, until those are deregistered, with their `key` as
 * rkey and within the rights that they have. Number and key change each time the
 * device, or the module, comes. EOPNOTSUPP: it has none.
 */
struct krc_dc_target {
	__u64 key;			/* out, as all */
	__u32 number;
	__u32 reserved;
	__u8 gid[KRC_GID_BYTES];
};

struct krc_sge {
	__u64 addr;
	__u32 length;			/* not 0 */
	__u32 lkey;
};

struct krc_request {
	__u64 wr_id;
	__u64 remote_addr;		/* in the address space of the region's owner */
	__u64 compare_add;		/* CAS: expected; FETCH_ADD: addend; SEND_IMM: imm */
	__u64 swap;			/* CAS: desired */
	__u32 rkey;
	__u8 opcode;			/* of krc_opcode */
	__u8 flags;			/* of krc_request_flag */
	__u8 num_sge;			/* 1 (SENDs: 0) to KRC_MAX_SGE; only these count */
	__u8 reserved;			/* 0 */
	struct krc_sge sges[KRC_MAX_SGE];
};

/*
 * KRC_IOC_PUSH. `requests` points to `count` structs krc_request. If one of them is
 * refused, `bad_index` is its place. EINVAL: its form (also an atomic that is not
 * of 8 aligned bytes). EOPNOTSUPP: an opcode or flag that the module does not
 * offer. EACCES: it names memory that is not, or not wholly, in a region of this
 * process, or of the peer, with the rights it needs. EMSGSIZE: it is longer than a
 * message may be. EAGAIN: more than the queue has places now. E2BIG: more than its
 * depth. ENOMEM: for the queue's places, which the first push makes. ENOTCONN.
 * ECONNRESET: a fault broke the queue; KRC_IOC_CONNECT makes it work again.
 *
 * SENDs are messages, copied by the call (still, their memory must be in regions of
 * this process). EMSGSIZE: longer than the port takes. EAGAIN: more than there are
 * credits. ENOTCONN: connected to no port. EPIPE: the port is closed; on this host
 * that is known at once, elsewhere by KRC_REMOTE_ACCESS_ERROR. One that fails has
 * an unknown outcome until the queue is connected again, or closed: after that it
 * is never delivered.
 */
struct krc_push {
	__u64 requests;
	__u32 count;
	__u32 bad_index;		/* out */
};

/*
 * The completion ring. The module writes entry `head` & (ring_entries - 1), then
 * increments `head` (release). Its user reads up to `head` (acquire), then stores
 * to `tail` how far it has read (release). Both only grow, and wrap. A `tail` that
 * makes no sense harms only its writer.
 */
struct krc_ring_header {
	__u32 head;
	__u32 reserved1[15];
	__u32 tail;
	__u32 reserved2[15];
};

struct krc_completion {
	__u64 wr_id;
	__u8 status;			/* of krc_status */
	__u8 opcode;			/* of krc_opcode */
	__u16 reserved1;
	__u32 reserved2;
};

#define KRC_IOC_MAGIC 0xCC
#define KRC_IOC_QUERY _IOWR(KRC_IOC_MAGIC, 0, struct krc_query)
#define KRC_IOC_ATTACH _IOWR(KRC_IOC_MAGIC, 1, struct krc_attach)
#define KRC_IOC_CONNECT_DEVICE _IOWR(KRC_IOC_MAGIC, 2, struct krc_connect_device)
#define KRC_IOC_REG_MR _IOWR(KRC_IOC_MAGIC, 3, struct krc_reg_mr)
#define KRC_IOC_DEREG_MR _IOWR(KRC_IOC_MAGIC, 4, struct krc_dereg_mr)
#define KRC_IOC_PUSH _IOWR(KRC_IOC_MAGIC, 5, struct krc_push)
#define KRC_IOC_JOIN _IOWR(KRC_IOC_MAGIC, 6, struct krc_join)
#define KRC_IOC_PUBLISH _IOWR(KRC_IOC_MAGIC, 7, struct krc_publish)
#define KRC_IOC_CONNECT _IOWR(KRC_IOC_MAGIC, 8, struct krc_connect)
#define KRC_IOC_SET_SERVICE _IOWR(KRC_IOC_MAGIC, 9, struct krc_service)
#define KRC_IOC_GET_SERVICE _IOWR(KRC_IOC_MAGIC, 10, struct krc_service)
#define KRC_IOC_PEER_STATE _IOWR(KRC_IOC_MAGIC, 11, struct krc_peer_state)
#define KRC_IOC_NEW_QUEUE _IOWR(KRC_IOC_MAGIC, 12, struct krc_new_queue)
#define KRC_IOC_BIND _IOWR(KRC_IOC_MAGIC, 13, struct krc_bind)
#define KRC_IOC_PUSH_RECV _IOWR(KRC_IOC_MAGIC, 14, struct krc_push_recv)
#define KRC_IOC_POP_MSGS _IOWR(KRC_IOC_MAGIC, 15, struct krc_pop_msgs)
#define KRC_IOC_CREDITS _IOWR(KRC_IOC_MAGIC, 16, struct krc_credits)
#define KRC_IOC_DC_TARGET _IOWR(KRC_IOC_MAGIC, 17, struct krc_dc_target)
#define KRC_IOC_START _IOWR(KRC_IOC_MAGIC, 18, struct krc_start)

#endif /* _UAPI_KRCORE_KRCORE_IOCTL_H */
