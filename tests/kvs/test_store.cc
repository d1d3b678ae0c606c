#include "tests/kvs/test_store.h"

#include <unistd.h>

#include <atomic>

#include "kvs/layout/join.h"

namespace surgekv_test {
namespace {

std::string UniqueName(const char* prefix) {
  static std::atomic<uint32_t> counter = 0;
  return prefix + std::to_string(getpid()) + "-" + std::to_string(counter.fetch_add(1));
}

}  // namespace

std::string UniqueFabric() { return UniqueName("kvstest-"); }

TestStore::TestStore(const TestStoreOptions& options) : options_(options), fabric_(options.fabric) {
  if (fabric_.empty()) fabric_ = UniqueName("inproc:kvstest-");
  krcore::NodeOptions node;
  node.fabric = fabric_;
  node.create_fabric = true;
  node.node = 1;
  node_ = krcore::Node::Open(node).value();
  krcore::RegionOptions region;
  region.length = options.memory_bytes;
  region.remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite | krcore::kRemoteAtomic;
  region.tag = kvs::kPoolRegionTag;
  pool_ = node_->CreateRegion(region).value();
  if (krcore::Status hosted = node_->HostMetaServer(256); !hosted.ok()) krcore::DieOfMissingValue(hosted);
  kvs::HomeOptions home;
  home.geometry.groups = options.groups;
  home.initial_depth = options.initial_depth;
  (void)kvs::JoinStore(*node_, *pool_, home, krcore::Deadline::After(node_->clock(), 10'000'000'000)).value();
}

TestStore::~TestStore() {
  store_.reset();
  pool_.reset();
  node_.reset();
}

std::unique_ptr<kvs::Store> TestStore::Attach(const std::string& fabric, const TestStoreOptions& options) {
  kvs::StoreOptions store;
  store.fabric = fabric;
  store.operation_timeout_ms = options.operation_timeout_ms;
  store.clock = options.clock;
  return kvs::Store::Open(store).value();
}

kvs::Store& TestStore::store() {
  if (!store_) store_ = Attach(fabric_, options_);
  return *store_;
}

std::unique_ptr<kvs::Client> TestStore::NewClient(uint32_t max_in_flight) {
  return store().NewClient({.max_in_flight = max_in_flight}).value();
}

}  // namespace surgekv_test
