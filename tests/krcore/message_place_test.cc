// The places of a port: who may change their owner words (messages/wire.h), whatever dead or unlucky senders left
// there. The port's memory is this process's, so tests write there what such senders would have written.
#include <signal.h>

#include <atomic>

#if defined(__x86_64__)
#  include <x86intrin.h>
#endif

#include "krcore/messages/ports.h"
#include "krcore/messages/wire.h"
#include "tests/krcore/message_fixture.h"
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

constexpr Port kPort = 7;

class Places : public ::testing::Test {
 protected:
  void Bind(uint16_t senders) {
    inbox_ = server_.Bound(kPort, {.senders = senders, .slots = 4});
    ASSERT_OK(server_.Receive(*inbox_, 0, 16));
    auto& ports = static_cast<messages::Ports&>(*ImplOf(*server_.pool).context().maker);
    const auto record = ports.records().LookupPort(1, kPort, server_.Soon()).value();
    ASSERT_EQ(record.size(), sizeof(info_));
    std::memcpy(&info_, record.data(), sizeof(info_));
  }
  uint64_t& WordAt(size_t offset) { return *reinterpret_cast<uint64_t*>(info_.addr + offset); }
  uint64_t Load(size_t offset) { return std::atomic_ref(WordAt(offset)).load(std::memory_order_acquire); }
  void Store(size_t offset, uint64_t value) {
    std::atomic_ref(WordAt(offset)).store(value, std::memory_order_release);  // as a NIC's WRITE does
  }
  size_t OwnerAt(uint32_t place) const { return messages::Layout(info_).owner(place); }
  size_t ClosingAt(uint32_t place) const {
    return messages::Layout(info_).control(place) + offsetof(messages::Control, closing);
  }
  size_t CardAt(uint32_t place) const {
    return messages::Layout(info_).control(place) + offsetof(messages::Control, card);
  }
  void StoreCard(uint32_t place, uint64_t owner, const rnic::DeviceAddress& address) {
    messages::Card card;
    card.owner = owner;
    card.address = address;
    card.checksum = ChecksumOf(card);
    uint64_t words[sizeof(card) / 8];
    std::memcpy(words, &card, sizeof(card));
    for (size_t i = 0; i < std::size(words); ++i) Store(CardAt(place) + 8 * i, words[i]);
  }
  // The owner word of a node that has come and gone.
  uint64_t DeadOwner(uint32_t queue) {
    auto node = OpenNode(fabric_, kNoNode);
    EXPECT_TRUE(node->Publish(server_.Soon()).ok());
    return peers::PlaceOwner(node->id(), queue, node->incarnation());
  }
  uint64_t LivingOwner(uint32_t queue) {
    return peers::PlaceOwner(client_.node->id(), queue, client_.node->incarnation());
  }
  void PollSome() {
    for (int i = 0; i < 300; ++i) {
      client_.pool->Poll();
      server_.pool->Poll();
      LetRequestsRun(client_.node->clock());
    }
  }
  void ExpectMessagesArrive(VirtualQueue& outbox) {
    for (uint64_t i = 0; i < 3; ++i) {
      client_.Put(0, "message");
      const Sge sge = client_.At(0, 7);
      const WorkRequest wr = SendOf(&sge, i);
      ASSERT_OK(outbox.Push({&wr, 1}));
      const Message message = NextMessage(*inbox_, {server_.pool.get(), client_.pool.get()});
      EXPECT_EQ(message.status, WcStatus::kSuccess);
      EXPECT_EQ(message.sender.node, client_.node->id());
      PollSome();
    }
  }

  const std::string fabric_ = UniqueFabric(true);
  MessagingNode server_ = MessagingNode::Start(fabric_, 1, true);
  MessagingNode client_ = MessagingNode::Start(fabric_, kNoNode, false);
  std::unique_ptr<VirtualQueue> inbox_;
  messages::PortInfo info_;
};

TEST_F(Places, TheReceiverLeavesOneWithoutACardToSenders) {
  Bind(2);
  const uint64_t slow = LivingOwner(900), dead = DeadOwner(901);
  Store(OwnerAt(0), slow);  // has not written its card yet
  Store(OwnerAt(1), dead);
  for (const uint32_t place : {0, 1}) Store(ClosingAt(place), 1);
  PollSome();
  EXPECT_EQ(Load(OwnerAt(0)), slow);
  EXPECT_EQ(Load(OwnerAt(1)), dead);
}

TEST_F(Places, WhoTakesThatOfADeadClaimantKeepsItWhateverWasLeftThere) {
  Bind(1);
  const uint64_t dead = DeadOwner(900);
  for (const uint64_t closing : {uint64_t{0}, uint64_t{1}, messages::Closing(dead, 0)}) {
    Store(OwnerAt(0), dead);
    Store(ClosingAt(0), closing);
    auto outbox = client_.ConnectTo(1, kPort);
    PollSome();
    EXPECT_EQ(peers::PlaceOwnerNode(Load(OwnerAt(0))), client_.node->id());
    ExpectMessagesArrive(*outbox);
    outbox.reset();
    PollSome();
    EXPECT_EQ(Load(OwnerAt(0)), 0u) << "its own end counts";
  }
}

// The predecessor closed twice, because the outcome of its first WRITE was unknown. The second WRITE comes when the
// place belongs to another sender, which has not sent anything yet, and so ends at the very number at which its
// predecessor did.
TEST_F(Places, AnEndThatComesLateEndsNobodyElsesMessages) {
  Bind(1);
  auto outbox = client_.ConnectTo(1, kPort);
  PollSome();
  Store(ClosingAt(0), messages::Closing(LivingOwner(900), Load(messages::Layout(info_).control(0))));
  PollSome();
  EXPECT_EQ(peers::PlaceOwnerNode(Load(OwnerAt(0))), client_.node->id());
  ExpectMessagesArrive(*outbox);
}

TEST_F(Places, OneThatTheReceiverFreesIsNotTakenOver) {
  Bind(1);
  auto outbox = client_.Queue();
  // The card of a dead owner: its messages are still to be delivered.
  const uint64_t dead = DeadOwner(900);
  rnic::DeviceAddress address;
  address.node = peers::PlaceOwnerNode(dead);
  address.incarnation = peers::PlaceOwnerIncarnation(dead);
  StoreCard(0, dead, address);
  Store(OwnerAt(0), dead);
  EXPECT_EQ(outbox->Connect(1, kPort, client_.Soon()).code(), StatusCode::kQueueFull);
  EXPECT_EQ(Load(OwnerAt(0)), dead);
  // Then the card is cleared.
  Store(CardAt(0), 0);
  Store(OwnerAt(0), messages::kBeingFreed);
  EXPECT_EQ(outbox->Connect(1, kPort, client_.Soon()).code(), StatusCode::kQueueFull);
  EXPECT_EQ(Load(OwnerAt(0)), messages::kBeingFreed);
  Store(OwnerAt(0), 0);
  EXPECT_TRUE(outbox->Connect(1, kPort, client_.Soon()).ok());
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What OnStep looks at after each instruction.
struct Watched {
  uint64_t owner = 0;
  uint64_t* owner_word = nullptr;
  uint64_t* card = nullptr;
  uint64_t steps = 0, cleared = 0, too_early = 0;
};
Watched watched;

void OnStep(int) {
  ++watched.steps;
  const bool cleared = *watched.card == 0;
  watched.cleared += cleared ? 1 : 0;
  watched.too_early += cleared && *watched.owner_word == watched.owner ? 1 : 0;
}

// A sender that sees the card of a dead owner cleared takes its place by a CAS of its owner word. So the word must have
// changed by then.
TEST_F(Places, TheOwnerWordChangesBeforeTheCardIsCleared) {
  Bind(1);
  const uint64_t owner = LivingOwner(900);
  StoreCard(0, owner, ImplOf(*client_.pool).context().self.address);
  Store(OwnerAt(0), owner);
  PollSome();  // the receiver has seen it
  ASSERT_EQ(Load(OwnerAt(0)), owner);
  Store(ClosingAt(0), messages::Closing(owner, 0));
  watched = {.owner = owner, .owner_word = &WordAt(OwnerAt(0)), .card = &WordAt(CardAt(0))};
  struct sigaction step = {}, before = {};
  step.sa_handler = OnStep;
  ASSERT_EQ(sigaction(SIGTRAP, &step, &before), 0);
  constexpr uint64_t kTrapFlag = 0x100;
  __writeeflags(__readeflags() | kTrapFlag);  // a SIGTRAP after each instruction
  server_.pool->Poll();
  __writeeflags(__readeflags() & ~kTrapFlag);
  sigaction(SIGTRAP, &before, nullptr);
  EXPECT_EQ(Load(OwnerAt(0)), 0u);
  EXPECT_GT(watched.cleared, 3u) << "of " << watched.steps << " steps";
  EXPECT_EQ(watched.too_early, 0u);
}
#endif

// Leaps ahead once, when it has been read a given number of times.
class LeapingClock final : public Clock {
 public:
  int64_t NowNs() override {
    if (looks_left_ > 0 && --looks_left_ == 0) now_ns_ += 60 * kSecondNs;
    return now_ns_;
  }
  void Relax(uint32_t) override { now_ns_ += 1'000; }
  void LeapAfter(int looks) { looks_left_ = looks; }
  bool leaped() const { return looks_left_ == 0; }

 private:
  int64_t now_ns_ = 1;
  int looks_left_ = 0;
};

TEST_F(Places, AConnectThatRunsOutOfTimeAnywhereLeavesNoPlaceTaken) {
  SKIP_IF_SIMULATED("no clock of the test's own");
  Bind(1);
  LeapingClock clock;
  auto node = OpenNode(fabric_, kNoNode, &clock);
  ASSERT_OK(node->Publish(Deadline::After(clock, kSecondNs)));
  auto pool = node->CreateQueuePool({}).value();
  int looks = 0, failed = 0;
  for (bool leaped = true; leaped; ++looks) {
    {
      auto queue = pool->CreateQueue(8).value();
      const Deadline deadline = Deadline::After(clock, 5 * kSecondNs);
      clock.LeapAfter(looks);
      failed += !queue->Connect(1, kPort, deadline).ok();
      leaped = clock.leaped();
      clock.LeapAfter(0);
    }
    for (int i = 0; i < 20; ++i) server_.pool->Poll();
    ASSERT_EQ(Load(OwnerAt(0)), 0u) << "after " << looks << " looks at the clock";
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace krcore::test
