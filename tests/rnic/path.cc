#include "tests/rnic/path.h"

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace krcore::rnic::testing {

namespace {

constexpr size_t kPathBytes = 1 << 16;
constexpr int64_t kPathPatienceNs = 20'000'000'000;

// Has a fabric and, if its provider needs one, a World.
class Fabric {
 public:
  explicit Fabric(const Provider& provider)
      : name_(UniqueFabric(provider.fabric_prefix)), world_(MakeWorld(provider, name_)) {}
  const std::string& name() const { return name_; }
  Clock* clock() const { return world_ != nullptr ? &world_->clock() : RealClock(); }

 private:
  const std::string name_;
  const std::unique_ptr<sim::World> world_;
};

class PhysicalPath final : public Path {
 public:
  PhysicalPath(const Provider& provider, Transport transport, uint32_t depth)
      : fabric_(provider),
        a_(provider, fabric_.name(), 1, true),
        b_(provider, fabric_.name(), 2, false),
        link_(&a_, &b_, transport, depth) {}

  std::span<std::byte> local() const override { return a_.memory->bytes(); }
  std::span<std::byte> remote() const override { return b_.memory->bytes(); }
  SendWr Wr(Opcode opcode, const Sge* sge, size_t offset, uint64_t wr_id) const override {
    return link_.Wr(opcode, sge, offset, wr_id);
  }
  using Path::Post;
  Status Post(std::span<const SendWr> wrs, size_t* bad_index) override { return link_.qp->PostSend(wrs, bad_index); }
  Completion Next() override {
    const Completion done = a_.Next();
    EXPECT_TRUE(done.status != WcStatus::kSuccess || done.qp_num == link_.qp->num());
    return done;
  }

 private:
  uint32_t lkey() const override { return a_.mr->lkey(); }

  const Fabric fabric_;
  Endpoint a_, b_;
  Link link_;
};

class VirtualPath final : public Path {
 public:
  VirtualPath(const Provider& provider, uint32_t depth, bool hot) : fabric_(provider), hot_(hot) {
    peer_ = Open(provider, 1, hot ? 8 : 0);
    KRCORE_EXPECT_OK(peer_->HostMetaServer(64));
    remote_ = peer_->CreateRegion({.length = kPathBytes, .remote_rights = kRemoteRead | kRemoteWrite | kRemoteAtomic})
                  .value();
    KRCORE_EXPECT_OK(peer_->Publish(Soon()));
    node_ = Open(provider, kNoNode, 0);
    local_ = node_->CreateRegion({.length = kPathBytes}).value();
    pool_ = node_->CreateQueuePool({.max_rc_queues = hot ? 4U : 0, .rc_hot_wrs = 1}).value();
    queue_ = pool_->CreateQueue(depth).value();
    KRCORE_EXPECT_OK(queue_->Connect(1, Soon()));
    if (hot) MoveToRc();
  }
  ~VirtualPath() override {  // it was the kind of path that its name says
    EXPECT_EQ(pool_->stats().rc_connects, hot_ ? 1U : 0);
    EXPECT_EQ(pool_->stats().rc_reclaims, 0U);
    EXPECT_EQ(pool_->stats().broken_queues, 0U);
  }

  std::span<std::byte> local() const override { return local_->bytes(); }
  std::span<std::byte> remote() const override { return remote_->bytes(); }
  SendWr Wr(Opcode opcode, const Sge* sge, size_t offset, uint64_t wr_id) const override {
    SendWr wr;
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = sge == nullptr ? 0 : 1;
    wr.opcode = opcode;
    wr.remote_addr = queue_->regions()[0].addr + offset;
    wr.rkey = queue_->regions()[0].rkey;
    return wr;
  }
  using Path::Post;
  Status Post(std::span<const SendWr> wrs, size_t* bad_index) override {
    const std::vector<WorkRequest> requests(wrs.begin(), wrs.end());
    if (!hot_) return queue_->Push(requests, bad_index);
    Status staged = queue_->Stage(requests, bad_index);
    if (staged.ok()) pool_->Flush();
    return staged;
  }
  Completion Next() override {
    Completion completion;
    Clock& clock = *fabric_.clock();
    const Deadline deadline = Soon();
    for (uint32_t spins = 0; !deadline.Passed(clock); ++spins) {
      Poll();
      if (queue_->Pop({&completion, 1}) == 1) return completion;
      clock.Relax(spins);
    }
    ADD_FAILURE() << "no completion came";
    completion.status = WcStatus::kGeneralError;
    return completion;
  }

 private:
  uint32_t lkey() const override { return local_->lkey(); }
  Deadline Soon() const { return Deadline::After(*fabric_.clock(), kPathPatienceNs); }
  std::unique_ptr<Node> Open(const Provider& provider, NodeId id, uint32_t rc_peers) const {
    return Node::Open({.rnic = provider.provider,
                       .fabric = fabric_.name(),
                       .fabric_address = AddressOf(provider, fabric_.name()),
                       .node = id,
                       .create_fabric = true,
                       .clock = fabric_.clock(),
                       .rc_peers = rc_peers})
        .value();
  }
  void Poll() {
    pool_->Poll();
    peer_->PollConnections();
  }
  void MoveToRc() {
    const Sge sge = Local(0, 8);
    const SendWr read = Wr(Opcode::kRead, &sge, 0, 0);
    const Deadline deadline = Soon();
    while (pool_->stats().rc_connects == 0 && !deadline.Passed(*fabric_.clock())) {
      EXPECT_EQ(Run(read).status, WcStatus::kSuccess);
    }
  }

  const Fabric fabric_;
  const bool hot_;
  std::unique_ptr<Node> peer_, node_;
  std::unique_ptr<Region> remote_, local_;
  std::unique_ptr<QueuePool> pool_;
  std::unique_ptr<VirtualQueue> queue_;
};

}  // namespace

Completion Path::Run(const SendWr& wr) {
  KRCORE_EXPECT_OK(Post(wr));
  return Next();
}

std::unique_ptr<Path> PathTest::MakePath(uint32_t depth) {
  const auto& [provider, kind] = GetParam();
  switch (kind) {
    case PathKind::kRc: return std::make_unique<PhysicalPath>(provider, Transport::kRc, depth);
    case PathKind::kDc: return std::make_unique<PhysicalPath>(provider, Transport::kDc, depth);
    case PathKind::kVirtual: return std::make_unique<VirtualPath>(provider, depth, /*hot=*/false);
    case PathKind::kVirtualHot: return std::make_unique<VirtualPath>(provider, depth, /*hot=*/true);
  }
  return nullptr;
}

void PathTest::SetUp() {
  if (std::get<1>(GetParam()) != PathKind::kRc) {
    const Provider& provider = std::get<0>(GetParam());
    const std::string fabric = UniqueFabric(provider.fabric_prefix);
    const auto world = MakeWorld(provider, fabric);
    const Endpoint probe(provider, fabric, 1, true);
    if (!probe.device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  }
  path_ = MakePath(64);
}

}  // namespace krcore::rnic::testing
