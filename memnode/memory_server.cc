#include "memnode/memory_server.h"

#include <glog/logging.h>
#include <sys/statvfs.h>

#include <span>
#include <string>
#include <utility>

#include "cli/common_flags.h"
#include "cli/size.h"
#include "krcore/control_plane.h"
#include "krcore/resources.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"

namespace memnode {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint32_t kMetaNodes = 10'000;  // take 5.4 MB
constexpr uint32_t kRcPeers = 256;       // take 32 KB

// Returns the status with one more line for the user: what to do about it.
Status WithWayOut(const Status& status, const std::string& way_out) {
  std::string text(status.message().empty() ? StatusCodeName(status.code()) : status.message());
  return {status.code(), text + "\n" + way_out};
}

// Returns the flag because of which memory cannot outlive its process.
std::string MemoryOf(const Options& options) {
  return options.control_plane == "krcore" ? "--rnic=" + options.rnic : "--control_plane=" + options.control_plane;
}

// Returns what the host has left for shared memory, for the message that there is not enough.
std::string SharedMemoryLeft(const Options& options) {
  struct statvfs info {};
  if (!options.memory_may_stay() || statvfs("/dev/shm", &info) != 0) return "";
  return " /dev/shm has " + cli::FormatSize(uint64_t{info.f_bavail} * info.f_frsize) + " available.";
}

Status ExplainPool(const Options& options, const Status& status) {
  const std::string memory = "--memory=" + cli::FormatSize(options.memory_bytes);
  switch (status.code()) {
    case StatusCode::kOutOfMemory:
      return WithWayOut(
          status, memory + " is too much." + SharedMemoryLeft(options) + " Give a smaller --memory, or free memory" +
                      (options.memory_may_stay() ? " (memnode --clean removes what stopped programs left)." : "."));
    case StatusCode::kInvalidArgument:  // left with another length
      return WithWayOut(status,
                        "To keep the data, give the --memory of the last run. To discard it, stop all programs of the "
                        "fabric and run: memnode " +
                            cli::FabricFlags() + " --clean");
    case StatusCode::kUnsupported:
      return WithWayOut(status, "Leave out --keep_memory: with " + MemoryOf(options) +
                                    " a memory node's data is lost when its process ends.");
    default: return status;
  }
}

Status ExplainJoin(const Options& options, const Status& status) {
  switch (status.code()) {
    case StatusCode::kTimeout:
      return WithWayOut(status, "Gave up after --wait_ms=" + std::to_string(options.wait_ms) +
                                    ". A fabric needs a metadata server: start a memnode with --metaserver, or wait "
                                    "longer.");
    case StatusCode::kUnavailable:  // the home is away
      if (!options.memory_may_stay()) return status;
      return WithWayOut(status, "Gave up waiting for it after --wait_ms=" + std::to_string(options.wait_ms) +
                                    ". To begin a new store instead, stop all of its programs and run: memnode " +
                                    cli::FabricFlags() + " --clean");
    case StatusCode::kExists:  // the claim of a home
      return WithWayOut(status,
                        "The memory of this node is also that of a home, and was not changed. To go on with the store "
                        "of this node, stop the other home and start this node again. To go on with the other store, "
                        "give another --node.");
    case StatusCode::kBadState:
      return WithWayOut(
          status,
          "The last memory node with this id was stopped without a drain, or its memory was lost. Start one "
          "with a --node that the fabric has not had: the keys of node " +
              std::to_string(options.node) +
              " stay unavailable, and all others are served. Or begin a new store: stop all of its "
              "programs" +
              (options.memory_may_stay() ? " and run: memnode " + cli::FabricFlags() + " --clean" : "."));
    case StatusCode::kUnsupported:  // another layout, here or at the home
      if (!options.memory_may_stay()) return status;
      return WithWayOut(
          status, "To begin a new store, stop all of its programs and run: memnode " + cli::FabricFlags() + " --clean");
    case StatusCode::kOutOfMemory:
      if (options.expected_records == 0) return status;
      return WithWayOut(status, "Give more --memory, or a smaller --expected_records.");
    case StatusCode::kCorrupt:
      if (!options.memory_may_stay()) return status;
      return WithWayOut(status, "To discard the memory of node " + std::to_string(options.node) +
                                    ", stop all programs of the fabric and run: memnode " + cli::FabricFlags() +
                                    " --clean");
    default: return status;
  }
}

}  // namespace

Result<std::unique_ptr<MemoryServer>> MemoryServer::Start(const Options& options, krcore::Clock* clock) {
  std::unique_ptr<MemoryServer> server(new MemoryServer());
  const Status status = krcore::OrOutOfMemory("starting", [&]() -> Status {
    KRCORE_RETURN_IF_ERROR(server->Open(options, clock));
    if (options.memory_bytes != 0) KRCORE_RETURN_IF_ERROR(server->CreatePool(options));
    if (options.metaserver) KRCORE_RETURN_IF_ERROR(server->HostMetaServer());
    if (options.memory_bytes == 0) return {};
    // Start the acceptor before this node becomes a member, so that nobody who finds the node finds it without one.
    // Until the pool is published nobody is told of the acceptor.
    KRCORE_RETURN_IF_ERROR(server->AcceptConnections(options));
    return server->Join(options);
  });
  if (status.ok()) {
    if (options.huge_pages && server->pool_ != nullptr)
      server->huge_pages_ = std::make_unique<HugePageCollapser>(*server->pool_, *clock);
    return server;
  }
  server->rc_acceptor_.reset();
  if (server->adopted()) {
    // Closing would remove the memory, and with it the data that a predecessor left. If the process ends without
    // closing, the memory stays as it was found, just as it survived that predecessor's end. Static, so that leak
    // checkers see the reason; never destroyed.
    [[maybe_unused]] static const MemoryServer* const left_open = server.release();
  } else if (server->pool_ != nullptr && !kvs::IsFormatted(server->pool_->bytes())) {
    server->pool_->DoNotKeep();  // made in vain, and nobody has seen it
  }
  return status;
}

Status MemoryServer::Open(const Options& options, krcore::Clock* clock) {
  krcore::NodeOptions open;
  cli::SetFabric(&open);
  open.node = options.node;
  open.create_fabric = true;
  open.clock = clock;
  if (options.memory_bytes != 0 || options.metaserver) open.rc_peers = kRcPeers;
  auto node = krcore::OpenNode(options.control_plane, open);
  if (!node.ok()) {
    if (node.status() == StatusCode::kExists) {
      return WithWayOut(node.status(), "Give another --node, or stop the program that has --node=" +
                                           std::to_string(options.node) + " with " + cli::FabricFlags() + ".");
    }
    if (node.status() == StatusCode::kOutOfMemory) {
      return WithWayOut(node.status(), "Opening " + cli::FabricFlags() + " failed." + SharedMemoryLeft(options));
    }
    return node.status();
  }
  node_ = *std::move(node);
  return Status::Ok();
}

Status MemoryServer::HostMetaServer() {
  const Status status = node_->HostMetaServer(kMetaNodes);
  if (status == StatusCode::kExists) {
    return WithWayOut(status,
                      "Leave out --metaserver, or first stop another metadata server of " + cli::FabricFlags() + ".");
  }
  return status;
}

Status MemoryServer::CreatePool(const Options& options) {
  krcore::RegionOptions region = kvs::PoolRegion(options.memory_bytes);
  region.name = kvs::kPoolRegionName;
  region.keep_on_close = options.keep_memory;
  auto pool = node_->CreateRegion(region);
  if (pool.status() == StatusCode::kUnsupported && !options.keep_memory) {
    LOG(INFO) << "with " << MemoryOf(options) << " this node's data is lost when its process ends, in whatever way";
    region.name.clear();
    pool = node_->CreateRegion(region);
  }
  if (!pool.ok()) return ExplainPool(options, pool.status());
  pool_ = *std::move(pool);
  return Status::Ok();
}

Status MemoryServer::AcceptConnections(const Options& options) {
  if (options.rc_acceptor == RcAcceptorMode::kOff || options.control_plane == "kernel") return Status::Ok();
  auto acceptor = RcAcceptor::Start(*node_, options.rc_acceptor);
  if (!acceptor.ok())
    return WithWayOut(acceptor.status(),
                      "Or give --rc_acceptor=off: then clients with --control_plane=verbs or lite cannot connect.");
  rc_acceptor_ = *std::move(acceptor);
  return Status::Ok();
}

Status MemoryServer::Join(const Options& options) {
  // Take the deadline on the host's clock: on StopClock it would lie after the jump if the stop had come a moment ago.
  const Deadline deadline = Deadline::After(*krcore::RealClock(), options.wait_ms * 1'000'000);
  const auto tell = [](const Status& why) { LOG(INFO) << "waiting: " << why.message(); };
  kvs::HomeOptions home;
  home.replicas = options.replicas;
  home.initial_depth = kvs::DepthFor(options.expected_records, home.geometry);
  const auto joined = kvs::JoinStore(*node_, *pool_, home, deadline, tell);
  if (!joined.ok()) return ExplainJoin(options, joined.status());
  is_home_ = joined->is_home;
  mirrored_ = joined->mirrored;
  const bool used = adopted() && kvs::IsFormatted(pool_->bytes());
  if (!mirrored_ || !used || joined->returned) return Status::Ok();
  LOG(WARNING)
      << "the memory that this node had before is thrown away: its pool went on without it, or it had not been "
         "copied yet";
  // Not filled anew: a late verb to its old key might still execute.
  pool_->DoNotKeep();
  pool_.reset();
  KRCORE_RETURN_IF_ERROR(CreatePool(options));
  return node_->Publish(deadline);
}

Status MemoryServer::Refresh(Deadline deadline) {
  (void)node_->PollConnections();
  if (pool_ == nullptr) return Status::Ok();  // a pure metadata server has no records
  KRCORE_RETURN_IF_ERROR(node_->Publish(deadline));
  if (!is_home_ || mirrored_) return Status::Ok();  // where pools are mirrored, the fabric's record has the home
  const kvs::HomeRecord home{node_->id(), node_->incarnation()};
  return node_->ClaimService(kvs::kHomeService, std::as_bytes(std::span(&home, 1)), deadline);
}

Result<std::string> CleanFabric(const Options& options) {
  const auto removed = krcore::CleanStaleFabrics(options.rnic, options.fabric, /*also_kept=*/true);
  if (!removed.ok()) return removed.status();
  if (!removed->empty()) return "removed what was left of fabric " + options.fabric;
  // If nothing was removed, there is nothing, or running programs use it.
  krcore::NodeOptions open;
  cli::SetFabric(&open);
  const auto node = krcore::Node::Open(open);
  if (node.ok()) {
    return Status(StatusCode::kExists, "fabric " + options.fabric +
                                           " is in use: nothing was removed\nStop all programs with " +
                                           cli::FabricFlags() + " first.");
  }
  if (node.status() == StatusCode::kNotFound) return "nothing to clean: there is no fabric " + options.fabric;
  return node.status();
}

}  // namespace memnode
