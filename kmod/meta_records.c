// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/random.h>
#include <linux/siphash.h>

#include "device.h"
#include "meta.h"

#define WINDOW 8
#define WINDOW_BYTES (WINDOW * KRC_RECORD_BYTES)
/* A host takes this many at once. */
#define INCARNATIONS 16
/* Records that one READ fetches to see whose they are. */
#define SWEPT_AT_ONCE (PAGE_SIZE / KRC_RECORD_BYTES)
/* A record that is just being written is whole soon. */
#define TORN_TRIES 100
#define CLAIM_TRIES 64

static_assert(sizeof(struct krc_record) == KRC_RECORD_BYTES);
static_assert(KRC_TABLE_SLOTS % SWEPT_AT_ONCE == 0);

/* The owner word while a slot is given back: it is no node's, and of this owner alone. */
static u64 krc_vacating(u64 owner)
{
	return owner | U32_MAX;
}

static bool krc_is_vacating(u64 owner)
{
	return (u32)owner == U32_MAX;
}

/* The same on all hosts: a hash, not a secret. */
static const siphash_key_t hash_key = { { 0x6b72636f7265, 1 } };

static u64 krc_hash_name(u8 kind, const u8 *fabric, const void *name,
			 size_t bytes)
{
	u8 all[1 + KRC_NAME_BYTES + KRC_NAME_BYTES] = { kind };

	memcpy(all + 1, fabric, KRC_NAME_BYTES);
	memcpy(all + 1 + KRC_NAME_BYTES, name, bytes);
	return siphash(all, sizeof(all), &hash_key) ?: 1;
}

u64 krc_node_key(const u8 *fabric, u32 node)
{
	return krc_hash_name('n', fabric, &node, sizeof(node));
}

u64 krc_port_key(const u8 *fabric, u32 node, u32 port)
{
	u32 both[2] = { node, port };

	return krc_hash_name('p', fabric, both, sizeof(both));
}

u64 krc_service_key(const u8 *fabric, const u8 *name)
{
	return krc_hash_name('s', fabric, name, KRC_NAME_BYTES);
}

static u64 krc_record_checksum(const struct krc_record *record)
{
	struct krc_record copy = *record;

	copy.checksum = 0;
	return siphash(&copy, sizeof(copy), &hash_key);
}

/* --- records; meta->lock is held --- */

static u32 krc_first_slot(u64 key)
{
	/* The key's low bits do not show in these. */
	return 1 + (key >> 32) % (KRC_TABLE_SLOTS - WINDOW);
}

static u64 krc_slot_offset(u32 slot)
{
	return (u64)slot * KRC_RECORD_BYTES;
}

/* Reads the window of `key` to the buffer. */
static int krc_meta_read_window(struct krc_meta *meta, u64 key)
{
	return krc_meta_verb(meta, KRC_OP_READ,
			     krc_slot_offset(krc_first_slot(key)), WINDOW_BYTES,
			     0, 0);
}

/* Returns the slot in the buffer's window whose key is `wanted`, from the n-th on; or -1. */
static int krc_meta_find(struct krc_meta *meta, u64 wanted, int from)
{
	const struct krc_record *records = meta->verb.buffer;
	int i;

	for (i = from; i < WINDOW; i++)
		if (records[i].key == wanted)
			return i;
	return -1;
}

static int krc_meta_lookup_locked(struct krc_meta *meta, u64 key,
				  struct krc_record *record)
{
	const struct krc_record *records = meta->verb.buffer;
	int tries, at, err;
	bool owned;

	for (tries = 0; tries < TORN_TRIES; tries++) {
		err = krc_meta_read_window(meta, key);
		if (err)
			return err;
		owned = false;
		/* There are two while a claimer that came too late withdraws. */
		for (at = krc_meta_find(meta, key, 0); at >= 0;
		     at = krc_meta_find(meta, key, at + 1)) {
			if (!records[at].owner ||
			    krc_is_vacating(records[at].owner))
				continue;
			owned = true;
			*record = records[at];
			if (record->checksum == krc_record_checksum(record) &&
			    record->length <= sizeof(record->value))
				return 0;
		}
		if (!owned)
			return -ENOENT;
		usleep_range(100, 200);
	}
	return -EIO;
}

static int krc_meta_is_dead_locked(struct krc_meta *meta, const u8 *fabric,
				   u64 owner)
{
	struct krc_record record;
	int err = krc_meta_lookup_locked(meta, krc_node_key(fabric, (u32)owner),
					 &record);

	if (err)
		return err == -ENOENT ? 1 : err;
	return record.owner != owner;
}

/*
 * Vacates one's own slot, if it still is: the table may have been made anew since.
 * Nobody claims the slot before its last word is 0.
 */
static int krc_meta_vacate(struct krc_meta *meta, u32 slot, u64 key, u64 owner)
{
	const u32 head = offsetof(struct krc_record, checksum);
	u64 offset = krc_slot_offset(slot);
	u64 at_owner = offset + offsetof(struct krc_record, owner);
	bool won;
	int err;

	err = krc_meta_cas(meta, at_owner, owner, krc_vacating(owner), &won);
	if (err || !won)
		return err;
	memset(meta->verb.buffer, 0, sizeof(struct krc_record) - head);
	err = krc_meta_verb(meta, KRC_OP_WRITE, offset + head,
			    sizeof(struct krc_record) - head, 0, 0);
	if (!err)
		err = krc_meta_cas(meta, offset, key, 0, &won);
	if (!err)
		err = krc_meta_cas(meta, at_owner, krc_vacating(owner), 0,
				   &won);
	return err;
}

/*
 * One step of a claim: takes the slot of `key`, or a free one. -EAGAIN: somebody
 * else was faster.
 */
static int krc_meta_claim_once(struct krc_meta *meta, u64 key, u64 owner,
			       const u8 *fabric, u32 *slot)
{
	const struct krc_record *records = meta->verb.buffer;
	u32 first = krc_first_slot(key);
	u64 former = 0;
	bool won;
	int at, err;

	err = krc_meta_read_window(meta, key);
	if (err)
		return err;
	at = krc_meta_find(meta, key, 0);
	if (at >= 0) {
		former = records[at].owner;
		*slot = first + at;
	} else {
		at = krc_meta_find(meta, 0, 0);
		while (at >= 0 && records[at].owner)
			at = krc_meta_find(meta, 0, at + 1);
		if (at < 0)
			return -ENOSPC;
		*slot = first + at;
		err = krc_meta_cas(meta, krc_slot_offset(*slot), 0, key, &won);
		if (err || !won)
			return err ?: -EAGAIN;
	}
	if (krc_is_vacating(former))
		return -EAGAIN;
	if (former && former != owner) {
		if (!fabric)
			return -EEXIST;
		err = krc_meta_is_dead_locked(meta, fabric, former);
		if (err <= 0)
			return err ?: -EEXIST;
	}
	if (former != owner) {
		err = krc_meta_cas(meta,
				   krc_slot_offset(*slot) +
					   offsetof(struct krc_record, owner),
				   former, owner, &won);
		if (err || !won)
			return err ?: -EAGAIN;
	}
	/* Has somebody claimed another slot for this key? */
	err = krc_meta_read_window(meta, key);
	if (err)
		return err;
	at = krc_meta_find(meta, key, 0);
	if (krc_meta_find(meta, key, at + 1) < 0)
		return 0;
	return krc_meta_vacate(meta, *slot, key, owner) ?: -EAGAIN;
}

static int krc_meta_claim_locked(struct krc_meta *meta, u64 key, u64 owner,
				 const u8 *fabric, u32 *slot)
{
	int tries, err;

	for (tries = 0; tries < CLAIM_TRIES; tries++) {
		err = krc_meta_claim_once(meta, key, owner, fabric, slot);
		if (err != -EAGAIN)
			return err;
		msleep(1 + get_random_u32() % 8);
	}
	return -EIO;
}

/* Returns the next whole record of that host in the buffer, from the n-th on; or -1. */
static int krc_meta_find_of_host(struct krc_meta *meta,
				 const union ib_gid *gid, int from)
{
	const struct krc_record *records = meta->verb.buffer;
	int i;

	for (i = from; i < SWEPT_AT_ONCE; i++)
		if (records[i].owner && !krc_is_vacating(records[i].owner) &&
		    !memcmp(records[i].gid, gid->raw, sizeof(gid->raw)) &&
		    records[i].checksum == krc_record_checksum(&records[i]))
			return i;
	return -1;
}

/* Vacates all records of a host that executes nothing any more. */
static int krc_meta_sweep(struct krc_meta *meta, const union ib_gid *gid)
{
	const struct krc_record *records = meta->verb.buffer;
	u32 first, count = 0;
	u64 key, owner;
	int at, err;

	for (first = 0; first < KRC_TABLE_SLOTS; first += SWEPT_AT_ONCE) {
		/* The very first slot is no record. */
		for (at = first ? 0 : 1;; at++) {
			err = krc_meta_verb(meta, KRC_OP_READ,
					    krc_slot_offset(first),
					    SWEPT_AT_ONCE * KRC_RECORD_BYTES, 0,
					    0);
			if (err)
				return err;
			at = krc_meta_find_of_host(meta, gid, at);
			if (at < 0)
				break;
			key = records[at].key;
			owner = records[at].owner;
			err = krc_meta_vacate(meta, first + at, key, owner);
			if (err)
				return err;
			count++;
		}
		cond_resched();
	}
	if (count)
		dev_info(&meta->dev->ib->dev,
			 "krcore: %u records of %pI6c removed\n", count,
			 gid->raw);
	return 0;
}

/* --- calls --- */

/*
 * Begins a call, and takes the lock. Whatever this device had entered before it
 * came, or came again, belongs to nodes that are gone with its former QPs: its
 * machine died, or it went while it was in use. Nothing is entered before that is
 * removed.
 */
static int krc_meta_begin(struct krc_meta *meta)
{
	int err = 0;

	mutex_lock(&meta->lock);
	if (!meta->swept) {
		err = krc_meta_sweep(meta, &meta->dev->gid);
		meta->swept = !err;
	}
	return err;
}

int krc_meta_forget_host(struct krc_meta *meta, const union ib_gid *gid)
{
	int err;

	if (krc_device_is_at(meta->dev, gid))
		return -EINVAL;
	err = krc_meta_begin(meta);
	if (!err)
		err = krc_meta_sweep(meta, gid);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_new_incarnation(struct krc_meta *meta, u32 *incarnation)
{
	int err = krc_meta_begin(meta);

	if (!err && meta->next_incarnation == meta->last_incarnation) {
		err = krc_meta_verb(meta, KRC_OP_FETCH_ADD, 0, sizeof(u64),
				    INCARNATIONS, 0);
		if (!err) {
			meta->next_incarnation = *(u64 *)meta->verb.buffer;
			meta->last_incarnation =
				meta->next_incarnation + INCARNATIONS;
		}
	}
	if (!err)
		*incarnation = meta->next_incarnation++;
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_lookup(struct krc_meta *meta, u64 key, struct krc_record *record)
{
	int err = krc_meta_begin(meta);

	if (!err)
		err = krc_meta_lookup_locked(meta, key, record);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_claim(struct krc_meta *meta, u64 key, u64 owner, const u8 *fabric,
		   u32 *slot)
{
	int err = krc_meta_begin(meta);

	if (!err)
		err = krc_meta_claim_locked(meta, key, owner, fabric, slot);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_write(struct krc_meta *meta, u32 slot, u64 key, u64 owner,
		   const void *value, u32 length)
{
	const u32 head = offsetof(struct krc_record, checksum);
	u64 offset = krc_slot_offset(slot);
	struct krc_record record = {
		.key = key,
		.owner = owner,
		.length = length,
	};
	bool owned;
	int err;

	memcpy(record.gid, meta->dev->gid.raw, sizeof(record.gid));
	memcpy(record.value, value, length);
	record.checksum = krc_record_checksum(&record);
	mutex_lock(&meta->lock);
	/* Write nothing if the table has been made anew since. */
	err = krc_meta_cas(meta, offset + offsetof(struct krc_record, owner),
			   owner, owner, &owned);
	if (!err && !owned)
		err = -EIO;
	if (!err) {
		memcpy(meta->verb.buffer, (u8 *)&record + head,
		       sizeof(record) - head);
		err = krc_meta_verb(meta, KRC_OP_WRITE, offset + head,
				    sizeof(record) - head, 0, 0);
	}
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_remove(struct krc_meta *meta, u32 slot, u64 key, u64 owner)
{
	int err;

	mutex_lock(&meta->lock);
	err = krc_meta_vacate(meta, slot, key, owner);
	mutex_unlock(&meta->lock);
	return err;
}

int krc_meta_is_dead(struct krc_meta *meta, const u8 *fabric, u64 owner)
{
	int dead = krc_meta_begin(meta);

	if (!dead)
		dead = krc_meta_is_dead_locked(meta, fabric, owner);
	mutex_unlock(&meta->lock);
	return dead;
}
