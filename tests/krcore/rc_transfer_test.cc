// Queues that move between DC and RC in the middle of a deep pipeline, thousands of times: nothing is lost, doubled or
// reordered. One-sided requests here; messages below.
#include <cstdlib>
#include <deque>
#include <random>

#include "tests/krcore/message_scenario.h"
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

void SetChaos(const std::string& fabric, double break_queue) {
  if (!kSimulated) return;
  Worlds().at(fabric)->set_chaos({.tear = 0.3, .delay = 0.2, .max_delay_ns = 20'000, .break_queue = break_queue});
}

void Wait(const std::string& fabric) {
  if (kSimulated) Worlds().at(fabric)->Step();
  if (kOnVerbs) LetRequestsRun(ClockOf(fabric));
}

// Counts of a suite that an emulated guest runs as well.
constexpr uint64_t kTransfers = kOnVerbs ? 100 : 4000, kMessageTransfers = kOnVerbs ? 30 : 1000;

// A queue with words of its own at the peer: a counter that FETCH_ADDs increment, a chain of CASs, each expecting what
// the one before it stored, and a word for WRITEs and READs. It knows what each completion may be.
class Pipeline {
 public:
  static constexpr uint32_t kDepth = 24;
  enum Word : size_t { kCounter, kChain, kRegister, kWords };

  Pipeline(Worker& worker, MemoryNode& memory, NodeId peer, size_t index)
      : worker_(worker), memory_(memory), peer_(peer), index_(index), queue_(worker.Connect(peer, kDepth)) {}

  void Push(std::mt19937_64& random) {
    std::vector<WorkRequest> wrs;
    std::vector<Sge> sges(1 + random() % 6);
    const auto refused = [this, chain = chain_, written = written_] {
      chain_ = chain;
      written_ = written;
      fresh_.clear();
    };
    for (Sge& sge : sges) wrs.push_back(Next(random, &sge, wrs.size()));
    const Status pushed = random() % 2 == 0 ? queue_->Push(wrs) : queue_->Stage(wrs);
    if (!pushed.ok()) {
      ASSERT_TRUE(pushed == StatusCode::kQueueFull || pushed == StatusCode::kUnavailable) << pushed.ToString();
      must_connect_ |= pushed == StatusCode::kUnavailable;
      return refused();
    }
    pending_.insert(pending_.end(), fresh_.begin(), fresh_.end());
    next_ += fresh_.size();
    fresh_.clear();
  }

  void Pop() {
    Completion completions[7];
    const size_t count = queue_->Pop(completions);
    for (size_t i = 0; i < count; ++i) {
      // Unsignaled requests before it have succeeded.
      while (!pending_.empty() && pending_.front().number < completions[i].wr_id) {
        ASSERT_FALSE(pending_.front().signaled) << "the completion of " << pending_.front().number << " is missing";
        Succeeded(pending_.front());
        pending_.pop_front();
      }
      ASSERT_FALSE(pending_.empty()) << "a completion twice";
      ASSERT_EQ(pending_.front().number, completions[i].wr_id) << "completions out of order";
      const Request request = pending_.front();
      pending_.pop_front();
      if (completions[i].status == WcStatus::kSuccess)
        Succeeded(request);
      else
        Failed(request, completions[i].status);
    }
    if (queue_->outstanding() != 0) return;
    for (; !pending_.empty() && count < std::size(completions); pending_.pop_front()) {
      ASSERT_FALSE(pending_.front().signaled) << "the completion of " << pending_.front().number << " is missing";
      Succeeded(pending_.front());
    }
  }

  // Call after a fault.
  void ConnectAgainIfNeeded() {
    if (!must_connect_ || queue_->outstanding() != 0) return;
    if (queue_->Connect(peer_, worker_.Soon()).ok()) must_connect_ = false;
  }
  bool idle() const { return pending_.empty() && queue_->outstanding() == 0; }

  // Call when nothing is in flight.
  void ExpectCounted() const {
    const uint64_t counted = Remote()[kCounter];
    ASSERT_GE(counted, added_) << "a FETCH_ADD was lost";
    ASSERT_LE(counted, added_ + unknown_adds_) << "a FETCH_ADD was executed twice";
    ASSERT_GE(Remote()[kRegister], well_written_) << "a WRITE came late";
  }
  uint64_t executed() const { return executed_; }

 private:
  struct Request {
    uint64_t number;
    Opcode opcode;
    bool signaled;
    Word word;
    uint64_t value;  // WRITE: what is written; CAS: what is expected
  };

  uint64_t* Remote() const { return memory_.words() + kWords * index_; }
  size_t Local(uint64_t number) const { return 1024 * index_ + number % 512; }

  WorkRequest Next(std::mt19937_64& random, Sge* sge, size_t ahead) {
    Request request{next_ + ahead, Opcode::kFetchAdd, random() % 3 != 0, kCounter, 0};
    switch (random() % 4) {
      case 0: break;
      case 1: request = {request.number, Opcode::kCompareSwap, request.signaled, kChain, chain_++}; break;
      case 2: request = {request.number, Opcode::kWrite, request.signaled, kRegister, ++written_}; break;
      default: request = {request.number, Opcode::kRead, request.signaled, kRegister, 0}; break;
    }
    *sge = worker_.Word(Local(request.number));
    WorkRequest wr = OnWord(*queue_, request.opcode, sge, kWords * index_ + request.word, request.number);
    wr.flags = request.signaled ? kSignaled : 0;
    wr.compare_add = request.opcode == Opcode::kFetchAdd ? 1 : request.value;
    wr.swap = request.value + 1;
    if (request.opcode == Opcode::kWrite) {
      worker_.words()[Local(request.number)] = request.value;
      if (random() % 3 == 0) wr.flags |= kInline;
    }
    fresh_.push_back(request);
    return wr;
  }

  void Succeeded(const Request& request) {
    ++executed_;
    const uint64_t found = worker_.words()[Local(request.number)];
    switch (request.opcode) {
      case Opcode::kFetchAdd:
        // Those before it have been executed, those after it have not.
        ASSERT_GE(found, added_) << "request " << request.number;
        ASSERT_LE(found, added_ + unknown_adds_) << "request " << request.number;
        ++added_;
        break;
      case Opcode::kCompareSwap:
        if (!chain_broken_) {
          ASSERT_EQ(found, request.value) << "request " << request.number;
        }
        break;
      case Opcode::kRead:
        // A READ finds at least what the last successful WRITE before it has written: a WRITE that failed before that
        // one does not come later. WRITEs after the READ need not wait for it.
        ASSERT_LE(found, written_) << "request " << request.number;
        ASSERT_GE(found, well_written_) << "request " << request.number;
        break;
      case Opcode::kWrite: well_written_ = request.value; break;
      default: break;
    }
  }
  void Failed(const Request& request, WcStatus status) {
    ASSERT_TRUE(status == WcStatus::kFlushed || status == WcStatus::kRetryExceeded || status == WcStatus::kDiscarded)
        << WcStatusName(status);
    if (status == WcStatus::kRetryExceeded) must_connect_ = true;
    if (request.opcode == Opcode::kFetchAdd && status != WcStatus::kDiscarded) ++unknown_adds_;
    chain_broken_ |= request.opcode == Opcode::kCompareSwap;
  }

  Worker& worker_;
  MemoryNode& memory_;
  const NodeId peer_;
  const size_t index_;
  std::unique_ptr<VirtualQueue> queue_;
  uint64_t next_ = 0;
  std::deque<Request> pending_;
  std::vector<Request> fresh_;
  uint64_t chain_ = 0, written_ = 0, well_written_ = 0;
  uint64_t added_ = 0, unknown_adds_ = 0, executed_ = 0;
  bool chain_broken_ = false, must_connect_ = false;
};

// One in so many verbs breaks its queue. 0: none. Negative: none, but staged requests are discarded now and then.
class Transfers : public ::testing::TestWithParam<int> {};

TEST_P(Transfers, LoseDoubleAndReorderNothingInADeepPipeline) {
  const int break_every = GetParam();
  const uint64_t first_seed = FirstSeed();
  uint64_t transfers = 0, executed = 0, broken = 0;
  for (uint64_t seed = first_seed; transfers < kTransfers && seed < first_seed + 400; ++seed) {
    SCOPED_TRACE("SURGEKV_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::string fabric = UniqueFabric(true);
    MemoryNode memory[2] = {MemoryNode::Start(fabric, 1, 4096, true, nullptr, 4),
                            MemoryNode::Start(fabric, 2, 4096, false, nullptr, 4)};
    Worker worker = Worker::Start(fabric, {.dc_initiators = static_cast<uint32_t>(1 + random() % 2),
                                           .sq_depth = static_cast<uint32_t>(8 + random() % 60),
                                           .max_rc_queues = 2,
                                           .rc_hot_wrs = UINT32_MAX,
                                           .rc_patience_ns = static_cast<int64_t>(random() % 2 * (random() % 20'000))});
    std::vector<std::unique_ptr<Pipeline>> pipelines;
    for (size_t i = 0; i < 4; ++i) {
      const auto peer = static_cast<NodeId>(1 + i % 2);
      pipelines.push_back(std::make_unique<Pipeline>(worker, memory[i % 2], peer, i));
    }
    queue::RcQueues& rc = RcOf(*worker.pool);
    SetChaos(fabric, break_every > 0 ? 1.0 / break_every : 0);
    for (int step = 0; step < 6000 && !HasFatalFailure(); ++step) {
      Pipeline& pipeline = *pipelines[random() % pipelines.size()];
      const auto peer = static_cast<NodeId>(1 + random() % 2);
      switch (random() % 12) {
        case 0:
        case 1: pipeline.Push(random); break;
        case 2: pipeline.Pop(); break;
        case 3: pipeline.ConnectAgainIfNeeded(); break;
        case 4: worker.pool->Flush(); break;
        case 5: memory[peer - 1].node->PollConnections(); break;
        case 6:
          if (random() % 2 == 0)
            rc.Leave(peer);
          else if (const auto metadata = CachedPeer(*worker.pool, peer); metadata != nullptr)
            (void)rc.Connect(metadata);
          break;
        case 7:
          if (break_every < 0 && random() % 8 == 0) worker.pool->DiscardStaged();
          break;
        case 8:
        case 9: worker.pool->Poll(); break;
        default: Wait(fabric); break;
      }
    }
    SetChaos(fabric, 0);
    const Deadline deadline = worker.Soon();
    const auto all_idle = [&] {
      bool idle = true;
      for (auto& pipeline : pipelines) {
        pipeline->Pop();
        idle &= pipeline->idle();
      }
      return idle || HasFatalFailure();
    };
    for (uint32_t spins = 0; !all_idle() && !deadline.Passed(worker.node->clock()); ++spins) {
      worker.pool->Poll();
      worker.node->clock().Relax(spins % 64);
    }
    ASSERT_TRUE(all_idle()) << "completions are missing";
    for (auto& pipeline : pipelines) {
      pipeline->ExpectCounted();
      executed += pipeline->executed();
    }
    const QueuePoolStats& stats = worker.pool->stats();
    transfers += stats.rc_connects + stats.rc_reclaims;
    broken += stats.broken_queues;
    if (HasFailure()) return;
  }
  EXPECT_GE(transfers, kTransfers);
  EXPECT_GT(executed, kTransfers * 5 / 2);
  if (break_every > 0 && kSimulated) {
    EXPECT_GT(broken, 100u);
  }
  std::printf("%llu transfers, %llu requests executed, %llu broken queues\n",
              static_cast<unsigned long long>(transfers), static_cast<unsigned long long>(executed),
              static_cast<unsigned long long>(broken));
}

// On verbs no queue breaks at random.
INSTANTIATE_TEST_SUITE_P(BreakEvery, Transfers,
                         ::testing::ValuesIn(kOnVerbs ? std::vector{0, -1} : std::vector{0, -1, 400}),
                         [](const auto& info) {
                           return info.param < 0 ? std::string("NeverButDiscards")
                                                 : std::to_string(info.param) + "Verbs";
                         });

class MessageTransfers : public ::testing::TestWithParam<int> {};

TEST_P(MessageTransfers, LoseDoubleAndReorderNoMessage) {
  const int break_every = GetParam();
  const uint64_t first_seed = FirstSeed();
  uint64_t transfers = 0, received = 0;
  for (uint64_t seed = first_seed; transfers < kMessageTransfers && seed < first_seed + 200; ++seed) {
    SCOPED_TRACE("SURGEKV_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::string fabric = UniqueFabric(true);
    const QueuePoolOptions options{.dc_initiators = 1,
                                   .sq_depth = static_cast<uint32_t>(4 + random() % 60),
                                   .max_rc_queues = 2,
                                   .rc_hot_wrs = UINT32_MAX,
                                   .rc_patience_ns = static_cast<int64_t>(random() % 2 * (random() % 20'000))};
    MessagingNode host = MessagingNode::Start(fabric, 1, true, options, 64, 8192, 4);
    MessagingNode party = MessagingNode::Start(fabric, 2, false, options, 64, 8192, 4);
    ASSERT_OK(host.node->Publish(host.Soon()));
    ASSERT_OK(party.node->Publish(party.Soon()));
    // Both connect, so that each knows how to reach the other.
    auto to_host = party.Queue(), to_party = host.Queue();
    ASSERT_OK(to_host->Connect(1, party.Soon()));
    ASSERT_OK(to_party->Connect(2, host.Soon()));
    {
      const BindOptions bind{.slots = static_cast<uint16_t>(1 + random() % 12), .copy_bytes = 700};
      TestReceiver receiver(host, 0, 24, 7, bind);
      std::vector<std::unique_ptr<TestSender>> senders;
      for (uint64_t i = 0; i < 3; ++i) senders.push_back(std::make_unique<TestSender>(party, 8 * i, i, 1, 7));
      SetChaos(fabric, break_every != 0 ? 1.0 / break_every : 0);
      for (int step = 0; step < 4000 && !HasFatalFailure(); ++step) {
        TestSender& sender = *senders[random() % senders.size()];
        MessagingNode& one = random() % 4 == 0 ? host : party;  // the host READs zero-copy messages
        MessagingNode& other = &one == &host ? party : host;
        switch (random() % 11) {
          case 0:
          case 1: sender.Push(random); break;
          case 2: sender.Pop(); break;
          case 3: receiver.PostReceives(random() % 4); break;
          case 4: receiver.Pop(); break;
          case 5: sender.ConnectAgainIfNeeded(); break;
          case 6: one.node->PollConnections(); break;
          case 7:
            if (random() % 2 == 0)
              RcOf(*one.pool).Leave(other.node->id());
            else if (const auto metadata = CachedPeer(*one.pool, other.node->id()); metadata != nullptr)
              (void)RcOf(*one.pool).Connect(metadata);
            break;
          case 8: other.pool->Poll(); break;
          default:
            one.pool->Poll();
            Wait(fabric);
            break;
        }
      }
      SetChaos(fabric, 0);
      const auto all_idle = [&] {
        receiver.PostReceives(24);
        receiver.Pop();
        bool idle = true;
        for (auto& sender : senders) {
          sender->Pop();
          idle &= sender->idle();
        }
        return idle || HasFatalFailure();
      };
      EXPECT_TRUE(PollUntil({host.pool.get(), party.pool.get()}, all_idle));
      for (int polls = 0; polls < 200; ++polls) {
        host.pool->Poll();
        party.pool->Poll();
        Wait(fabric);
        all_idle();
      }
      for (auto& sender : senders) ExpectSettled(*sender, receiver);
      for (auto& sender : senders) received += receiver.ReceivedFrom(sender->id()).size();
    }
    for (MessagingNode* node : {&host, &party})
      transfers += node->pool->stats().rc_connects + node->pool->stats().rc_reclaims;
    if (HasFailure()) return;
  }
  EXPECT_GE(transfers, kMessageTransfers);
  EXPECT_GT(received, kMessageTransfers);
  std::printf("%llu transfers, %llu messages\n", static_cast<unsigned long long>(transfers),
              static_cast<unsigned long long>(received));
}

INSTANTIATE_TEST_SUITE_P(BreakEvery, MessageTransfers,
                         ::testing::ValuesIn(kOnVerbs ? std::vector{0} : std::vector{0, 400}),
                         [](const auto& info) { return std::to_string(info.param) + "Verbs"; });

}  // namespace
}  // namespace krcore::test
