// Random requests of many queues through one pool, and what comes of each.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

class EveryKind : public OneMemoryNode {};

// Requests of all kinds, one after the other, of queues to two peers through one physical queue, around its ring.
class RandomRequests {
 public:
  RandomRequests(const std::string& fabric, std::array<MemoryNode*, 2> peers, uint32_t seed)
      : random_(seed), worker_(Worker::Start(fabric, {.dc_initiators = 1, .sq_depth = 40})), peers_(peers) {
    other_ = worker_.node->CreateRegion({.length = kLocalWords * 8}).value();
    for (uint32_t i = 0; i < 4; ++i) {
      Queue& queue = queues_.emplace_back();
      queue.peer = i % 2;
      queue.virtual_queue = worker_.Connect(i % 2 + 1);
      queue.first_word = i * kWords;
      for (size_t word = 0; word < kWords; ++word)
        queue.expected[word] = peers_[queue.peer]->words()[queue.first_word + word] = random_();
    }
  }

  void Round() {
    local_used_ = 0;
    checks_.clear();
    for (uint32_t batch = 1 + random_() % 6; batch-- > 0;) PushBatch(queues_[random_() % queues_.size()]);
    for (Queue& queue : queues_) {
      const auto done = Await(*worker_.pool, *queue.virtual_queue, queue.signaled.size());
      ASSERT_EQ(done.size(), queue.signaled.size());
      for (size_t i = 0; i < done.size(); ++i) {
        EXPECT_EQ(done[i].wr_id, queue.signaled[i].wr_id);
        EXPECT_EQ(done[i].status, WcStatus::kSuccess);
        EXPECT_EQ(done[i].opcode, queue.signaled[i].opcode);
      }
      while (queue.virtual_queue->outstanding() != 0) worker_.pool->Poll();
      Completion none;
      EXPECT_EQ(queue.virtual_queue->Pop({&none, 1}), 0u);
      queue.signaled.clear();
      queue.pushed = 0;
      queue.read = false;
      for (size_t word = 0; word < kWords; ++word)
        ASSERT_EQ(peers_[queue.peer]->words()[queue.first_word + word], queue.expected[word]) << word;
    }
    for (const auto& [at, value] : checks_) ASSERT_EQ(*at, value);
  }

 private:
  static constexpr size_t kWords = 32, kLocalWords = 4096;
  struct Queue {
    uint32_t peer;
    std::unique_ptr<VirtualQueue> virtual_queue;
    size_t first_word;
    std::array<uint64_t, kWords> expected;
    std::vector<WorkRequest> signaled;
    size_t pushed = 0;
    bool read = false;  // one was pushed in this round
  };

  void PushBatch(Queue& queue) {
    const size_t count = 1 + random_() % 12;
    if (queue.pushed + count > 60) return;
    queue.pushed += count;
    std::vector<WorkRequest> wrs;
    std::deque<std::array<Sge, 3>> sges;
    const bool alike = random_() % 2 == 0;
    const Opcode usual = random_() % 3 == 0 ? Opcode::kWrite : Opcode::kRead;
    for (size_t i = 0; i < count; ++i) {
      constexpr Opcode kAll[] = {Opcode::kRead, Opcode::kWrite, Opcode::kCompareSwap, Opcode::kFetchAdd};
      wrs.push_back(Make(queue, alike ? usual : kAll[random_() % 4], alike, &sges.emplace_back()));
      wrs.back().wr_id = ++numbered_;
      wrs.back().flags |= random_() % 3 != 0 ? kSignaled : 0;
      if ((wrs.back().flags & kSignaled) != 0) queue.signaled.push_back(wrs.back());
    }
    ASSERT_OK(random_() % 2 == 0 ? queue.virtual_queue->Push(wrs) : queue.virtual_queue->Stage(wrs));
    if (random_() % 4 == 0) worker_.pool->Poll();
  }

  WorkRequest Make(Queue& queue, Opcode opcode, bool alike, std::array<Sge, 3>* sges) {
    const bool atomic = opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd;
    const size_t words = atomic ? 1 : 1 + random_() % 4;
    const size_t at = random_() % (kWords - words);
    const bool in_other = !alike && random_() % 3 == 0;
    Region& region = in_other ? *other_ : *worker_.local;
    auto* const local = reinterpret_cast<uint64_t*>(region.bytes().data()) + local_used_;
    local_used_ += words;
    WorkRequest wr = OnWord(*queue.virtual_queue, opcode, sges->data(), queue.first_word + at);
    wr.flags = 0;
    wr.num_sge = static_cast<uint8_t>(alike ? 1 : 1 + random_() % std::min<size_t>(words, 3));
    for (size_t i = 0, from = 0; i < wr.num_sge; ++i) {
      const size_t length = i + 1 == wr.num_sge ? words - from : 1;
      (*sges)[i] = {reinterpret_cast<uint64_t>(local + from), static_cast<uint32_t>(8 * length), region.lkey()};
      from += length;
    }
    if (opcode != Opcode::kRead && queue.read) wr.flags = kFence;  // it need not wait for a READ otherwise
    queue.read |= opcode != Opcode::kWrite;
    uint64_t* const remote = &queue.expected[at];
    for (size_t i = 0; i < words; ++i) {
      if (opcode == Opcode::kWrite) {
        remote[i] = local[i] = random_();
      } else {
        local[i] = 0;
        checks_.emplace_back(&local[i], remote[i]);
      }
    }
    if (opcode == Opcode::kWrite && !alike && random_() % 3 == 0) wr.flags |= kInline;
    wr.compare_add = random_() % 2 == 0 ? remote[0] : random_();
    wr.swap = random_();
    if (opcode == Opcode::kCompareSwap && wr.compare_add == remote[0]) remote[0] = wr.swap;
    if (opcode == Opcode::kFetchAdd) remote[0] += wr.compare_add;
    return wr;
  }

  std::mt19937_64 random_;
  Worker worker_;
  std::array<MemoryNode*, 2> peers_;
  std::unique_ptr<Region> other_;
  std::deque<Queue> queues_;
  uint64_t numbered_ = 0;
  size_t local_used_ = 0;
  std::vector<std::pair<const uint64_t*, uint64_t>> checks_;  // what READs and atomics must find
};

TEST_F(EveryKind, OfRequestDoesWhatItSaysAndIsToldOfOnce) {
  MemoryNode second = MemoryNode::Start(fabric_, 2, 1 << 16, false);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RandomRequests requests(fabric_, {&memory_, &second}, seed);
    const int rounds = kOnVerbs ? 20 : 1000;
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) requests.Round();
  }
}

// Random requests of many queues to several peers through pools of several shapes. Every queue sees its own
// completions, in order, each once, and the sums at the peers are right.
class SharedPool : public ::testing::TestWithParam<QueuePoolOptions> {};

TEST_P(SharedPool, EachQueueSeesItsOwnCompletionsInOrderAndOnce) {
  constexpr NodeId kPeers = 3;
  constexpr size_t kQueues = 24;
  constexpr int kRounds = 3000;
  const std::string fabric = UniqueFabric(true);
  std::vector<MemoryNode> peers;
  for (NodeId id = 1; id <= kPeers; ++id) peers.push_back(MemoryNode::Start(fabric, id, 4096, id == 1));
  Worker worker = Worker::Start(fabric, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);

  struct User {
    std::unique_ptr<VirtualQueue> queue;
    std::deque<WorkRequest> expected;  // signaled and not yet popped
    uint64_t accepted = 0;
    uint64_t additions = 0;
  };
  std::vector<User> users(kQueues);
  for (size_t i = 0; i < kQueues; ++i)
    users[i].queue = worker.Connect(static_cast<NodeId>(i % kPeers + 1), 1 + static_cast<uint32_t>(i * 3));
  const auto pop = [&](User& user) {
    Completion out[7];
    const size_t count = user.queue->Pop(std::span(out).first(1 + random() % 7));
    for (size_t c = 0; c < count; ++c) {
      ASSERT_FALSE(user.expected.empty()) << "a completion nobody asked for";
      EXPECT_EQ(out[c].wr_id, user.expected.front().wr_id);
      EXPECT_EQ(out[c].opcode, user.expected.front().opcode);
      EXPECT_EQ(out[c].status, WcStatus::kSuccess);
      user.expected.pop_front();
    }
  };

  for (int round = 0; round < kRounds; ++round) {
    const size_t index = random() % kQueues;
    User& user = users[index];
    switch (random() % 4) {
      case 0:
      case 1: {
        const Sge sge = worker.Word(index);
        std::vector<WorkRequest> wrs(1 + random() % 12);
        for (size_t i = 0; i < wrs.size(); ++i) {
          wrs[i] = OnWord(*user.queue, random() % 2 ? Opcode::kFetchAdd : Opcode::kRead, &sge, index,
                          index << 32 | (user.accepted + i));
          wrs[i].compare_add = 1;
          wrs[i].flags = random() % 3 ? kSignaled : 0;
        }
        const Status status = random() % 2 ? user.queue->Stage(wrs) : user.queue->Push(wrs);
        if (status == StatusCode::kQueueFull) break;
        ASSERT_OK(status);
        user.accepted += wrs.size();
        for (const WorkRequest& wr : wrs) {
          user.additions += wr.opcode == Opcode::kFetchAdd;
          if (wr.flags & kSignaled) user.expected.push_back(wr);
        }
        break;
      }
      case 2: pop(user); break;
      case 3: worker.pool->Poll(); break;
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  for (User& user : users) {
    while (user.queue->outstanding() != 0) worker.pool->Poll();
    while (!user.expected.empty()) {
      const size_t before = user.expected.size();
      pop(user);
      ASSERT_LT(user.expected.size(), before) << "a completion is missing";
    }
    Completion extra;
    EXPECT_EQ(user.queue->Pop({&extra, 1}), 0u);
  }
  for (size_t i = 0; i < kQueues; ++i) EXPECT_EQ(peers[i % kPeers].words()[i], users[i].additions);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedPool,
                         ::testing::Values(QueuePoolOptions{.dc_initiators = 1, .sq_depth = 1},
                                           QueuePoolOptions{.dc_initiators = 1, .sq_depth = 7},
                                           QueuePoolOptions{.dc_initiators = 2, .sq_depth = 512},
                                           QueuePoolOptions{.dc_initiators = 3, .sq_depth = 100}));

}  // namespace
}  // namespace krcore::test
