// Random messages between random queues, checked against what may happen. Messages of a sender arrive in its order,
// each at most once and with its contents. A message whose completion says success arrives. Every request completes
// once, in order.
#ifndef TESTS_KRCORE_MESSAGE_SCENARIO_H_
#define TESTS_KRCORE_MESSAGE_SCENARIO_H_

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {

// The seed of the first round: SURGEKV_SEED, or a random one.
inline uint64_t FirstSeed() {
  const char* seed = std::getenv("SURGEKV_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device{}();
}

// What every message begins with.
struct Stamp {
  uint64_t sender;
  uint64_t number;
  uint64_t length;
};

inline void FillMessage(std::byte* at, const Stamp& stamp) {
  std::memcpy(at, &stamp, sizeof(stamp));
  for (size_t i = sizeof(stamp); i < stamp.length; ++i)
    at[i] = static_cast<std::byte>(stamp.sender * 31 + stamp.number * 7 + i);
}
inline bool IsMessage(const std::byte* at, const Stamp& stamp) {
  if (std::memcmp(at, &stamp, sizeof(stamp)) != 0) return false;
  for (size_t i = sizeof(stamp); i < stamp.length; ++i) {
    if (at[i] != static_cast<std::byte>(stamp.sender * 31 + stamp.number * 7 + i)) return false;
  }
  return true;
}

// A sending queue and what it knows of its messages.
class TestSender {
 public:
  static constexpr size_t kBuffers = 8;
  static constexpr size_t kLongest = 6000;

  TestSender(MessagingNode& party, size_t first_buffer, uint64_t id, NodeId peer, Port port)
      : party_(party), first_buffer_(first_buffer), id_(id), peer_(peer), port_(port) {
    queue_ = party.Queue(2 * kBuffers);
    const Status connected = Connect();
    EXPECT_TRUE(connected.ok()) << connected.ToString();
  }

  // Pushes a message of a random length, by copy or zero-copy, signaled or not, if there is a buffer and a credit.
  void Push(std::mt19937_64& random) {
    if (in_use_ == kBuffers) return;
    const size_t length = random() % 3 == 0 ? sizeof(Stamp) + random() % kLongest : sizeof(Stamp) + random() % 600;
    const size_t buffer = first_buffer_ + next_ % kBuffers;
    FillMessage(party_.Buffer(buffer), {id_, next_, length});
    const Sge sge = party_.At(buffer, length);
    WorkRequest wr = SendOf(&sge, next_);  // signaled: its success is part of what is checked
    if (random() % 4 == 0) wr.opcode = Opcode::kSendImm;
    wr.imm = static_cast<uint32_t>(next_);
    const Status pushed = random() % 2 == 0 ? queue_->Push({&wr, 1}) : queue_->Stage({&wr, 1});
    if (pushed == StatusCode::kQueueFull) return;
    if (pushed == StatusCode::kUnavailable) {
      must_connect_ = true;
      return;
    }
    ASSERT_TRUE(pushed.ok()) << pushed.ToString();
    ++next_;
    ++in_use_;
  }
  void Pop() {
    Completion completions[5];
    const size_t count = queue_->Pop(completions);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(completions[i].wr_id, outcomes_.size()) << "completions of sender " << id_ << " out of order";
      outcomes_.push_back(completions[i].status);
      // The buffer is the sender's again. No message that is delivered later may show this pattern.
      const size_t buffer = first_buffer_ + completions[i].wr_id % kBuffers;
      std::memset(party_.Buffer(buffer), 0xEE, party_.buffer_bytes);
      --in_use_;
    }
  }
  // Call after a refusal with kUnavailable.
  void ConnectAgainIfNeeded() {
    if (!must_connect_ || queue_->outstanding() != 0) return;
    const Status connected = Connect();
    if (connected.ok()) must_connect_ = false;
    last_error_ = connected;
  }
  // Waits for a place: those of dead and closed senders come back when the receiver has noticed.
  Status Connect() {
    const Deadline deadline = party_.Soon();
    Clock& clock = party_.node->clock();
    Status connected;
    do {
      connected = queue_->Connect(peer_, port_, deadline);
      clock.Relax(100);
    } while (connected == StatusCode::kQueueFull && !deadline.Passed(clock));
    return connected;
  }

  bool idle() const { return in_use_ == 0; }
  uint64_t pushed() const { return next_; }
  uint64_t id() const { return id_; }
  const std::vector<WcStatus>& outcomes() const { return outcomes_; }
  VirtualQueue& queue() { return *queue_; }

 private:
  MessagingNode& party_;
  const size_t first_buffer_;
  const uint64_t id_;
  const NodeId peer_;
  const Port port_;
  std::unique_ptr<VirtualQueue> queue_;
  uint64_t next_ = 0;
  size_t in_use_ = 0;
  bool must_connect_ = false;
  Status last_error_;
  std::vector<WcStatus> outcomes_;
};

// A bound queue and what it has received.
class TestReceiver {
 public:
  TestReceiver(MessagingNode& party, size_t first_buffer, size_t buffers, Port port, const BindOptions& options)
      : party_(party), queue_(party.Bound(port, options)) {
    for (size_t i = 0; i < buffers; ++i) free_.push_back(first_buffer + i);
  }

  void PostReceives(size_t count) {
    for (; count > 0 && !free_.empty(); --count) {
      const Receive receive{free_.front(), party_.At(free_.front(), party_.buffer_bytes)};
      const Status posted = queue_->PushRecv({&receive, 1});
      ASSERT_TRUE(posted.ok()) << posted.ToString();
      free_.pop_front();
    }
  }
  void Pop() {
    Message messages[5];
    const size_t count = queue_->PopMessages(messages);
    for (size_t i = 0; i < count; ++i) {
      const Message& message = messages[i];
      ASSERT_EQ(message.status, WcStatus::kSuccess) << WcStatusName(message.status);
      Stamp stamp;
      std::memcpy(&stamp, party_.Buffer(message.wr_id), sizeof(stamp));
      ASSERT_EQ(stamp.length, message.byte_len);
      ASSERT_TRUE(IsMessage(party_.Buffer(message.wr_id), stamp))
          << "contents of message " << stamp.number << " of sender " << stamp.sender
          << (message.zero_copy ? " (zero-copy)" : "");
      if (message.flags & kWithImm) {
        ASSERT_EQ(message.imm, stamp.number);
      }
      std::vector<uint64_t>& received = received_[stamp.sender];
      if (!received.empty()) {
        ASSERT_GT(stamp.number, received.back()) << "sender " << stamp.sender << ": doubled or out of order";
      }
      received.push_back(stamp.number);
      zero_copies_ += message.zero_copy;
      std::memset(party_.Buffer(message.wr_id), 0, party_.buffer_bytes);
      free_.push_back(message.wr_id);
    }
  }
  const std::vector<uint64_t>& ReceivedFrom(uint64_t sender) { return received_[sender]; }
  uint64_t zero_copies() const { return zero_copies_; }
  VirtualQueue& queue() { return *queue_; }

 private:
  MessagingNode& party_;
  std::unique_ptr<VirtualQueue> queue_;
  std::deque<size_t> free_;
  std::map<uint64_t, std::vector<uint64_t>> received_;
  uint64_t zero_copies_ = 0;
};

// What succeeded has arrived, and what has not arrived did not succeed.
inline void ExpectSettled(TestSender& sender, TestReceiver& receiver, bool receiver_lives = true) {
  const std::vector<uint64_t>& received = receiver.ReceivedFrom(sender.id());
  ASSERT_EQ(sender.outcomes().size(), sender.pushed()) << "completions are missing";
  size_t at = 0;
  uint64_t succeeded = 0;
  for (uint64_t number = 0; number < sender.pushed(); ++number) {
    const bool arrived = at < received.size() && received[at] == number;
    at += arrived;
    succeeded += sender.outcomes()[number] == WcStatus::kSuccess;
    if (receiver_lives && sender.outcomes()[number] == WcStatus::kSuccess) {
      ASSERT_TRUE(arrived) << "message " << number << " of sender " << sender.id() << " succeeded and was lost";
    }
  }
  EXPECT_EQ(at, received.size()) << "sender " << sender.id() << ": a message that was never sent";
  EXPECT_GT(succeeded, 0u) << "sender " << sender.id() << ": no message got through at all";
}

}  // namespace krcore::test

#endif  // TESTS_KRCORE_MESSAGE_SCENARIO_H_
