// Software DC in place of connections to another host that are not there yet. Two guests of tools/vm run this
// (tests/vm/guest/kmod_*). KMOD_OTHER_HOST names each guest's part: serve, or use. The module's file slow_connects
// makes connections slow or impossible.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/kmod/fixture.h"
#include "tests/kmod/software_dc_client.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

constexpr char kFabric[] = "sdc_first";
constexpr krcore::NodeId kNode = 79;
constexpr size_t kBytes = 64 * kPage;
constexpr uint32_t kLongest = 16384;  // over software DC

void WriteTo(const std::string& path, const std::string& value) {
  std::ofstream file(path);
  file << value << std::flush;
  EXPECT_TRUE(file.good()) << path;
}

// Makes the first build of a connection take so many milliseconds longer.
class SlowConnects {
 public:
  explicit SlowConnects(uint32_t milliseconds) {
    Side side;  // so the connection to the table of records exists already
    EXPECT_EQ(side.queue.Join(kFabric), 0);
    Set(milliseconds);
  }
  ~SlowConnects() { Set(0); }
  SlowConnects(const SlowConnects&) = delete;
  SlowConnects& operator=(const SlowConnects&) = delete;

 private:
  static void Set(uint32_t milliseconds) {
    WriteTo("/sys/kernel/debug/krcore/rxe0/slow_connects", std::to_string(milliseconds));
  }
};
constexpr uint32_t kNever = ~uint32_t{0};

bool Becomes(const std::string& counter, int64_t value) {
  for (int left = kPatienceMs; left > 0 && Counter(counter) != value; --left) Pause();
  return Counter(counter) == value;
}

// A queue of a node, connected to the serving node.
struct User : Side {
  explicit User(uint32_t depth = 64) : Side(depth, kBytes) {
    EXPECT_EQ(queue.Join(kFabric), 0);
    EXPECT_EQ(Connect(), 0);
  }
  int Connect() {
    int error = ENOENT;  // until it has published its memory
    for (int left = 10'000; left > 0 && (error == ENOENT || (error == 0 && found.count == 0)); --left) {
      error = queue.Connect(kNode, &found);
      if (error != 0 || found.count == 0) Pause();
    }
    return error;
  }
  // Call when the network is back to normal.
  int Reconnect() {
    int error = ENETDOWN;
    for (int left = 10'000; left > 0 && (error == ENETDOWN || error == EIO); --left) {
      error = Connect();
      if (error != 0) Pause();
    }
    return error;
  }
  krc_request Make(uint8_t opcode, size_t local, size_t remote, uint32_t length = 8, uint64_t wr_id = 0) const {
    krc_request request =
        Between(opcode, key, memory.bytes() + local, found.regions[0].key, found.regions[0].addr + remote, length);
    request.wr_id = wr_id;
    return request;
  }
  krc_request Add(size_t local, size_t remote, uint64_t wr_id = 0) const {
    krc_request request = Make(KRC_OP_FETCH_ADD, local, remote, 8, wr_id);
    request.compare_add = 1;
    return request;
  }
  uint64_t& Word(size_t at) const { return *reinterpret_cast<uint64_t*>(memory.bytes() + at); }
  // READs what is there.
  uint64_t Remote(size_t at) {
    EXPECT_EQ(StatusOf(Make(KRC_OP_READ, kBytes - 8, at)), KRC_SUCCESS);
    return Word(kBytes - 8);
  }
  krc_connect found = {};
};

constexpr char kFirstConnect[] = "/common/first_connect";

TEST(SdcFirst, Serves) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Side side(8, kBytes);
  ASSERT_EQ(side.queue.Join(kFabric, kNode), 0);
  // The other host connects for the first time, to a node that has published nothing yet.
  while (access(kFirstConnect, F_OK) != 0 && access("/common/served", F_OK) != 0) Pause();
  usleep(300'000);  // this node stays unpublished for so long; nothing is asserted of the time
  const krc_shared_region region = {0, 0, side.key, 0, 0, 0};
  ASSERT_EQ(side.queue.Publish({&region, 1}), 0);
  AwaitFile("/common/served");
}

void Fill(uint8_t* bytes, size_t length, uint32_t round) {
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251 + round);
}

TEST(SdcFirst, ReadsWritesAndDoesAtomicsWhereNoConnectionCanBeMade) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  ASSERT_TRUE(Becomes("standing_in", 0));
  const SlowConnects slow(kNever);
  const int64_t connects = Counter("dc_connects"), before = Counter("dc_requests");
  std::ofstream(kFirstConnect).flush();
  User user;
  EXPECT_EQ(Counter("dc_connects"), connects + 1);
  EXPECT_EQ(Counter("standing_in"), 1);
  constexpr size_t kBack = 32 * kPage;
  int64_t done = 0;
  uint32_t round = 0;
  for (const uint32_t length : {1u, 7u, 8u, 63u, 960u, 961u, 4096u, 5000u, kLongest}) {
    for (const size_t offset : {size_t{0}, size_t{5}, kPage - 3, 8 * kPage - length}) {
      Fill(user.memory.bytes() + 3, length, ++round);
      ASSERT_EQ(user.StatusOf(user.Make(KRC_OP_WRITE, 3, offset, length)), KRC_SUCCESS);
      ASSERT_EQ(user.StatusOf(user.Make(KRC_OP_READ, kBack, offset, length)), KRC_SUCCESS);
      ASSERT_EQ(std::memcmp(user.memory.bytes() + 3, user.memory.bytes() + kBack, length), 0)
          << length << " bytes at " << offset;
      done += 2;
    }
  }
  krc_request parts = user.Make(KRC_OP_READ, kBack, 0, 1000);
  parts.num_sge = 4;
  for (uint32_t i = 1; i < 4; ++i) parts.sges[i] = {parts.sges[0].addr + uint64_t{5000} * i, 1000 + i, user.key};
  ASSERT_EQ(user.StatusOf(user.Make(KRC_OP_READ, 0, 0, 4006)), KRC_SUCCESS);
  ASSERT_EQ(user.StatusOf(parts), KRC_SUCCESS);
  for (uint32_t i = 0, at = 0; i < 4; at += 1000 + i, ++i)
    EXPECT_EQ(std::memcmp(user.memory.bytes() + kBack + size_t{5000} * i, user.memory.bytes() + at, 1000 + i), 0) << i;
  done += 2;
  constexpr size_t kCounter = 10 * kPage;
  for (uint64_t i = 0; i < 20; ++i, ++done) {
    ASSERT_EQ(user.StatusOf(user.Add(0, kCounter)), KRC_SUCCESS);
    ASSERT_EQ(user.Word(0), i);
  }
  for (const uint64_t expected : {uint64_t{19}, uint64_t{20}}) {
    krc_request swap = user.Make(KRC_OP_COMPARE_SWAP, 0, kCounter);
    swap.compare_add = expected;
    swap.swap = 0;
    ASSERT_EQ(user.StatusOf(swap), KRC_SUCCESS);
    EXPECT_EQ(user.Word(0), 20u);
    EXPECT_EQ(user.Remote(kCounter), expected == 20 ? 0u : 20u);
    done += 2;
  }
  EXPECT_EQ(Counter("dc_requests"), before + done) << "something went another way";
  EXPECT_EQ(Counter("standing_in"), 1);
  // What the peer has not published is refused here.
  EXPECT_EQ(user.Push(user.Make(KRC_OP_READ, 0, kBytes, 8)), EACCES);
}

TEST(SdcFirst, RequestsAcrossTheMoveAreNeitherLostNorDoubledNorReordered) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr size_t kCounter = 11 * kPage, kPlace = 11 * kPage + 64;
  constexpr uint64_t kInFlight = 12;  // rounds of three requests
  for (const uint32_t milliseconds : {0u, 100u, 700u}) {
    const SlowConnects slow(milliseconds);
    const int64_t by_dc = Counter("dc_requests"), all = Counter("requests"), connects = Counter("dc_connects");
    User user;
    ASSERT_EQ(Counter("dc_connects"), connects + 1);
    const uint64_t first = user.Remote(kCounter);
    // A round fetches a number, writes its own, and reads that.
    const auto local = [](uint64_t round) { return (round % kInFlight) * 24; };
    uint64_t pushed = 0, completed = 0, moved_at = 0;
    while (moved_at == 0 || completed < moved_at + 200) {
      ASSERT_LT(pushed, 100'000u) << "it never moves";
      if (moved_at == 0 && Counter("standing_in") == 0) moved_at = pushed + 1;
      if (pushed - completed / 3 < kInFlight) {
        const size_t at = local(pushed);
        user.Word(at + 8) = pushed;
        user.Word(at) = user.Word(at + 16) = ~uint64_t{0};
        const krc_request batch[] = {user.Add(at, kCounter, 3 * pushed),
                                     user.Make(KRC_OP_WRITE, at + 8, kPlace, 8, 3 * pushed + 1),
                                     user.Make(KRC_OP_READ, at + 16, kPlace, 8, 3 * pushed + 2)};
        ASSERT_EQ(user.queue.Push(batch), 0);
        ++pushed;
        if (pushed - completed / 3 < kInFlight) continue;
      }
      const std::vector<krc_completion> one = user.Await(1);
      ASSERT_EQ(one.size(), 1u);
      ASSERT_EQ(one[0].status, KRC_SUCCESS);
      ASSERT_EQ(one[0].wr_id, completed) << "out of order";
      const uint64_t round = completed++ / 3;
      if (completed % 3 != 0) continue;
      ASSERT_EQ(user.Word(local(round)), first + round) << "lost, or done twice";
      ASSERT_EQ(user.Word(local(round) + 16), round) << "out of order there";
    }
    user.Await(3 * pushed - completed);
    EXPECT_EQ(user.Remote(kCounter), first + pushed);
    EXPECT_EQ(user.Remote(kPlace), pushed - 1);
    const int64_t dc_requests = Counter("dc_requests") - by_dc;
    // Where nothing slows the connection down, it may be there before the first request.
    if (milliseconds != 0) {
      EXPECT_GT(dc_requests, 0);
    }
    EXPECT_LT(dc_requests, Counter("requests") - all);
    std::cout << "slower by " << milliseconds << " ms: " << dc_requests << " of " << 3 * pushed + 1
              << " requests over software DC\n";
  }
}

// A push maps the memory that it names, for this CPU. Other hosts still reach only what is published.
TEST(SdcFirst, MemoryThatRequestsNameIsNotOpenedByThat) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  const SlowConnects slow(kNever);
  const int64_t before = Counter("dc_requests");
  User user;  // all rights on its memory
  ASSERT_EQ(user.StatusOf(user.Make(KRC_OP_READ, 0, 0)), KRC_SUCCESS);
  ASSERT_EQ(Counter("dc_requests"), before + 1);
  krc_dc_target own = {};
  ASSERT_EQ(user.queue.DcTarget(&own), 0);
  Verbs verbs;
  Initiator initiator(&verbs, own);
  const krcore::rnic::SendWr read = initiator.Wr(krcore::Opcode::kRead, 0, user.key, user.memory.bytes());
  EXPECT_EQ(initiator.Run(read), krcore::WcStatus::kRemoteAccessError);
  const krc_shared_region region = {0, 0, user.key, 0, 0, 0};
  ASSERT_EQ(user.queue.Publish({&region, 1}), 0);
  initiator.Restart();
  EXPECT_EQ(initiator.Run(read), krcore::WcStatus::kSuccess);
}

// 64 KiB go over the QP, and so does what comes after them.
TEST(SdcFirst, LongRequestsWaitForTheConnectionInTheirPlace) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr uint32_t kLong = 65536;
  constexpr size_t kAt = 40 * kPage;
  const SlowConnects slow(500);
  const int64_t before = Counter("dc_requests");
  User user;
  Fill(user.memory.bytes(), kLong, 1);
  user.Word(kLong) = 7;
  const krc_request batch[] = {
      user.Make(KRC_OP_WRITE, kLong, kAt + 64, 8, 0), user.Make(KRC_OP_WRITE, 0, kAt, kLong, 1),
      user.Make(KRC_OP_READ, 2 * kLong, kAt, kLong, 2), user.Make(KRC_OP_READ, kLong + 8, kAt + 64, 8, 3)};
  ASSERT_EQ(user.queue.Push(batch), 0);
  const std::vector<krc_completion> done = user.Await(4);
  ASSERT_EQ(done.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, KRC_SUCCESS);
  }
  EXPECT_EQ(std::memcmp(user.memory.bytes(), user.memory.bytes() + 2 * kLong, kLong), 0);
  EXPECT_EQ(user.Word(kLong + 8), user.Word(64));
  EXPECT_EQ(Counter("dc_requests"), before + 1);
  EXPECT_TRUE(Becomes("standing_in", 0));
}

TEST(SdcFirst, LongRequestsAreToldWhereNoConnectionCanBeMade) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  const SlowConnects slow(kNever);
  User user;
  const uint64_t first = user.Remote(13 * kPage);
  const krc_request batch[] = {user.Add(0, 13 * kPage, 0), user.Make(KRC_OP_READ, 0, 0, 65536, 1),
                               user.Add(0, 13 * kPage, 2)};
  ASSERT_EQ(user.queue.Push(batch), 0);
  const std::vector<krc_completion> done = user.Await(3);
  ASSERT_EQ(done.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, i == 0 ? KRC_SUCCESS : KRC_FLUSHED);
  }
  EXPECT_EQ(user.Push(user.Add(0, 13 * kPage)), ECONNRESET);
  ASSERT_EQ(user.Connect(), 0);
  EXPECT_EQ(user.Remote(13 * kPage), first + 1) << "what was flushed and never posted was done";
}

// Requests that were in flight are reported, each once. After the next connect none of them is executed.
TEST(SdcFirst, FaultsInTheMiddleAreToldAndLeaveNothingBehind) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr size_t kCounter = 14 * kPage, kPlace = 14 * kPage + 8;
  const SlowConnects slow(kNever);
  const int64_t connects = Counter("dc_connects");
  User user;
  const uint64_t first = user.Remote(kCounter);
  uint64_t succeeded = 0, unknown = 0;
  for (uint64_t round = 1; round <= 25; ++round) {
    std::vector<krc_request> batch;
    for (uint64_t i = 0; i < 30; ++i) batch.push_back(user.Add(8 * i, kCounter, i));
    ASSERT_EQ(user.queue.Push(batch), 0);
    if (round % 2 == 0) usleep(static_cast<useconds_t>(100 * round));  // more or fewer are done by then
    BreakConnections();
    const std::vector<krc_completion> done = user.Await(batch.size());
    ASSERT_EQ(done.size(), batch.size());
    for (size_t i = 0; i < done.size(); ++i) {
      ASSERT_EQ(done[i].wr_id, i);
      ++(done[i].status == KRC_SUCCESS ? succeeded : unknown);
      if (i > 0 && done[i - 1].status != KRC_SUCCESS) {
        ASSERT_NE(done[i].status, KRC_SUCCESS) << "behind one that failed";
      }
    }
    ASSERT_EQ(user.Reconnect(), 0);
    const uint64_t counted = user.Remote(kCounter);
    EXPECT_GE(counted - first, succeeded);
    EXPECT_LE(counted - first, succeeded + unknown);
    user.Word(0) = round;
    ASSERT_EQ(user.StatusOf(user.Make(KRC_OP_WRITE, 0, kPlace)), KRC_SUCCESS);
    ASSERT_EQ(user.Remote(kPlace), round);
    ASSERT_EQ(user.Remote(kCounter), counted) << "of the former life something was executed";
  }
  std::cout << succeeded << " succeeded, " << unknown << " unknown, " << Counter("dc_connects") - connects
            << " times connected\n";
  EXPECT_GT(unknown, 0u);
}

// The network loses all that this host sends.
class Silence {
 public:
  Silence() { EXPECT_EQ(system("tc qdisc add dev eth0 root netem loss 100%"), 0); }  // NOLINT: the guest's own
  ~Silence() { EXPECT_EQ(system("tc qdisc del dev eth0 root"), 0); }                 // NOLINT
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
};

TEST(SdcFirst, AHostThatDoesNotAnswerIsAnErrorInBoundedTime) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr size_t kPlace = 15 * kPage;
  for (const uint32_t milliseconds : {kNever, 1000u}) {
    const SlowConnects slow(milliseconds);
    User user;
    {
      const Silence silence;
      user.Word(0) = 1;
      const krc_request batch[] = {user.Make(KRC_OP_READ, 8, kPlace, 8, 0), user.Make(KRC_OP_WRITE, 0, kPlace, 8, 1),
                                   user.Add(16, kPlace + 8, 2)};
      ASSERT_EQ(user.queue.Push(batch), 0);
      const std::vector<krc_completion> done = user.Await(3);
      ASSERT_EQ(done.size(), 3u);
      EXPECT_EQ(done[0].status, KRC_RETRY_EXCEEDED);
      EXPECT_EQ(done[1].status, KRC_FLUSHED);
      EXPECT_EQ(done[2].status, KRC_FLUSHED);
      EXPECT_EQ(user.Push(batch[0]), ECONNRESET);
    }
    ASSERT_EQ(user.Reconnect(), 0);
    user.Word(0) = 2;
    EXPECT_EQ(user.StatusOf(user.Make(KRC_OP_WRITE, 0, kPlace)), KRC_SUCCESS);
    EXPECT_EQ(user.Remote(kPlace), 2u);
  }
}

TEST(SdcFirst, OfAKilledProcessNothingIsLeft) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  const SlowConnects slow(kNever);
  ASSERT_TRUE(Becomes("standing_in", 0));
  for (int round = 0; round < 3; ++round) {
    const int64_t queues = Counter("queues"), regions = Counter("regions");
    Pages shared(kPage);
    const pid_t child = fork();
    if (child == 0) {
      User user;
      for (uint64_t done = 0;; ++done) {
        std::vector<krc_request> batch(20, user.Add(0, 16 * kPage));
        batch.push_back(user.Make(KRC_OP_WRITE, 0, 17 * kPage, kLongest));
        if (user.queue.Push(batch) != 0) user.Await(1);
        krc_completion found[32];
        user.queue.Pop(found);
        __atomic_store_n(shared.words(), done, __ATOMIC_RELEASE);
      }
    }
    while (__atomic_load_n(shared.words(), __ATOMIC_ACQUIRE) < 20) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it could not begin";
      Pause();
    }
    ASSERT_TRUE(testing_support::KillProcess(child));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(Becomes("queues", queues));
    EXPECT_EQ(Counter("regions"), regions);
    EXPECT_EQ(Counter("requests"), Counter("completed"));
  }
  EXPECT_TRUE(Becomes("standing_in", 0)) << "nobody uses them";
}

// Each of a device's initiators hears of its own answers.
TEST(SdcFirst, ManyConnectionsAreStoodInForAtATime) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr size_t kUsers = 8;
  ASSERT_TRUE(Becomes("standing_in", 0));  // those of earlier tests
  const SlowConnects slow(kNever);
  const int64_t connects = Counter("dc_connects");
  std::vector<std::unique_ptr<User>> users;
  std::vector<uint64_t> first;
  const auto at = [](size_t user) { return 28 * kPage + 8 * user; };
  for (size_t i = 0; i < kUsers; ++i) {
    users.push_back(std::make_unique<User>());
    first.push_back(users[i]->Remote(at(i)));
  }
  EXPECT_EQ(Counter("dc_connects") - connects, int64_t{kUsers});
  EXPECT_EQ(Counter("standing_in"), int64_t{kUsers});
  for (uint64_t round = 0; round < 20; ++round) {
    for (size_t i = 0; i < kUsers; ++i) {
      std::vector<krc_request> batch;
      for (size_t j = 0; j < 16; ++j) batch.push_back(users[i]->Add(8 * j, at(i)));
      ASSERT_EQ(users[i]->queue.Push(batch), 0);
    }
    for (size_t i = 0; i < kUsers; ++i) {
      for (const krc_completion& one : users[i]->Await(16)) ASSERT_EQ(one.status, KRC_SUCCESS);
      for (size_t j = 0; j < 16; ++j) ASSERT_EQ(users[i]->Word(8 * j), first[i] + 16 * round + j) << i;
    }
  }
}

// The times are printed, since nobody can know what machine this is.
TEST(SdcFirst, TakesTime) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  using Clock = std::chrono::steady_clock;
  const std::string file = "/sys/module/krcore/parameters/stand_in";
  for (const auto& [milliseconds, stand_in] :
       {std::pair(0u, "Y"), std::pair(0u, "N"), std::pair(100u, "Y"), std::pair(100u, "N")}) {
    const SlowConnects slow(milliseconds);
    WriteTo(file, stand_in);
    std::vector<int64_t> connected, replied;
    for (int i = 0; i < 5; ++i) {
      Side side(64, kBytes);
      ASSERT_EQ(side.queue.Join(kFabric), 0);
      krc_connect found;
      const int64_t connects = Counter("dc_connects");
      const auto begin = Clock::now();
      ASSERT_EQ(side.queue.Connect(kNode, &found), 0);
      connected.push_back(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
      ASSERT_EQ(side.StatusOf(Side::Between(KRC_OP_READ, side.key, side.memory.bytes(), found.regions[0].key,
                                            found.regions[0].addr, 64)),
                KRC_SUCCESS);
      replied.push_back(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
      EXPECT_EQ(Counter("dc_connects") - connects, stand_in[0] == 'Y' ? 1 : 0);
    }
    std::sort(connected.begin(), connected.end());
    std::sort(replied.begin(), replied.end());
    std::cout << "first connect to a host, RDMA CM slower by " << milliseconds << " ms, "
              << (stand_in[0] == 'Y' ? "software DC stands in" : "waits for RC") << ": median " << connected[2]
              << " us, to the first reply " << replied[2] << " us\n";
  }
  WriteTo(file, "Y");
  EXPECT_TRUE(Becomes("standing_in", 0));
}

// Its requests and its queues report it. When the device is there again, everything works.
TEST(SdcFirst, TheDeviceGoesInTheMiddle) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  {
    const SlowConnects slow(kNever);
    User user;
    std::vector<krc_request> batch(40, user.Add(0, 18 * kPage));
    ASSERT_EQ(user.queue.Push(batch), 0);
    ASSERT_EQ(system("rdma link del rxe0"), 0);  // NOLINT: the guest's own
    EXPECT_EQ(user.Await(batch.size()).size(), batch.size());
    EXPECT_EQ(user.Push(batch[0]), ENODEV);
    ASSERT_EQ(system("rdma link add rxe0 type rxe netdev eth0"), 0);  // NOLINT
    AwaitDevice();
  }
  User user;
  user.Word(0) = 5;
  EXPECT_EQ(user.StatusOf(user.Make(KRC_OP_WRITE, 0, 19 * kPage)), KRC_SUCCESS);
  EXPECT_EQ(user.Remote(19 * kPage), 5u);
  EXPECT_EQ(Counter("dc_connects"), 1);
}

// Some queues share what stands in; others of the same host have a connection.
TEST(SdcFirstShared, QueuesKeepTheirOrderWhileConnectionsComeAndBreak) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  constexpr size_t kQueues = 6;
  std::vector<std::unique_ptr<User>> users;
  std::vector<uint64_t> succeeded(kQueues), unknown(kQueues), first(kQueues);
  const int64_t by_dc = Counter("dc_requests");
  const auto at = [](size_t queue) { return 20 * kPage + 64 * queue; };
  auto slow = std::make_unique<SlowConnects>(kNever);
  for (size_t i = 0; i < kQueues; ++i) {
    users.push_back(std::make_unique<User>());
    first[i] = users[i]->Remote(at(i));
  }
  for (int round = 0; round < 60; ++round) {
    if (round == 40) slow.reset();
    for (size_t i = 0; i < kQueues; ++i) {
      std::vector<krc_request> batch;
      for (size_t j = 0; j < 16; ++j) batch.push_back(users[i]->Add(8 * j, at(i), j));
      int error = users[i]->queue.Push(batch);
      if (error == ECONNRESET) {  // the last fault met the queue while it was idle
        ASSERT_EQ(users[i]->Reconnect(), 0);
        error = users[i]->queue.Push(batch);
      }
      ASSERT_EQ(error, 0);
    }
    if (round % 4 == 1) BreakConnections();
    for (size_t i = 0; i < kQueues; ++i) {
      const std::vector<krc_completion> done = users[i]->Await(16);
      ASSERT_EQ(done.size(), 16u);
      for (size_t j = 0; j < 16; ++j) {
        ASSERT_EQ(done[j].wr_id, j);
        ++(done[j].status == KRC_SUCCESS ? succeeded : unknown)[i];
        if (j > 0 && done[j].status == KRC_SUCCESS) {
          ASSERT_EQ(users[i]->Word(8 * j), users[i]->Word(8 * (j - 1)) + 1) << "another one's, or out of order";
        }
      }
      if (done.back().status != KRC_SUCCESS) {
        ASSERT_EQ(users[i]->Reconnect(), 0);
      }
    }
  }
  for (size_t i = 0; i < kQueues; ++i) {
    const uint64_t counted = users[i]->Remote(at(i)) - first[i];
    EXPECT_GE(counted, succeeded[i]);
    EXPECT_LE(counted, succeeded[i] + unknown[i]);
  }
  const int64_t dc_requests = Counter("dc_requests") - by_dc;
  std::cout << dc_requests << " of " << std::accumulate(succeeded.begin(), succeeded.end(), uint64_t{0})
            << " over software DC, " << std::accumulate(unknown.begin(), unknown.end(), uint64_t{0}) << " unknown\n";
  EXPECT_GT(dc_requests, 0);
  users.clear();
  EXPECT_TRUE(Becomes("standing_in", 0));
}

}  // namespace
}  // namespace kmod_test
