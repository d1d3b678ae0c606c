#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

TEST(Connect, FirstLooksUpOneSidedAndLaterOnesUseTheCache) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, 4096, true);
  Worker worker = Worker::Start(fabric);
  auto first = worker.Connect(1);
  EXPECT_EQ(worker.pool->stats().metadata_lookups, 1u);
  EXPECT_EQ(worker.pool->stats().metadata_hits, 0u);
  auto second = worker.Connect(1);
  EXPECT_EQ(worker.pool->stats().metadata_lookups, 1u);
  EXPECT_EQ(worker.pool->stats().metadata_hits, 1u);

  auto other_pool = worker.node->CreateQueuePool({}).value();  // the cache is the node's, not the pool's
  auto third = other_pool->CreateQueue(8).value();
  ASSERT_OK(third->Connect(1, worker.Soon()));
  EXPECT_EQ(other_pool->stats().metadata_lookups, 0u);
}

TEST(Connect, ListsThePeersPublishedRegions) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 7, 8192, true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(7);
  EXPECT_EQ(queue->peer(), 7u);
  EXPECT_EQ(queue->peer_incarnation(), memory.node->incarnation());
  ASSERT_EQ(queue->regions().size(), 1u);
  EXPECT_EQ(queue->regions()[0].addr, reinterpret_cast<uint64_t>(memory.region->bytes().data()));
  EXPECT_EQ(queue->regions()[0].length, 8192u);
  EXPECT_EQ(queue->regions()[0].rkey, memory.region->rkey());
  EXPECT_EQ(queue->regions()[0].tag, 7u);
}

TEST(Connect, UnknownPeerIsNotFound) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, 4096, true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.pool->CreateQueue(8).value();
  EXPECT_EQ(queue->Connect(9, worker.Soon()).code(), StatusCode::kNotFound);
  EXPECT_EQ(queue->Connect(kNoNode, worker.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(queue->peer(), kNoNode);
}

TEST(Connect, WithoutAMetadataServerIsUnavailable) {
  SKIP_ON_KERNEL("the module is the metadata server");
  const std::string fabric = UniqueFabric(true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.pool->CreateQueue(8).value();
  const Status status = queue->Connect(1, worker.Soon());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("no metadata server"), std::string_view::npos) << status.ToString();
}

TEST(Connect, IsRefusedWhileRequestsAreOutstanding) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, 4096, true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  ASSERT_OK(queue->Stage({&wr, 1}));
  EXPECT_EQ(queue->Connect(1, worker.Soon()).code(), StatusCode::kQueueFull);
  Await(*worker.pool, *queue, 1);
  ASSERT_OK(queue->Connect(1, worker.Soon()));
}

TEST(Connect, UnconnectedQueueRefusesRequestsAsBadState) {
  const std::string fabric = UniqueFabric(true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.pool->CreateQueue(8).value();
  const Sge sge = worker.Word(0);
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kBadState);
}

// A queue keeps the metadata of a peer that has gone: its requests must fail, not reach the successor's memory.
TEST(Connect, StaleIncarnationIsRefusedAndRefreshedByConnectingAgain) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode meta = MemoryNode::Start(fabric, 1, 4096, true);
  MemoryNode peer = MemoryNode::Start(fabric, 2, 4096, false);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(2);
  const Sge sge = worker.Word(0);
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);

  const uint32_t old_incarnation = peer.node->incarnation();
  peer.region.reset();
  peer.node.reset();
  EXPECT_EQ(queue->Connect(2, worker.Soon()).code(), StatusCode::kNotFound) << "a clean close removes the record";
  peer = MemoryNode::Start(fabric, 2, 4096, false);
  EXPECT_NE(peer.node->incarnation(), old_incarnation);
  peer.words()[0] = 42;

  worker.words()[0] = 7;
  EXPECT_NE(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[0], 7u) << "nothing of the successor was read";
  const WorkRequest refused = OnWord(*queue, Opcode::kRead, &sge, 0);
  EXPECT_EQ(queue->Push({&refused, 1}).code(), StatusCode::kUnavailable) << "until it is connected again";

  ASSERT_OK(queue->Connect(2, worker.Soon()));
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[0], 42u);
}

TEST(Node, IsConfirmedDeadOnlyForAHolderThatIsGone) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode meta = MemoryNode::Start(fabric, 1, 4096, true);
  MemoryNode peer = MemoryNode::Start(fabric, 2, 4096, false);
  Worker worker = Worker::Start(fabric);
  const uint32_t old_incarnation = peer.node->incarnation();
  EXPECT_FALSE(worker.node->IsConfirmedDead(2, old_incarnation));
  EXPECT_FALSE(worker.node->IsConfirmedDead(worker.node->id(), worker.node->incarnation()));
  peer.region.reset();
  peer.node.reset();
  // Its record was taken back. A killed node's record may have been replaced by another node's.
  EXPECT_TRUE(worker.node->IsConfirmedDead(2, old_incarnation));
  peer = MemoryNode::Start(fabric, 2, 4096, false);
  EXPECT_TRUE(worker.node->IsConfirmedDead(2, old_incarnation));
  EXPECT_FALSE(worker.node->IsConfirmedDead(2, peer.node->incarnation()));
}

TEST(Node, PublishWithoutAMetadataServerTimesOutAndSaysSo) {
  SKIP_ON_KERNEL("the module is the metadata server");
  FakeClock clock;
  auto node = OpenNode(UniqueFabric(true), 1, &clock);
  const Status status = node->Publish(Deadline::After(clock, kSecondNs / 20));
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_NE(status.message().find("no metadata server"), std::string_view::npos) << status.ToString();
}

TEST(Node, HostsOneMetadataServerAndAFabricHasUpToEight) {
  SKIP_ON_KERNEL("the module is the metadata server");
  const std::string fabric = UniqueFabric(true);
  const auto keeper = OpenNode(fabric, 20);  // the first one may host the fabric's membership, and stays
  std::vector<std::unique_ptr<Node>> hosts;
  for (NodeId id = 1; id <= 8; ++id) {
    hosts.push_back(OpenNode(fabric, id));
    ASSERT_OK(hosts.back()->HostMetaServer(16));
    EXPECT_EQ(hosts.back()->HostMetaServer(16).code(), StatusCode::kExists);
  }
  auto ninth = OpenNode(fabric, 9);
  EXPECT_EQ(ninth->HostMetaServer(16).code(), StatusCode::kExists);
  hosts.erase(hosts.begin());
  EXPECT_TRUE(ninth->HostMetaServer(16).ok()) << "one is gone";
}

TEST(Node, AnnouncesUpToItsLimitOfRegionsWithRemoteRights) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, 4096, true);
  std::vector<std::unique_ptr<Region>> regions;
  const RegionOptions options{.length = 8192, .remote_rights = kAllRights};
  while (regions.size() + 1 < kMaxRegionsPerNode) regions.push_back(memory.node->CreateRegion(options).value());
  EXPECT_EQ(memory.node->CreateRegion(options).status().code(), StatusCode::kInvalidArgument);
  regions.pop_back();
  regions.push_back(memory.node->CreateRegion(options).value());  // destroying one makes room
  ASSERT_OK(memory.node->Publish(Deadline::After(memory.node->clock(), kSecondNs)));
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(1);
  ASSERT_EQ(queue->regions().size(), kMaxRegionsPerNode);
  const Sge sge = worker.Word(0);
  WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  wr.remote_addr = queue->regions().back().addr;
  wr.rkey = queue->regions().back().rkey;
  EXPECT_EQ(Execute(*worker.pool, *queue, wr).status, WcStatus::kSuccess);
}

TEST(Node, MalformedRegionsAreRefused) {
  auto node = OpenNode(UniqueFabric(true), 1);
  EXPECT_EQ(node->CreateRegion({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node->CreateRegion({.length = 64, .remote_rights = 1u << 20}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(node->CreateRegion({.length = 64, .name = "kept"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node->RegisterLocal(nullptr, 64).status().code(), StatusCode::kInvalidArgument);
}

TEST(Node, LocalRegionIsZeroedAndLargeOnesAreAlignedForHugePages) {
  auto node = OpenNode(UniqueFabric(true), 1);
  auto region = node->CreateRegion({.length = size_t{4} << 20}).value();
  EXPECT_EQ(reinterpret_cast<uint64_t>(region->bytes().data()) % (uint64_t{2} << 20), 0u);
  EXPECT_EQ(region->bytes().size(), size_t{4} << 20);
  for (const std::byte b : region->bytes()) ASSERT_EQ(b, std::byte{0});
  EXPECT_EQ(region->CollapseToHugePages(0, size_t{8} << 20).code(), StatusCode::kInvalidArgument);
}

// This process's descriptors 0 to 2 are closed during this object's life, as those of a daemon are.
class StandardClosed {
 public:
  StandardClosed() {
    for (size_t fd = 0; fd < kept_.size(); ++fd) kept_[fd] = fcntl(static_cast<int>(fd), F_DUPFD_CLOEXEC, 3);
    for (size_t fd = 0; fd < kept_.size(); ++fd) close(static_cast<int>(fd));
  }
  ~StandardClosed() {
    for (size_t fd = 0; fd < kept_.size(); ++fd) {
      dup2(kept_[fd], static_cast<int>(fd));
      close(kept_[fd]);
    }
  }
  // Uses them as a program's printf() and gets() would.
  static bool PrintsAndReadsNowhere() {
    for (int fd = 0; fd < 3; ++fd) {
      char byte = '?';
      if (write(fd, &byte, 1) >= 0 || errno != EBADF || read(fd, &byte, 1) >= 0 || errno != EBADF) return false;
    }
    return true;
  }

 private:
  std::array<int, 3> kept_{};
};

TEST(Connect, AProgramWithoutStandardDescriptorsPrintsIntoNoneOfOurs) {
  const std::string fabric = UniqueFabric(false);
  bool nowhere = false;
  uint64_t word = 0;
  {
    const StandardClosed closed;
    MemoryNode memory = MemoryNode::Start(fabric, 1, 4096, true);
    Worker worker = Worker::Start(fabric);
    auto queue = worker.Connect(1);
    nowhere = StandardClosed::PrintsAndReadsNowhere();
    if (nowhere) {  // otherwise nothing can be opened any more
      memory.words()[0] = 42;
      Worker another = Worker::Start(fabric);
      auto its_queue = another.Connect(1);
      const Sge sge = another.Word(0);
      Execute(*another.pool, *its_queue, OnWord(*its_queue, Opcode::kRead, &sge, 0));
      word = another.words()[0];
    }
  }
  EXPECT_TRUE(nowhere);
  EXPECT_EQ(word, 42u);
}

TEST(Connect, NodesThatComeAndGoByTheThousandDoNotFillTheMetadataServer) {
  const std::string fabric = UniqueFabric(true);
  auto host = OpenNode(fabric, 1);
  ASSERT_OK(host->HostMetaServer(kOnVerbs ? 64 : 4096));
  for (int i = 0; i < (kOnVerbs || kOnKernel ? 100 : 6000); ++i) {
    auto node = OpenNode(fabric, kNoNode);
    ASSERT_OK(node->Publish(Deadline::After(node->clock(), 1'000'000'000)));
  }
}

}  // namespace
}  // namespace krcore::test
