/*
 * The store's C interface (C11), for C programs and other languages.
 *
 *   kvs_store_t* store;
 *   kvs_client_t* client;
 *   void* value;
 *   size_t length;
 *   kvs_open(&(struct kvs_store_options){.fabric = "demo"}, &store);
 *   kvs_client_open(store, NULL, &client);
 *   kvs_put(client, "hello", 5, "world", 5);
 *   kvs_get(client, "hello", 5, &value, &length);
 *   kvs_free(value);
 *   kvs_client_close(client);
 *   kvs_close(store);
 *
 * It wraps kvs/client.h. Semantics, limits and errors of a call are those of the C++ call of the same name.
 *
 * Errors: 0 is success, otherwise a KVS_E... below. kvs_strerror names it, and kvs_last_error() says more about the
 * last failure of the calling thread. A NULL argument that is needed is KVS_EINVALID. No call throws.
 * Lengths are in bytes. Keys and values are binary. NULL with length 0 means no bytes.
 * Ownership: what a call hands out belongs to the caller, until the matching close or kvs_free. Arguments are borrowed
 * during the call. Close clients before their store. Closing or freeing NULL does nothing.
 * Structs: set a struct to zero before you fill it in. Later versions may add fields, whose 0 will mean what happens
 * without them. A field of an options struct that is 0 or NULL has the default of the C++ option, and NULL in place of
 * a whole struct has all of them.
 * Expiry: a value may have a time of day from which on its key is absent, in milliseconds since 1970, UTC; 0: none. See
 * kvs/client.h. Calls that take no such time write values that stay.
 * Blocking: every call that can fail blocks until it is done, up to the timeouts of struct kvs_store_options; the close
 * of a client does, too.
 * Threads: a store may be used from any thread. A client belongs to one thread at a time; open one per thread.
 * Fork: in a child that was forked since, a store and its clients are of no use. Calls on them return KVS_EBADSTATE,
 * and closing them does nothing. A child opens its own store (krcore/fork.h).
 */
#ifndef KVS_KVS_H_
#define KVS_KVS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvs_error { /* kvs::StatusCode, negated; kvs/client.h tells what each says of an operation */
                 KVS_OK = 0,
                 KVS_ENOTFOUND = -1,
                 KVS_EEXISTS = -2,
                 KVS_EINVALID = -3,
                 KVS_ENOMEM = -4,
                 KVS_EUNAVAILABLE = -5,
                 KVS_ETIMEOUT = -6, /* a write may or may not have happened */
                 KVS_EUNKNOWN = -7, /* likewise */
                 KVS_EUNSUPPORTED = -8,
                 KVS_EPERMISSION = -9,
                 KVS_EQUEUEFULL = -10,
                 KVS_EBADSTATE = -11,
                 KVS_ECORRUPT = -12,
                 KVS_EINTERNAL = -13
};

#define KVS_MAX_KEY_BYTES 65535u      /* a key has 1 byte at least */
#define KVS_MAX_VALUE_BYTES 16777216u /* 16 MiB; a value may be empty */

typedef struct kvs_store kvs_store_t;
typedef struct kvs_client kvs_client_t;

const char* kvs_version(void);       /* of the library: "major.minor.patch"; static */
const char* kvs_strerror(int error); /* never NULL; static */
/* More about this thread's last failed call, of kvs or krcore; "" if there is nothing to add. Valid until the thread's
 * next failure. */
const char* kvs_last_error(void);
/* Frees what a call has handed out. */
void kvs_free(void* memory);

/* ---- stores and clients */

struct kvs_store_options { /* kvs::StoreOptions */
  const char* fabric;
  const char* rnic;
  const char* fabric_address;
  const char* rnic_port;
  const char* control_plane;
  int64_t operation_timeout_ms;
  int64_t open_timeout_ms;
};

struct kvs_embedded_options { /* kvs::EmbeddedOptions */
  uint64_t memory_bytes;
  uint64_t expected_records;
  int64_t operation_timeout_ms;
};

struct kvs_client_options { /* of kvs::ClientOptions */
  uint32_t max_in_flight;   /* keys that one kvs_multi_get or kvs_multi_write works on at once */
  uint32_t address_cache_entries;
};

/* Attaches to a running fabric. */
int kvs_open(const struct kvs_store_options* options, kvs_store_t** store);
/* Opens a whole store in this process. Its data ends with it. */
int kvs_open_embedded(const struct kvs_embedded_options* options, kvs_store_t** store);
void kvs_close(kvs_store_t* store);

int kvs_client_open(kvs_store_t* store, const struct kvs_client_options* options, kvs_client_t** client);
void kvs_client_close(kvs_client_t* client);
/* Call it while a client is idle: it renews the client's lease, and lets other clients reuse memory. Does not block.
 * Returns after how many nanoseconds to call it again, if no other call comes first; 0: at once. */
int64_t kvs_poll(kvs_client_t* client);

/* ---- one key */

/* KVS_ENOTFOUND. Sets *value to the value, which the caller frees by kvs_free, and *value_length. A NUL byte, which is
 * not counted, follows the value. After a failure they are NULL and 0. */
int kvs_get(kvs_client_t* client, const void* key, size_t key_length, void** value, size_t* value_length);
/* Inserts or overwrites. kvs_multi_write and kvs_modify can write a value that expires. */
int kvs_put(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length);
/* KVS_EEXISTS. */
int kvs_insert(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length);
/* KVS_ENOTFOUND. */
int kvs_update(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length);
/* KVS_ENOTFOUND. */
int kvs_delete(kvs_client_t* client, const void* key, size_t key_length);
/* If the key has the value `expected`, or is absent where that is NULL, gives it the value `desired`, or deletes it
 * where that is NULL. (So an empty value here is a pointer that is not NULL, with length 0.) Otherwise changes nothing.
 * KVS_EEXISTS: it has another value. KVS_ENOTFOUND: it is absent. */
int kvs_compare_and_set(kvs_client_t* client, const void* key, size_t key_length, const void* expected,
                        size_t expected_length, const void* desired, size_t desired_length);

struct kvs_value {
  const void* value;
  size_t value_length;
  uint64_t expires_at_ms; /* 0: never */
};

enum kvs_modify_action { KVS_MODIFY_KEEP = 0, KVS_MODIFY_SET = 1, KVS_MODIFY_DELETE = 2 };

/* Decides what a kvs_modify makes of its key, and returns an action. `old` is what the key has; NULL: it is absent. For
 * KVS_MODIFY_SET, it fills in *wanted, which is zero before. The new value's bytes stay the caller's and are copied as
 * soon as the function has returned. It may be called several times, and only the last call counts. It must not use the
 * client, block, throw or leave by longjmp. */
typedef int (*kvs_modify_function)(void* context, const struct kvs_value* old, struct kvs_value* wanted);
/* Does with the key what `function` decides, in one atomic step. KVS_EINVALID: what it decided is not an action, or the
 * new value is too long; nothing was changed. */
int kvs_modify(kvs_client_t* client, const void* key, size_t key_length, kvs_modify_function function, void* context);

/* ---- many keys */

struct kvs_read { /* one of the reads of a kvs_multi_get */
  const void* key;
  size_t key_length;
  /* Results, as of kvs_get. */
  void* value; /* of KVS_OK only, else NULL; each is freed by kvs_free */
  size_t value_length;
  int status;
};

/* Reads all keys, in shared round trips. Returns KVS_OK if each read has its status, whatever that is. Otherwise no
 * result is set. kvs_last_error tells of the last read that failed. */
int kvs_multi_get(kvs_client_t* client, struct kvs_read* reads, size_t count);

enum kvs_write_kind { KVS_PUT = 0, KVS_INSERT = 1, KVS_UPDATE = 2, KVS_DELETE = 3 };

struct kvs_write { /* one of the writes of a kvs_multi_write */
  const void* key;
  size_t key_length;
  const void* value; /* not of KVS_DELETE */
  size_t value_length;
  int kind;               /* enum kvs_write_kind */
  int status;             /* result, as of the call of that name */
  uint64_t expires_at_ms; /* 0: never; not of KVS_DELETE */
};

/* Does all writes, in shared round trips. They are not a transaction and have no order, even those of one key. Returns
 * KVS_OK if each write has its status, whatever that is. Otherwise nothing was written. kvs_last_error tells of the
 * last write that failed. */
int kvs_multi_write(kvs_client_t* client, struct kvs_write* writes, size_t count);

struct kvs_scan_options { /* kvs::ScanOptions */
  uint32_t count;
  uint32_t keys_only; /* not 0: values are left out */
  uint64_t max_bytes;
};

struct kvs_record { /* a NUL byte, which is not counted, follows each key and value */
  const void* key;
  size_t key_length;
  const void* value;
  size_t value_length;
  uint64_t expires_at_ms; /* 0: never */
};

/* Takes the next step of a scan over all keys, which begins with *cursor 0 and ends with the call that sets it to 0.
 * Sets *records to *count records, perhaps none. One kvs_free(*records) frees them all, with their keys and values. If
 * the call fails, *cursor stays, and they are NULL and 0. */
int kvs_scan(kvs_client_t* client, uint64_t* cursor, const struct kvs_scan_options* options,
             struct kvs_record** records, size_t* count);

/* ---- statistics */

struct kvs_counter {
  const char* name; /* of a member of kvs::ClientStats, such as "round_trips"; static */
  uint64_t value;
};

/* What the client did: writes up to `count` counters and returns how many there are. The order is always the same. Does
 * not block. */
size_t kvs_client_stats(const kvs_client_t* client, struct kvs_counter* counters, size_t count);

struct kvs_memory_node { /* kvs::TableStats::MemoryNode */
  uint32_t node;
  uint32_t draining;
  uint64_t capacity_bytes;
  uint64_t taken_bytes;
};

struct kvs_table_stats { /* kvs::TableStats */
  uint64_t global_depth;
  uint64_t subtables;
  uint64_t slots;
  uint64_t used_slots;
  double load_factor;
  const struct kvs_memory_node* memory_nodes;
  size_t memory_node_count;
};

/* Reads the whole table, which takes seconds where it is large. One kvs_free(*stats) frees it, with memory_nodes. After
 * a failure it is NULL. */
int kvs_read_table_stats(kvs_client_t* client, struct kvs_table_stats** stats);

#ifdef __cplusplus
}
#endif

#endif /* KVS_KVS_H_ */
