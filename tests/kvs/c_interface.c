#include "tests/kvs/c_interface.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define STRERROR kvs_strerror
#define LAST_ERROR kvs_last_error
#include "tests/support/c_expect.h"

/* The call is refused, and the message names what is wrong. */
#define EXPECT_REFUSED(call, words)                    \
  do {                                                 \
    EXPECT_CODE(call, KVS_EINVALID);                   \
    EXPECT(strstr(kvs_last_error(), (words)) != NULL); \
  } while (0)

enum { kScanKeys = 10000, kLargeBytes = 5 << 20 };

static kvs_client_t* begin(kvs_store_t* store) {
  kvs_client_t* client = NULL;
  failures = 0;
  EXPECT_OK(kvs_client_open(store, NULL, &client));
  return client;
}

static int end(kvs_client_t* client) {
  kvs_client_close(client);
  return failures;
}

/* Whether the key, a string, has these bytes. */
static int has(kvs_client_t* client, const char* key, const void* bytes, size_t length) {
  void* value = NULL;
  size_t value_length = 0;
  if (kvs_get(client, key, strlen(key), &value, &value_length) != KVS_OK) return 0;
  const int same = value_length == length && memcmp(value, bytes, length) == 0 && ((char*)value)[length] == '\0';
  kvs_free(value);
  return same;
}

static int absent(kvs_client_t* client, const char* key) {
  void* value = client;
  size_t length = 1;
  return kvs_get(client, key, strlen(key), &value, &length) == KVS_ENOTFOUND && value == NULL && length == 0;
}

int c_one_key(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  EXPECT(absent(client, "k"));
  EXPECT_CODE(kvs_update(client, "k", 1, "1", 1), KVS_ENOTFOUND);
  EXPECT_CODE(kvs_delete(client, "k", 1), KVS_ENOTFOUND);
  EXPECT_OK(kvs_insert(client, "k", 1, "one", 3));
  EXPECT(has(client, "k", "one", 3));
  EXPECT_CODE(kvs_insert(client, "k", 1, "two", 3), KVS_EEXISTS);
  EXPECT(has(client, "k", "one", 3));
  EXPECT_OK(kvs_update(client, "k", 1, "three", 5));
  EXPECT(has(client, "k", "three", 5));
  EXPECT_OK(kvs_put(client, "k", 1, "4", 1));
  EXPECT(has(client, "k", "4", 1));
  EXPECT_OK(kvs_delete(client, "k", 1));
  EXPECT(absent(client, "k"));
  EXPECT_OK(kvs_put(client, "k", 1, "5", 1));
  EXPECT(has(client, "k", "5", 1));
  EXPECT_OK(kvs_delete(client, "k", 1));
  return end(client);
}

int c_binary_empty_and_large(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  void* value = NULL;
  size_t length = 0;
  EXPECT_OK(kvs_put(client, "a\0b", 3, "\0x\0\xff", 4));
  EXPECT_OK(kvs_put(client, "a\0c", 3, "other", 5));
  EXPECT(absent(client, "a"));
  EXPECT_OK(kvs_get(client, "a\0b", 3, &value, &length));
  EXPECT(length == 4 && memcmp(value, "\0x\0\xff", 5) == 0);
  kvs_free(value);
  EXPECT_OK(kvs_delete(client, "a\0b", 3));
  EXPECT_OK(kvs_delete(client, "a\0c", 3));

  EXPECT_OK(kvs_put(client, "empty", 5, NULL, 0));
  EXPECT(has(client, "empty", "", 0));
  EXPECT_OK(kvs_update(client, "empty", 5, "x", 0));
  EXPECT(has(client, "empty", "", 0));
  EXPECT_OK(kvs_delete(client, "empty", 5));

  char* const large = malloc(kLargeBytes);
  for (size_t i = 0; i < kLargeBytes; ++i) large[i] = (char)(i * 31 + i / 4096);
  EXPECT_OK(kvs_put(client, "large", 5, large, kLargeBytes));
  EXPECT(has(client, "large", large, kLargeBytes));
  EXPECT_OK(kvs_delete(client, "large", 5));

  char* const key = malloc(KVS_MAX_KEY_BYTES);
  memset(key, 'k', KVS_MAX_KEY_BYTES);
  EXPECT_OK(kvs_put(client, key, KVS_MAX_KEY_BYTES, large, 100));
  EXPECT_OK(kvs_get(client, key, KVS_MAX_KEY_BYTES, &value, &length));
  EXPECT(length == 100 && memcmp(value, large, 100) == 0);
  kvs_free(value);
  EXPECT_OK(kvs_delete(client, key, KVS_MAX_KEY_BYTES));
  free(key);
  free(large);
  return end(client);
}

int c_compare_and_set(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  EXPECT_CODE(kvs_compare_and_set(client, "k", 1, "a", 1, "b", 1), KVS_ENOTFOUND);
  EXPECT_CODE(kvs_compare_and_set(client, "k", 1, "", 0, "b", 1), KVS_ENOTFOUND);
  EXPECT_OK(kvs_compare_and_set(client, "k", 1, NULL, 0, "a", 1));
  EXPECT_CODE(kvs_compare_and_set(client, "k", 1, NULL, 0, "b", 1), KVS_EEXISTS);
  EXPECT_CODE(kvs_compare_and_set(client, "k", 1, "c", 1, "b", 1), KVS_EEXISTS);
  EXPECT(has(client, "k", "a", 1));
  EXPECT_OK(kvs_compare_and_set(client, "k", 1, "a", 1, "", 0));
  EXPECT(has(client, "k", "", 0));
  EXPECT_CODE(kvs_compare_and_set(client, "k", 1, NULL, 0, "b", 1), KVS_EEXISTS);
  EXPECT_OK(kvs_compare_and_set(client, "k", 1, "", 0, "b", 1));
  EXPECT_OK(kvs_compare_and_set(client, "k", 1, "b", 1, NULL, 0));
  EXPECT(absent(client, "k"));
  EXPECT_REFUSED(kvs_compare_and_set(client, "k", 1, NULL, 1, "b", 1), "expected");
  EXPECT_REFUSED(kvs_compare_and_set(client, "k", 1, NULL, 0, NULL, 1), "desired");
  EXPECT_REFUSED(kvs_compare_and_set(client, "k", 1, NULL, 0, "b", SIZE_MAX), "desired");
  EXPECT(absent(client, "k"));
  return end(client);
}

struct decision {
  int action;
  const void* new_value;
  size_t new_length;
  uint64_t expires_at_ms;
  /* What the function saw last. */
  int calls, was_absent;
  size_t length;
  char first;
  uint64_t saw_expires_at_ms;
};

static int decide(void* context, const struct kvs_value* old, struct kvs_value* wanted) {
  struct decision* const decision = context;
  ++decision->calls;
  decision->was_absent = old == NULL;
  decision->length = old != NULL ? old->value_length : 0;
  decision->first = decision->length > 0 ? *(const char*)old->value : '\0';
  decision->saw_expires_at_ms = old != NULL ? old->expires_at_ms : 0;
  *wanted = (struct kvs_value){decision->new_value, decision->new_length, decision->expires_at_ms};
  return decision->action;
}

static int modify(kvs_client_t* client, struct decision* decision) {
  return kvs_modify(client, "k", 1, decide, decision);
}

int c_modify(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  struct decision keep = {.action = KVS_MODIFY_KEEP};
  struct decision set = {.action = KVS_MODIFY_SET, .new_value = "abc", .new_length = 3};
  struct decision clear = {.action = KVS_MODIFY_SET};
  struct decision delete = {.action = KVS_MODIFY_DELETE};
  EXPECT_OK(modify(client, &keep));
  EXPECT(keep.calls > 0 && keep.was_absent);
  EXPECT(absent(client, "k"));
  EXPECT_OK(modify(client, &set));
  EXPECT(set.was_absent);
  EXPECT(has(client, "k", "abc", 3));
  EXPECT_OK(modify(client, &keep));
  EXPECT(!keep.was_absent && keep.length == 3 && keep.first == 'a');
  EXPECT(has(client, "k", "abc", 3));
  EXPECT_OK(modify(client, &clear));
  EXPECT(has(client, "k", "", 0));
  EXPECT_OK(modify(client, &keep));
  EXPECT(!keep.was_absent && keep.length == 0);

  struct decision unknown = {.action = 3};
  struct decision negative = {.action = -1};
  struct decision missing = {.action = KVS_MODIFY_SET, .new_length = 1};
  struct decision too_long = {.action = KVS_MODIFY_SET, .new_value = "x", .new_length = SIZE_MAX};
  EXPECT_REFUSED(modify(client, &unknown), "action");
  EXPECT_REFUSED(modify(client, &negative), "action");
  EXPECT_REFUSED(modify(client, &missing), "NULL");
  EXPECT_REFUSED(modify(client, &too_long), "too long");
  EXPECT_REFUSED(kvs_modify(client, "k", 1, NULL, NULL), "function");
  EXPECT(has(client, "k", "", 0));

  EXPECT_OK(modify(client, &delete));
  EXPECT(!delete.was_absent);
  EXPECT(absent(client, "k"));
  EXPECT_OK(modify(client, &delete));
  EXPECT(delete.was_absent);
  return end(client);
}

int c_expiry(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  const uint64_t far = UINT64_C(32503680000000); /* the year 3000 */
  struct kvs_write writes[] = {
      {.kind = KVS_PUT, .key = "k", .key_length = 1, .value = "1", .value_length = 1, .expires_at_ms = far},
      {.kind = KVS_PUT, .key = "gone", .key_length = 4, .value = "2", .value_length = 1, .expires_at_ms = 1},
  };
  EXPECT_OK(kvs_multi_write(client, writes, 2));
  EXPECT(writes[0].status == KVS_OK && writes[1].status == KVS_OK);
  EXPECT(has(client, "k", "1", 1));
  EXPECT(absent(client, "gone"));
  struct decision keep = {.action = KVS_MODIFY_KEEP};
  struct decision set = {.action = KVS_MODIFY_SET, .new_value = "a", .new_length = 1, .expires_at_ms = far + 1};
  EXPECT_OK(modify(client, &keep));
  EXPECT(keep.saw_expires_at_ms == far);
  EXPECT_OK(modify(client, &set));
  uint64_t cursor = 0;
  struct kvs_record* records = NULL;
  size_t count = 0;
  EXPECT_OK(kvs_scan(client, &cursor, NULL, &records, &count));
  EXPECT(cursor == 0 && count == 1 && records[0].expires_at_ms == far + 1);
  kvs_free(records);
  EXPECT_OK(kvs_put(client, "k", 1, "1", 1));
  EXPECT_OK(modify(client, &keep));
  EXPECT(keep.saw_expires_at_ms == 0);
  EXPECT_OK(kvs_delete(client, "k", 1));
  return end(client);
}

int c_many_keys(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  struct kvs_write writes[] = {
      {.kind = KVS_INSERT, .key = "a\0", .key_length = 2, .value = "\0first", .value_length = 6, .status = 1},
      {.kind = KVS_PUT, .key = "b", .key_length = 1, .value = NULL, .value_length = 0, .status = 1},
      {.kind = KVS_UPDATE, .key = "c", .key_length = 1, .value = "third", .value_length = 5, .status = 1},
      {.kind = KVS_DELETE, .key = "d", .key_length = 1, .value = NULL, .value_length = 9, .status = 1},
      {.kind = KVS_PUT, .key = "", .key_length = 0, .value = "v", .value_length = 1, .status = 1},
  };
  EXPECT_OK(kvs_multi_write(client, writes, 5));
  EXPECT(writes[0].status == KVS_OK && writes[1].status == KVS_OK);
  EXPECT(writes[2].status == KVS_ENOTFOUND && writes[3].status == KVS_ENOTFOUND);
  EXPECT(writes[4].status == KVS_EINVALID && strstr(kvs_last_error(), "1 to 65535") != NULL);
  EXPECT_OK(kvs_multi_write(client, writes, 1));
  EXPECT(writes[0].status == KVS_EEXISTS);

  void* const none = client; /* what is no result */
  struct kvs_read reads[] = {
      {.key = "missing", .key_length = 7, .value = none, .value_length = 1, .status = 1},
      {.key = "a\0", .key_length = 2, .value = none, .value_length = 1, .status = 1},
      {.key = "a", .key_length = 1, .value = none, .value_length = 1, .status = 1},
      {.key = "b", .key_length = 1, .value = none, .value_length = 1, .status = 1},
      {.key = NULL, .key_length = 0, .value = none, .value_length = 1, .status = 1},
  };
  EXPECT_OK(kvs_multi_get(client, reads, 5));
  EXPECT(reads[0].status == KVS_ENOTFOUND && reads[0].value == NULL && reads[0].value_length == 0);
  EXPECT(reads[1].status == KVS_OK && reads[1].value_length == 6 && memcmp(reads[1].value, "\0first", 7) == 0);
  EXPECT(reads[2].status == KVS_ENOTFOUND && reads[2].value == NULL);
  EXPECT(reads[3].status == KVS_OK && reads[3].value_length == 0 && *(char*)reads[3].value == '\0');
  EXPECT(reads[4].status == KVS_EINVALID && reads[4].value == NULL && strlen(kvs_last_error()) > 0);
  for (int i = 0; i < 5; ++i) kvs_free(reads[i].value);

  /* What is refused as a whole leaves the store and the results as they were. */
  struct kvs_write bad[2] = {
      {.kind = KVS_PUT, .key = "e", .key_length = 1, .value = "v", .value_length = 1, .status = 7},
      {.kind = 4, .key = "f", .key_length = 1, .status = 7}};
  EXPECT_REFUSED(kvs_multi_write(client, bad, 2), "kind");
  bad[1].kind = -1;
  EXPECT_REFUSED(kvs_multi_write(client, bad, 2), "kind");
  bad[1].kind = KVS_PUT;
  bad[1].value_length = 1;
  EXPECT_REFUSED(kvs_multi_write(client, bad, 2), "value");
  bad[1].key = NULL;
  EXPECT_REFUSED(kvs_multi_write(client, bad, 2), "key");
  EXPECT(bad[0].status == 7 && bad[1].status == 7);
  EXPECT(absent(client, "e"));
  struct kvs_read null_key[2] = {{.key = "b", .key_length = 1, .value = none, .status = 7},
                                 {.key = NULL, .key_length = 1, .value = none, .status = 7}};
  EXPECT_REFUSED(kvs_multi_get(client, null_key, 2), "key");
  EXPECT(null_key[0].status == 7 && null_key[0].value == none);
  EXPECT_REFUSED(kvs_multi_get(client, NULL, 1), "reads");
  EXPECT_REFUSED(kvs_multi_write(client, NULL, 1), "writes");
  EXPECT_OK(kvs_multi_get(client, NULL, 0));
  EXPECT_OK(kvs_multi_write(client, NULL, 0));

  struct kvs_write deletes[2] = {{.kind = KVS_DELETE, .key = "a\0", .key_length = 2},
                                 {.kind = KVS_DELETE, .key = "b", .key_length = 1}};
  EXPECT_OK(kvs_multi_write(client, deletes, 2));
  EXPECT(deletes[0].status == KVS_OK && deletes[1].status == KVS_OK);
  EXPECT(absent(client, "b"));
  return end(client);
}

/* The key of `i`, with a NUL byte in the middle. */
static size_t scan_key(char* key, int i) { return (size_t)sprintf(key, "key%c%d", 0, i); }

/* Scans to the end, counts in `seen` how often each key came, and returns the number of calls. */
static int scan_all(kvs_client_t* client, const struct kvs_scan_options* options, unsigned char* seen) {
  uint64_t cursor = 0;
  int calls = 0;
  memset(seen, 0, kScanKeys);
  do {
    struct kvs_record* records = NULL;
    size_t count = 0;
    const int error = kvs_scan(client, &cursor, options, &records, &count);
    EXPECT_OK(error);
    if (error != KVS_OK) break;
    for (size_t r = 0; r < count; ++r) {
      const char* const key = records[r].key;
      const char* const value = records[r].value;
      char expected[32];
      const int i = records[r].key_length > 4 ? atoi(key + 4) : -1; /* a NUL byte follows it */
      EXPECT(i >= 0 && i < kScanKeys);
      if (i < 0 || i >= kScanKeys) continue;
      EXPECT(records[r].key_length == scan_key(expected, i) && memcmp(key, expected, records[r].key_length) == 0);
      ++seen[i];
      const size_t length = (options != NULL && options->keys_only) || i == 0 ? 0 : 1 + (size_t)i % 100;
      EXPECT(records[r].value_length == length && value[length] == '\0');
      EXPECT(length == 0 || (value[0] == (char)i && value[length - 1] == (char)i));
    }
    kvs_free(records);
    ++calls;
  } while (cursor != 0);
  return calls;
}

static int each_once(const unsigned char* seen) {
  for (int i = 0; i < kScanKeys; ++i) {
    if (seen[i] != 1) return 0;
  }
  return 1;
}

int c_scan(kvs_store_t* store) {
  static unsigned char seen[kScanKeys];
  static char keys[kScanKeys][32], values[kScanKeys][100];
  static struct kvs_write writes[kScanKeys];
  kvs_client_t* client = begin(store);
  struct kvs_record* records = NULL;
  uint64_t cursor = 0;
  size_t count = 9;
  EXPECT_OK(kvs_scan(client, &cursor, NULL, &records, &count));
  EXPECT(cursor == 0 && count == 0 && records != NULL);
  kvs_free(records);

  for (int i = 0; i < kScanKeys; ++i) {
    memset(values[i], i, sizeof(values[i]));
    writes[i].kind = KVS_PUT;
    writes[i].key = keys[i];
    writes[i].key_length = scan_key(keys[i], i);
    writes[i].value = values[i];
    writes[i].value_length = i == 0 ? 0 : 1 + (size_t)i % 100;
  }
  EXPECT_OK(kvs_multi_write(client, writes, kScanKeys));
  for (int i = 0; i < kScanKeys; ++i) EXPECT_OK(writes[i].status);

  const int calls = scan_all(client, NULL, seen);
  EXPECT(each_once(seen));
  const struct kvs_scan_options keys_only = {.keys_only = 1}, few = {.count = 100}, small = {.max_bytes = 4096};
  EXPECT(scan_all(client, &keys_only, seen) <= calls);
  EXPECT(each_once(seen));
  EXPECT(scan_all(client, &few, seen) > calls);
  EXPECT(each_once(seen));
  EXPECT(scan_all(client, &small, seen) > calls);
  EXPECT(each_once(seen));

  cursor = 5;
  EXPECT_REFUSED(kvs_scan(NULL, &cursor, NULL, &records, &count), "client");
  EXPECT(cursor == 5 && records == NULL && count == 0);
  EXPECT_REFUSED(kvs_scan(client, NULL, NULL, &records, &count), "cursor");
  EXPECT_REFUSED(kvs_scan(client, &cursor, NULL, NULL, &count), "records");
  EXPECT_REFUSED(kvs_scan(client, &cursor, NULL, &records, NULL), "count");

  for (int i = 0; i < kScanKeys; ++i) writes[i].kind = KVS_DELETE;
  EXPECT_OK(kvs_multi_write(client, writes, kScanKeys));
  for (int i = 0; i < kScanKeys; ++i) EXPECT_OK(writes[i].status);
  return end(client);
}

enum { kMostCounters = 200 };

static uint64_t counter(kvs_client_t* client, const char* name) {
  struct kvs_counter counters[kMostCounters];
  const size_t count = kvs_client_stats(client, counters, kMostCounters);
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(counters[i].name, name) == 0) return counters[i].value;
  }
  EXPECT(!"there is such a counter");
  return 0;
}

int c_statistics(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  struct kvs_counter counters[kMostCounters];
  const size_t count = kvs_client_stats(client, counters, kMostCounters);
  EXPECT(count > 30 && count < kMostCounters);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT(strcmp(counters[i].name, counters[j].name) != 0);
  }
  /* It writes no more than it may. */
  memset(counters, 0, sizeof(counters));
  EXPECT(kvs_client_stats(client, counters, 2) == count);
  EXPECT(strcmp(counters[0].name, "operations") == 0 && counters[1].name != NULL && counters[2].name == NULL);
  EXPECT(kvs_client_stats(client, NULL, 0) == count);

  const uint64_t operations = counter(client, "operations"), written = counter(client, "writes_done");
  EXPECT_OK(kvs_put(client, "k", 1, "v", 1));
  EXPECT(has(client, "k", "v", 1));
  EXPECT(counter(client, "operations") == operations + 2);
  EXPECT(counter(client, "writes_done") == written + 1);

  struct kvs_table_stats* stats = NULL;
  EXPECT_OK(kvs_read_table_stats(client, &stats));
  EXPECT(stats->used_slots == 1 && stats->slots > 1 && stats->subtables >= 1);
  EXPECT(stats->subtables <= (uint64_t)1 << stats->global_depth);
  EXPECT(stats->load_factor > 0 && stats->load_factor < 1);
  EXPECT(stats->memory_node_count == 1 && stats->memory_nodes[0].node != 0 && stats->memory_nodes[0].draining == 0);
  EXPECT(stats->memory_nodes[0].taken_bytes > 0);
  EXPECT(stats->memory_nodes[0].capacity_bytes > stats->memory_nodes[0].taken_bytes);
  kvs_free(stats);
  EXPECT_OK(kvs_delete(client, "k", 1));
  return end(client);
}

/* The lease of an idle client is renewed, and its polls end. */
int c_poll(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  const uint64_t before = counter(client, "heartbeats");
  int idle = 0;
  /* On a busy machine each call may come so late that the next heartbeat is due already. */
  while (counter(client, "heartbeats") < before + 2 || idle == 0) {
    const int64_t wait_ns = kvs_poll(client);
    EXPECT(wait_ns >= 0 && wait_ns < INT64_C(10000000000));
    idle += wait_ns > 0 ? 1 : 0;
  }
  EXPECT(kvs_poll(NULL) == 0);
  return end(client);
}

int c_bad_arguments(kvs_store_t* store) {
  kvs_client_t* client = begin(store);
  void* value = NULL;
  size_t length = 0;
  /* NULL */
  EXPECT_REFUSED(kvs_get(NULL, "k", 1, &value, &length), "client");
  EXPECT_REFUSED(kvs_put(NULL, "k", 1, "v", 1), "client");
  EXPECT_REFUSED(kvs_insert(NULL, "k", 1, "v", 1), "client");
  EXPECT_REFUSED(kvs_update(NULL, "k", 1, "v", 1), "client");
  EXPECT_REFUSED(kvs_delete(NULL, "k", 1), "client");
  EXPECT_REFUSED(kvs_compare_and_set(NULL, "k", 1, "v", 1, "v", 1), "client");
  EXPECT_REFUSED(kvs_modify(NULL, "k", 1, decide, NULL), "client");
  EXPECT_REFUSED(kvs_multi_get(NULL, NULL, 0), "client");
  EXPECT_REFUSED(kvs_multi_write(NULL, NULL, 0), "client");
  struct kvs_table_stats* stats = NULL;
  EXPECT_REFUSED(kvs_read_table_stats(NULL, &stats), "client");
  EXPECT_REFUSED(kvs_read_table_stats(client, NULL), "stats");
  EXPECT(kvs_client_stats(NULL, NULL, 0) == 0);
  EXPECT_REFUSED(kvs_get(client, NULL, 1, &value, &length), "key");
  EXPECT_REFUSED(kvs_get(client, "k", 1, NULL, &length), "value");
  EXPECT_REFUSED(kvs_get(client, "k", 1, &value, NULL), "value");
  EXPECT_REFUSED(kvs_put(client, NULL, 1, "v", 1), "key");
  EXPECT_REFUSED(kvs_put(client, "k", 1, NULL, 1), "value");
  EXPECT_REFUSED(kvs_insert(client, "k", 1, NULL, 1), "value");
  EXPECT_REFUSED(kvs_update(client, "k", 1, NULL, 1), "value");
  EXPECT_REFUSED(kvs_delete(client, NULL, 1), "key");
  EXPECT_REFUSED(kvs_compare_and_set(client, NULL, 1, "v", 1, "v", 1), "key");
  EXPECT_REFUSED(kvs_modify(client, NULL, 1, decide, NULL), "key");
  /* Lengths. No byte beyond the limits is read. */
  EXPECT_REFUSED(kvs_get(client, NULL, 0, &value, &length), "1 to 65535");
  EXPECT_REFUSED(kvs_get(client, "k", KVS_MAX_KEY_BYTES + 1, &value, &length), "1 to 65535");
  EXPECT_REFUSED(kvs_put(client, "", 0, "v", 1), "1 to 65535");
  EXPECT_REFUSED(kvs_put(client, "k", SIZE_MAX, "v", 1), "1 to 65535");
  EXPECT_REFUSED(kvs_put(client, "k", 1, "v", KVS_MAX_VALUE_BYTES + 1), "16777216");
  EXPECT_REFUSED(kvs_insert(client, "k", 1, "v", SIZE_MAX), "16777216");
  EXPECT_REFUSED(kvs_update(client, "k", 1, "v", SIZE_MAX), "16777216");
  EXPECT_REFUSED(kvs_delete(client, "", 0), "1 to 65535");
  EXPECT_REFUSED(kvs_compare_and_set(client, "", 0, NULL, 0, "v", 1), "1 to 65535");
  EXPECT_REFUSED(kvs_modify(client, "", 0, decide, NULL), "1 to 65535");
  EXPECT(absent(client, "k"));

  /* Clients */
  kvs_client_t* none = client;
  EXPECT_REFUSED(kvs_client_open(NULL, NULL, &none), "store");
  EXPECT_REFUSED(kvs_client_open(store, NULL, NULL), "client");
  const struct kvs_client_options too_many = {.max_in_flight = UINT32_MAX};
  EXPECT_REFUSED(kvs_client_open(store, &too_many, &none), "max_in_flight");
  EXPECT(none == NULL);
  const struct kvs_client_options little = {.max_in_flight = 1, .address_cache_entries = 1};
  EXPECT_OK(kvs_client_open(store, &little, &none));
  EXPECT(absent(none, "k"));
  kvs_client_close(none);
  kvs_client_close(NULL);
  kvs_close(NULL);
  kvs_free(NULL);
  return end(client);
}

int c_refused_stores(void) {
  kvs_store_t* store = NULL;
  failures = 0;
  const struct kvs_store_options nowhere = {.fabric = "inproc:c-nowhere", .open_timeout_ms = 1};
  EXPECT_CODE(kvs_open(&nowhere, &store), KVS_ENOTFOUND);
  EXPECT(strstr(kvs_last_error(), "c-nowhere") != NULL && store == NULL);
  /* Each option that names something reaches the store. */
  const struct kvs_store_options plane = {.fabric = "inproc:x", .control_plane = "nonsense"};
  EXPECT_REFUSED(kvs_open(&plane, &store), "nonsense");
  const struct kvs_store_options rnic = {.fabric = "inproc:x", .rnic = "carrier-pigeon"};
  EXPECT(kvs_open(&rnic, &store) < 0);
  EXPECT(strstr(kvs_last_error(), "carrier-pigeon") != NULL);
  const struct kvs_store_options address = {.fabric = "inproc:x", .fabric_address = "::1"};
  EXPECT_REFUSED(kvs_open(&address, &store), "address");
  const struct kvs_store_options port = {.fabric = "inproc:x", .rnic_port = "rxe0"};
  EXPECT_REFUSED(kvs_open(&port, &store), "port");
  EXPECT(kvs_open(NULL, &store) < 0); /* no fabric */
  EXPECT(store == NULL);
  EXPECT_REFUSED(kvs_open(&nowhere, NULL), "store");
  EXPECT_REFUSED(kvs_open_embedded(NULL, NULL), "store");
  const struct kvs_embedded_options tiny = {.memory_bytes = 1};
  EXPECT(kvs_open_embedded(&tiny, &store) < 0);
  EXPECT(store == NULL);
  return failures;
}

int c_names(void) {
  static const char* const names[] = {
      "ok",          "not found", "exists",          "invalid argument", "out of memory",
      "unavailable", "timeout",   "unknown outcome", "unsupported",      "permission denied",
      "queue full",  "bad state", "corrupt",         "internal error"};
  failures = 0;
  for (int error = KVS_OK; error >= KVS_EINTERNAL; --error) EXPECT(strcmp(kvs_strerror(error), names[-error]) == 0);
  EXPECT(strcmp(kvs_strerror(1), "unknown error") == 0);
  EXPECT(strcmp(kvs_strerror(KVS_EINTERNAL - 1), "unknown error") == 0);
  EXPECT(strcmp(kvs_strerror(INT_MIN), "unknown error") == 0);
  int major = -1, minor = -1, patch = -1;
  EXPECT(sscanf(kvs_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
  return failures;
}
