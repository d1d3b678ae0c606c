// Ports: who owns one, who may send to it, and how it ends.
#include <memory>
#include <vector>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {
namespace {

class Ports : public TwoMessagingNodes {};

TEST_F(Ports, HaveOneOwnerAndAreFreeAfterIt) {
  auto first = server_.Bound(kPort);
  auto second = server_.Queue();
  EXPECT_EQ(second->Bind(kPort, {}, server_.Soon()).code(), StatusCode::kExists);
  EXPECT_EQ(first->Bind(9, {}, server_.Soon()).code(), StatusCode::kBadState);
  EXPECT_EQ(second->Bind(9, {.senders = 0}, server_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second->Bind(9, {.slots = 5000}, server_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second->port(), kNoPort);
  first.reset();
  auto late = client_.Queue();
  EXPECT_EQ(late->Connect(1, kPort, client_.Soon()).code(), StatusCode::kNotFound);
  ASSERT_OK(second->Bind(kPort, {}, server_.Soon()));
  EXPECT_EQ(second->port(), kPort);
  ASSERT_OK(late->Connect(1, kPort, client_.Soon()));
  EXPECT_EQ(late->Connect(1, 8, client_.Soon()).code(), StatusCode::kNotFound);
  EXPECT_EQ(late->Connect(1, kNoPort, client_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(late->Connect(77, kPort, client_.Soon()).code(), StatusCode::kNotFound);
}

TEST_F(Ports, AFullOneRefusesAnotherSenderUntilOneLeaves) {
  auto inbox = server_.Bound(kPort, {.senders = 3});
  std::vector<std::unique_ptr<VirtualQueue>> senders;
  for (int i = 0; i < 3; ++i) senders.push_back(client_.ConnectTo(1, kPort));
  auto fourth = client_.Queue();
  EXPECT_EQ(fourth->Connect(1, kPort, client_.Soon()).code(), StatusCode::kQueueFull);
  EXPECT_EQ(fourth->credits(), 0u);
  senders.erase(senders.begin() + 1);
  PollSome();
  ASSERT_OK(fourth->Connect(1, kPort, client_.Soon()));
  // Another port has another place; the old place is given back.
  auto other = server_.Bound(8);
  ASSERT_OK(fourth->Connect(1, 8, client_.Soon()));
  PollSome();
  auto fifth = client_.Queue();
  ASSERT_OK(fifth->Connect(1, kPort, client_.Soon()));
}

TEST_F(Ports, AClosedOneFailsItsSendersAndOnlyThem) {
  SKIP_ON_KERNEL("hears of it by the next message; tests/kmod has that");
  auto inbox = server_.Bound(kPort);
  auto steady_inbox = server_.Bound(8);
  ASSERT_OK(server_.Receive(*steady_inbox, 0, 8));
  auto outbox = client_.ConnectTo(1, kPort), steady = client_.ConnectTo(1, 8);
  const Sge sge = client_.At(0, 4), large = client_.At(1, client_.buffer_bytes);
  const WorkRequest held = SendOf(&large, 6);
  ASSERT_OK(outbox->Push({&held, 1}));
  PollSome(3);
  inbox.reset();
  EXPECT_NE(Done(*outbox).status, WcStatus::kSuccess) << "nobody will read it any more";
  const WorkRequest wr = SendOf(&sge, 7);
  EXPECT_EQ(outbox->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(outbox->Connect(1, kPort, client_.Soon()).code(), StatusCode::kNotFound);
  ASSERT_OK(steady->Push({&wr, 1}));
  EXPECT_EQ(Next(*steady_inbox).byte_len, 4u);
}

}  // namespace
}  // namespace krcore::test
