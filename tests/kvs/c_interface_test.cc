// The C interface (kvs/kvs.h): the checks that are written in C, on an embedded store and on a fabric; and failures
// that need a fabric to be broken.
#include "tests/kvs/c_interface.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "kvs/kvs.h"
#include "tests/kvs/child.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

kvs_store_t* OpenEmbedded(const kvs_embedded_options& options) {
  kvs_store_t* store = nullptr;
  EXPECT_EQ(kvs_open_embedded(&options, &store), KVS_OK) << kvs_last_error();
  return store;
}

kvs_store_t* OpenFabric(const std::string& fabric) {
  const kvs_store_options options = {.fabric = fabric.c_str()};
  kvs_store_t* store = nullptr;
  EXPECT_EQ(kvs_open(&options, &store), KVS_OK) << kvs_last_error();
  return store;
}

kvs_client_t* OpenClient(kvs_store_t* store) {
  kvs_client_t* client = nullptr;
  EXPECT_EQ(kvs_client_open(store, nullptr, &client), KVS_OK) << kvs_last_error();
  return client;
}

struct Check {
  const char* name;
  int (*run)(kvs_store_t* store);
};
constexpr Check kChecks[] = {
    {"OneKey", c_one_key},
    {"BinaryEmptyAndLargeValues", c_binary_empty_and_large},
    {"CompareAndSet", c_compare_and_set},
    {"Modify", c_modify},
    {"Expiry", c_expiry},
    {"ManyKeys", c_many_keys},
    {"AScanReturnsEachKeyOnce", c_scan},
    {"Statistics", c_statistics},
    {"PollRenewsTheLeaseOfAnIdleClient", c_poll},
    {"BadArgumentsAreRefused", c_bad_arguments},
};

class CInterface : public ::testing::TestWithParam<Check> {};

INSTANTIATE_TEST_SUITE_P(Checks, CInterface, ::testing::ValuesIn(kChecks),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CInterface, OnAnEmbeddedStore) {
  kvs_store_t* const store = OpenEmbedded({.memory_bytes = uint64_t{64} << 20});
  EXPECT_EQ(GetParam().run(store), 0);
  kvs_close(store);
}

TEST_P(CInterface, OnAFabric) {
  const TestStore fabric({.fabric = UniqueFabric(), .groups = 64});
  kvs_store_t* const store = OpenFabric(fabric.fabric());
  EXPECT_EQ(GetParam().run(store), 0);
  kvs_close(store);
}

TEST(CInterfaceOfNoStore, RefusesToOpenIt) { EXPECT_EQ(c_refused_stores(), 0); }
TEST(CInterfaceOfNoStore, HasNamesOfErrorsAndAVersion) { EXPECT_EQ(c_names(), 0); }

TEST(CInterfaceFailures, AFullStoreIsOutOfMemoryAndItsMemoryIsWhatWasAskedFor) {
  constexpr uint64_t kBytes = uint64_t{32} << 20;
  kvs_store_t* const store = OpenEmbedded({.memory_bytes = kBytes});
  kvs_client_t* const client = OpenClient(store);
  kvs_table_stats* stats = nullptr;
  ASSERT_EQ(kvs_read_table_stats(client, &stats), KVS_OK);
  EXPECT_EQ(stats->memory_nodes[0].capacity_bytes, kBytes);
  kvs_free(stats);

  const std::string value(1 << 20, 'v');
  int error = KVS_OK;
  for (char key = 'a'; error == KVS_OK && key <= 'z'; ++key) {
    for (char second = '0'; error == KVS_OK && second <= '9'; ++second) {
      const char name[] = {key, second};
      error = kvs_put(client, name, sizeof(name), value.data(), value.size());
    }
  }
  EXPECT_EQ(error, KVS_ENOMEM) << kvs_last_error();
  kvs_client_close(client);
  kvs_close(store);
}

TEST(CInterfaceFailures, AFabricWithoutAStoreAndAStoppedMemoryNodeAreUnavailable) {
  TestStore fabric({.memory_nodes = 2});
  kvs_store_t* const store = OpenFabric(fabric.fabric());
  kvs_client_t* const client = OpenClient(store);
  for (int i = 0; i < 500; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_EQ(kvs_put(client, key.data(), key.size(), "v", 1), KVS_OK) << kvs_last_error();
  }
  fabric.StopMemoryNode(2);
  std::set<int> errors;
  for (int i = 0; i < 500; ++i) {
    const std::string key = std::to_string(i);
    void* value = nullptr;
    size_t length = 0;
    errors.insert(kvs_get(client, key.data(), key.size(), &value, &length));
    EXPECT_EQ(length, value != nullptr ? 1U : 0U);
    kvs_free(value);
  }
  EXPECT_EQ(errors, (std::set<int>{KVS_OK, KVS_EUNAVAILABLE}));
  EXPECT_NE(std::string_view(kvs_last_error()).find('2'), std::string_view::npos) << kvs_last_error();
  // A scan that cannot read a table fails and says so; its cursor stays.
  uint64_t cursor = 0, before = 0;
  kvs_record* records = nullptr;
  size_t count = 0;
  int error = KVS_OK;
  do {
    before = cursor;
    error = kvs_scan(client, &cursor, nullptr, &records, &count);
    if (error != KVS_OK) break;
    kvs_free(records);
  } while (cursor != 0);
  EXPECT_EQ(error, KVS_EUNAVAILABLE);
  EXPECT_EQ(cursor, before);
  EXPECT_EQ(records, nullptr);
  EXPECT_EQ(count, 0U);
  kvs_client_close(client);
  kvs_close(store);

  krcore::NodeOptions options;
  options.fabric = "inproc:c-without-a-store";
  options.create_fabric = true;
  auto node = krcore::Node::Open(options).value();
  ASSERT_TRUE(node->HostMetaServer(16).ok());
  const kvs_store_options without = {.fabric = "inproc:c-without-a-store", .open_timeout_ms = 1};
  kvs_store_t* none = nullptr;
  EXPECT_EQ(kvs_open(&without, &none), KVS_EUNAVAILABLE) << kvs_last_error();
}

TEST(CInterfaceFailures, WhatIsSaidOfAFailureIsOfTheThreadsLast) {
  kvs_store_t* const store = OpenEmbedded({.memory_bytes = uint64_t{64} << 20});
  kvs_client_t* const client = OpenClient(store);
  EXPECT_EQ(kvs_put(client, "", 0, "v", 1), KVS_EINVALID);
  EXPECT_EQ(kvs_put(client, "k", 1, "v", 1), KVS_OK);
  EXPECT_NE(std::string(kvs_last_error()), "");
  EXPECT_EQ(kvs_delete(client, "nothing", 7), KVS_ENOTFOUND);
  EXPECT_EQ(std::string(kvs_last_error()), "");
  kvs_client_close(client);
  kvs_close(store);
}

TEST(CInterfaceFailures, AStoreIsOfNoUseInAForkedChildAndTheParentGoesOn) {
  kvs_store_t* const store = OpenEmbedded({.memory_bytes = uint64_t{64} << 20});
  kvs_client_t* const client = OpenClient(store);
  Child child([&] {
    void* value = nullptr;
    size_t length = 0, count = 0;
    uint64_t cursor = 0;
    kvs_read read = {.key = "k", .key_length = 1};
    kvs_record* records = nullptr;
    kvs_table_stats* stats = nullptr;
    kvs_client_t* other = nullptr;
    EXPECT_EQ(kvs_get(client, "k", 1, &value, &length), KVS_EBADSTATE);
    EXPECT_EQ(kvs_put(client, "k", 1, "v", 1), KVS_EBADSTATE);
    EXPECT_EQ(kvs_compare_and_set(client, "k", 1, nullptr, 0, "v", 1), KVS_EBADSTATE);
    EXPECT_EQ(kvs_multi_get(client, &read, 1), KVS_OK);
    EXPECT_EQ(read.status, KVS_EBADSTATE);
    EXPECT_EQ(kvs_scan(client, &cursor, nullptr, &records, &count), KVS_EBADSTATE);
    EXPECT_EQ(kvs_read_table_stats(client, &stats), KVS_EBADSTATE);
    EXPECT_EQ(kvs_client_open(store, nullptr, &other), KVS_EBADSTATE);
    EXPECT_EQ(kvs_poll(client), 0);
    kvs_client_close(client);
    kvs_close(store);
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(kvs_put(client, "k", 1, "v", 1), KVS_OK);
  kvs_client_close(client);
  kvs_close(store);
}

}  // namespace
}  // namespace surgekv_test
