/* SPDX-License-Identifier: GPL-2.0 */
/* What modules tell one another: when they connect, and by messages. */
#ifndef KRCORE_WIRE_H
#define KRCORE_WIRE_H

#include <linux/align.h>
#include <linux/build_bug.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/siphash.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/types.h>

#include <krcore/krcore_ioctl.h>

#define KRC_CM_MAGIC 0x6b726333	/* "krc3": also the version of records' layout */

/* What both sides send as private data of RDMA CM, which has room for 56 bytes. */
struct krc_cm_hello {
	__be32 magic;
	__be32 index;
	u8 gid[KRC_GID_BYTES];
};

struct krc_cm_welcome {
	__be32 magic;
	__be32 table_rkey;
	__be64 table_addr;
	__be32 table_slots;
	__be32 reserved;
};

/*
 * The memory of a port, where senders' modules reach it by one-sided requests.
 * It consists of segments, each an MR with as many places as fit:
 *
 *     owners    a word a place: 0 (free), or the owner
 *     places    each a struct krc_place and `slots` slots: a struct
 *               krc_message_header, and room for `copy_bytes`
 *
 * Who may change the owner's word depends on whether the place holds a card of its
 * owner. If it does not, senders may, by CAS 0 -> owner. If it does, the receiver
 * may: it writes KRC_BEING_FREED, clears what is the sender's, and writes 0.
 *
 * A place's messages are numbered; number n lies in slot n modulo slots. Numbers go
 * on from owner to owner, and skip `slots` between them, so that what an earlier
 * owner has left in a slot never passes for a message. A message is one WRITE, and
 * counts once its checksum matches, so nothing depends on the order in which a
 * WRITE's bytes appear. All numbers are in the byte order that all hosts share.
 */
#define KRC_MAX_SEGMENTS 8
#define KRC_BEING_FREED 1ull	/* no owner */

/* Identifies a sender. */
struct krc_card {
	u64 checksum;	/* of the rest of the card */
	u64 owner;
	u32 node;
	u32 incarnation;
	u32 queue;
	u32 port;	/* the one that it is bound to, or 0 */
};

struct krc_place {
	u64 released;	/* the receiver's: messages that have left, or never will come */
	u64 reserved1[7];
	u64 closing;	/* the sender's: krc_closing(), once it has gone */
	struct krc_card card;
	u64 reserved2[3];
};

static_assert(sizeof(struct krc_place) == 128);
static_assert(offsetof(struct krc_place, closing) == 64);

enum krc_message_kind {
	KRC_MESSAGE_VOID,	/* no message: its outcome was unknown */
	KRC_MESSAGE_COPY,	/* the content follows */
};

struct krc_message_header {
	u64 number;
	u64 checksum;	/* of the rest of the header, and the content */
	u32 length;
	u32 imm;
	u8 kind;
	u8 with_imm;
	u8 reserved[38];
};

static_assert(sizeof(struct krc_message_header) == 64);

struct krc_segment_place {
	u64 addr;
	u32 rkey;
	u32 reserved;
};

/* The value of a port's record. */
struct krc_port_value {
	u32 senders;
	u32 slots;
	u32 copy_bytes;
	u32 per_segment;	/* places in each but the last segment */
	struct krc_segment_place segments[KRC_MAX_SEGMENTS];
};

static inline u32 krc_slot_bytes(const struct krc_port_value *port)
{
	return sizeof(struct krc_message_header) + ALIGN(port->copy_bytes, 64);
}

static inline u32 krc_place_bytes(const struct krc_port_value *port)
{
	return sizeof(struct krc_place) + port->slots * krc_slot_bytes(port);
}

/* Returns how many places a segment has. */
static inline u32 krc_segment_count(const struct krc_port_value *port, u32 segment)
{
	return min(port->per_segment,
		   port->senders - segment * port->per_segment);
}

static inline u32 krc_owners_bytes(u32 places)
{
	return ALIGN(places * sizeof(u64), 64);
}

/* Returns the offset of a place in its segment. */
static inline u64 krc_place_offset(const struct krc_port_value *port,
				   u32 segment, u32 place)
{
	return krc_owners_bytes(krc_segment_count(port, segment)) +
	       (u64)place * krc_place_bytes(port);
}

/* Returns the offset of a message in its place. */
static inline u64 krc_message_offset(const struct krc_port_value *port,
				     u64 number)
{
	u32 slot;

	div_u64_rem(number, port->slots, &slot);
	return sizeof(struct krc_place) + (u64)slot * krc_slot_bytes(port);
}

/* The same on all hosts: it shows what is whole, and keeps nobody out. */
static inline u64 krc_wire_hash(const void *bytes, size_t length)
{
	static const siphash_key_t key = { { 0x6b72636d7367, 1 } };

	return siphash(bytes, length, &key);
}

static inline u64 krc_card_checksum(const struct krc_card *card)
{
	return krc_wire_hash(&card->owner,
			     sizeof(*card) - offsetof(struct krc_card, owner));
}

/* The checksum of a header and the bytes after it; its own checksum field is 0 meanwhile. */
static inline u64 krc_message_checksum(struct krc_message_header *header)
{
	u64 former = header->checksum;
	u64 checksum;

	header->checksum = 0;
	checksum = krc_wire_hash(header, sizeof(*header) + header->length);
	header->checksum = former;
	return checksum;
}

/*
 * Says that the owner's messages end before `next`. If it is written twice, the
 * second time when another owner has the place, that closes nothing.
 */
static inline u64 krc_closing(u64 owner, u64 next)
{
	return (u64)((u32)(owner >> 32) ^ (u32)owner) << 32 | (u32)(next + 1);
}

#endif
