/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A port: the receiving half of messages. Its memory (wire.h) belongs to the
 * kernel. A sender's kernel writes to it, never the sender's process: no process
 * reaches it. When its owner pops, the kernel looks for what has arrived, checks
 * it and copies it.
 *
 * Requests of this host's queues that write to it hold a reference, as they do to
 * regions: a port that is closed, or whose process is killed, breaks no QP of its
 * own host.
 */
#ifndef KRCORE_PORT_H
#define KRCORE_PORT_H

#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/refcount.h>
#include <linux/scatterlist.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "wire.h"

struct krc_device;
struct krc_node;
struct krc_peer;
struct krc_queue;

struct krc_segment {
	void *memory;
	u32 bytes;
	struct sg_table sg;
	bool is_mapped;
	struct ib_mr *mr;
};

/* What the receiver knows of a place. */
struct krc_inbox {
	u64 owner;	/* whose card this is; 0: nobody's */
	u64 next;	/* the number of the message that is expected */
	struct krc_card card;
};

struct krc_port {
	struct kref refs;	/* its queue, senders of this host */
	struct krc_device *dev;
	struct krc_queue *queue;	/* its owner; outlives its users */
	struct delayed_work look;	/* while somebody sleeps, see krc_port_poll */
	struct list_head link;	/* of dev->ports, by its lock */
	u64 key;
	u64 owner;
	refcount_t users;	/* requests, and 1 until it is closed */
	struct completion idle;	/* nobody uses it, and nobody will */
	/* The lock of its queue guards all that follows. */
	u32 port;
	bool has_record;
	u32 record;
	u64 pages;		/* charged to its process */
	struct krc_port_value value;
	u32 segment_count;
	struct krc_segment segments[KRC_MAX_SEGMENTS];
	struct krc_inbox *inboxes;	/* of value.senders */
	u32 turn;			/* the place that is looked at first */
	struct krc_message_header *message;	/* the message that is looked at */
	struct krc_receive *receives;	/* a ring */
	u32 receive_depth;
	u32 receive_head;
	u32 receive_count;
	unsigned long look_in;	/* jiffies until the next look */
};

/* The ports of a device. */
struct krc_ports {
	struct mutex lock;	/* guards: */
	struct list_head all;
};

void krc_ports_init(struct krc_ports *ports);

/* The calls of krcore_ioctl.h. They require the queue's lock. */
int krc_queue_bind(struct krc_queue *queue, struct krc_bind *bind);
int krc_queue_push_recv(struct krc_queue *queue, struct krc_push_recv *push);
int krc_queue_pop_msgs(struct krc_queue *queue, struct krc_pop_msgs *pop);

/*
 * EPOLLPRI: the queue is bound, and a message can be popped. Otherwise a sleeper
 * on queue->wait is woken when there may be one: for a message of this host when
 * its request completes, and for those of other hosts, whose WRITEs nobody hears,
 * by a timer that looks for them. Takes the queue's lock. Context: process, may
 * sleep.
 */
__poll_t krc_port_poll(struct krc_queue *queue);
/* A message from this host has come. Context: any. */
void krc_port_arrived(struct krc_port *port);

/* For a queue that ends: nothing reaches its port any more. Requires the lock. */
void krc_port_close(struct krc_queue *queue);

/* Looks up what a port of a node of this node's fabric has published, and who did. */
int krc_port_lookup(struct krc_node *node, u32 peer, u32 port, u64 *owner,
		    struct krc_port_value *value);
/* Returns a port of this host, with a reference; or NULL. */
struct krc_port *krc_port_find(struct krc_device *dev, u64 key, u64 owner);
void krc_port_put(struct krc_port *port);
/* Begins a request to the port, unless it is closed; ends it. Context: any. */
bool krc_port_use(struct krc_port *port);
void krc_port_unuse(struct krc_port *port);

/*
 * Charges kernel pages to the process that causes them. -ENOMEM: they exceed its
 * RLIMIT_MEMLOCK.
 */
int krc_charge_pages(struct krc_queue *queue, u64 pages);
void krc_uncharge_pages(struct krc_queue *queue, u64 pages);

/* port_messages.c: the work of krc_port::look. */
void krc_port_look(struct work_struct *work);

#endif
