// kill -9 at every store (kill_each_store.h): metadata servers, and what nodes publish there.
#include "tests/krcore/kill_fixture.h"

namespace krcore::test {
namespace {

TEST_F(KillNode, WhoHostsTheOnlyMetadataServer) {
  auto living = Open(1);
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    ASSERT_OK(self.HostMetaServer(kMetaCapacity));
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("first", Text("1"), Soon()));
  };
  KillAtEachStore({.victim = Victim([&] { return Open(kVictim); }, act), .survivors = [&] {
                     EXPECT_EQ(living->LookupService("first", Soon()).status().code(), StatusCode::kUnavailable);
                     {
                       auto heir = Open(kVictim);
                       act(*heir);
                       EXPECT_EQ(ValueOf(*living, "first"), "1");
                       EXPECT_TRUE(Promptly([&] { return living->Publish(Soon()); }).ok());
                     }
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

TEST_F(KillNode, WhoHostsAnotherMetadataServer) {
  auto living = Open(1), user = Open(2);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living->PublishService("living", Text("kept"), Soon()));
  ASSERT_OK(user->Publish(Soon()));
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    ASSERT_OK(self.HostMetaServer(kMetaCapacity));
    EXPECT_EQ(ValueOf(self, "living"), "kept");
    ASSERT_OK(self.PublishService("second", Text("2"), Soon()));
  };
  KillAtEachStore({.victim = Victim([&] { return Open(kNoNode); }, act), .survivors = [&] {
                     EXPECT_EQ(ValueOf(*user, "living"), "kept");
                     EXPECT_TRUE(Promptly([&] { return user->Publish(Soon()); }).ok());
                     {
                       auto heir = Open(kNoNode);
                       EXPECT_TRUE(Promptly([&]() -> Status {
                                     act(*heir);
                                     return {};
                                   }).ok());
                       EXPECT_EQ(ValueOf(*user, "second"), "2");
                     }
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

// ---- what nodes publish

TEST_F(KillNode, WhoPublishesItselfAndServicesAndWithdrawsRegions) {
  auto living = Open(1), second = Open(2);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  ASSERT_OK(second->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living->PublishService("living", Text("kept"), Soon()));
  auto pool = living->CreateQueuePool({.max_rc_queues = 0}).value();
  auto queue = pool->CreateQueue(4).value();
  NodeId last = kNoNode;
  const auto act = [&](Node& self) {
    auto region = self.CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("dying", Text("1"), Soon()));
    ASSERT_OK(self.PublishService("dying", Text("22"), Soon()));
    EXPECT_EQ(self.PublishService("living", Text("stolen"), Soon()).code(), StatusCode::kExists);
    if (!InVictim()) {
      last = self.id();
      EXPECT_TRUE(Promptly([&] { return queue->Connect(last, Soon()); }).ok());
      EXPECT_EQ(ValueOf(*living, "dying"), "22");
      EXPECT_EQ(ValueOf(*second, "dying"), "22");
    }
    ASSERT_OK(region->Deregister(Soon()));
  };
  const FabricState state = FabricState::Of(fabric_);
  // The id is another one each time. The places of the dead are needed.
  KillAtEachStore({.victim = Victim([&] { return Open(kNoNode); }, act), .survivors = [&] {
                     for (Node* node : {living.get(), second.get()}) {
                       EXPECT_EQ(ValueOf(*node, "living"), "kept");
                       const std::string dying = ValueOf(*node, "dying");
                       EXPECT_TRUE(dying == "1" || dying == "22" || dying == StatusCodeName(StatusCode::kNotFound))
                           << dying;
                       EXPECT_TRUE(Promptly([&] { return node->Publish(Soon()); }).ok());
                     }
                     {
                       auto heir = Open(kNoNode);
                       act(*heir);
                     }
                     EXPECT_EQ(ValueOf(*living, "dying"), StatusCodeName(StatusCode::kNotFound));
                     EXPECT_EQ(queue->Connect(last, Soon()).code(), StatusCode::kNotFound);
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

// The successor has the same id, as a memory node's successor has. There is only one server, so no other server can
// tell what has become of a record that is half written.
TEST_F(KillNode, WhoPublishesItselfAtTheOnlyServerUnderAnIdThatIsTakenOver) {
  auto living = Open(1);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  auto pool = living->CreateQueuePool({.max_rc_queues = 0}).value();
  auto queue = pool->CreateQueue(4).value();
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    auto region = self.CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("dying", Text("1"), Soon()));
    if (!InVictim()) {
      EXPECT_TRUE(Promptly([&] { return queue->Connect(kVictim, Soon()); }).ok());
      EXPECT_EQ(queue->regions().size(), 1u);
      EXPECT_EQ(ValueOf(*living, "dying"), "1");
    }
  };
  KillAtEachStore({.victim = Victim([&] { return Open(kVictim); }, act), .survivors = [&] {
                     const Status connected = Promptly([&] { return queue->Connect(kVictim, Soon()); });
                     EXPECT_TRUE(connected == StatusCode::kNotFound || connected == StatusCode::kUnavailable)
                         << connected.ToString();
                     const std::string dying = ValueOf(*living, "dying");
                     EXPECT_TRUE(dying == "1" || dying == StatusCodeName(StatusCode::kNotFound)) << dying;
                     {
                       auto heir = Open(kVictim);
                       act(*heir);
                     }
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

}  // namespace
}  // namespace krcore::test
