/*
 * The store from C. Without an argument it opens a store inside this process. With one it is a client of that fabric:
 *   build/bin/memnode --fabric=demo --node=1 --memory=1G --metaserver
 *   build/bin/example_store demo
 */
#include <kvs/kvs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int error, const char* what) {
  if (error == KVS_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvs_strerror(error), kvs_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  kvs_store_t* store = NULL;
  kvs_client_t* client = NULL;
  if (argc > 1) {
    const struct kvs_store_options options = {.fabric = argv[1]};
    check(kvs_open(&options, &store), "open");
  } else {
    check(kvs_open_embedded(NULL, &store), "open");
  }
  check(kvs_client_open(store, NULL, &client), "client");

  /* One key. */
  void* value = NULL;
  size_t length = 0;
  check(kvs_put(client, "hello", 5, "world", 5), "put");
  check(kvs_get(client, "hello", 5, &value, &length), "get");
  printf("hello: %s (%zu bytes)\n", (const char*)value, length);
  const int right = length == 5 && memcmp(value, "world", 5) == 0;
  kvs_free(value);

  /* Many keys that share their round trips. */
  struct kvs_write writes[2] = {{.kind = KVS_PUT, .key = "colour", .key_length = 6, .value = "blue", .value_length = 4},
                                {.kind = KVS_DELETE, .key = "hello", .key_length = 5}};
  check(kvs_multi_write(client, writes, 2), "multi_write");
  check(writes[0].status, "put of colour");
  check(writes[1].status, "delete of hello");
  struct kvs_read reads[2] = {{.key = "colour", .key_length = 6}, {.key = "hello", .key_length = 5}};
  check(kvs_multi_get(client, reads, 2), "multi_get");
  for (int i = 0; i < 2; ++i) {
    const char* const found = reads[i].status == KVS_OK ? reads[i].value : kvs_strerror(reads[i].status);
    printf("%s: %s\n", (const char*)reads[i].key, found);
  }
  const int deleted = reads[0].status == KVS_OK && reads[1].status == KVS_ENOTFOUND;
  kvs_free(reads[0].value);

  /* All keys. */
  uint64_t cursor = 0;
  size_t keys = 0;
  do {
    struct kvs_record* records = NULL;
    size_t count = 0;
    check(kvs_scan(client, &cursor, NULL, &records, &count), "scan");
    keys += count;
    kvs_free(records);
  } while (cursor != 0);
  printf("keys: %zu\n", keys);

  kvs_client_close(client);
  kvs_close(store);
  return right && deleted && keys >= 1 ? 0 : 1;
}
