#include "krcore/peers/meta_server.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace krcore::peers {
namespace {

constexpr uint32_t kMaxCapacity = 1u << 20;  // 400 MB of table
constexpr size_t kCopyBytes = 16 * kBucketBytes;
// A record that is being rewritten is whole again after this time, unless its owner was stopped or killed.
constexpr int64_t kTornPatienceNs = 2'000'000;

// For one source; after that the next one is tried.
constexpr int64_t kSourcePatienceNs = 2'000'000'000;

}  // namespace

Result<std::unique_ptr<MetaServer>> MetaServer::Host(rnic::Device& device, rnic::Pd& pd, const rnic::Dct& dct,
                                                     Clock& clock, const MetaServerOptions& options,
                                                     Deadline deadline) {
  if (options.capacity == 0 || options.capacity > kMaxCapacity)
    return Status(StatusCode::kInvalidArgument,
                  "metadata server capacity must be 1 to " + std::to_string(kMaxCapacity) + " nodes");
  std::unique_ptr<MetaServer> server(new MetaServer(device, pd, clock));
  Bootstrap& info = server->info_;
  info.geometry = Geometry::For(options.capacity);
  auto memory = device.AllocMemory(info.geometry.bytes(), {});
  if (!memory.ok()) return memory.status();
  server->memory_ = *std::move(memory);
  const std::span<std::byte> bytes = server->memory_->bytes();
  auto mr = pd.RegisterMemory(bytes.data(), bytes.size(), kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic);
  if (!mr.ok()) return mr.status();
  server->mr_ = *std::move(mr);
  info.table_addr = reinterpret_cast<uint64_t>(bytes.data());
  info.table_rkey = server->mr_->rkey();
  info.mr_lease_ns = options.mr_lease_ns;
  info.address = device.address();
  info.dct_num = dct.num();
  info.dc_key = dct.dc_key();
  info.desk_addr = reinterpret_cast<uint64_t>(options.desk.data());
  info.desk_places = static_cast<uint32_t>(options.desk.size());
  info.desk_rkey = options.desk_rkey;

  KRCORE_RETURN_IF_ERROR(server->Announce());
  KRCORE_RETURN_IF_ERROR(server->ChoosePlace(deadline));
  KRCORE_RETURN_IF_ERROR(server->CatchUp(deadline));
  KRCORE_RETURN_IF_ERROR(server->Announce(ServerState::kServing));
  return server;
}

MetaServer::~MetaServer() {
  // In this order: a table that nobody writes to any more must not be readable.
  mr_.reset();
  if (announced_) (void)Announce(ServerState::kWithdrawn);
}

std::span<Record> MetaServer::table() {
  return {reinterpret_cast<Record*>(info_.table_addr), info_.geometry.bytes() / sizeof(Record)};
}

Status MetaServer::Announce() {
  for (name_index_ = 0; name_index_ < kMaxServers; ++name_index_) {
    const Status status = Announce(ServerState::kChoosing);
    announced_ = status.ok();
    if (!(status == StatusCode::kExists)) return status;
  }
  return {StatusCode::kExists, "the fabric has " + std::to_string(kMaxServers) + " metadata servers, its limit"};
}

Status MetaServer::Announce(ServerState state) {
  info_.state = state;
  return device_.PublishRecord(BootstrapName(name_index_), std::as_bytes(std::span(&info_, 1)));
}

Status MetaServer::ChoosePlace(Deadline deadline) {
  auto list = ReadServerList(device_, {});
  if (!list.ok()) return list.status();
  for (const ServerPtr& other : list->all) info_.serial = std::max(info_.serial, other->info.serial);
  ++info_.serial;
  KRCORE_RETURN_IF_ERROR(Announce(ServerState::kCatchingUp));
  // A server that is choosing now may take this very serial or a lower one.
  for (uint32_t spins = 0;; ++spins) {
    list = ReadServerList(device_, *list);
    if (!list.ok()) return list.status();
    if (list->all.empty() || list->all.back()->info.state != ServerState::kChoosing) return {};
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "node " + std::to_string(list->all.back()->info.address.node) +
                                        " does not get on with becoming a metadata server"};
    clock_.Relax(spins);
  }
}

Status MetaServer::CatchUp(Deadline deadline) {
  auto channel = OneSidedChannel::Create(device_, pd_, clock_, kCopyBytes);
  if (!channel.ok()) return channel.status();
  ServerList list;
  for (uint32_t spins = 0;; ++spins) {
    auto read = ReadServerList(device_, list);
    if (!read.ok()) return read.status();
    list = *std::move(read);
    const Server* before = nullptr;  // an older one
    Status failed;
    for (const ServerPtr& server : list.all) {
      if (server->id() == info_.address.incarnation) break;
      before = server.get();
      if (!server->serving()) continue;
      const Deadline patience = Deadline::After(clock_, kSourcePatienceNs);
      failed = CopyFrom(*server, **channel, {std::min(deadline.at_ns, patience.at_ns)});
      if (failed.ok()) {
        info_.mr_lease_ns = server->info.mr_lease_ns;
        return {};
      }
      if (!(failed == StatusCode::kUnavailable || failed == StatusCode::kTimeout)) return failed;
    }
    // This is the oldest living server: there is nobody to learn from.
    if (before == nullptr) return {};
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "not caught up with the metadata server of node " +
                                        std::to_string(before->info.address.node) + " before the deadline" +
                                        (failed.ok() ? "" : ": " + std::string(failed.message()))};
    clock_.Relax(spins);
  }
}

Status MetaServer::CopyFrom(const Server& source, OneSidedChannel& channel, Deadline deadline) {
  std::fill(table().begin(), table().end(), Record{});  // clears a copy that was not finished
  std::vector<Record> chunk(kCopyBytes / sizeof(Record));
  const size_t bytes = source.info.geometry.bytes();
  for (size_t offset = 0; offset < bytes; offset += kCopyBytes) {
    const size_t length = std::min(kCopyBytes, bytes - offset);
    const std::span<Record> records = std::span(chunk).first(length / sizeof(Record));
    KRCORE_RETURN_IF_ERROR(channel.Read(source.At(offset), std::as_writable_bytes(records), deadline));
    for (size_t i = 0; i < records.size(); ++i) {
      Record& record = records[i];
      if (IsVacant(record.owner)) continue;
      const size_t record_offset = offset + i * sizeof(Record);
      const Deadline torn = Deadline::After(clock_, kTornPatienceNs);
      for (uint32_t spins = 0; !ChecksumMatches(record) && !IsVacant(record.owner); ++spins) {
        // Copied as it is: readers wait for its owner, here as there, and nobody else claims the owner's record.
        if (torn.Passed(clock_)) break;
        clock_.Relax(spins);
        KRCORE_RETURN_IF_ERROR(
            channel.Read(source.At(record_offset), std::as_writable_bytes(std::span(&record, 1)), deadline));
      }
      if (IsVacant(record.owner)) continue;
      const RecordKind kind = source.info.geometry.KindAt(record_offset);
      if ((kind == RecordKind::kNode) != (record.binding == 0)) continue;  // not a record
      // A port is written once: its publication is not complete, and will reach this server too, or its owner is dead.
      if (kind == RecordKind::kPort && !ChecksumMatches(record)) continue;
      if (!InsertCopy(table(), info_.geometry, kind, record))
        return {StatusCode::kOutOfMemory,
                "the records of the fabric's metadata servers do not fit; host this one larger"};
    }
  }
  // A dead server's memory does not count: it may have stood still for a while.
  if (device_.QueryPeer(source.info.address) == rnic::PeerState::kDead)
    return {StatusCode::kUnavailable, "the metadata server that was copied from died"};
  return {};
}

}  // namespace krcore::peers
