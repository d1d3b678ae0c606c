// SurgeKV: a memory node in a process of its own, and a client per session.
#include "bench/peers/stores/surgekv_peer.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/map_at_once.h"
#include "bench/peers/peer.h"
#include "bench/peers/stores/server_process.h"
#include "krcore/clock.h"
#include "krcore/rnic/sw/shm_file.h"
#include "kvs/memory/remote_pool.h"

namespace peers {
namespace {

using krcore::Result;
using krcore::Status;
namespace sw = krcore::rnic::sw;

using kvs::Client;
using kvs::Store;
using kvs::Task;

// Room for a record in addition to its key and value. It is generous, and includes blocks that are being replaced.
constexpr uint64_t kBesidesBytes = 140;
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;
constexpr uint64_t kMib = uint64_t{1} << 20;

// Requests in flight begin together, as the bound's: the Gets among them by one MultiGet, the writes by one MultiWrite.
Task<void> Together(Client& client, Requests& requests, uint32_t in_flight) {
  std::array<Request, kMaxInFlight> request;
  std::array<std::string_view, kMaxInFlight> keys;
  std::array<std::string, kMaxInFlight> values;
  std::array<Status, kMaxInFlight> statuses;
  std::array<kvs::WriteRequest, kMaxInFlight> writes;
  std::array<uint32_t, kMaxInFlight> lane_of_get, lane_of_write;
  for (;;) {
    uint32_t gets = 0, write_count = 0;
    for (uint32_t lane = 0; lane < in_flight; ++lane) {
      if (!requests.Next(lane, &request[lane])) continue;
      if (request[lane].verb == Verb::kGet) {
        keys[gets] = request[lane].key;
        lane_of_get[gets++] = lane;
      } else {
        kvs::WriteRequest& write = writes[write_count];
        write.kind = request[lane].verb == Verb::kUpdate ? kvs::WriteKind::kUpdate : kvs::WriteKind::kInsert;
        write.key = request[lane].key;
        write.value = request[lane].value;
        lane_of_write[write_count++] = lane;
      }
    }
    if (gets + write_count == 0) co_return;
    Task<void> all_writes = client.MultiWriteAsync(std::span(writes).first(write_count));
    if (write_count != 0) all_writes.Start();
    if (gets != 0) {
      co_await client.MultiGetAsync(std::span(keys).first(gets), std::span(values).first(gets),
                                    std::span(statuses).first(gets));
    }
    for (uint32_t i = 0; i < gets; ++i) requests.Done(lane_of_get[i], statuses[i].ok(), values[i]);
    if (write_count != 0) co_await std::move(all_writes).Join();
    for (uint32_t i = 0; i < write_count; ++i) requests.Done(lane_of_write[i], writes[i].status.ok());
  }
}

// As a program that has nothing else to do while it waits.
void RunBlocking(Client& client, Requests& requests) {
  Request request;
  std::string value;
  while (requests.Next(0, &request)) {
    Status status;
    switch (request.verb) {
      case Verb::kGet: status = client.Get(request.key, &value); break;
      case Verb::kUpdate: status = client.Update(request.key, request.value); break;
      case Verb::kInsert: status = client.Insert(request.key, request.value); break;
    }
    requests.Done(0, status.ok(), value);
  }
}

class SurgekvPeer final : public Peer {
 public:
  SurgekvPeer(std::vector<std::unique_ptr<ServerProcess>> memory_nodes, std::unique_ptr<Store> store)
      : memory_nodes_(std::move(memory_nodes)), store_(std::move(store)) {}

  std::unique_ptr<Session> NewSession() override {
    return std::make_unique<SurgekvSession>(store_->NewClient().value());
  }
  uint64_t MemoryBytes() override {
    uint64_t bytes = 0;
    const kvs::TableStats stats = store_->NewClient().value()->ReadTableStats().value();
    for (const kvs::TableStats::MemoryNode& node : stats.memory_nodes) bytes += node.taken_bytes;
    return bytes;
  }

  // Stops the last memory node's process while its memory is a learner's, which it then stays.
  Status FreezeLearner() {
    const auto deadline = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
    for (bool frozen = false; !deadline.Passed(*krcore::RealClock());) {
      const auto configuration = kvs::ReadConfiguration(store_->node(), deadline);
      if (!configuration.ok()) return configuration.status();
      if (!configuration->pools.front().learner.exists()) continue;
      if (!frozen) memory_nodes_.back()->Freeze();
      frozen = true;
      if (configuration->active) return Status::Ok();
      (void)store_->NewClient();  // goes on with the view, of which perhaps nobody else knows
    }
    return krcore::StatusCode::kTimeout;
  }

 private:
  std::vector<std::unique_ptr<ServerProcess>> memory_nodes_;
  std::unique_ptr<Store> store_;
};

}  // namespace

void SurgekvSession::Run(Requests& requests, uint32_t in_flight) {
  if (in_flight == 1) return RunBlocking(*client_, requests);
  client_->Spawn(Together(*client_, requests, in_flight));
  client_->Drain();
}

Result<std::unique_ptr<ServerProcess>> StartMemoryNode(const std::string& fabric, uint64_t bytes, uint32_t node,
                                                       const std::vector<std::string>& more) {
  const uint64_t mib = (bytes + kMib - 1) / kMib;
  const std::string number = std::to_string(node);
  std::vector<std::string> arguments = {"--fabric=" + fabric, "--node=" + number, "--hugepages=off",
                                        "--memory=" + std::to_string(mib) + "M"};
  if (node == 1) arguments.emplace_back("--metaserver");
  arguments.insert(arguments.end(), more.begin(), more.end());
  auto started = ServerProcess::Start("memnode", arguments);
  if (!started.ok()) return started.status();
  KRCORE_RETURN_IF_ERROR((*started)->AwaitOutput("ready fabric="));
  // The store is measured as if it had been up for a while. A memory node moves what takes longer than a second into
  // huge pages little by little; here this program does it at once.
  auto file = sw::OpenShmFile(sw::FabricPrefix(fabric) + "m" + number + "-pool", 0);
  if (!file.ok()) return file.status();
  const auto mapping = MapAtOnce(file->get(), mib * kMib);
  if (!mapping.ok()) return mapping.status();
  return started;
}

std::string UniqueFabric() {
  static std::atomic<uint32_t> count = 0;
  return "peers-" + std::to_string(getpid()) + "-" + std::to_string(count.fetch_add(1));
}

Result<std::unique_ptr<Peer>> MakeSurgekv(const Shape& shape) { return MakeSurgekvOver(1, shape); }

// The store of these memory nodes, each of which must be ready.
Result<std::unique_ptr<Peer>> OpenPeer(const std::string& fabric, std::vector<std::unique_ptr<ServerProcess>> started) {
  auto store = Store::Open({.fabric = fabric, .open_timeout_ms = 60'000});
  if (!store.ok()) return store.status();
  return std::unique_ptr<Peer>(std::make_unique<SurgekvPeer>(std::move(started), *std::move(store)));
}

Result<std::unique_ptr<Peer>> MakeSurgekvMirrored(uint32_t replicas, bool learner, const Shape& shape) {
  const std::string fabric = UniqueFabric();
  const uint64_t bytes = kLeastBytes + shape.most_records() * (shape.data_bytes() + kBesidesBytes);
  const uint32_t nodes = replicas + (learner ? 1 : 0);
  std::vector<std::unique_ptr<ServerProcess>> started;
  for (uint32_t node = 1; node <= nodes; ++node) {
    // A learner stays one: it copies a byte a second until it is stopped.
    const std::string copy_rate = "--copy_rate=" + std::to_string(node > replicas ? 1 : 0);
    auto memory_node = StartMemoryNode(fabric, bytes, node, {"--replicas=" + std::to_string(nodes), copy_rate});
    if (!memory_node.ok()) return memory_node.status();
    started.push_back(*std::move(memory_node));
    if (node <= replicas) KRCORE_RETURN_IF_ERROR(started.back()->AwaitOutput("a replica of pool 1"));
  }
  auto peer = OpenPeer(fabric, std::move(started));
  if (peer.ok() && learner) KRCORE_RETURN_IF_ERROR(static_cast<SurgekvPeer&>(**peer).FreezeLearner());
  return peer;
}

// A store of so many memory nodes, which get these flags as well.
Result<std::unique_ptr<Peer>> MakeStore(uint32_t memory_nodes, const Shape& shape,
                                        const std::vector<std::string>& flags) {
  const std::string fabric = UniqueFabric();
  const uint64_t bytes = shape.most_records() * (shape.data_bytes() + kBesidesBytes) / memory_nodes;
  std::vector<std::unique_ptr<ServerProcess>> started;
  for (uint32_t node = 1; node <= memory_nodes; ++node) {
    auto memory_node = StartMemoryNode(fabric, kLeastBytes + bytes, node, flags);
    if (!memory_node.ok()) return memory_node.status();
    started.push_back(*std::move(memory_node));
  }
  return OpenPeer(fabric, std::move(started));
}

Result<std::unique_ptr<Peer>> MakeSurgekvOver(uint32_t memory_nodes, const Shape& shape) {
  return MakeStore(memory_nodes, shape, {});
}

Result<std::unique_ptr<Peer>> MakeSurgekvSized(const Shape& shape) {
  return MakeStore(1, shape, {"--expected_records=" + std::to_string(shape.most_records())});
}

}  // namespace peers
