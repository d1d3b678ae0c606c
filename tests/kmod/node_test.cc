// Nodes of a fabric: ids, what they publish, services, and how others learn that they are gone.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/kmod/fixture.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

constexpr char kFabric[] = "node_test";

// A side that is a node and has published its memory.
struct NodeSide : Side {
  explicit NodeSide(krcore::NodeId node = krcore::kNoNode) {
    EXPECT_EQ(queue.Join(kFabric, node), 0);
    EXPECT_EQ(Publish(), 0);
  }
  int Publish() {
    const krc_shared_region region = {0, 0, key, 7, 0, 0};
    return queue.Publish({&region, 1});
  }
};

TEST(Node, IsFoundAsItHasPublishedItself) {
  NodeSide target(3), source;
  krc_connect found;
  ASSERT_EQ(source.queue.Connect(3, &found), 0);
  EXPECT_EQ(found.incarnation, target.queue.incarnation());
  EXPECT_EQ(found.count, 1u);
  EXPECT_EQ(found.regions[0].addr, reinterpret_cast<uint64_t>(target.memory.bytes()));
  EXPECT_EQ(found.regions[0].length, target.memory.size());
  EXPECT_EQ(found.regions[0].key, target.key);
  EXPECT_EQ(found.regions[0].tag, 7u);
  EXPECT_EQ(found.regions[0].access, kAllRights & ~uint32_t{KRC_LOCAL_WRITE});
  EXPECT_EQ(std::memcmp(found.gid, target.queue.gid().bytes, sizeof(found.gid)), 0);
  target.memory.words()[5] = 99;
  EXPECT_EQ(source.StatusOf(Side::Between(KRC_OP_READ, source.key, source.memory.words(), found.regions[0].key,
                                          found.regions[0].addr + 5 * sizeof(uint64_t))),
            KRC_SUCCESS);
  EXPECT_EQ(source.memory.words()[0], 99u);
}

TEST(Node, SecondConnectOfTheHostIsServedFromItsCacheAndConnectingAgainIsNot) {
  NodeSide target(3);
  NodeSide first;
  krc_connect found;
  ASSERT_EQ(first.queue.Connect(3, &found), 0);
  const int64_t hits = Counter("cached_connects"), lookups = Counter("lookups");
  // More than a second may pass here, and the cache is believed for only a second.
  for (int tries = 0; tries < 20 && Counter("cached_connects") == hits; ++tries) {
    NodeSide second;
    krc_connect again;
    ASSERT_EQ(second.queue.Connect(3, &again), 0);
    EXPECT_EQ(std::memcmp(again.regions, found.regions, sizeof(found.regions)), 0);
    EXPECT_EQ(again.cached, Counter("cached_connects") == hits ? 0u : 1u);
  }
  EXPECT_EQ(Counter("cached_connects"), hits + 1);
  const int64_t before = Counter("lookups");
  EXPECT_GE(before, lookups);
  ASSERT_EQ(first.queue.Connect(3, &found), 0);
  EXPECT_EQ(found.cached, 0u);
  EXPECT_EQ(Counter("lookups"), before + 1);
}

TEST(Node, AnIdIsTakenUntilTheLastFileOfItsNodeIsClosed) {
  auto first = std::make_unique<NodeSide>(4);
  auto part = std::make_unique<Queue>();
  ASSERT_EQ(part->OpenLike(first->queue, 8), 0);
  EXPECT_EQ(part->node(), 4u);
  EXPECT_EQ(part->incarnation(), first->queue.incarnation());
  const uint32_t incarnation = first->queue.incarnation();

  Side other;
  EXPECT_EQ(other.queue.Join(kFabric, 4), EEXIST);
  EXPECT_EQ(other.queue.Join("another fabric", 4), 0);
  Side watcher;
  ASSERT_EQ(watcher.queue.Join(kFabric), 0);
  bool dead = true;
  EXPECT_EQ(watcher.queue.IsDead(4, incarnation, &dead), 0);
  EXPECT_FALSE(dead);
  first.reset();
  EXPECT_EQ(watcher.queue.IsDead(4, incarnation, &dead), 0);
  EXPECT_FALSE(dead);
  part.reset();
  EXPECT_EQ(watcher.queue.IsDead(4, incarnation, &dead), 0);
  EXPECT_TRUE(dead);
  krc_connect found;
  EXPECT_EQ(watcher.queue.Connect(4, &found), ENOENT);

  NodeSide heir(4);
  EXPECT_NE(heir.queue.incarnation(), incarnation);
  EXPECT_EQ(watcher.queue.IsDead(4, incarnation, &dead), 0);
  EXPECT_TRUE(dead);
}

TEST(Node, OfAKilledProcessIsGoneWhenTheProcessIs) {
  Pages shared(kPage);
  NodeSide target(6);
  const pid_t child = fork();
  if (child == 0) {  // adds to the target's word without end, many at a time
    NodeSide side(5);
    krc_connect found;
    if (side.queue.Connect(6, &found) != 0) _exit(1);
    std::vector<krc_request> adds(64, Side::Between(KRC_OP_FETCH_ADD, side.key, side.memory.words(),
                                                    found.regions[0].key, found.regions[0].addr));
    for (krc_request& add : adds) add.compare_add = 1, add.flags = KRC_SIGNALED;
    shared.words()[1] = side.queue.incarnation();
    for (;;) {
      if (side.queue.Push({adds.data(), adds.size()}) != 0) _exit(2);
      if (side.Await(adds.size()).size() != adds.size()) _exit(3);
      __atomic_store_n(shared.words(), 1, __ATOMIC_RELEASE);
    }
  }
  while (__atomic_load_n(shared.words(), __ATOMIC_ACQUIRE) == 0) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it could not begin";
    Pause();  // the child says so in memory, and wakes nobody
  }
  Side watcher;
  ASSERT_EQ(watcher.queue.Join(kFabric), 0);
  bool dead = true;
  const auto incarnation = static_cast<uint32_t>(shared.words()[1]);
  EXPECT_EQ(watcher.queue.IsDead(5, incarnation, &dead), 0);
  EXPECT_FALSE(dead);
  krc_connect found;
  ASSERT_EQ(watcher.queue.Connect(6, &found), 0);
  EXPECT_TRUE(testing_support::KillProcess(child));
  // Waits until the node is said to be gone, which may be before its process is.
  while (!dead) ASSERT_EQ(watcher.queue.IsDead(5, incarnation, &dead), 0);
  const uint64_t added = __atomic_load_n(target.memory.words(), __ATOMIC_ACQUIRE);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  // Nothing of it executes any more: not while these requests execute over the connections that it used.
  EXPECT_GT(added, 0u);
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(watcher.StatusOf(Side::Between(KRC_OP_READ, watcher.key, watcher.memory.words(), found.regions[0].key,
                                             found.regions[0].addr)),
              KRC_SUCCESS);
  EXPECT_EQ(__atomic_load_n(target.memory.words(), __ATOMIC_ACQUIRE), added);
}

TEST(Node, OfAProcessThatHasNothingIsConnectedByOneCall) {
  NodeSide target(3);
  target.memory.words()[5] = 99;
  Queue queue;
  krc_connect found;
  krc_start_step done;
  ASSERT_EQ(queue.Start(kFabric, 4, 3, &found, &done), 0);
  EXPECT_EQ(done, KRC_CONNECTED);
  EXPECT_EQ(queue.node(), 4u);
  EXPECT_NE(queue.incarnation(), 0u);
  EXPECT_GE(queue.max_message_bytes(), 1u << 20);
  EXPECT_EQ(std::memcmp(&queue.gid(), &target.queue.gid(), sizeof(queue.gid())), 0);
  EXPECT_EQ(found.incarnation, target.queue.incarnation());
  EXPECT_EQ(found.count, 1u);
  Pages memory(kPage);
  uint32_t key;
  ASSERT_EQ(queue.Register(memory.bytes(), memory.size(), KRC_LOCAL_WRITE, &key), 0);
  krc_request read = Side::Between(KRC_OP_READ, key, memory.words(), found.regions[0].key,
                                   found.regions[0].addr + 5 * sizeof(uint64_t));
  read.flags = KRC_SIGNALED;
  ASSERT_EQ(queue.Push({&read, 1}), 0);
  ASSERT_EQ(queue.Wait(kPatienceMs), 0);
  krc_completion completion;
  ASSERT_EQ(queue.Pop({&completion, 1}), 1u);
  EXPECT_EQ(completion.status, KRC_SUCCESS);
  EXPECT_EQ(memory.words()[0], 99u);
  // The queue is not fresh any more.
  krc_start again = {};
  again.abi_version = KRC_ABI_VERSION;
  again.attach.depth = 8;
  again.join.fabric[0] = 'f';
  EXPECT_EQ(ioctl(queue.fd(), KRC_IOC_START, &again), -1);
  EXPECT_EQ(errno, EBADFD);
  EXPECT_EQ(again.done, uint32_t{KRC_NOT_STARTED});
}

TEST(Node, OfWhichAStepFailsIsWhatTheStepsBeforeMadeOfIt) {
  NodeSide target(3);
  krc_connect found;
  krc_start_step done;
  {
    Queue queue;
    EXPECT_EQ(queue.Start(kFabric, 4, 3, &found, &done, 0), EINVAL);
    EXPECT_EQ(done, KRC_NOT_STARTED);
    EXPECT_EQ(queue.Attach("", 8), 0);
  }
  {
    Queue queue;
    EXPECT_EQ(queue.Start(kFabric, 3, 3, &found, &done), EEXIST);
    EXPECT_EQ(done, KRC_ATTACHED);
    EXPECT_EQ(queue.Attach("", 8), EBADFD);
    EXPECT_EQ(queue.Join(kFabric, 4), 0);
    EXPECT_EQ(queue.Connect(3, &found), 0);
  }
  {
    Queue queue;
    EXPECT_EQ(queue.Start(kFabric, 4, 5, &found, &done), ENOENT);
    EXPECT_EQ(done, KRC_JOINED);
    EXPECT_EQ(queue.node(), 4u);
    EXPECT_EQ(queue.Join(kFabric, 6), EBADFD);
    EXPECT_EQ(queue.Connect(3, &found), 0);
  }
  {
    Queue queue;
    EXPECT_EQ(queue.Start(kFabric, krcore::kNoNode, krcore::kNoNode, &found, &done), 0);
    EXPECT_EQ(done, KRC_JOINED);
    EXPECT_GE(queue.node(), uint32_t{KRC_FIRST_DYNAMIC_NODE});
    const krc_request read = Side::Between(KRC_OP_READ, 1, nullptr, 1, 0);
    EXPECT_EQ(queue.Push({&read, 1}), ENOTCONN);
  }
  // A call of another version, whose numbers may mean something else, does nothing.
  Queue queue;
  ASSERT_EQ(queue.Open(), 0);
  krc_start start = {};
  start.abi_version = KRC_ABI_VERSION + 1;
  start.attach.depth = 8;
  start.join.fabric[0] = 'f';
  EXPECT_EQ(ioctl(queue.fd(), KRC_IOC_START, &start), -1);
  EXPECT_EQ(errno, ENOTTY);
  EXPECT_EQ(queue.Attach("", 8), 0);
}

TEST(Node, HasFurtherQueuesThatAreReadyToConnect) {
  NodeSide target(3), own;
  target.memory.words()[5] = 99;
  Queue queue, of_it;
  ASSERT_EQ(queue.OpenLike(own.queue, 8), 0);
  EXPECT_EQ(std::memcmp(&queue.gid(), &own.queue.gid(), sizeof(queue.gid())), 0);
  EXPECT_EQ(fcntl(queue.fd(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(queue.Attach("", 8), EBADFD);
  EXPECT_EQ(queue.Join(kFabric), EBADFD);
  krc_connect found;
  ASSERT_EQ(queue.Connect(3, &found), 0);
  const krc_request read = Side::Between(KRC_OP_READ, own.key, own.memory.words(), found.regions[0].key,
                                         found.regions[0].addr + 5 * sizeof(uint64_t));
  // There are as many places as were asked for, and they are used again and again.
  const std::vector<krc_request> most(8, read), more(9, read);
  EXPECT_EQ(queue.Push(more), E2BIG);
  for (int round = 0; round < 5; ++round) {
    own.memory.words()[0] = 0;
    ASSERT_EQ(queue.Push(most), 0);
    EXPECT_EQ(queue.Push({&read, 1}), EAGAIN);
    for (size_t done = 0; done < most.size();) {
      krc_completion completion;
      if (queue.Pop({&completion, 1}) == 0) {
        ASSERT_EQ(queue.Wait(kPatienceMs), 0);
        continue;
      }
      ASSERT_EQ(completion.status, KRC_SUCCESS);
      ++done;
    }
    EXPECT_EQ(own.memory.words()[0], 99u);
  }
  EXPECT_EQ(of_it.OpenLike(queue, 1), 0);
  EXPECT_EQ(of_it.node(), own.queue.node());
}

TEST(Node, GivesNoFurtherQueueToWhoMayHaveNone) {
  NodeSide own;
  const int64_t before = Counter("queues");
  Queue queue;
  EXPECT_EQ(queue.OpenLike(own.queue, 0), EINVAL);
  EXPECT_EQ(queue.OpenLike(own.queue, KRC_MAX_DEPTH + 1), EINVAL);
  EXPECT_EQ(InChild([&] { return Queue().OpenLike(own.queue, 8) == EPERM ? 0 : 1; }), 0);
  EXPECT_EQ(Counter("queues"), before);
  Queue unattached;
  ASSERT_EQ(unattached.Open(), 0);
  EXPECT_EQ(queue.OpenLike(unattached, 8), EBADFD);
  Side unjoined;
  EXPECT_EQ(queue.OpenLike(unjoined.queue, 8), ENOTCONN);
  // A limit of the process, as for open. The call is told to write to memory that is not there: nothing stays open.
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few = {static_cast<rlim_t>(unjoined.queue.fd()) + 1, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(queue.OpenLike(own.queue, 8), EMFILE);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static_cast<krc_new_queue*>(page)->depth = 8;
  ASSERT_EQ(mprotect(page, kPage, PROT_READ), 0);
  EXPECT_EQ(ioctl(own.queue.fd(), KRC_IOC_NEW_QUEUE, page), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(munmap(page, kPage), 0);
  EXPECT_EQ(Counter("queues"), before + 1);
  EXPECT_EQ(queue.OpenLike(own.queue, 8), 0);
  EXPECT_LE(queue.fd(), unjoined.queue.fd() + 1) << "a descriptor was left";
}

TEST(Node, AServiceHasOneOwnerUntilThatIsGone) {
  auto owner = std::make_unique<NodeSide>();
  NodeSide rival;
  uint64_t value;
  EXPECT_EQ(rival.queue.GetService("home", &value), ENOENT);
  EXPECT_EQ(owner->queue.SetService("home", 1), 0);
  EXPECT_EQ(owner->queue.SetService("home", 2), 0);
  EXPECT_EQ(rival.queue.SetService("home", 3), EEXIST);
  EXPECT_EQ(rival.queue.SetService("other", 4), 0);
  EXPECT_EQ(rival.queue.GetService("home", &value), 0);
  EXPECT_EQ(value, 2u);
  owner.reset();
  EXPECT_EQ(rival.queue.GetService("home", &value), ENOENT);
  EXPECT_EQ(rival.queue.SetService("home", 3), 0);
  EXPECT_EQ(rival.queue.GetService("home", &value), 0);
  EXPECT_EQ(value, 3u);
}

TEST(Node, OfProcessesThatWantOneNameOrIdExactlyOneGetsIt) {
  constexpr uint32_t kRounds = 6, kRacers = 4;
  Pages shared(kPage);  // words: how many, by round, came to the start, got the id, got the name, are done
  const auto add = [&](uint32_t round, uint32_t what) {
    return __atomic_add_fetch(&shared.words()[round * 4 + what], 1, __ATOMIC_ACQ_REL);
  };
  // The children say in memory that they have come, and wake nobody. Spinning would take the two cores from them.
  const auto await = [&](uint32_t round, uint32_t what) {
    while (__atomic_load_n(&shared.words()[round * 4 + what], __ATOMIC_ACQUIRE) != kRacers) Pause();
  };
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < kRacers; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (uint32_t round = 0; round < kRounds; ++round) {
      Side id;
      NodeSide name;
      add(round, 0);
      await(round, 0);
      if (id.queue.Join(kFabric, 10 + round) == 0) add(round, 1);
      if (name.queue.SetService("race " + std::to_string(round), i) == 0) add(round, 2);
      add(round, 3);
      await(round, 3);
    }
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    EXPECT_EQ(shared.words()[round * 4 + 1], 1u) << "id, round " << round;
    EXPECT_EQ(shared.words()[round * 4 + 2], 1u) << "name, round " << round;
  }
}

TEST(Node, LeavesNoRecordInTheTable) {
  const int64_t before = Counter("records");
  for (int i = 0; i < 20; ++i) {
    NodeSide node(i % 2 == 0 ? 1 : krcore::kNoNode);
    ASSERT_EQ(node.queue.SetService("one " + std::to_string(i), 1), 0);
    ASSERT_EQ(node.queue.SetService("two", 1), 0);
    EXPECT_EQ(Counter("records"), before + 3);
  }
  EXPECT_EQ(Counter("records"), before);
}

TEST(Node, CallsThatAreWrongAreRefused) {
  Queue queue;
  ASSERT_EQ(queue.Open(), 0);
  krc_connect found;
  uint64_t value;
  bool dead;
  EXPECT_EQ(queue.Join(kFabric), EBADFD);
  ASSERT_EQ(queue.Attach("", 8), 0);
  EXPECT_EQ(queue.Connect(1, &found), ENOTCONN);
  EXPECT_EQ(queue.Publish({}), ENOTCONN);
  EXPECT_EQ(queue.SetService("x", 1), ENOTCONN);
  EXPECT_EQ(queue.GetService("x", &value), ENOTCONN);
  EXPECT_EQ(queue.IsDead(1, 1, &dead), ENOTCONN);
  EXPECT_EQ(queue.Join(""), EINVAL);
  EXPECT_EQ(queue.Join(std::string(KRC_NAME_BYTES, 'x')), EINVAL);
  EXPECT_EQ(queue.Join(kFabric, KRC_FIRST_DYNAMIC_NODE), EINVAL);
  ASSERT_EQ(queue.Join(kFabric), 0);
  EXPECT_EQ(queue.Join(kFabric), EBADFD);
  EXPECT_GE(queue.node(), static_cast<uint32_t>(KRC_FIRST_DYNAMIC_NODE));
  EXPECT_EQ(queue.SetService("x", 1), ENOTCONN);  // not published
  EXPECT_EQ(queue.Connect(250, &found), ENOENT);
  krc_shared_region region = {};
  EXPECT_EQ(queue.Publish({&region, 1}), ENOENT);
  Side local(8, kPage, KRC_LOCAL_WRITE);
  region.key = local.key;  // without remote rights
  EXPECT_EQ(queue.Publish({&region, 1}), ENOENT);
  region.key = NodeSide().key;  // its region is gone
  EXPECT_EQ(queue.Publish({&region, 1}), ENOENT);
  NodeSide other;
  region.key = other.key;
  EXPECT_EQ(InChild([&] {
              Queue stranger;
              if (stranger.Open() != 0 || stranger.Attach("", 8) != 0) return 1;
              if (stranger.Join(kFabric) != 0) return 2;
              return stranger.Publish({&region, 1}) == ENOENT ? 0 : 3;  // another process's memory
            }),
            0);
}

TEST(Node, ThatRestartsIsFoundAnewByWhoConnectsAgain) {
  auto target = std::make_unique<NodeSide>(6);
  NodeSide source;
  krc_connect found;
  ASSERT_EQ(source.queue.Connect(6, &found), 0);
  const uint32_t key = target->key;
  target.reset();
  EXPECT_EQ(source.Push(Side::Between(KRC_OP_READ, source.key, source.memory.words(), key, found.regions[0].addr)),
            EACCES);
  EXPECT_EQ(source.queue.Connect(6, &found), ENOENT);
  NodeSide heir(6);
  ASSERT_EQ(source.queue.Connect(6, &found), 0);
  EXPECT_EQ(found.incarnation, heir.queue.incarnation());
  EXPECT_EQ(source.StatusOf(Side::Between(KRC_OP_READ, source.key, source.memory.words(), found.regions[0].key,
                                          found.regions[0].addr)),
            KRC_SUCCESS);
}

}  // namespace
}  // namespace kmod_test
