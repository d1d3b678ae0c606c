#include "krcore/node/node_impl.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "krcore/node/region_impl.h"
#include "krcore/peers/meta_table.h"
#include "krcore/peers/peer.h"
#include "krcore/peers/rc_desk.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/resources.h"
#include "krcore/rnic.h"

namespace krcore {

Result<std::unique_ptr<Node>> Node::Open(const NodeOptions& options) {
  return OrOutOfMemory("opening a node", [&] { return node::NodeImpl::Open(options); });
}

std::vector<std::string> RnicProviders() { return rnic::ProviderNames(); }

Result<std::vector<std::string>> ListFabrics(const std::string& rnic) { return rnic::ListFabrics(rnic); }

Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& rnic, const std::string& fabric) {
  return rnic::ProcessesOfRemovedFabric(rnic, fabric);
}

Result<std::vector<std::string>> CleanStaleFabrics(const std::string& rnic, const std::string& fabric, bool also_kept) {
  auto report = rnic::CleanStaleFabrics(rnic, fabric, also_kept);
  if (!report.ok()) return report.status();
  return std::move(report->removed);
}

}  // namespace krcore

namespace krcore::node {
namespace {

constexpr int64_t kRemoveRecordsNs = 1'000'000'000;
constexpr int64_t kMinLeaseNs = 1'000'000;
constexpr int64_t kMaxLeaseNs = 3600'000'000'000;
constexpr int64_t kCatchUpNs = 10'000'000'000;
constexpr uint32_t kAllRemoteRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;

}  // namespace

Result<std::vector<std::byte>> LookupValue(peers::MetaClient& meta, const peers::Key& key, const std::string& what,
                                           Deadline deadline) {
  auto record = meta.Lookup(key, deadline);
  if (!record.ok()) return record.status();
  if (record->kind != key.kind || record->value_length > kMaxServiceBytes)
    return Status(StatusCode::kCorrupt, "the record of " + what + " is not one of a " +
                                            (key.kind == peers::RecordKind::kPort ? "port" : "service"));
  return std::vector<std::byte>(record->value, record->value + record->value_length);
}

Result<std::unique_ptr<rnic::Device>> OpenDevice(const NodeOptions& options) {
  return rnic::OpenDevice({.provider = options.rnic,
                           .fabric = options.fabric,
                           .node = options.node,
                           .create_fabric = options.create_fabric,
                           .address = options.fabric_address,
                           .port = options.rnic_port,
                           .clock = options.clock,
                           .deadline = options.deadline});
}

Result<std::unique_ptr<Node>> NodeImpl::Open(const NodeOptions& options) {
  if (options.mr_lease_ns < kMinLeaseNs || options.mr_lease_ns > kMaxLeaseNs)
    return Status(StatusCode::kInvalidArgument, "mr_lease_ns must be 1 ms to an hour");
  if (options.rc_peers > peers::kMaxDeskPlaces)
    return Status(StatusCode::kInvalidArgument, "rc_peers must be at most " + std::to_string(peers::kMaxDeskPlaces));
  auto device = OpenDevice(options);
  if (!device.ok()) return device.status();
  std::unique_ptr<NodeImpl> node(
      new NodeImpl(*std::move(device), options.clock != nullptr ? *options.clock : *RealClock(), options.mr_lease_ns));
  node->share_host_ = options.share_host && &node->clock_ == RealClock();
  KRCORE_RETURN_IF_ERROR(node->Start(options.rc_peers));
  return std::unique_ptr<Node>(std::move(node));
}

Status NodeImpl::Start(uint32_t rc_peers) {
  if (!device_->caps().dc)
    return {StatusCode::kUnsupported, "provider " + device_->caps().provider + " has no DC transport"};
  auto pd = device_->CreatePd();
  if (!pd.ok()) return pd.status();
  pd_ = *std::move(pd);
  auto dct = peers::CreateTarget(*pd_, incarnation());
  if (!dct.ok()) return dct.status();
  dct_ = *std::move(dct);
  auto meta = peers::MetaClient::Create(*device_, *pd_, clock_, device_->address());
  if (!meta.ok()) return meta.status();
  meta_ = *std::move(meta);
  peers_ = std::make_unique<peers::PeerDirectory>(*device_, *meta_, clock_, share_host_);
  if (rc_peers == 0) return {};
  auto desk = MakeRegion(
      {.length = rc_peers * sizeof(peers::DeskPlace), .remote_rights = kAllRemoteRights, .tag = peers::kDeskTag});
  if (!desk.ok()) return desk.status();
  return rc_answering_.Start(*device_, *pd_, clock_, *std::move(desk));
}

NodeImpl::~NodeImpl() {
  if (meta_) meta_->RemoveAll(Deadline::After(clock_, kRemoveRecordsNs));
  if (peers_) peers_->ForgetOnHost(id());
}

// ---- memory

Result<std::unique_ptr<Region>> NodeImpl::CreateRegion(const RegionOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (options.tag == peers::kDeskTag) return Status(StatusCode::kInvalidArgument, "this tag is krcore's own");
  return MakeRegion(options);
}

Result<std::unique_ptr<Region>> NodeImpl::MakeRegion(const RegionOptions& options) {
  KRCORE_RETURN_IF_ERROR(CheckRegionOptions(options));
  RegionParts parts;
  std::span<std::byte> bytes;
  std::unique_lock exposing(exposing_mutex_, std::defer_lock);
  if (options.remote_rights == 0) {
    auto memory = Pages::Map(options.length);
    if (!memory.ok()) return memory.status();
    parts.private_memory = *std::move(memory);
    bytes = parts.private_memory->bytes();
  } else {
    exposing.lock();
    if (!exposed_.HasRoom()) return TooManyRegions();
    auto memory = device_->AllocMemory(options.length, {.name = options.name, .keep_on_close = options.keep_on_close});
    if (!memory.ok()) return memory.status();
    parts.remote_memory = *std::move(memory);
    bytes = parts.remote_memory->bytes();
  }
  auto mr = pd_->RegisterMemory(bytes.data(), options.length, kLocalWrite | options.remote_rights);
  if (!mr.ok()) return mr.status();
  parts.mr = *std::move(mr);
  parts.remote_rights = options.remote_rights;
  if (options.remote_rights != 0)
    exposed_.Add({reinterpret_cast<uint64_t>(bytes.data()), options.length, parts.mr->rkey(), options.tag});
  return std::unique_ptr<Region>(std::make_unique<RegionImpl>(local_regions_, this, std::move(parts)));
}

Result<std::unique_ptr<Region>> NodeImpl::RegisterLocal(void* addr, size_t length) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (addr == nullptr || length == 0) return Status(StatusCode::kInvalidArgument, "no memory named");
  auto mr = pd_->RegisterMemory(addr, length, kLocalWrite);
  if (!mr.ok()) return mr.status();
  RegionParts parts;
  parts.mr = *std::move(mr);
  return std::unique_ptr<Region>(std::make_unique<RegionImpl>(local_regions_, this, std::move(parts)));
}

Result<int64_t> NodeImpl::Withdraw(uint32_t rkey, Deadline deadline) {
  if (!exposed_.Withdraw(rkey)) return clock_.NowNs();  // no peer can know of it
  KRCORE_RETURN_IF_ERROR(Publish(deadline));
  // A lease begins when its lookup is posted, and lookups posted from now on find the record without the region. A
  // tenth is added for clocks that run differently, and the lag of the clock that checks leases.
  const int64_t lease_ns = meta_->mr_lease_ns();
  return clock_.NowNs() + lease_ns + lease_ns / 10 + device_->caps().max_retransmission_ns + kMaxCoarseLagNs;
}

// ---- metadata

Status NodeImpl::HostMetaServer(uint32_t capacity) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (hosting_.exchange(true)) return {StatusCode::kExists, "this node hosts a metadata server already"};
  const peers::MetaServerOptions options{.capacity = capacity,
                                         .mr_lease_ns = mr_lease_ns_,
                                         .desk = rc_answering_.places(),
                                         .desk_rkey = rc_answering_.rkey()};
  auto server = peers::MetaServer::Host(*device_, *pd_, *dct_, clock_, options, Deadline::After(clock_, kCatchUpNs));
  if (!server.ok()) {
    hosting_ = false;
    return server.status();
  }
  meta_server_ = *std::move(server);
  return {};
}

Status NodeImpl::Publish(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  std::lock_guard publishing(publish_mutex_);
  peers::NodePayload payload;
  payload.dc_key = dct_->dc_key();
  payload.dct_num = dct_->num();
  exposed_.PutInto(&payload);
  const Status published = meta_->Publish(peers::Key::Node(id()), std::as_bytes(std::span(&payload, 1)), deadline);
  peers_->ForgetOnHost(id());  // also if it failed: some server may have the new record
  KRCORE_RETURN_IF_ERROR(published);
  published_ = true;
  return {};
}

Status NodeImpl::PublishValue(const peers::Key& key, const std::string& what, std::span<const std::byte> value,
                              Deadline deadline) {
  if (!published_) KRCORE_RETURN_IF_ERROR(Publish(deadline));
  Status status = meta_->Publish(key, value, deadline);
  if (status.ok() || status.message().empty()) return status;
  return {status.code(), what + ": " + std::string(status.message())};
}

Status NodeImpl::PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (name.empty()) return {StatusCode::kInvalidArgument, "a service needs a name"};
  if (value.size() > kMaxServiceBytes)
    return {StatusCode::kInvalidArgument, "a service's value has at most " + std::to_string(kMaxServiceBytes) +
                                              " bytes, not " + std::to_string(value.size())};
  return PublishValue(peers::Key::Service(name), "service '" + std::string(name) + "'", value, deadline);
}

// The fabric's record comes first. One node at a time has it, so only its holder goes on to the metadata servers. If
// the fabric does not answer in half of the time, the servers alone tell rivals apart until this is called again.
Status NodeImpl::ClaimService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  const int64_t now_ns = clock_.NowNs();
  const Deadline half{now_ns + std::max<int64_t>(deadline.at_ns - now_ns, 0) / 2};
  const Status told = device_->PublishRecord(std::string(name), value, half);
  const bool silent = told == StatusCode::kUnavailable || told == StatusCode::kTimeout;
  if (!told.ok() && !silent) return told;
  return PublishService(name, value, deadline);
}

Result<FabricRecord> NodeImpl::ReadRecord(std::string_view name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return device_->ReadRecord(std::string(name), deadline);
}

Status NodeImpl::CompareAndSetRecord(std::string_view name, uint64_t expected, std::span<const std::byte> value,
                                     Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return device_->CompareAndSetRecord(std::string(name), expected, value, deadline);
}

Result<std::vector<std::byte>> NodeImpl::LookupService(std::string_view name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  const std::string what = "service '" + std::string(name) + "'";
  auto value = LookupValue(*meta_, peers::Key::Service(name), what, deadline);
  if (value.status() == StatusCode::kNotFound) return Status(StatusCode::kNotFound, "no node publishes a " + what);
  return value;
}

Status NodeImpl::PublishPort(Port port, std::span<const std::byte> value, Deadline deadline) {
  assert(value.size() <= kMaxServiceBytes);
  return PublishValue(peers::Key::Port(id(), port), "port " + std::to_string(port), value, deadline);
}

void NodeImpl::WithdrawPort(Port port, Deadline deadline) { meta_->Remove(peers::Key::Port(id(), port), deadline); }

Result<std::vector<std::byte>> NodeImpl::LookupPort(NodeId node, Port port, Deadline deadline) {
  return LookupValue(*meta_, peers::Key::Port(node, port), "port " + std::to_string(port), deadline);
}

bool NodeImpl::IsConfirmedDead(NodeId node, uint32_t incarnation) {
  if (forked()) return false;
  return meta_->OwnerIsDead(peers::PackOwner(node, incarnation), nullptr, Deadline::After(clock_, rnic::kPollingAskNs));
}

// ---- queues

size_t NodeImpl::PollConnections() {
  if (forked()) return 0;
  return rc_answering_.Poll();
}

Result<std::unique_ptr<QueuePool>> NodeImpl::CreateQueuePool(const QueuePoolOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return OrOutOfMemory("making a queue pool", [&] {
    return queue::QueuePoolImpl::Create({.node = this,
                                         .device = device_.get(),
                                         .pd = pd_.get(),
                                         .regions = &local_regions_,
                                         .peers = peers_.get(),
                                         .meta = device_->caps().software_dc ? meta_.get() : nullptr,
                                         .self = {device_->address(), dct_->num(), dct_->dc_key()},
                                         .owners = &owners_,
                                         .pools = &pools_,
                                         .maker = &ports_,
                                         .host_qps = share_host_ ? device_->caps().host_qps : 0},
                                        options);
  });
}

}  // namespace krcore::node
