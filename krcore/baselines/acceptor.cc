#include <cstring>
#include <map>
#include <utility>

#include "krcore/baselines/exchange.h"
#include "krcore/control_plane.h"
#include "krcore/node/node_impl.h"

namespace krcore::baselines {
namespace {

constexpr uint32_t kReceives = 128;
constexpr uint32_t kAcceptsPerSweep = 128;
constexpr uint32_t kRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;

class AcceptorImpl final : public Acceptor {
 public:
  explicit AcceptorImpl(node::NodeImpl& node) : node_(node) {}
  ~AcceptorImpl() override {
    if (datagrams_ != nullptr) (void)Announce(0, Soon());
  }

  Status Start() {
    auto cq = node_.device().CreateCq(16);  // a QP needs one, although nothing is posted on these
    if (!cq.ok()) return cq.status();
    cq_ = *std::move(cq);
    auto datagrams = Datagrams::Create(node_.device(), node_.pd(), kReceives);
    if (!datagrams.ok()) return datagrams.status();
    datagrams_ = *std::move(datagrams);
    return Announce(datagrams_->qpn(), {});
  }

  size_t Serve() override {
    if (forked()) return 0;
    size_t served = 0;
    Request request;
    while (const size_t length = datagrams_->Receive(std::as_writable_bytes(std::span(&request, 1)))) {
      if (length != sizeof(request) || request.magic != kExchangeMagic) continue;
      ++served;
      Answer(request);
    }
    return served;
  }

  size_t connections() const override { return connections_.size(); }

  // Clients that died did not say goodbye, and a goodbye may be lost.
  size_t Sweep() override {
    if (forked()) return 0;
    const size_t before = connections_.size();
    const Deadline deadline = Soon();  // for all of them together
    Client asked;
    bool dead = false;
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (it->first.first != asked) {
        asked = it->first.first;
        dead = node_.device().QueryPeer(it->second.client, deadline) == rnic::PeerState::kDead;
      }
      it = dead ? connections_.erase(it) : std::next(it);
    }
    return before - connections_.size();
  }

  Status Renew() override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    const Deadline deadline = Soon();
    const Status found = node_.device().LookupRecord(AcceptorRecord(node_.id()), deadline).status();
    return found == StatusCode::kNotFound ? Announce(datagrams_->qpn(), deadline) : found;
  }

 private:
  struct Connection {
    rnic::DeviceAddress client;
    std::unique_ptr<rnic::Qp> qp;
  };
  using Client = std::pair<NodeId, uint32_t>;  // its incarnation
  using Key = std::pair<Client, uint64_t>;     // the client, its id of the connection
  static Key KeyOf(const Request& request) { return {{request.from.node, request.from.incarnation}, request.id}; }

  // The deadline of questions to the fabric: clients that want to connect wait meanwhile.
  Deadline Soon() const { return Deadline::After(node_.clock(), rnic::kPollingAskNs); }

  Status Announce(uint32_t qpn, Deadline deadline) {
    Announcement announcement;
    announcement.qpn = qpn;
    announcement.address = node_.device().address();
    return node_.device().PublishRecord(AcceptorRecord(node_.id()), std::as_bytes(std::span(&announcement, 1)),
                                        deadline);
  }

  // Sends the same answer for a repeated request, whose answer was lost or late.
  void Answer(const Request& request) {
    auto ah = node_.device().CreateAddressHandle(request.from);
    if (!ah.ok()) return;  // gone
    Reply reply;
    reply.kind = request.kind;
    reply.id = request.id;
    if (request.kind == RequestKind::kConnect)
      Connect(request, &reply);
    else
      connections_.erase(KeyOf(request));
    datagrams_->Send(**ah, request.reply_qpn, std::as_bytes(std::span(&reply, 1)));
  }

  void Connect(const Request& request, Reply* reply) {
    if (++accepts_ % kAcceptsPerSweep == 0) (void)Sweep();
    const auto known = connections_.find(KeyOf(request));
    if (known != connections_.end())
      reply->qpn = known->second.qp->num();
    else
      reply->code = static_cast<uint32_t>(Accept(request, &reply->qpn).code());
    for (const RemoteRegion& region : node_.published_regions()) reply->regions[reply->region_count++] = region;
  }

  Status Accept(const Request& request, uint32_t* qpn) {
    auto qp = node_.pd().CreateQp({.send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = 1});
    if (!qp.ok()) {
      (void)Sweep();  // makes room for the next attempt
      return qp.status();
    }
    KRCORE_RETURN_IF_ERROR((*qp)->ToInit(kRights, 0));
    KRCORE_RETURN_IF_ERROR((*qp)->ToRtr({.device = request.from, .qpn = request.qpn}));
    KRCORE_RETURN_IF_ERROR((*qp)->ToRts());
    *qpn = (*qp)->num();
    connections_[KeyOf(request)] = {request.from, *std::move(qp)};
    return {};
  }

  node::NodeImpl& node_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<Datagrams> datagrams_;
  std::map<Key, Connection> connections_;
  uint32_t accepts_ = 0;
};

}  // namespace
}  // namespace krcore::baselines

namespace krcore {

Result<std::unique_ptr<Acceptor>> Acceptor::Create(Node& node) {
  auto* const impl = dynamic_cast<node::NodeImpl*>(&node);
  if (impl == nullptr) return Status(StatusCode::kInvalidArgument, "only a node of krcore accepts connections");
  auto acceptor = std::make_unique<baselines::AcceptorImpl>(*impl);
  KRCORE_RETURN_IF_ERROR(acceptor->Start());
  return std::unique_ptr<Acceptor>(std::move(acceptor));
}

}  // namespace krcore
