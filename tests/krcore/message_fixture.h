// What the tests of messages share: nodes with a pool, memory that peers may read, and messages that can be told apart.
#ifndef TESTS_KRCORE_MESSAGE_FIXTURE_H_
#define TESTS_KRCORE_MESSAGE_FIXTURE_H_

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "tests/krcore/fixture.h"

namespace krcore::test {

// A node with a pool and a region that peers may READ, divided into buffers.
struct MessagingNode {
  std::unique_ptr<Node> node;
  std::unique_ptr<Region> memory;
  std::unique_ptr<QueuePool> pool;
  size_t buffer_bytes = 0;

  static MessagingNode Start(const std::string& fabric, NodeId id, bool host_meta, const QueuePoolOptions& options = {},
                             size_t buffers = 256, size_t buffer_bytes = 16384, uint32_t rc_peers = 0) {
    MessagingNode party;
    party.node = OpenNode(fabric, id, nullptr, rc_peers);
    if (party.node == nullptr) return party;
    if (host_meta) {
      const Status hosted = party.node->HostMetaServer(256);
      EXPECT_TRUE(hosted.ok()) << hosted.ToString();
    }
    party.buffer_bytes = buffer_bytes;
    party.memory = party.node->CreateRegion({.length = buffers * buffer_bytes, .remote_rights = kRemoteRead}).value();
    party.pool = party.node->CreateQueuePool(options).value();
    return party;
  }

  Deadline Soon() { return Deadline::After(node->clock(), 5 * kSecondNs); }
  std::byte* Buffer(size_t index) { return memory->bytes().data() + index * buffer_bytes; }
  Sge At(size_t index, size_t length) {
    return {reinterpret_cast<uint64_t>(Buffer(index)), static_cast<uint32_t>(length), memory->lkey()};
  }
  std::string Text(size_t index, size_t length) { return {reinterpret_cast<char*>(Buffer(index)), length}; }
  void Put(size_t index, const std::string& text) { std::memcpy(Buffer(index), text.data(), text.size()); }

  std::unique_ptr<VirtualQueue> Queue(uint32_t depth = 64) { return pool->CreateQueue(depth).value(); }
  std::unique_ptr<VirtualQueue> Bound(Port port, const BindOptions& options = {}) {
    auto queue = Queue();
    const Status bound = queue->Bind(port, options, Soon());
    EXPECT_TRUE(bound.ok()) << bound.ToString();
    return queue;
  }
  std::unique_ptr<VirtualQueue> ConnectTo(NodeId peer, Port port, uint32_t depth = 64) {
    auto queue = Queue(depth);
    const Status connected = queue->Connect(peer, port, Soon());
    EXPECT_TRUE(connected.ok()) << connected.ToString();
    return queue;
  }
  // Posts receives into buffers [first, first + count). The wr_id is the buffer.
  Status Receive(VirtualQueue& queue, size_t first, size_t count) {
    std::vector<krcore::Receive> receives(count);
    for (size_t i = 0; i < count; ++i) receives[i] = {first + i, At(first + i, buffer_bytes)};
    return queue.PushRecv(receives);
  }
};

inline WorkRequest SendOf(const Sge* sge, uint64_t wr_id, uint8_t flags = kSignaled) {
  WorkRequest wr;
  wr.wr_id = wr_id;
  wr.sg_list = sge;
  wr.num_sge = sge == nullptr ? 0 : 1;
  wr.opcode = Opcode::kSend;
  wr.flags = flags;
  return wr;
}

// Polls the pools in turn until `done`.
inline bool PollUntil(std::initializer_list<QueuePool*> pools, const std::function<bool()>& done) {
  Clock& clock = (*pools.begin())->node().clock();
  const Deadline deadline = Deadline::After(clock, 20 * kSecondNs);
  for (uint32_t spins = 0; !done(); ++spins) {
    if (deadline.Passed(clock)) return false;
    size_t found = 0;
    for (QueuePool* pool : pools) found += pool->Poll();
    if (found == 0) clock.Relax(spins);
  }
  return true;
}

// Returns the next message. Status kGeneralError: none came.
inline Message NextMessage(VirtualQueue& queue, std::initializer_list<QueuePool*> pools) {
  Message message;
  message.status = WcStatus::kGeneralError;
  EXPECT_TRUE(PollUntil(pools, [&] { return queue.PopMessages({&message, 1}) == 1; })) << "no message";
  return message;
}

inline Completion NextCompletion(VirtualQueue& queue, std::initializer_list<QueuePool*> pools) {
  Completion completion;
  completion.status = WcStatus::kGeneralError;
  EXPECT_TRUE(PollUntil(pools, [&] { return queue.Pop({&completion, 1}) == 1; })) << "no completion";
  return completion;
}

// A server, node 1, that hosts the metadata, and a client. Neither has a background thread.
class TwoMessagingNodes : public ::testing::Test {
 protected:
  static constexpr Port kPort = 7;

  // Waits for the next message and polls both sides.
  Message Next(VirtualQueue& queue) { return NextMessage(queue, {server_.pool.get(), client_.pool.get()}); }
  Completion Done(VirtualQueue& queue) { return NextCompletion(queue, {client_.pool.get(), server_.pool.get()}); }
  void PollSome(int polls = 300) {
    for (int i = 0; i < polls; ++i) {
      client_.pool->Poll();
      server_.pool->Poll();
      LetRequestsRun(client_.node->clock());
    }
  }
  void ExpectNothingBroke() {
    EXPECT_EQ(server_.pool->stats().broken_queues, 0u);
    EXPECT_EQ(client_.pool->stats().broken_queues, 0u);
  }

  const std::string fabric_ = UniqueFabric(true);
  MessagingNode server_ = MessagingNode::Start(fabric_, 1, true);
  MessagingNode client_ = MessagingNode::Start(fabric_, kNoNode, false);
};

}  // namespace krcore::test

#endif  // TESTS_KRCORE_MESSAGE_FIXTURE_H_
