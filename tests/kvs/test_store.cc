#include "tests/kvs/test_store.h"

#include <unistd.h>

#include <atomic>

#include "kvs/memory/join.h"

namespace surgekv_test {
namespace {

std::string UniqueName(const char* prefix) {
  static std::atomic<uint32_t> counter = 0;
  return prefix + std::to_string(getpid()) + "-" + std::to_string(counter.fetch_add(1));
}

}  // namespace

std::string UniqueFabric() { return UniqueName("kvstest-"); }

TestStore::TestStore(const TestStoreOptions& options)
    : options_(options),
      fabric_(options.fabric),
      serving_clock_(*this, options.clock != nullptr ? *options.clock : *krcore::RealClock()) {
  if (fabric_.empty()) fabric_ = UniqueName("inproc:kvstest-");
  for (uint32_t i = 0; i < options.memory_nodes; ++i) AddMemoryNode();
}

void TestStore::AddMemoryNode() {
  nodes_.emplace_back();
  pools_.emplace_back();
  StartMemoryNode(static_cast<krcore::NodeId>(nodes_.size()));
}

void TestStore::StartMemoryNode(krcore::NodeId id, size_t memory_bytes) {
  const bool is_first = id == 1;
  krcore::NodeOptions options;
  options.fabric = fabric_;
  options.create_fabric = is_first;
  options.node = id;
  options.rnic = options_.rnic;
  if (options_.rnic == "sim") options.clock = options_.clock;
  auto node = krcore::Node::Open(options).value();
  auto pool = node->CreateRegion(kvs::PoolRegion(memory_bytes != 0 ? memory_bytes : options_.memory_bytes)).value();
  if (is_first) {
    if (krcore::Status hosted = node->HostMetaServer(256); !hosted.ok()) krcore::DieOfMissingValue(hosted);
  }
  kvs::HomeOptions home;
  home.geometry.groups = options_.groups;
  home.initial_depth = options_.initial_depth;
  home.lease_ns = options_.lease_ns;
  home.chunk_bytes = options_.chunk_bytes;
  home.hash_seed = options_.hash_seed;
  if (options_.control_plane != "krcore") {
    auto acceptor = krcore::Acceptor::Create(*node).value();
    const std::lock_guard lock(acceptors_mutex_);
    acceptors_.push_back(std::move(acceptor));
  }
  (void)kvs::JoinStore(*node, *pool, home, krcore::Deadline::After(node->clock(), 10'000'000'000)).value();
  nodes_[id - 1] = std::move(node);
  pools_[id - 1] = std::move(pool);
}

void TestStore::StopMemoryNode(krcore::NodeId id) {
  pools_[id - 1].reset();
  nodes_[id - 1].reset();
}

TestStore::~TestStore() {
  store_.reset();
  acceptors_.clear();
  while (!nodes_.empty()) {
    pools_.pop_back();
    nodes_.pop_back();
  }
}

kvs::DirectoryEntry TestStore::DirectoryEntryOf(uint32_t index) const {
  auto* word = reinterpret_cast<uint64_t*>(memory().data() + kvs::kDirectoryOffset + index * sizeof(uint64_t));
  // This pairs with the CAS of whoever changes it. That is a CAS of sw, and so atomic for a CPU, too.
  return kvs::DirectoryEntry(std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire));
}

std::unique_ptr<kvs::Store> TestStore::Attach(const std::string& fabric, const TestStoreOptions& options) {
  kvs::StoreOptions store;
  store.rnic = options.rnic;
  store.fabric = fabric;
  store.control_plane = options.control_plane;
  store.operation_timeout_ms = options.operation_timeout_ms;
  store.clock = options.clock;
  return kvs::Store::Open(store).value();
}

std::vector<PoolImage> TestStore::images() const {
  std::vector<PoolImage> images;
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i]) images.push_back({nodes_[i]->id(), pools_[i]->bytes()});
  }
  return images;
}

kvs::Store& TestStore::store() {
  if (!store_) {
    TestStoreOptions options = options_;
    if (options.control_plane != "krcore") options.clock = &serving_clock_;
    store_ = Attach(fabric_, options);
  }
  return *store_;
}

void TestStore::ServeConnections() {
  const std::unique_lock lock(acceptors_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // another thread is doing it
  for (auto& acceptor : acceptors_) (void)acceptor->Serve();
}

size_t TestStore::Connections() {
  const std::lock_guard lock(acceptors_mutex_);
  size_t connections = 0;
  for (auto& acceptor : acceptors_) {
    (void)acceptor->Serve();
    (void)acceptor->Sweep();
    connections += acceptor->connections();
  }
  return connections;
}

std::unique_ptr<kvs::Client> TestStore::NewClient(uint32_t max_in_flight) {
  return store().NewClient({.max_in_flight = max_in_flight}).value();
}

}  // namespace surgekv_test
