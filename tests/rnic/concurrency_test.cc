// What holds while several queues work on one memory: atomics add up, and words never tear. Likewise several threads on
// one record.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

class Concurrency : public TransportTest {};
INSTANTIATE_TRANSPORT_TESTS_ON(Concurrency, ThreadedProviders());

TEST_P(Concurrency, FetchAddsOfTwoThreadsSumUp) {
  constexpr int kRounds = 2000, kBatch = 16;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link other(&c, b_.get(), transport());
  const auto run = [](Endpoint* endpoint, Link* link) {
    const Sge sge = endpoint->Local(8, 8);
    std::vector<SendWr> wrs(kBatch, link->Wr(Opcode::kFetchAdd, &sge, 0));
    for (SendWr& wr : wrs) {
      wr.compare_add = 3;
      wr.flags = 0;
    }
    wrs.back().flags = kSignaled;
    for (int i = 0; i < kRounds; ++i) {
      KRCORE_EXPECT_OK(link->qp->PostSend(wrs, nullptr));
      EXPECT_EQ(endpoint->Next().status, WcStatus::kSuccess);
    }
  };
  std::thread thread(run, &c, &other);
  run(a_.get(), link_.get());
  thread.join();
  EXPECT_EQ(b_->Word(), uint64_t{2} * kRounds * kBatch * 3);
}

TEST_P(Concurrency, CompareSwapsOfTwoThreadsEachSucceedOncePerValue) {
  constexpr uint64_t kTarget = 20000;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link other(&c, b_.get(), transport());
  std::atomic<uint64_t> wins{0};
  const auto run = [&](Endpoint* endpoint, Link* link) {
    const Sge sge = endpoint->Local(8, 8);
    SendWr wr = link->Wr(Opcode::kCompareSwap, &sge, 0);
    uint64_t seen = 0, won = 0;
    while (seen < kTarget) {
      wr.compare_add = seen;
      wr.swap = seen + 1;
      EXPECT_EQ(link->Run(wr).status, WcStatus::kSuccess);
      if (endpoint->Word(8) == seen) ++won;
      seen = endpoint->Word(8) == seen ? seen + 1 : endpoint->Word(8);
    }
    wins += won;
  };
  std::thread thread(run, &c, &other);
  run(a_.get(), link_.get());
  thread.join();
  EXPECT_EQ(wins, kTarget);
  EXPECT_EQ(b_->Word(), kTarget);
}

// Every word that is ever written has eight equal bytes; a READ must see no other, at any offset of a line.
TEST_P(Concurrency, ReadsNeverSeeATornWord) {
  constexpr uint32_t kBytes = 248;  // odd number of words, so that vector moves cross lines
  constexpr int kRounds = 20000;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link writer(&c, b_.get(), transport());
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    const Sge sge = c.Local(0, kBytes);
    for (int round = 0; !stop.load(std::memory_order_relaxed); ++round) {
      std::memset(c.Text(), round & 0xff, kBytes);
      EXPECT_EQ(writer.Run(writer.Wr(Opcode::kWrite, &sge, 8)).status, WcStatus::kSuccess);
    }
  });
  const Sge sge = a_->Local(0, kBytes);
  int torn = 0;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &sge, 8)).status, WcStatus::kSuccess);
    for (size_t i = 0; i < kBytes; i += 8) torn += a_->Word(i) != (a_->Word(i) & 0xff) * 0x0101010101010101;
  }
  stop = true;
  thread.join();
  EXPECT_EQ(torn, 0);
}

// A WRITE is in place before a later atomic of the same queue: a reader that sees the flag sees the data.
TEST_P(Concurrency, DataWrittenBeforeAnAtomicIsSeenByWhoSeesTheAtomic) {
  constexpr uint64_t kRounds = 20000;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link writer(&c, b_.get(), transport());
  std::thread thread([&] {
    const Sge data = c.Local(0, 8), old = c.Local(8, 8);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      c.Word() = round;
      SendWr wrs[] = {writer.Wr(Opcode::kWrite, &data, 512), writer.Wr(Opcode::kFetchAdd, &old, 0)};
      wrs[0].flags = 0;
      wrs[1].compare_add = 1;
      KRCORE_EXPECT_OK(writer.qp->PostSend(wrs, nullptr));
      EXPECT_EQ(c.Next().status, WcStatus::kSuccess);
    }
  });
  const Sge flag = a_->Local(0, 8), data = a_->Local(8, 8);
  int violations = 0;
  do {
    SendWr wrs[] = {link_->Wr(Opcode::kRead, &flag, 0), link_->Wr(Opcode::kRead, &data, 512)};
    wrs[0].flags = 0;
    KRCORE_EXPECT_OK(link_->qp->PostSend(wrs, nullptr));
    EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
    violations += a_->Word(8) < a_->Word(0);
  } while (a_->Word(0) < kRounds);
  thread.join();
  EXPECT_EQ(violations, 0);
}

// Two threads each WRITE a word of their own and READ the other's: at least one of them sees what the other wrote.
TEST_P(Concurrency, AReadDoesNotOvertakeTheWriteBeforeIt) {
  if (a_->device->caps().provider == "verbs") GTEST_SKIP() << "a NIC may serve two queues at its leisure";
  constexpr uint64_t kRounds = 20000;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link others(&c, b_.get(), transport());
  Endpoint* const endpoints[] = {a_.get(), &c};
  Link* const links[] = {link_.get(), &others};
  std::vector<uint64_t> seen[2] = {std::vector<uint64_t>(kRounds), std::vector<uint64_t>(kRounds)};
  std::atomic<uint64_t> at[2] = {0, 0};
  const auto run = [&](size_t self) {
    Endpoint& endpoint = *endpoints[self];
    Link& link = *links[self];
    const Sge own = endpoint.Local(0, 8), other = endpoint.Local(8, 8);
    SendWr wrs[] = {link.Wr(Opcode::kWrite, &own, 512 * self), link.Wr(Opcode::kRead, &other, 512 * (1 - self))};
    wrs[0].flags = 0;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      endpoint.Word() = round;
      at[self].store(round);
      for (uint32_t spins = 0; at[1 - self].load() < round; ++spins) {
        if (spins > 1000) std::this_thread::yield();
      }
      KRCORE_EXPECT_OK(link.qp->PostSend(wrs, nullptr));
      EXPECT_EQ(endpoint.Next().status, WcStatus::kSuccess);
      seen[self][round - 1] = endpoint.Word(8);
    }
  };
  std::thread thread(run, 1);
  run(0);
  thread.join();
  int overtaken = 0;
  for (uint64_t round = 1; round <= kRounds; ++round)
    overtaken += seen[0][round - 1] < round && seen[1][round - 1] < round;
  EXPECT_EQ(overtaken, 0);
}

TEST_P(Concurrency, MessagesOfTwoSendersArriveEachOnceAndInTheirOrder) {
  if (transport() == Transport::kRc) GTEST_SKIP() << "an RC queue has one sender";
  constexpr uint64_t kMessages = 5000;
  Endpoint c(std::get<0>(GetParam()), fabric_, 3, false);
  Link other(&c, b_.get(), transport());
  const auto run = [&](Endpoint* endpoint, Link* link, uint64_t sender) {
    const Sge sge = endpoint->Local(0, 8);
    SendWr wr = link->Wr(Opcode::kSend, &sge, 0);
    wr.remote_qpn = link_->dct->num();
    for (uint64_t i = 0; i < kMessages;) {
      endpoint->Word() = sender << 32 | i;
      const WcStatus status = link->Run(wr).status;
      if (status == WcStatus::kSuccess) {
        ++i;
      } else {
        EXPECT_EQ(status, WcStatus::kRnrRetryExceeded);
        KRCORE_EXPECT_OK(link->qp->ToReset());
        ConnectRc(*link->qp, *link->qp, *b_->device, 0);
        std::this_thread::yield();
      }
    }
  };
  std::thread first(run, a_.get(), link_.get(), 0), second(run, &c, &other, 1);
  uint64_t next[2] = {0, 0};
  const Sge in[8] = {b_->Local(0, 8),  b_->Local(8, 8),  b_->Local(16, 8), b_->Local(24, 8),
                     b_->Local(32, 8), b_->Local(40, 8), b_->Local(48, 8), b_->Local(56, 8)};
  for (uint64_t i = 0; i < 8; ++i) KRCORE_EXPECT_OK(link_->PostRecv(&in[i], i));
  while (next[0] + next[1] < 2 * kMessages) {
    Completion done;
    if (b_->cq->Poll({&done, 1}) == 0) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(done.status, WcStatus::kSuccess);
    const uint64_t word = b_->Word(done.wr_id * 8);
    ASSERT_EQ(word & 0xffff'ffff, next[word >> 32]++);
    KRCORE_EXPECT_OK(link_->PostRecv(&in[done.wr_id], done.wr_id));
  }
  first.join();
  second.join();
}

class FabricRecordRaces : public RnicTest {};
INSTANTIATE_TEST_SUITE_P(All, FabricRecordRaces, ::testing::ValuesIn(ThreadedProviders()),
                         [](const auto& info) { return info.param.label; });

// Each value has its version in every byte, so half a value, or one of another version, would be seen.
TEST_P(FabricRecordRaces, CountingThreadsLoseNothingAndReadersSeeVersionsWholeAndInOrder) {
  if (IsNic(*a_->device)) GTEST_SKIP() << "the provider keeps no records of the fabric";
  constexpr uint64_t kEach = 300;
  std::atomic<bool> done{false};
  const auto value_of = [](uint64_t version) {
    return std::vector<std::byte>(version * 97 % 9000, static_cast<std::byte>(version));
  };
  const auto read = [&](Device& device) {
    const auto record = device.ReadRecord("count");
    EXPECT_TRUE(record.ok()) << record.status().ToString();
    if (!record.ok()) return uint64_t{0};
    EXPECT_EQ(record->value, value_of(record->version)) << record->version;
    return record->version;
  };
  const auto count = [&](Device& device) {
    for (uint64_t won = 0; won < kEach;) {
      const uint64_t version = read(device);
      const Status set = device.CompareAndSetRecord("count", version, value_of(version + 1));
      EXPECT_TRUE(set.ok() || set == StatusCode::kExists) << set.ToString();
      if (set.ok()) ++won;
      if (!set.ok() && !(set == StatusCode::kExists)) return;
    }
  };
  const auto watch = [&](Device& device) {
    for (uint64_t last = 0; !done;) {
      const uint64_t version = read(device);
      EXPECT_GE(version, last);
      last = version;
    }
  };
  std::vector<std::thread> counting;
  for (Device* device : {a_->device.get(), a_->device.get(), b_->device.get()})  // two of them share a device
    counting.emplace_back(count, std::ref(*device));
  std::thread watching(watch, std::ref(*b_->device));
  for (std::thread& thread : counting) thread.join();
  done = true;
  watching.join();
  EXPECT_EQ(read(*a_->device), 3 * kEach);
}

}  // namespace
}  // namespace krcore::rnic::testing
