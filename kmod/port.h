/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A port: the receiving half of messages. Its memory (wire.h) belongs to the
 * kernel, and whoever sends, his kernel writes to it: no process reaches it. What
 * has arrived is looked for, checked and copied when its owner pops it.
 *
 * Requests of this host's queues that write to it hold it, as they do regions: a
 * port that is closed, or whose process is killed, breaks no QP of its own host.
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
	u64 next;	/* number of the message that is expected */
	struct krc_card card;
};

struct krc_port {
	struct kref refs;	/* its queue, senders of this host */
	struct krc_device *dev;
	struct krc_queue *queue;	/* whose it is; outlives its users */
	struct delayed_work look;	/* while somebody sleeps, see krc_port_poll */
	struct list_head link;	/* of dev->ports, by its lock */
	u64 key;
	u64 owner;
	refcount_t users;	/* requests, and 1 until it is closed */
	struct completion idle;	/* nobody uses it, nobody will */
	/* All that follows by the lock of its queue. */
	u32 port;
	bool has_record;
	u32 record;
	u64 pages;		/* charged to its process */
	struct krc_port_value value;
	u32 segment_count;
	struct krc_segment segments[KRC_MAX_SEGMENTS];
	struct krc_inbox *inboxes;	/* of value.senders */
	u32 turn;			/* whose place is looked at first */
	struct krc_message_header *message;	/* the one looked at */
	struct krc_receive *receives;	/* a ring */
	u32 receive_depth;
	u32 receive_head;
	u32 receive_count;
	unsigned long look_in;	/* jiffies until the next look */
};

/* Those of a device. */
struct krc_ports {
	struct mutex lock;	/* of: */
	struct list_head all;
};

void krc_ports_init(struct krc_ports *ports);

/* The calls of krcore_ioctl.h, with the queue's lock held. */
int krc_queue_bind(struct krc_queue *queue, struct krc_bind *bind);
int krc_queue_push_recv(struct krc_queue *queue, struct krc_push_recv *push);
int krc_queue_pop_msgs(struct krc_queue *queue, struct krc_pop_msgs *pop);

/*
 * EPOLLPRI: the queue is bound, and a message can be popped. Else who sleeps on
 * queue->wait is woken when there may be one: by the completion of its request if
 * it is of this host; what other hosts write is heard of by nobody, and looked for
 * now and then. Takes the queue's lock. Context: process, may sleep.
 */
__poll_t krc_port_poll(struct krc_queue *queue);
/* A message of this host has come. Context: any. */
void krc_port_arrived(struct krc_port *port);

/* For a queue that ends: nothing reaches its port any more. Lock held. */
void krc_port_close(struct krc_queue *queue);

/* What a port of a node of this node's fabric has published, and who did. */
int krc_port_lookup(struct krc_node *node, u32 peer, u32 port, u64 *owner,
		    struct krc_port_value *value);
/* A port of this host, with a reference; NULL. */
struct krc_port *krc_port_find(struct krc_device *dev, u64 key, u64 owner);
void krc_port_put(struct krc_port *port);
/* A request to it begins, if it is not closed; ends. Context: any. */
bool krc_port_use(struct krc_port *port);
void krc_port_unuse(struct krc_port *port);

/*
 * Pages of the kernel's that a process is the reason of. -ENOMEM: they are beyond
 * its RLIMIT_MEMLOCK.
 */
int krc_charge_pages(struct krc_queue *queue, u64 pages);
void krc_uncharge_pages(struct krc_queue *queue, u64 pages);

/* port_messages.c: of krc_port::look. */
void krc_port_look(struct work_struct *work);

#endif
