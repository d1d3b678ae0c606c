// Messages between queues of a fabric: order, credits, refusals, and what becomes of them when connections break and
// processes are killed.
#include <pwd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/kmod/party.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

TEST(KmodMessages, ArriveInOrderAndNameTheirSender) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(), 0);
  ASSERT_EQ(receiver.Receive(1, 4), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  EXPECT_EQ(sender.found.slots, 8u);
  EXPECT_EQ(sender.found.copy_bytes, 1000u);
  krc_request batch[] = {sender.Send(10, "first", 0), sender.Send(11, "the second", 1), sender.Send(12, "", 2)};
  batch[1].opcode = KRC_OP_SEND_IMM;
  batch[1].compare_add = 0xabcd;
  ASSERT_EQ(sender.queue.Push(batch), 0);
  std::memset(sender.Buffer(0), '.', 2048);  // they are copies
  const char* const texts[] = {"first", "the second", ""};
  for (size_t i = 0; i < 3; ++i) {
    const krc_message message = receiver.Next();
    EXPECT_EQ(message.wr_id, 1 + i);
    EXPECT_EQ(message.status, KRC_SUCCESS);
    EXPECT_EQ(receiver.Text(message), texts[i]);
    EXPECT_EQ(message.with_imm, i == 1 ? 1 : 0);
    EXPECT_EQ(message.imm, i == 1 ? 0xabcdu : 0u);
    EXPECT_EQ(message.node, sender.queue.node());
    EXPECT_EQ(message.incarnation, sender.queue.incarnation());
    EXPECT_EQ(message.port, 0u);
  }
  EXPECT_TRUE(receiver.HasNone());
  const auto completions = sender.Await(3);
  for (size_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].wr_id, 10 + i);
    EXPECT_EQ(completions[i].status, KRC_SUCCESS);
    EXPECT_EQ(completions[i].opcode, i == 1 ? KRC_OP_SEND_IMM : KRC_OP_SEND);
  }
}

TEST(KmodMessages, GatherSeveralPiecesOfAnyLength) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 23);
  for (const uint32_t length : {2u, 7u, 8u, 65u, 999u, 1000u}) {
    ASSERT_EQ(receiver.Receive(1, 1), 0);
    krc_request request = sender.Send(1, text.substr(0, length));
    request.num_sge = 2;
    request.sges[0].length = length / 2;
    request.sges[1] = {request.sges[0].addr + length / 2, length - length / 2, sender.key};
    EXPECT_EQ(sender.StatusOf(request), KRC_SUCCESS);
    EXPECT_EQ(receiver.Text(receiver.Next()), text.substr(0, length));
  }
}

TEST(KmodMessages, WhatWasWrittenBeforeIsThere) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  const uint64_t target = sender.found.regions[0].addr + 8 * kPage;
  for (uint64_t round = 1; round <= 50; ++round) {
    ASSERT_EQ(receiver.Receive(1, 1), 0);
    *reinterpret_cast<uint64_t*>(sender.Buffer(4)) = round;
    const krc_request batch[] = {
        Side::Between(KRC_OP_WRITE, sender.key, sender.Buffer(4), sender.found.regions[0].key, target),
        sender.Send(1, "see")};
    ASSERT_EQ(sender.queue.Push(batch), 0);
    receiver.Next();
    EXPECT_EQ(__atomic_load_n(receiver.memory.words() + kPage, __ATOMIC_ACQUIRE), round);
    sender.Await(2);
  }
}

TEST(KmodMessages, WithoutReceivesTheSenderIsHeldBackAndNothingIsLost) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(BindWith(2, 4)), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  std::vector<krc_request> batch;
  for (uint64_t i = 0; i < 5; ++i) batch.push_back(sender.Send(i, std::string(1, static_cast<char>('a' + i)), i));
  uint32_t bad = 99;
  EXPECT_EQ(sender.queue.Push(batch, &bad), EAGAIN) << "five do not fit";
  EXPECT_EQ(bad, 4u);
  EXPECT_TRUE(receiver.HasNone()) << "none of a refused batch";
  ASSERT_EQ(sender.queue.Push({batch.data(), 4}), 0);
  for (const krc_completion& one : sender.Await(4)) EXPECT_EQ(one.status, KRC_SUCCESS);
  EXPECT_EQ(sender.queue.Push({&batch[4], 1}), EAGAIN);
  EXPECT_TRUE(receiver.HasNone());

  ASSERT_EQ(receiver.Receive(1, 2), 0);
  EXPECT_EQ(receiver.Text(receiver.Next()), "a");
  EXPECT_EQ(receiver.Text(receiver.Next()), "b");
  EXPECT_TRUE(sender.AwaitCredits(2));
  ASSERT_EQ(sender.Push(batch[4]), 0);
  ASSERT_EQ(receiver.Receive(3, 4), 0);
  for (const char* text : {"c", "d", "e"}) EXPECT_EQ(receiver.Text(receiver.Next()), text);
  EXPECT_TRUE(receiver.HasNone());
  EXPECT_TRUE(sender.AwaitCredits(4));
}

TEST(KmodMessages, WakeWhoSleepsUntilOneCanBePopped) {
  Party receiver(3), sender;
  EXPECT_EQ(receiver.queue.WaitForMessage(0), ETIMEDOUT) << "it is not bound";
  ASSERT_EQ(receiver.Bind(), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  EXPECT_EQ(receiver.queue.WaitForMessage(0), ETIMEDOUT);
  EXPECT_EQ(sender.StatusOf(sender.Send(1, "first")), KRC_SUCCESS);
  EXPECT_EQ(receiver.queue.WaitForMessage(0), ETIMEDOUT) << "there is no receive for it";
  ASSERT_EQ(receiver.Receive(1, 1), 0);
  EXPECT_EQ(receiver.queue.WaitForMessage(0), 0);
  EXPECT_EQ(receiver.queue.Wait(0), ETIMEDOUT) << "it is no completion";
  EXPECT_EQ(receiver.Text(receiver.Next()), "first");
  EXPECT_EQ(receiver.queue.WaitForMessage(0), ETIMEDOUT);
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(receiver.Receive(1, 1), 0);
    std::atomic<pid_t> sleeper{0};
    std::thread sleeps([&] {
      sleeper = gettid();
      EXPECT_EQ(receiver.queue.WaitForMessage(kPatienceMs), 0);
      EXPECT_EQ(receiver.Text(receiver.Next()), "wake");
    });
    for (char state = 0; state != 'S';) {
      std::ifstream stat("/proc/self/task/" + std::to_string(sleeper) + "/stat");
      std::string id, name;
      stat >> id >> name >> state;
    }
    EXPECT_EQ(sender.StatusOf(sender.Send(1, "wake")), KRC_SUCCESS);
    sleeps.join();
  }
}

TEST(KmodMessages, AFullReceiverKeepsNobodyElseBack) {
  Party full(3), other(4);
  ASSERT_EQ(full.Bind(BindWith(8, 2)), 0);
  ASSERT_EQ(other.Bind(), 0);
  std::vector<std::unique_ptr<Party>> blocked;
  for (int i = 0; i < 8; ++i) {  // more than there are connections
    auto& sender = *blocked.emplace_back(std::make_unique<Party>());
    ASSERT_EQ(sender.ConnectTo(3), 0);
    for (int j = 0; j < 2; ++j) EXPECT_EQ(sender.StatusOf(sender.Send(1, "waits")), KRC_SUCCESS);
    EXPECT_EQ(sender.Push(sender.Send(1, "too many")), EAGAIN);
    // Its own one-sided requests as well.
    EXPECT_EQ(sender.StatusOf(Side::Between(KRC_OP_READ, sender.key, sender.Buffer(1), sender.found.regions[0].key,
                                            sender.found.regions[0].addr)),
              KRC_SUCCESS);
  }
  Party sender;
  ASSERT_EQ(sender.ConnectTo(4), 0);
  ASSERT_EQ(other.Receive(1, 1), 0);
  EXPECT_EQ(sender.StatusOf(sender.Send(1, "through")), KRC_SUCCESS);
  EXPECT_EQ(other.Text(other.Next()), "through");
  ASSERT_EQ(full.Receive(1, 16), 0);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(full.Text(full.Next()), "waits");
}

TEST(KmodMessages, AReceiveTooShortOrGoneComesBackAndTheMessageWaits) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  EXPECT_EQ(sender.StatusOf(sender.Send(1, "nine byte")), KRC_SUCCESS);
  Pages going(kPage);
  krc_receive receive = {77, reinterpret_cast<uint64_t>(going.bytes()), kPage, 0};
  uint32_t going_key;
  ASSERT_EQ(receiver.queue.Register(going.bytes(), kPage, KRC_LOCAL_WRITE, &going_key), 0);
  receive.lkey = going_key;
  ASSERT_EQ(receiver.Receive(1, 1, 8), 0);
  ASSERT_EQ(receiver.queue.PushRecv({&receive, 1}), 0);
  ASSERT_EQ(receiver.queue.Deregister(going_key), 0);
  going.Unmap();
  ASSERT_EQ(receiver.Receive(2, 1, 9), 0);
  krc_message message = receiver.Next();
  EXPECT_EQ(message.wr_id, 1u);
  EXPECT_EQ(message.status, KRC_LOCAL_LENGTH_ERROR);
  EXPECT_EQ(message.byte_len, 9u);
  message = receiver.Next();
  EXPECT_EQ(message.wr_id, 77u);
  EXPECT_EQ(message.status, KRC_LOCAL_PROTECTION_ERROR);
  message = receiver.Next();
  EXPECT_EQ(message.wr_id, 2u);
  EXPECT_EQ(message.status, KRC_SUCCESS);
  EXPECT_EQ(receiver.Text(message), "nine byte");
}

TEST(KmodMessages, RepliesGoToThePortThatTheMessageNames) {
  Party server(3), client;
  ASSERT_EQ(server.Bind(), 0);
  ASSERT_EQ(server.Receive(1, 1), 0);
  uint16_t port = 0;
  krc_bind any = kBind;
  any.port = 0;
  ASSERT_EQ(client.queue.Bind(any, &port), 0);
  EXPECT_GE(port, KRC_FIRST_AUTOMATIC_PORT);
  ASSERT_EQ(client.ConnectTo(3), 0);
  ASSERT_EQ(client.Receive(2, 1), 0);
  EXPECT_EQ(client.StatusOf(client.Send(1, "question")), KRC_SUCCESS);
  const krc_message asked = server.Next();
  EXPECT_EQ(asked.port, port);
  ASSERT_EQ(server.ConnectTo(asked.node, asked.port), 0);
  EXPECT_EQ(server.StatusOf(server.Send(1, "answer", 5)), KRC_SUCCESS);
  EXPECT_EQ(client.Text(client.Next()), "answer");
}

TEST(KmodMessages, APortHasOneOwnerAndIsFreeBehindIt) {
  auto first = std::make_unique<Party>(3);
  ASSERT_EQ(first->Bind(), 0);
  EXPECT_EQ(first->Bind(), EBADFD) << "once a file";
  Queue of_it;
  ASSERT_EQ(of_it.OpenLike(first->queue, 8), 0);
  uint16_t port;
  EXPECT_EQ(of_it.Bind(kBind, &port), EEXIST);
  Party other(4), sender;
  ASSERT_EQ(other.Bind(), 0) << "another node's port of that number is another one";
  ASSERT_EQ(sender.ConnectTo(3), 0);
  ASSERT_EQ(other.Receive(1, 1), 0);
  EXPECT_EQ(sender.StatusOf(sender.Send(1, "for 3")), KRC_SUCCESS);
  EXPECT_TRUE(other.HasNone());
  ASSERT_EQ(first->Receive(1, 1), 0);
  EXPECT_EQ(first->Text(first->Next()), "for 3");
  EXPECT_EQ(sender.ConnectTo(3, 8), ENOENT);
  EXPECT_EQ(sender.ConnectTo(99), ENOENT);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  first.reset();
  ASSERT_EQ(of_it.Bind(kBind, &port), 0);
  EXPECT_EQ(sender.Push(sender.Send(1, "late")), EPIPE);
  ASSERT_EQ(sender.ConnectTo(3), 0) << "the new one";
  EXPECT_EQ(sender.StatusOf(sender.Send(1, "in time")), KRC_SUCCESS);
}

TEST(KmodMessages, AFullPortRefusesAnotherSenderUntilOneLeaves) {
  Party receiver(3), second;
  ASSERT_EQ(receiver.Bind(BindWith(1, 4)), 0);
  auto first = std::make_unique<Party>();
  ASSERT_EQ(first->ConnectTo(3), 0);
  EXPECT_EQ(first->StatusOf(first->Send(1, "stays")), KRC_SUCCESS);
  EXPECT_EQ(second.ConnectTo(3), EAGAIN);
  EXPECT_EQ(second.Push(second.Send(1, "x")), ENOTCONN);
  first.reset();
  EXPECT_TRUE(receiver.HasNone());
  EXPECT_EQ(second.ConnectTo(3), EAGAIN) << "its message has not been taken";
  ASSERT_EQ(receiver.Receive(1, 2), 0);
  EXPECT_EQ(receiver.Text(receiver.Next()), "stays");
  EXPECT_TRUE(receiver.HasNone());
  ASSERT_EQ(second.ConnectTo(3), 0);
  EXPECT_EQ(second.StatusOf(second.Send(1, "next")), KRC_SUCCESS);
  EXPECT_EQ(receiver.Text(receiver.Next()), "next");
  ASSERT_EQ(second.ConnectTo(3, 0), 0) << "for one-sided requests alone";
  EXPECT_EQ(second.Push(second.Send(1, "to whom")), ENOTCONN);
  EXPECT_TRUE(receiver.HasNone());
  ASSERT_EQ(second.ConnectTo(3), 0);
}

TEST(KmodMessages, SendersThatComeAtTheSameTimeHaveAPlaceEach) {
  constexpr size_t kSenders = 8;
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(kSenders, 8)), 0);
  std::vector<std::unique_ptr<Party>> senders;
  for (size_t i = 0; i < kSenders; ++i) senders.push_back(std::make_unique<Party>());
  for (int round = 0; round < 20; ++round) {
    std::atomic<size_t> ready = 0;
    std::vector<std::thread> threads;
    for (const auto& sender : senders) {
      threads.emplace_back([&ready, &one = *sender] {
        ++ready;
        while (ready < kSenders) {
        }
        EXPECT_EQ(one.ConnectTo(3), 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < kSenders; ++i) EXPECT_EQ(senders[i]->StatusOf(senders[i]->SendNumber(i)), KRC_SUCCESS);
    std::vector<int> found(kSenders);
    ASSERT_EQ(receiver.Receive(1, kSenders), 0);
    for (size_t i = 0; i < kSenders; ++i) ++found[receiver.Number(receiver.Next()) % kSenders];
    EXPECT_EQ(found, std::vector<int>(kSenders, 1));
    for (const auto& sender : senders) ASSERT_EQ(sender->ConnectTo(3, 0), 0);
    EXPECT_TRUE(receiver.HasNone());
  }
}

TEST(KmodMessages, EachWrongCallHasItsErrno) {
  Party receiver(3), sender;
  uint16_t port;
  uint32_t credits, bad;
  size_t count;
  krc_message message;
  const krc_receive receive = {1, reinterpret_cast<uint64_t>(receiver.Buffer(1)), 1024, receiver.key};
  EXPECT_EQ(receiver.queue.PushRecv({&receive, 1}), ENOTCONN);
  EXPECT_EQ(receiver.queue.PopMessages({&message, 1}, &count), ENOTCONN);
  Side stranger;
  EXPECT_EQ(stranger.queue.Bind(kBind, &port), ENOTCONN) << "no node";
  ASSERT_EQ(stranger.queue.Join(kMessageFabric), 0);
  EXPECT_EQ(stranger.queue.Bind(kBind, &port), ENOTCONN) << "not published";
  for (const auto spoil : std::initializer_list<void (*)(krc_bind&)>{
           [](krc_bind& b) { b.port = 65536; }, [](krc_bind& b) { b.senders = 0; },
           [](krc_bind& b) { b.senders = KRC_MAX_SENDERS + 1; }, [](krc_bind& b) { b.slots = 0; },
           [](krc_bind& b) { b.slots = KRC_MAX_SLOTS + 1; }, [](krc_bind& b) { b.receive_depth = 0; },
           [](krc_bind& b) { b.copy_bytes = KRC_MAX_COPY_BYTES + 1; }, [](krc_bind& b) { b.reserved = 1; },
           [](krc_bind& b) { b.receive_depth = KRC_MAX_DEPTH + 1; }}) {
    krc_bind bind = kBind;
    spoil(bind);
    EXPECT_EQ(receiver.Bind(bind), EINVAL);
  }
  EXPECT_EQ(receiver.Bind(BindWith(1, KRC_MAX_SLOTS, KRC_MAX_COPY_BYTES)), E2BIG);
  EXPECT_EQ(receiver.Bind(BindWith(KRC_MAX_SENDERS, 64, 4096)), E2BIG);
  ASSERT_EQ(receiver.Bind(), 0);

  krc_receive receives[2] = {receive, receive};
  receives[1].lkey ^= 1;
  EXPECT_EQ(receiver.queue.PushRecv(receives, &bad), EACCES);
  EXPECT_EQ(bad, 1u);
  receives[1] = {1, receive.addr, 17 * kPage, receiver.key};
  EXPECT_EQ(receiver.queue.PushRecv(receives), EACCES) << "longer than its region";
  EXPECT_EQ(receiver.queue.PushRecv({receives, 0}), EINVAL);
  EXPECT_EQ(receiver.queue.PushRecv(std::vector<krc_receive>(65, receive)), E2BIG);
  ASSERT_EQ(receiver.queue.PushRecv(std::vector<krc_receive>(60, receive)), 0);
  EXPECT_EQ(receiver.queue.PushRecv(std::vector<krc_receive>(5, receive)), EAGAIN);

  EXPECT_EQ(sender.Push(sender.Send(1, "x")), ENOTCONN);
  EXPECT_EQ(sender.queue.Credits(&credits), ENOTCONN);
  EXPECT_EQ(sender.queue.Connect(3, &sender.found), 0);
  EXPECT_EQ(sender.Push(sender.Send(1, "x")), ENOTCONN) << "to a node, and no port";
  ASSERT_EQ(sender.ConnectTo(3), 0);
  krc_request batch[2] = {sender.Send(1, "x"), sender.Send(2, "y", 1)};
  batch[1].sges[0].lkey ^= 1;
  EXPECT_EQ(sender.queue.Push(batch, &bad), EACCES);
  EXPECT_EQ(bad, 1u);
  batch[1] = sender.Send(2, std::string(1001, 'y'), 1);
  EXPECT_EQ(sender.queue.Push(batch, &bad), EMSGSIZE);
  EXPECT_EQ(sender.queue.Push({batch, 1}), 0);
  EXPECT_EQ(receiver.Next().byte_len, 1u);
  EXPECT_TRUE(receiver.HasNone()) << "nothing of refused batches";
}

// That another process's memory takes no message, and is none.
TEST(KmodMessages, OfMemoryOfAnotherProcessAreRefused) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(), 0);
  EXPECT_EQ(InChild([&] {
              Party thief;
              if (thief.ConnectTo(3) != 0) return 1;
              krc_request request = thief.Send(1, "x");
              request.sges[0] = {reinterpret_cast<uint64_t>(sender.Buffer(0)), 1, sender.key};
              if (thief.Push(request) != EACCES) return 2;
              if (thief.Bind() != 0) return 3;
              const krc_receive receive = {1, reinterpret_cast<uint64_t>(sender.Buffer(0)), 1024, sender.key};
              if (thief.queue.PushRecv({&receive, 1}) != EACCES) return 4;
              size_t count;
              krc_message message;
              return receiver.queue.PopMessages({&message, 1}, &count) == EPERM ? 0 : 5;
            }),
            0);
}

TEST(KmodMessages, PortsAndPlacesCountAgainstTheLimitOfLockedMemory) {
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(4, 8)), 0);
  EXPECT_EQ(InChild([] {
              const passwd* const nobody = getpwnam("nobody");
              if (nobody == nullptr || setuid(nobody->pw_uid) != 0) return 1;
              Queue queue;
              uint16_t port;
              krc_connect found;
              if (queue.Open() != 0 || queue.Attach("", 8) != 0 || queue.Join(kMessageFabric) != 0) return 2;
              if (queue.Publish({}) != 0) return 3;
              // A place here takes 8 times 1,088 bytes: 3 pages; the port four of them, and 576 bytes: 9 pages.
              const auto limit = [](rlim_t pages) {
                const rlimit limit = {pages * kPage, pages * kPage};
                return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
              };
              if (!limit(12)) return 4;
              if (queue.Connect(3, &found, kPort) != 0) return 5;
              if (queue.Bind(kBind, &port) != 0) return 6;
              if (queue.Connect(3, &found) != 0) return 7;
              if (!limit(11)) return 8;
              if (queue.Connect(3, &found, kPort) != ENOMEM) return 9;
              if (!limit(8)) return 10;
              Queue second;
              if (second.OpenLike(queue, 8) != 0) return 11;
              krc_bind bind = kBind;
              bind.port = 0;
              return second.Bind(bind, &port) == ENOMEM ? 0 : 12;
            }),
            0);
}

// A message is a number. What completed with success comes once and in order; what failed once at most.
// WRITEs of other queues, on every connection, so long that what is pushed behind them is under way when a fault comes:
// Soft-RoCE is done with what is short before the push of it returns.
class LongWrites {
 public:
  LongWrites() {
    for (size_t i = 0; i < kQueues; ++i) sides_.push_back(std::make_unique<Side>(kEach, 2 * kLong));
  }
  void Push() {
    for (const auto& side : sides_) {
      std::vector<krc_request> batch(kEach, side->Request(KRC_OP_WRITE, 0, 0));
      for (krc_request& request : batch) {
        request.sges[0].length = kLong;
        request.remote_addr += kLong;
      }
      do {
        while (side->queue.ConnectDevice(side->queue.gid()) != 0) {
        }
      } while (side->queue.Push(batch) != 0);  // broken in between
    }
  }
  void Await() {
    for (const auto& side : sides_) (void)side->Await(kEach);
  }

 private:
  static constexpr size_t kLong = 31 * kPage, kEach = 32,
                          kQueues = 4;  // more than connections, which they take in turn
  std::vector<std::unique_ptr<Side>> sides_;
};

TEST(KmodMessages, ComeOnceAndInOrderWhileConnectionsBreak) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(BindWith(2, 16)), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  std::vector<uint32_t> succeeded, received;
  uint32_t next = 0;
  int failures = 0;
  const auto take = [&] {
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      received.push_back(receiver.Number(message));
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  };
  LongWrites ahead;
  for (uint32_t round = 0; round < 40 || (round < 120 && failures < 4); ++round) {
    const bool behind = round % 4 == 0;
    if (behind) {  // with credits enough, since asking for them takes its turn behind the WRITEs
      for (uint32_t credits = 0; credits < 8;) {
        take();
        if (sender.queue.Credits(&credits) != 0) {
          ASSERT_EQ(sender.Reconnect(3), 0);
        }
      }
      ahead.Push();
    }
    std::vector<krc_request> batch;
    const uint32_t first = next;
    for (size_t i = 0; i < 8; ++i, ++next) batch.push_back(sender.SendNumber(next, i));
    int error = EAGAIN;
    while ((error = sender.queue.Push(batch)) == EAGAIN) {
      take();
      uint32_t credits;
      if (sender.queue.Credits(&credits) != 0) break;
    }
    if (error != 0) {
      ASSERT_TRUE(error == ECONNRESET || error == EAGAIN) << error;
      next = first;
    } else {
      if (behind) BreakConnections();
      if (round % 4 == 2) take();
      for (const krc_completion& one : sender.Await(batch.size())) {
        if (one.status == KRC_SUCCESS)
          succeeded.push_back(static_cast<uint32_t>(one.wr_id));
        else
          error = one.status, ++failures;
      }
    }
    if (behind) ahead.Await();
    if (error != 0) {
      ASSERT_EQ(sender.Reconnect(3), 0);
    }
  }
  uint32_t credits = 0;  // all, when those that are void by now have been looked at, too
  for (int tries = 0; tries < 20'000 && credits != 16; ++tries) {
    take();
    ASSERT_EQ(sender.queue.Credits(&credits), 0);
    usleep(1000);
  }
  EXPECT_EQ(credits, 16u);
  for (size_t i = 1; i < received.size(); ++i) ASSERT_LT(received[i - 1], received[i]) << "twice, or out of order";
  EXPECT_TRUE(std::includes(received.begin(), received.end(), succeeded.begin(), succeeded.end())) << "lost";
  if (failures == 0) GTEST_SKIP() << "no fault met a message";
}

TEST(KmodMessages, AQueueThatClosesBehindAFaultLeavesNothingForTheNextOfItsPlace) {
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(1, 8)), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  int failures = 0;
  LongWrites ahead;
  for (uint32_t round = 0; round < 24 || (round < 80 && failures < 3); ++round) {
    {
      Party sender;
      // Fewer at times, so that others' numbers lie in the next slots.
      std::vector<krc_request> batch;
      for (size_t i = 0; i < 1 + round % 8; ++i) batch.push_back(sender.SendNumber(round, i));
      ASSERT_EQ(sender.Reconnect(3), 0);
      if (round % 4 == 0) ahead.Push();
      const int error = sender.queue.Push(batch);
      BreakConnections();
      if (error == 0) {
        for (const krc_completion& one : sender.Await(batch.size())) failures += one.status != KRC_SUCCESS;
      }
    }
    if (round % 4 == 0) ahead.Await();
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      EXPECT_EQ(receiver.Number(message), round) << "an earlier sender's";
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  }
  if (failures == 0) GTEST_SKIP() << "no fault met a message";
}

TEST(KmodMessages, ASenderThatIsKilledLeavesWholeMessagesInOrderAndItsPlace) {
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(1, 8)), 0);
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Party sender;
      if (sender.ConnectTo(3) != 0) _exit(1);
      for (uint32_t next = 0;;) {
        krc_completion completion;
        if (sender.Push(sender.SendNumber(next)) == 0) ++next;
        (void)sender.queue.Pop({&completion, 1});
      }
    }
    ASSERT_EQ(receiver.Receive(1, 40), 0);
    uint32_t expected = 0, count = 0;
    const auto check = [&](const krc_message& message) {
      EXPECT_EQ(receiver.Number(message), expected);
      ++expected, ++count;
    };
    while (count < 20) check(receiver.Next());
    ASSERT_TRUE(testing_support::KillProcess(child));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    krc_message message;
    for (size_t found = 1; found == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &found), 0);
      if (found == 1) check(message);
    }
    // The place is free, or the next round finds none. What receives are left go first.
    while (count++ < 40) {
      {
        Party filler;
        ASSERT_EQ(filler.ConnectTo(3), 0);
        EXPECT_EQ(filler.StatusOf(filler.Send(1, "filler")), KRC_SUCCESS);
      }
      EXPECT_EQ(receiver.Text(receiver.Next()), "filler");
      EXPECT_TRUE(receiver.HasNone());
    }
  }
  EXPECT_EQ(Counter("senders"), 0);
}

TEST(KmodMessages, AReceiverThatIsKilledFailsItsSendersAndBreaksNoConnection) {
  Party bystander(5), writer;
  ASSERT_EQ(writer.ConnectTo(5, 0), 0);
  for (int round = 0; round < 5; ++round) {
    Pages shared(kPage);
    const pid_t child = fork();
    if (child == 0) {
      Party receiver(3);
      if (receiver.Bind() != 0) _exit(1);
      __atomic_store_n(shared.words(), 1, __ATOMIC_RELEASE);
      for (;;) {
        (void)receiver.Receive(1, 1);
        receiver.HasNone();
      }
    }
    while (__atomic_load_n(shared.words(), __ATOMIC_ACQUIRE) == 0) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it could not begin";
      usleep(1000);
    }
    Party sender;
    ASSERT_EQ(sender.ConnectTo(3), 0);
    const int64_t broken = Counter("broken");
    int error = 0;
    for (int sent = 0; error == 0 || error == EAGAIN; ++sent) {
      if (sent == 50) {
        ASSERT_TRUE(testing_support::KillProcess(child));
      }
      const krc_request write = Side::Between(KRC_OP_WRITE, writer.key, writer.Buffer(1), writer.found.regions[0].key,
                                              writer.found.regions[0].addr);
      ASSERT_EQ(writer.StatusOf(write), KRC_SUCCESS);
      error = sender.Push(sender.Send(1, "to the last"));
      krc_completion completion;
      while (sender.queue.Pop({&completion, 1}) == 1) EXPECT_EQ(completion.status, KRC_SUCCESS);
      ASSERT_LT(sent, 20'000);
    }
    EXPECT_EQ(error, EPIPE);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(Counter("broken"), broken);
    uint32_t credits;
    EXPECT_EQ(sender.queue.Credits(&credits), EPIPE);
    EXPECT_EQ(sender.ConnectTo(3), ENOENT);
  }
  EXPECT_EQ(Counter("ports"), 0);
}

}  // namespace
}  // namespace kmod_test
