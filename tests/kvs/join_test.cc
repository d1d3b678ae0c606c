// Joining a store with memory that holds nothing, by a node in whose place the store may have keys.
#include "kvs/layout/join.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using krcore::Deadline;
using krcore::StatusCode;

constexpr krcore::NodeId kMember = 2;
constexpr int64_t kPatienceNs = 10'000'000'000;

class Join : public ::testing::Test {
 protected:
  static TestStoreOptions Options() {
    TestStoreOptions options;
    options.memory_nodes = kMember;
    return options;
  }
  // A node with the id of a memory node that is gone, and memory of zeroes.
  struct Newcomer {
    std::unique_ptr<krcore::Node> node;
    std::unique_ptr<krcore::Region> pool;
  };
  Newcomer Come() const {
    krcore::NodeOptions options;
    options.fabric = store_.fabric();
    options.node = kMember;
    Newcomer made{krcore::Node::Open(options).value(), nullptr};
    made.pool = made.node
                    ->CreateRegion({.length = Options().memory_bytes,
                                    .remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite | krcore::kRemoteAtomic,
                                    .tag = kvs::kPoolRegionTag})
                    .value();
    return made;
  }
  krcore::Status JoinAs(Newcomer& newcomer) const {
    const Deadline deadline = Deadline::After(newcomer.node->clock(), kPatienceNs);
    return kvs::JoinStore(*newcomer.node, *newcomer.pool, {.chunk_bytes = Options().chunk_bytes}, deadline).status();
  }
  // Whether who looks for the memory node finds one.
  bool IsFound() const {
    krcore::NodeOptions options;
    options.fabric = store_.fabric();
    const auto node = krcore::Node::Open(options).value();
    const auto pool = node->CreateQueuePool({}).value();
    const auto queue = pool->CreateQueue(1).value();
    return queue->Connect(kMember, Deadline::After(node->clock(), 100'000'000)).ok();
  }
  void SetMember(kvs::MemberState state) {
    uint64_t& word = reinterpret_cast<kvs::HomeArea*>(store_.memory().data() + kvs::kHomeAreaOffset)->members[kMember];
    word = kvs::MemberWord(word).Become(state).word();
  }

  TestStore store_{Options()};
};

TEST_F(Join, OfAMemberWithoutItsMemoryIsRefusedBeforeAnybodyCanTakeItForTheOneBefore) {
  EXPECT_TRUE(IsFound());
  store_.StopMemoryNode(kMember);
  for (const kvs::MemberState state : {kvs::MemberState::kInUse, kvs::MemberState::kDraining}) {
    SetMember(state);
    Newcomer newcomer = Come();
    EXPECT_EQ(JoinAs(newcomer), StatusCode::kBadState);
    EXPECT_FALSE(IsFound()) << "it is published";
    EXPECT_FALSE(kvs::IsFormatted(newcomer.pool->bytes())) << "a later start would take it for the member's";
  }
}

TEST_F(Join, OfADrainedOneIsNot) {
  store_.StopMemoryNode(kMember);
  SetMember(kvs::MemberState::kDrained);
  Newcomer newcomer = Come();
  const krcore::Status joined = JoinAs(newcomer);
  EXPECT_TRUE(joined.ok()) << joined.ToString();
  EXPECT_TRUE(IsFound());
}

}  // namespace
}  // namespace surgekv_test
