// Regions at another host, of which this host's kernel knows what was published: what a request may do there. Two
// guests of tools/vm run this (tests/vm/guest/kmod_*). KMOD_OTHER_HOST names each guest's part: serve, or use.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kmod/party.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

constexpr char kFabric[] = "other_host";
constexpr krcore::NodeId kNode = 77;
constexpr size_t kBytes = 2 * kPage;
constexpr uint64_t kWord = 1000;  // of every region, at first

// A region that the test names although it was not published.
struct Hidden {
  uint64_t addr, key;
};

TEST(OtherHost, Serves) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Side side(8, kBytes);  // its own region has all rights, and is not published
  Pages readable(kBytes), writable(kBytes);
  for (Pages* const pages : {&side.memory, &readable, &writable})
    for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) pages->words()[i] = kWord + i;
  krc_shared_region regions[2] = {};
  ASSERT_EQ(side.queue.Register(readable.bytes(), kBytes, KRC_LOCAL_WRITE | KRC_REMOTE_READ, &regions[0].key), 0);
  ASSERT_EQ(side.queue.Register(writable.bytes(), kBytes, KRC_LOCAL_WRITE | KRC_REMOTE_WRITE, &regions[1].key), 0);
  ASSERT_EQ(side.queue.Join(kFabric, kNode), 0);
  ASSERT_EQ(side.queue.Publish(regions), 0);
  ASSERT_EQ(side.queue.SetService("hidden key", side.key), 0);
  ASSERT_EQ(side.queue.SetService("hidden addr", reinterpret_cast<uint64_t>(side.memory.bytes())), 0);
  // The other host says what it wants by files in a folder that both have, and wakes nobody.
  for (bool forgotten = false; access("/common/served", F_OK) != 0; Pause()) {
    if (forgotten || access("/common/forget", F_OK) != 0) continue;
    std::ofstream("/sys/kernel/debug/krcore/rxe0/forget_host") << std::getenv("PEERIP") << std::endl;
    std::ofstream("/common/forgotten").flush();
    forgotten = true;
  }
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) {
    ASSERT_EQ(readable.words()[i], kWord + i);
    ASSERT_EQ(side.memory.words()[i], kWord + i);
    ASSERT_EQ(writable.words()[i], i == 0 ? 5 : kWord + i);
  }
}

TEST(OtherHost, RefusesWhatThePublishedRegionsDoNotAllowBeforeItReachesTheSharedQp) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  Side side;
  ASSERT_EQ(side.queue.Join(kFabric), 0);
  uint64_t hidden_key, hidden_addr;
  for (int error = ENOENT; error == ENOENT;) error = side.queue.GetService("hidden addr", &hidden_addr);
  ASSERT_EQ(side.queue.GetService("hidden key", &hidden_key), 0);
  krc_connect found;  // last: a node is found before it has published anything
  ASSERT_EQ(side.queue.Connect(kNode, &found), 0);
  ASSERT_EQ(found.count, 2u);
  const auto [readable, writable] = std::pair(found.regions[0], found.regions[1]);
  EXPECT_EQ(readable.access, static_cast<uint32_t>(KRC_REMOTE_READ));
  EXPECT_EQ(writable.access, static_cast<uint32_t>(KRC_REMOTE_WRITE));
  const int64_t broken = Counter("broken"), requests = Counter("requests");
  const struct {
    const char* name;
    uint8_t opcode;
    uint32_t key;
    uint64_t addr;
    uint32_t length;
  } kRefused[] = {
      {"a WRITE to what may be read", KRC_OP_WRITE, readable.key, readable.addr, 8},
      {"a CAS on what may be read", KRC_OP_COMPARE_SWAP, readable.key, readable.addr, 8},
      {"a CAS on what may be written", KRC_OP_COMPARE_SWAP, writable.key, writable.addr, 8},
      {"a READ of what may be written", KRC_OP_READ, writable.key, writable.addr, 8},
      {"beyond the end", KRC_OP_READ, readable.key, readable.addr + kBytes - 8, 9},
      {"behind the end", KRC_OP_READ, readable.key, readable.addr + kBytes, 1},
      {"before the begin", KRC_OP_READ, readable.key, readable.addr - 8, 16},
      {"longer than all of it", KRC_OP_READ, readable.key, readable.addr, kBytes + 1},
      {"around the end of addresses", KRC_OP_READ, readable.key, ~uint64_t{0} - 3, 8},
      {"one's key with the other's address", KRC_OP_READ, readable.key, writable.addr, 8},
      {"what was not published", KRC_OP_READ, static_cast<uint32_t>(hidden_key), hidden_addr, 8},
      {"this process's own", KRC_OP_READ, side.key, reinterpret_cast<uint64_t>(side.memory.bytes()), 8},
  };
  for (const auto& refused : kRefused) {
    EXPECT_EQ(side.Push(Side::Between(refused.opcode, side.key, side.memory.bytes(), refused.key, refused.addr,
                                      refused.length)),
              EACCES)
        << refused.name;
  }
  EXPECT_EQ(Counter("requests"), requests);
  // What is allowed works, to the last byte.
  side.memory.words()[0] = 5;
  EXPECT_EQ(side.StatusOf(Side::Between(KRC_OP_WRITE, side.key, side.memory.words(), writable.key, writable.addr)),
            KRC_SUCCESS);
  EXPECT_EQ(
      side.StatusOf(Side::Between(KRC_OP_READ, side.key, side.memory.words(), readable.key, readable.addr, kBytes)),
      KRC_SUCCESS);
  EXPECT_EQ(side.memory.words()[kBytes / sizeof(uint64_t) - 1], kWord + kBytes / sizeof(uint64_t) - 1);
  EXPECT_EQ(Counter("broken"), broken);
}

// ---- the table of records

// Calls it until the other host's module is there.
template <typename Call>
int UntilThere(Call call) {
  int error = ENETDOWN;
  for (int tries = 0; tries < 20'000 && (error == ENETDOWN || error == EIO); ++tries) {
    error = call();
    if (error != 0) Pause();
  }
  return error;
}

// What a host has entered in another host's table, and a process that watches it.
struct Entered {
  static constexpr krcore::NodeId kOwn = 91;
  Entered() {
    EXPECT_EQ(side.queue.Join(kFabric, kOwn), 0);
    EXPECT_EQ(Publish(), 0);
    EXPECT_EQ(side.queue.SetService("entered", 1), 0);
  }
  int Publish() {
    const krc_shared_region region = {0, 0, side.key, 7, 0, 0};
    return side.queue.Publish({&region, 1});
  }
  // Expects that nothing of it is left, that all of it can be entered anew, and that what others have entered is still
  // there.
  void ExpectGone() const {
    Side watcher;
    ASSERT_EQ(watcher.queue.Join(kFabric), 0);
    bool dead = false;
    EXPECT_EQ(watcher.queue.IsDead(kOwn, side.queue.incarnation(), &dead), 0);
    EXPECT_TRUE(dead);
    uint64_t value;
    EXPECT_EQ(watcher.queue.GetService("entered", &value), ENOENT);
    EXPECT_EQ(watcher.queue.GetService("hidden key", &value), 0);
    krc_connect found;
    EXPECT_EQ(watcher.queue.Connect(kOwn, &found), ENOENT);
    EXPECT_EQ(watcher.queue.Connect(kNode, &found), 0);
    const Entered heir;
    EXPECT_EQ(watcher.queue.Connect(kOwn, &found), 0);
    EXPECT_EQ(found.incarnation, heir.side.queue.incarnation());
  }
  Side side;
};

// A device that goes away under its nodes cannot take their records with it, nor can a machine that dies. The device
// does so when it comes back to the same table.
TEST(OtherHost, FindsNothingOfWhatADeviceLeftThereWhenThatComesAgain) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  const Entered before;
  ASSERT_EQ(system("rdma link del rxe0 && rdma link add rxe0 type rxe netdev eth0"), 0);  // NOLINT: the guest's own
  AwaitDevice();
  before.ExpectGone();
}

// If a host never comes back, somebody has to say so. This host lives, but nobody there asks it.
TEST(OtherHost, IsForgottenWhenThatIsSaidThere) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  Entered before;
  std::ofstream("/common/forget").flush();
  AwaitFile("/common/forgotten");
  before.ExpectGone();
  EXPECT_EQ(before.Publish(), EIO) << "its record is not its own any more";
  const std::string file = "/sys/kernel/debug/krcore/rxe0/forget_host";
  const char* const own = std::getenv("MYIP");
  for (const char* const nobody : {own, "", "rxe0", "10.7.0.300"}) {
    std::ofstream refused(file);
    ASSERT_TRUE(refused) << file;
    EXPECT_FALSE(refused << nobody << std::endl) << nobody;
  }
}

// When the module with the table is loaded anew, all records are lost. What had a record is gone for all, and is not
// heard of again. What is opened then works, and nothing of what was there before disturbs it.
TEST(OtherHost, FindsAnotherTableEmptyAndTakesWhatIsOpenedThen) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr krcore::NodeId kOwn = 90;
  auto before = std::make_unique<Side>();
  ASSERT_EQ(before->queue.Join(kFabric, kOwn), 0);
  const krc_shared_region region = {0, 0, before->key, 7, 0, 0};
  ASSERT_EQ(before->queue.Publish({&region, 1}), 0);
  ASSERT_EQ(before->queue.SetService("lost", 1), 0);
  Side watcher;
  ASSERT_EQ(watcher.queue.Join(kFabric), 0);
  bool dead = true;
  ASSERT_EQ(watcher.queue.IsDead(kOwn, before->queue.incarnation(), &dead), 0);
  ASSERT_FALSE(dead);

  std::ofstream("/common/served").flush();
  AwaitFile("/common/reloaded");
  EXPECT_EQ(UntilThere([&] { return watcher.queue.IsDead(kOwn, before->queue.incarnation(), &dead); }), 0);
  EXPECT_TRUE(dead);
  uint64_t value;
  EXPECT_EQ(watcher.queue.GetService("lost", &value), ENOENT);
  krc_connect found;
  EXPECT_EQ(watcher.queue.Connect(kOwn, &found), ENOENT);
  EXPECT_EQ(before->queue.Publish({&region, 1}), EIO) << "its record is not its own any more";
  EXPECT_EQ(before->queue.SetService("lost", 1), EIO);

  Side after;
  ASSERT_EQ(after.queue.Join(kFabric, kOwn), 0);
  EXPECT_NE(after.queue.incarnation(), before->queue.incarnation());
  const krc_shared_region fresh = {0, 0, after.key, 8, 0, 0};
  ASSERT_EQ(after.queue.Publish({&fresh, 1}), 0);
  ASSERT_EQ(after.queue.SetService("lost", 2), 0);
  before.reset();
  EXPECT_EQ(watcher.queue.GetService("lost", &value), 0);
  EXPECT_EQ(value, 2u);
  ASSERT_EQ(watcher.queue.Connect(kOwn, &found), 0);
  EXPECT_EQ(found.incarnation, after.queue.incarnation());
  EXPECT_EQ(watcher.queue.IsDead(kOwn, after.queue.incarnation(), &dead), 0);
  EXPECT_FALSE(dead);
}

// ---- messages

constexpr krcore::NodeId kMailNode = 78;
constexpr uint32_t kNumbers = 7200;  // a bit each in one message

// Takes numbers from all clients, in order from each. Tells a client that asks by an immediate which of its numbers
// came, and how many connections have been broken here.
TEST(OtherHost, ServesMessages) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Party server(kMailNode);
  ASSERT_EQ(server.Bind(BindWith(2, 16)), 0);
  ASSERT_EQ(server.Receive(1, 14), 0);
  struct From {
    int64_t last = -1;
    std::vector<uint8_t> bits = std::vector<uint8_t>(kNumbers / 8);
  };
  std::map<std::pair<uint32_t, uint32_t>, From> senders;
  while (access("/common/served", F_OK) != 0) {
    krc_message message;
    size_t count = 0;
    ASSERT_EQ(server.queue.PopMessages({&message, 1}, &count), 0);
    if (count == 0) {
      (void)server.queue.WaitForMessage(500);
      continue;
    }
    From& from = senders[{message.incarnation, message.queue}];
    if (message.with_imm == 0) {
      const uint32_t number = server.Number(message);
      ASSERT_GT(int64_t{number}, from.last) << "twice, or out of order";
      ASSERT_LT(number, kNumbers);
      from.last = number;
      from.bits[number / 8] |= static_cast<uint8_t>(1 << number % 8);
    } else {
      ASSERT_EQ(server.ConnectTo(message.node, message.port), 0);
      std::string answer(from.bits.begin(), from.bits.end());
      const int64_t broken = Counter("broken");
      answer.append(reinterpret_cast<const char*>(&broken), sizeof(broken));
      EXPECT_EQ(server.StatusOf(server.Send(1, answer, 15)), KRC_SUCCESS);
    }
    ASSERT_EQ(server.Receive(message.wr_id, 1), 0);
  }
}

// The answer is in buffer 8. Returns how many connections have been broken there.
int64_t Ask(Party& client) {
  krc_request ask = client.Send(1, "");
  ask.opcode = KRC_OP_SEND_IMM;
  EXPECT_EQ(client.StatusOf(ask), KRC_SUCCESS);
  // The answer takes some round trips.
  EXPECT_EQ(client.queue.WaitForMessage(kPatienceMs), 0) << "a message wakes nobody";
  int64_t broken = -1;
  EXPECT_EQ(client.Next().byte_len, kNumbers / 8 + sizeof(broken));
  std::memcpy(&broken, client.Buffer(8) + kNumbers / 8, sizeof(broken));
  return broken;
}

TEST(OtherHost, TakesMessagesOnceAndInOrderWhileConnectionsBreak) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  Party client;
  ASSERT_EQ(client.Bind(), 0);
  ASSERT_EQ(client.Receive(8, 1), 0);
  int error = ENOENT;
  while (error == ENOENT) error = client.ConnectTo(kMailNode);
  ASSERT_EQ(error, 0);
  std::vector<uint32_t> succeeded;
  int failures = 0;
  for (uint32_t next = 0; next + 8 <= kNumbers && (next < 400 || failures < 3);) {
    std::vector<krc_request> batch;
    for (uint32_t i = 0; i < 8; ++i) batch.push_back(client.SendNumber(next + i, i));
    uint32_t credits;
    if (next % 64 == 32) BreakConnectionsUnheard();
    while ((error = client.queue.Push(batch)) == EAGAIN && client.queue.Credits(&credits) == 0) Pause();
    if (error == 0) {
      if (next % 64 == 0) BreakConnections();  // before the other host has answered
      next += 8;
      for (const krc_completion& one : client.Await(batch.size())) {
        if (one.status == KRC_SUCCESS)
          succeeded.push_back(static_cast<uint32_t>(one.wr_id));
        else
          error = one.status, ++failures;
      }
    }
    if (error != 0 && (error = client.Reconnect(kMailNode)) != 0) break;
  }
  ASSERT_EQ(error, 0);
  // The last break may have met the queue; messages that are void by now are looked at, too.
  ASSERT_EQ(client.Reconnect(kMailNode), 0);
  EXPECT_TRUE(client.AwaitCredits(16));
  Ask(client);
  for (const uint32_t number : succeeded)
    EXPECT_NE(client.Buffer(8)[number / 8] & 1 << number % 8, 0) << number << " is lost";
  EXPECT_GT(failures, 0) << "no fault met a message";
}

// When the server answers the next client it leaves the last one's port, which is closed by then.
TEST(OtherHost, GetsNoBrokenConnectionFromPortsThatAreClosedBeforeTheyAreLeft) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  int64_t broken = -1;
  for (int round = 0; round < 4; ++round) {
    Party client;
    ASSERT_EQ(client.Bind(), 0);
    ASSERT_EQ(client.Receive(8, 1), 0);
    int error = EAGAIN;
    while (error == EAGAIN || error == ENOENT) error = client.ConnectTo(kMailNode);
    ASSERT_EQ(error, 0);
    const int64_t now = Ask(client);
    EXPECT_TRUE(round == 0 || now == broken) << now - broken;
    broken = now;
  }
}

TEST(OtherHost, GetsThePlacesOfKilledSendersBack) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  for (int round = 0; round < 5; ++round) {  // there are two places
    Pages shared(kPage);
    const pid_t child = fork();
    if (child == 0) {
      Party sender;
      int error = EAGAIN;  // until the server has looked at what the last sender left
      while (error == EAGAIN) error = sender.ConnectTo(kMailNode);
      if (error != 0) _exit(1);
      for (uint32_t next = 0;;) {
        krc_completion completion;
        if (next + 1 < kNumbers && sender.Push(sender.SendNumber(next)) == 0) ++next;
        if (sender.queue.Pop({&completion, 1}) == 1) __atomic_store_n(shared.words(), next, __ATOMIC_RELEASE);
      }
    }
    while (__atomic_load_n(shared.words(), __ATOMIC_ACQUIRE) < 20) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it could not begin";
      Pause();
    }
    ASSERT_TRUE(testing_support::KillProcess(child));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

}  // namespace
}  // namespace kmod_test
