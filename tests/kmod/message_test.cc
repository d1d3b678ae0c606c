// Messages between queues of a fabric: order, credits, refusals. message_fault_test.cc has what becomes of them when
// connections break and processes are killed.
#include <pwd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/kmod/party.h"

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
    // Its own one-sided requests still succeed.
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

// Another process's memory can neither send nor receive messages.
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
              // A place here takes 8 times 1,088 bytes, so 3 pages; the port takes four of them and 576 bytes, so 9
              // pages.
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

}  // namespace
}  // namespace kmod_test
