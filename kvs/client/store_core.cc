#include "kvs/client/store_core.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "krcore/control_plane.h"
#include "krcore/resources.h"
#include "kvs/client/caretaker.h"
#include "kvs/client/client_core.h"
#include "kvs/memory/join.h"
#include "kvs/memory/remote_pool.h"
#include "kvs/memory/views.h"

namespace kvs {
namespace {

using krcore::Deadline;

// Clock::Relax sleeps from this many calls on.
constexpr uint32_t kParked = 1'000'000;
// How long to try to connect while there are operations: by one-sided verbs, or by asking a CPU, which may be busy, as
// DC in software does.
constexpr int64_t kReconnectNs = 50'000'000;
// How long the fabric has to answer whether a view is pending.
constexpr int64_t kRecordPatienceNs = 100'000'000;
constexpr int64_t kAskingReconnectNs = 500'000'000;

krcore::NodeOptions NodeOptionsOf(const StoreOptions& options, Deadline deadline) {
  krcore::NodeOptions node;
  node.rnic = options.rnic;
  node.fabric = options.fabric;
  node.fabric_address = options.fabric_address;
  node.rnic_port = options.rnic_port;
  node.clock = options.clock;
  node.deadline = deadline;
  return node;
}

}  // namespace

StoreCore::StoreCore(std::unique_ptr<krcore::Node> node, const StoreOptions& options)
    : node_(std::move(node)), options_(options) {
  shape_.operation_timeout_ns = options.operation_timeout_ms * 1'000'000;
  const bool one_sided = options.control_plane == "krcore" && !node_->software_dc();
  shape_.reconnect_budget_ns = one_sided ? kReconnectNs : kAskingReconnectNs;
}

StoreCore::~StoreCore() {
  caretaker_.reset();
  prepared_.clear();
  node_.reset();
  pool_.reset();
}

void StoreCore::Own(std::unique_ptr<krcore::Node> memory_node, std::unique_ptr<krcore::Region> pool) {
  memory_node_ = std::move(memory_node);
  pool_ = std::move(pool);
}

Status StoreCore::Attach(Deadline deadline) {
  // By a client's record the others confirm its death and take back the memory that it held when it was killed.
  KRCORE_RETURN_IF_ERROR(node_->Publish(deadline));
  Status status;
  // The fabric is there; its first memory node may be starting.
  for (uint32_t spins = kParked;; ++spins) {
    const Result<Configuration> configuration = ReadConfiguration(*node_, deadline);
    if (configuration.ok()) {
      shape_.home = configuration->home;
      shape_.mirrored = true;
      return ReadShape(configuration->Find(shape_.home)->chain, deadline);
    }
    if (configuration.status() == StatusCode::kCorrupt) return configuration.status();
    const Result<HomeRecord> home = HomeRecordOf(node_->LookupService(kHomeService, deadline));
    status = home.status();
    if (home.ok()) {
      shape_.home = home->node;
      status = ReadShape({{home->node, home->incarnation}}, deadline);
      if (status == StatusCode::kNotFound) {
        return {StatusCode::kUnavailable, "the store's home cannot be reached: " + std::string(status.message())};
      }
      if (status != StatusCode::kExists) return status;
      if (configuration.status() == StatusCode::kUnsupported) {
        return {StatusCode::kUnsupported,
                "the store's pools are mirrored, so clients need control plane krcore, not " + options_.control_plane};
      }
    } else if (status != StatusCode::kNotFound) {
      break;
    }
    if (deadline.Passed(clock())) break;
    clock().Relax(spins);
  }
  if (status == StatusCode::kCorrupt) return status;
  return {StatusCode::kUnavailable, "the fabric has no store (start a memory node): " + status.ToString()};
}

Status StoreCore::SetReplicas(uint32_t replicas) {
  if (!shape_.mirrored)
    return {StatusCode::kUnsupported, "the store's pools are not mirrored, and it cannot be changed"};
  if (replicas == 0 || replicas > kMaxReplicas) {
    return {StatusCode::kInvalidArgument, "a pool has 1 to " + std::to_string(kMaxReplicas) + " replicas"};
  }
  const auto deadline = Deadline::After(clock(), options_.open_timeout_ms * 1'000'000);
  const Status set = ChangeConfiguration(
      *node_, deadline, [&](Configuration& next) { return std::exchange(next.replicas, replicas) != replicas; });
  return set == StatusCode::kBadState ? Status::Ok() : set;
}

Result<std::unique_ptr<krcore::Node>> StoreCore::OpenClientNode(Deadline deadline) {
  if (options_.control_plane != "verbs") return std::unique_ptr<krcore::Node>();
  auto node = krcore::OpenNode(options_.control_plane, NodeOptionsOf(options_, deadline));
  if (!node.ok()) return node.status();
  // This node's own death confirms that its verbs have ended; that of the process's other node does not.
  KRCORE_RETURN_IF_ERROR((*node)->Publish(deadline));
  return node;
}

Status StoreCore::ReadShape(const std::vector<Replica>& home, Deadline deadline) {
  const auto pool = RemotePool::Create(*node_, sizeof(Superblock));
  if (!pool.ok()) return pool.status();
  Superblock super;
  Status read;
  for (auto replica = home.rbegin(); replica != home.rend(); ++replica) {  // what is read here does not change
    read = shape_.mirrored ? (*pool)->Connect(*replica, deadline, &super)
                           : (*pool)->Connect(replica->node, deadline, &super);
    if (read.ok()) break;
  }
  if (!read.ok()) return read;
  if (super.is_home == 0 || super.max_depth != kMaxDepth || super.groups_per_subtable < 2 ||
      super.chunk_bytes < kMinChunkBytes || super.lease_ns <= 0 || super.lease_ns > kMaxLeaseNs) {
    return {StatusCode::kCorrupt, "node " + std::to_string(shape_.home) + " does not hold a store's directory"};
  }
  if ((super.pool != krcore::kNoNode) != shape_.mirrored) {
    return {StatusCode::kExists, "the store, whose pools are mirrored, is just beginning"};
  }
  shape_.geometry.groups = super.groups_per_subtable;
  shape_.chunk_bytes = super.chunk_bytes;
  shape_.lease_ns = super.lease_ns;
  shape_.initial_depth = super.initial_depth;
  shape_.hasher = Hasher(super.hash_seed);
  state_.identity.Set(shape_.home, super.hash_seed);
  return Status::Ok();
}

bool StoreCore::ViewPending() {
  if (!shape_.mirrored) return false;
  const Result<Configuration> read = ReadConfiguration(*node_, Deadline::After(clock(), kRecordPatienceNs));
  return read.ok() && !read->active;
}

std::unique_ptr<MemoryState> StoreCore::TakeMemory() {
  const std::lock_guard lock(mutex_);
  if (spare_memory_.empty()) return std::make_unique<MemoryState>(shape_.chunk_bytes);
  auto memory = std::move(spare_memory_.back());
  spare_memory_.pop_back();
  return memory;
}

void StoreCore::GiveMemory(std::unique_ptr<MemoryState> memory) {
  const std::lock_guard lock(mutex_);
  spare_memory_.push_back(std::move(memory));
}

void StoreCore::NoteMembers(std::vector<krcore::NodeId> members) {
  const std::lock_guard lock(mutex_);
  members_ = std::move(members);
}

std::vector<krcore::NodeId> StoreCore::members() {
  const std::lock_guard lock(mutex_);
  return members_;
}

Result<std::unique_ptr<Client>> StoreCore::NewClient(const ClientOptions& options) {
  auto client = NewPolledClient(options);
  if (!client.ok()) return client.status();
  // Whoever brings a clock of his own, such as the simulator, polls all clients in an order of his own.
  if (!shape_.mirrored || options_.clock != nullptr) return std::unique_ptr<Client>(*std::move(client));
  return krcore::OrOutOfMemory("making a client", [&] { return KeepClient(*std::move(client)); });
}

Result<std::unique_ptr<Client>> StoreCore::KeepClient(std::unique_ptr<ClientCore> client) {
  const std::lock_guard lock(mutex_);
  if (caretaker_ == nullptr) {
    auto caretaker = Caretaker::Start();
    if (!caretaker.ok()) return caretaker.status();
    caretaker_ = *std::move(caretaker);
  }
  return caretaker_->Keep(std::move(client));
}

Result<std::unique_ptr<ClientCore>> StoreCore::NewPolledClient(const ClientOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return krcore::OrOutOfMemory("making a client", [&] { return MakeClient(options); });
}

Result<std::unique_ptr<ClientCore>> StoreCore::MakeClient(const ClientOptions& options) {
  std::unique_ptr<ClientCore> client = TakePrepared(options);
  if (client == nullptr) {
    auto made = ClientCore::Prepare(*this, options);
    if (!made.ok()) return made.status();
    client = std::move(*made);
  } else {
    client->ForgetTimes();
  }
  KRCORE_RETURN_IF_ERROR(client->Begin());
  return client;
}

std::unique_ptr<ClientCore> StoreCore::TakePrepared(const ClientOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(prepared_, [&](const auto& client) { return client->options() == options; });
  if (found == prepared_.end()) return nullptr;
  std::unique_ptr<ClientCore> client = std::move(*found);
  prepared_.erase(found);
  return client;
}

Status StoreCore::PrepareClient(const ClientOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (options_.control_plane == "verbs") return Status::Ok();
  return krcore::OrOutOfMemory("preparing a client", [&]() -> Status {
    auto client = ClientCore::Prepare(*this, options);
    if (!client.ok()) return client.status();
    KRCORE_RETURN_IF_ERROR((*client)->MakeFirstUsed());
    const std::lock_guard lock(mutex_);
    prepared_.push_back(std::move(*client));
    return Status::Ok();
  });
}

namespace {

Result<std::unique_ptr<Store>> OpenStore(const StoreOptions& options) {
  krcore::Clock& clock = options.clock != nullptr ? *options.clock : *krcore::RealClock();
  const Deadline deadline = Deadline::After(clock, options.open_timeout_ms * 1'000'000);
  const krcore::NodeOptions node_options = NodeOptionsOf(options, deadline);
  auto node = krcore::OpenNode(options.control_plane, node_options);
  for (uint32_t spins = kParked; node.status() == StatusCode::kNotFound && !deadline.Passed(clock); ++spins) {
    clock.Relax(spins);  // its first memory node may be starting
    node = krcore::OpenNode(options.control_plane, node_options);
  }
  if (!node.ok()) return node.status();
  auto store = std::make_unique<StoreCore>(std::move(*node), options);
  if (Status attached = store->Attach(deadline); !attached.ok()) return attached;
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> OpenStoreOfItsOwn(const EmbeddedOptions& options) {
  static std::atomic<uint64_t> counter = 0;
  krcore::NodeOptions node_options;
  node_options.fabric = "inproc:store-" + std::to_string(counter.fetch_add(1));
  node_options.create_fabric = true;
  node_options.node = 1;
  auto memory_node = krcore::Node::Open(node_options);
  if (!memory_node.ok()) return memory_node.status();
  if (options.memory_bytes < kMinPoolBytes) {
    return Status(StatusCode::kInvalidArgument, "EmbeddedOptions::memory_bytes is at least " +
                                                    std::to_string(kMinPoolBytes) + ", not " +
                                                    std::to_string(options.memory_bytes));
  }
  auto pool = (*memory_node)->CreateRegion(PoolRegion(options.memory_bytes));
  if (!pool.ok()) return pool.status();
  if (Status hosted = (*memory_node)->HostMetaServer(64); !hosted.ok()) return hosted;
  const Deadline deadline = Deadline::After((*memory_node)->clock(), 5'000'000'000);
  HomeOptions home;
  home.initial_depth = DepthFor(options.expected_records, home.geometry);
  const auto joined = JoinStore(**memory_node, **pool, home, deadline);
  if (!joined.ok()) return joined.status();

  node_options.create_fabric = false;
  node_options.node = krcore::kNoNode;
  auto node = krcore::Node::Open(node_options);
  if (!node.ok()) return node.status();
  StoreOptions store_options;
  store_options.operation_timeout_ms = options.operation_timeout_ms;
  auto store = std::make_unique<StoreCore>(std::move(*node), store_options);
  store->Own(std::move(*memory_node), std::move(*pool));
  if (Status attached = store->Attach(deadline); !attached.ok()) return attached;
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  return krcore::OrOutOfMemory("opening a store", [&] { return OpenStore(options); });
}

Result<std::unique_ptr<Store>> Store::OpenEmbedded(const EmbeddedOptions& options) {
  return krcore::OrOutOfMemory("opening a store", [&] { return OpenStoreOfItsOwn(options); });
}

}  // namespace kvs
