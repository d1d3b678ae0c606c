/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The metadata server: a table of records in the memory of one host's module, which
 * the modules of all hosts read and write one-sided. Its own CPU takes no part. A
 * record is found by a key, the hash of its name, in one READ: it lies in one of
 * the WINDOW slots from the one that the key names.
 *
 * A slot is free, a key's, or an owner's: the words `key` and `owner` change by CAS
 * alone, and the rest belongs to the owner. Two nodes that claim one key at the
 * same time may do so in two slots. But each one that has claimed a slot looks for
 * another one with that key, and gives its own back if there is one; of two, at
 * least the later one sees the other.
 *
 *   claim             READ window -> a slot of that key; or a free one:
 *                     CAS key 0 -> key
 *                     CAS owner 0, or of a node that is gone -> owner
 *                     READ window -> another slot of that key: vacate, again
 *   write             CAS owner -> owner: is it still one's own? WRITE the rest
 *   vacate            CAS owner -> vacating, a word of that owner alone
 *                     WRITE 0 to everything after owner
 *                     CAS key -> 0, vacating -> 0
 *
 * Each of these may be repeated if there was no answer. The module of the owner's
 * host vacates what is claimed. If it could not, because its machine died or its
 * device went, the rest is vacated when its device comes to the table again, before
 * it enters anything, or when somebody says that the host is gone. So, as long as
 * the table stays what it is, a node that is not found is gone and nothing of it
 * executes any more, except for what README says of connections that cannot be
 * built.
 */
#ifndef KRCORE_META_H
#define KRCORE_META_H

#include <linux/mutex.h>
#include <linux/types.h>

#include "verb.h"

struct krc_device;
struct krc_host;

/* The first slot is the header: the next incarnation. */
#define KRC_TABLE_SLOTS 2048
#define KRC_RECORD_BYTES 256
#define KRC_RECORD_VALUE_BYTES (KRC_RECORD_BYTES - 48)

/* All numbers are in the byte order that all hosts share. */
struct krc_record {
	u64 key;	/* 0: free */
	u64 owner;	/* incarnation << 32 | node; 0: nobody's yet */
	u64 checksum;	/* of all else */
	u32 length;
	u32 reserved;
	u8 gid[KRC_GID_BYTES];	/* of the owner's device */
	u8 value[KRC_RECORD_VALUE_BYTES];
};

/* A device's way to the table. */
struct krc_meta {
	struct krc_device *dev;
	struct mutex lock;		/* one call at a time */
	union ib_gid gid;		/* of the host that has the table */
	struct krc_host *host;		/* that host; set by the first call */
	bool swept;			/* records of an earlier life were removed */
	unsigned long unreachable_until; /* jiffies */
	struct krc_verb verb;		/* its connection is set with `host` */
	u32 next_incarnation;		/* of those that this host may give out */
	u32 last_incarnation;
	/* The table, if it is this host's. */
	void *table;
	u64 table_dma;
	struct ib_mr *table_mr;
};

/* Returns how many slots of this host's table are taken. Context: any. */
u32 krc_meta_records(const struct krc_meta *meta);

int krc_meta_init(struct krc_device *dev);
void krc_meta_exit(struct krc_device *dev);

/* The names of records: of a node, its port, a service of a fabric. Never 0. */
u64 krc_node_key(const u8 *fabric, u32 node);
u64 krc_port_key(const u8 *fabric, u32 node, u32 port);
u64 krc_service_key(const u8 *fabric, const u8 *name);

static inline u64 krc_owner(u32 node, u32 incarnation)
{
	return (u64)incarnation << 32 | node;
}

/*
 * All of them: -EIO: the server does not answer; -ENODEV; -ENETDOWN: likewise,
 * there is no connection to it. Context: process; sleeps for round trips, for
 * seconds if nobody answers.
 */

/* Gets a number that no other incarnation has. */
int krc_meta_new_incarnation(struct krc_meta *meta, u32 *incarnation);
/* -ENOENT. */
int krc_meta_lookup(struct krc_meta *meta, u64 key, struct krc_record *record);
/*
 * Claims `key` for `owner`, and a slot for it. -EEXIST: it belongs to another
 * owner, whose node lives (`fabric`: of the owners of services) or is the record
 * itself (NULL). -ENOSPC: there is no room.
 */
int krc_meta_claim(struct krc_meta *meta, u64 key, u64 owner, const u8 *fabric,
		   u32 *slot);
/* Writes to one's own slot. Also -EIO: the table is not the one that it was in. */
int krc_meta_write(struct krc_meta *meta, u32 slot, u64 key, u64 owner,
		   const void *value, u32 length);
int krc_meta_remove(struct krc_meta *meta, u32 slot, u64 key, u64 owner);
/*
 * Vacates all records of a host that is gone. The caller must know that: a host
 * that lives loses its nodes and services by this. -EINVAL: it is this host.
 */
int krc_meta_forget_host(struct krc_meta *meta, const union ib_gid *gid);
/* Whether that incarnation of a node is gone: 1 or 0. */
int krc_meta_is_dead(struct krc_meta *meta, const u8 *fabric, u64 owner);

/* --- what the files share: one verb each; meta->lock is held --- */

/* `offset` is in the table; the local side is meta->verb.buffer. */
int krc_meta_verb(struct krc_meta *meta, u8 opcode, u64 offset, u32 bytes,
		  u64 compare_add, u64 swap);
/*
 * Won if `swap` is there: an earlier try, without an answer, may have put it there.
 * Only a caller that claims the same key writes that word as well, which is just as
 * good.
 */
int krc_meta_cas(struct krc_meta *meta, u64 offset, u64 compare, u64 swap,
		 bool *won);

#endif
