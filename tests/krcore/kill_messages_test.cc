// kill -9 at every store (kill_each_store.h): ports and messages.
#include <optional>

#include "tests/krcore/kill_fixture.h"
#include "tests/krcore/message_scenario.h"

namespace krcore::test {
namespace {

constexpr Port kPort = 5;
constexpr uint64_t kMessages = 6;
constexpr uint32_t kCopyBytes = 64;  // longer ones are READ
constexpr size_t LengthOf(uint64_t number) { return number % 3 == 2 ? 200 : 30 + number; }

class KillMessages : public KillNode {
 protected:
  MessagingNode Start(NodeId id) {
    MessagingNode party;
    party.node = Open(id);
    party.buffer_bytes = 256;
    party.memory = party.node->CreateRegion({.length = 32 * 256, .remote_rights = kRemoteRead}).value();
    party.pool = party.node->CreateQueuePool({.copy_bytes = kCopyBytes, .max_rc_queues = 0}).value();
    return party;
  }
  // One sender at a time.
  static constexpr BindOptions kOneSender{.senders = 1, .slots = 4, .copy_bytes = kCopyBytes};
};

// Pushes kMessages messages of `id` into a connected queue, with as many calls as it takes.
class Sending {
 public:
  Sending(MessagingNode& party, VirtualQueue& queue, uint64_t id) : party_(party), queue_(queue), id_(id) {}
  // Returns false if nothing more will come of it.
  bool Step() {
    while (pushed_ < kMessages && queue_.credits() > 0) {
      const size_t length = LengthOf(pushed_);
      FillMessage(party_.Buffer(pushed_), {id_, pushed_, length});
      const Sge sge = party_.At(pushed_, length);
      const WorkRequest wr = SendOf(&sge, pushed_);
      if (!queue_.Push({&wr, 1}).ok()) break;
      ++pushed_;
    }
    party_.pool->Poll();
    Completion completion;
    while (queue_.Pop({&completion, 1}) == 1) {
      ++completed_;
      failed_ |= completion.status != WcStatus::kSuccess;
    }
    return !done() && !(failed_ && completed_ == pushed_);
  }
  bool done() const { return completed_ == kMessages && !failed_; }

 private:
  MessagingNode& party_;
  VirtualQueue& queue_;
  const uint64_t id_;
  uint64_t pushed_ = 0, completed_ = 0;
  bool failed_ = false;
};

TEST_F(KillMessages, WhoConnectsToAPortAndSends) {
  MessagingNode host = Start(1);
  ASSERT_OK(host.node->HostMetaServer(kMetaCapacity));
  TestReceiver receiver(host, 0, 16, kPort, kOneSender);
  const auto live = [&] {
    receiver.PostReceives(16);
    host.pool->Poll();
    receiver.Pop();
    clock_.Advance(1'000'000);
  };
  uint64_t id = 0;
  const auto act = [&](MessagingNode& self) {
    auto queue = self.Queue(16);
    Status connected;
    const Deadline deadline = Soon();
    do {  // until the dead sender's place is free
      connected = queue->Connect(1, kPort, deadline);
      if (!InVictim()) live();
    } while (connected == StatusCode::kQueueFull && !deadline.Passed(clock()));
    ASSERT_OK(connected);
    Sending sending(self, *queue, id);
    while (sending.Step() && !deadline.Passed(clock())) {
      InVictim() ? clock().Relax(0) : live();
    }
    EXPECT_TRUE(sending.done());
  };
  const auto heir = [&] {
    MessagingNode self = Start(kNoNode);
    act(self);
  };
  heir();  // creates what is created on first use
  ++id;
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim = Victim([&] { return Start(kNoNode); }, act), .meanwhile = live, .survivors = [&] {
                     const uint64_t dead = id++;
                     heir();
                     for (int i = 0; i < 40; ++i) live();
                     EXPECT_EQ(receiver.ReceivedFrom(id).size(), kMessages);
                     const std::vector<uint64_t>& received = receiver.ReceivedFrom(dead);
                     for (size_t i = 0; i < received.size(); ++i) {
                       // Only messages that were to be READ from the dead sender can be missing, and only at the end.
                       if (received[i] == i) continue;
                       EXPECT_LE(received.size() - i, 3u);
                       break;
                     }
                     ++id;
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

TEST_F(KillMessages, WhoBindsAPortAndReceives) {
  MessagingNode living = Start(1);
  ASSERT_OK(living.node->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living.node->Publish(Soon()));
  std::unique_ptr<VirtualQueue> queue = living.Queue(16);
  std::optional<Sending> sending;
  uint64_t id = 0;
  // One step of a sender that sends to the port whenever it is bound.
  const auto send = [&] {
    clock_.Advance(100'000);
    if (!sending) {
      if (queue->outstanding() == 0 && queue->Connect(kVictim, kPort, Deadline::After(clock_, 20'000'000)).ok())
        sending.emplace(living, *queue, ++id);
      return;
    }
    sending->Step();
  };
  const auto act = [&](MessagingNode& self) {
    auto bound = self.Queue(16);
    ASSERT_OK(bound->Bind(kPort, kOneSender, Soon()));
    ASSERT_OK(self.Receive(*bound, 0, 8));
    uint64_t received = 0;
    const Deadline deadline = Soon();
    while (received < kMessages && !deadline.Passed(clock())) {
      InVictim() ? clock().Relax(0) : send();
      self.pool->Poll();
      Message message;
      while (bound->PopMessages({&message, 1}) == 1) {
        Stamp stamp;
        std::memcpy(&stamp, self.Buffer(message.wr_id), sizeof(stamp));
        EXPECT_EQ(stamp.number, received);
        EXPECT_TRUE(IsMessage(self.Buffer(message.wr_id), stamp));
        ++received;
        ASSERT_OK(self.Receive(*bound, message.wr_id, 1));
      }
    }
    EXPECT_EQ(received, kMessages);
    // Waits until the sender knows, so that its last message does not fail because the port ends.
    if (!InVictim()) {
      while (sending->Step() && !deadline.Passed(clock())) self.pool->Poll();
      EXPECT_TRUE(sending->done());
    }
  };
  const auto heir = [&] {
    {
      MessagingNode self = Start(kVictim);
      act(self);
    }
    sending.reset();
  };
  heir();  // creates what is created on first use
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim = Victim([&] { return Start(kVictim); }, act), .meanwhile = send, .survivors = [&] {
                     // Everything completes, whoever was to receive it.
                     const Deadline deadline = Soon();
                     while (sending && sending->Step() && !deadline.Passed(clock_)) clock_.Advance(100'000);
                     EXPECT_EQ(queue->outstanding(), 0u);
                     sending.reset();
                     heir();
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

}  // namespace
}  // namespace krcore::test
