#include "krcore/baselines/rc_node.h"

#include <string>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/baselines/rc_pool.h"
#include "krcore/node/node_impl.h"
#include "krcore/rnic.h"

namespace krcore {

std::string_view ConnectStepName(ConnectStep step) {
  switch (step) {
    case ConnectStep::kContext: return "context";
    case ConnectStep::kPd: return "PD";
    case ConnectStep::kDatagrams: return "datagram QP";
    case ConnectStep::kCq: return "CQ";
    case ConnectStep::kQp: return "QP, to INIT";
    case ConnectStep::kExchange: return "exchange";
    case ConnectStep::kStates: return "RTR, RTS";
  }
  return "?";
}

}  // namespace krcore

namespace krcore::baselines {
namespace {

constexpr uint32_t kSharedDepth = 512;  // WRs of all queues of a node to one peer, "lite"
constexpr int64_t kRemoveRecordsNs = 1'000'000'000;

}  // namespace

Result<std::unique_ptr<Node>> RcNode::Open(bool share_links, const NodeOptions& options,
                                           std::function<void(ConnectStep)> done) {
  std::unique_ptr<RcNode> node(new RcNode(share_links, options.clock != nullptr ? *options.clock : *RealClock()));
  KRCORE_RETURN_IF_ERROR(node->Start(options, std::move(done)));
  return std::unique_ptr<Node>(std::move(node));
}

Status RcNode::Start(const NodeOptions& options, std::function<void(ConnectStep)> done) {
  context_.done = std::move(done);
  auto device = node::OpenDevice(options);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  context_.Done(ConnectStep::kContext);
  auto pd = device_->CreatePd();
  if (!pd.ok()) return pd.status();
  pd_ = *std::move(pd);
  context_.Done(ConnectStep::kPd);
  auto exchange = Exchange::Create(*device_, *pd_, clock_);
  if (!exchange.ok()) return exchange.status();
  exchange_ = *std::move(exchange);
  context_.Done(ConnectStep::kDatagrams);
  context_.device = device_.get();
  context_.pd = pd_.get();
  context_.exchange = exchange_.get();
  context_.clock = &clock_;
  return {};
}

RcNode::~RcNode() {
  if (meta_) meta_->RemoveAll(Deadline::After(clock_, kRemoveRecordsNs));
}

// ---- memory

Result<std::unique_ptr<Region>> RcNode::CreateRegion(const RegionOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (options.remote_rights != 0 || !options.name.empty())
    return Status(StatusCode::kUnsupported, "a node of the baselines is a client: it exposes no memory");
  if (options.length == 0) return Status(StatusCode::kInvalidArgument, "a region needs a length");
  auto memory = Pages::Map(options.length);
  if (!memory.ok()) return memory.status();
  void* const bytes = (*memory)->bytes().data();
  return Register({.private_memory = *std::move(memory)}, bytes, options.length);
}

Result<std::unique_ptr<Region>> RcNode::RegisterLocal(void* addr, size_t length) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (addr == nullptr || length == 0) return Status(StatusCode::kInvalidArgument, "no memory named");
  return Register({}, addr, length);
}

Result<std::unique_ptr<Region>> RcNode::Register(node::RegionParts parts, void* addr, size_t length) {
  auto mr = pd_->RegisterMemory(addr, length, kLocalWrite);
  if (!mr.ok()) return mr.status();
  parts.mr = *std::move(mr);
  return std::unique_ptr<Region>(std::make_unique<node::RegionImpl>(local_regions_, nullptr, std::move(parts)));
}

// ---- metadata

Status RcNode::HostMetaServer(uint32_t) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return {StatusCode::kUnsupported, "metadata servers are nodes of krcore"};
}

Result<peers::MetaClient*> RcNode::Meta() {
  std::lock_guard lock(meta_mutex_);
  if (meta_ == nullptr) {
    auto meta = peers::MetaClient::Create(*device_, *pd_, clock_, device_->address());
    if (!meta.ok()) return meta.status();
    meta_ = *std::move(meta);
  }
  return meta_.get();
}

Status RcNode::Publish(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  auto meta = Meta();
  if (!meta.ok()) return meta.status();
  const peers::NodePayload payload;  // without a DC target: it says only that this node lives
  return (*meta)->Publish(peers::Key::Node(id()), std::as_bytes(std::span(&payload, 1)), deadline);
}

Status RcNode::PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (name.empty() || value.size() > kMaxServiceBytes)
    return {StatusCode::kInvalidArgument,
            "a service needs a name and has a value of at most " + std::to_string(kMaxServiceBytes) + " bytes"};
  KRCORE_RETURN_IF_ERROR(Publish(deadline));
  auto meta = Meta();
  if (!meta.ok()) return meta.status();
  return (*meta)->Publish(peers::Key::Service(name), value, deadline);
}

Result<std::vector<std::byte>> RcNode::LookupService(std::string_view name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  auto meta = Meta();
  if (!meta.ok()) return meta.status();
  return node::LookupValue(**meta, peers::Key::Service(name), "service '" + std::string(name) + "'", deadline);
}

bool RcNode::IsConfirmedDead(NodeId node, uint32_t incarnation) {
  if (forked()) return false;
  auto meta = Meta();
  return meta.ok() && (*meta)->OwnerIsDead(peers::PackOwner(node, incarnation), nullptr,
                                           Deadline::After(clock_, rnic::kPollingAskNs));
}

// ---- queues

Result<std::unique_ptr<QueuePool>> RcNode::CreateQueuePool(const QueuePoolOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return RcPool::Create(*this, options);
}

Result<std::shared_ptr<Link>> RcNode::SharedLink(NodeId peer, Deadline deadline, bool* made) {
  std::shared_ptr<Shared> shared;
  {
    std::lock_guard lock(shared_mutex_);
    std::shared_ptr<Shared>& entry = shared_[peer];
    if (entry == nullptr) entry = std::make_shared<Shared>();
    shared = entry;
  }
  std::unique_lock connecting(shared->mutex, std::defer_lock);
  for (uint32_t spins = 0; !connecting.try_lock(); ++spins) {
    if (deadline.Passed(clock_))
      return Status(StatusCode::kTimeout, "another thread was still connecting to node " + std::to_string(peer));
    clock_.Relax(spins);
  }
  if (shared->link != nullptr) {
    const auto lock = shared->link->Lock();
    // If the peer had published nothing yet, ask it again.
    if (!shared->link->broken() && !shared->link->regions().empty()) return shared->link;
  }
  shared->link.reset();  // a queue that still uses it keeps it until it connects again
  auto link = Link::ConnectShared(context_, peer, kSharedDepth, deadline);
  if (!link.ok()) return link.status();
  *made = true;
  shared->link = *std::move(link);
  return shared->link;
}

}  // namespace krcore::baselines
