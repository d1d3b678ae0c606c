// The membership service and its members over loopback, without any RDMA device.
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "krcore/rnic/verbs/member.h"
#include "krcore/rnic/verbs/service.h"
#include "tests/rnic/harness.h"
#include "tests/support/kill_process.h"

namespace krcore::rnic::verbs {
namespace {

using rnic::testing::Bytes;

constexpr char kFabric[] = "fabric";
constexpr int64_t kPatienceNs = 120'000'000'000;
constexpr std::array<uint8_t, 24> kNoAddress{};

Deadline Soon() { return Deadline::After(*RealClock(), kPatienceNs); }

template <typename Condition>
bool Eventually(Condition condition) {
  const Deadline deadline = Soon();
  for (uint32_t spins = 0; !deadline.Passed(*RealClock()); ++spins) {
    if (condition()) return true;
    RealClock()->Relax(spins);
  }
  return false;
}

HostPort FreeAddress() {
  const testing::Provider provider{"Verbs", "verbs", ""};
  return ParseHostPort(testing::AddressOf(provider, testing::UniqueFabric(""))).value();
}

Result<std::unique_ptr<Member>> Join(const HostPort& address, NodeId node = kNoNode,
                                     const std::string& fabric = kFabric) {
  auto member = Member::Connect(address, fabric);
  if (!member.ok()) return member;
  if (Status joined = (*member)->Join(node, kNoAddress, (*member)->low_descriptor()); !joined.ok()) return joined;
  return member;
}

// The first message of a member, here as node 5.
struct JoinMessage {
  JoinMessage() {
    header.type = MessageType::kJoin;
    header.body_bytes = sizeof(join);
    std::memcpy(join.fabric, kFabric, sizeof(kFabric));
    join.node = 5;
  }
  Header header;
  JoinBody join;
};
static_assert(sizeof(JoinMessage) == sizeof(Header) + sizeof(JoinBody));

class Membership : public ::testing::Test {
 protected:
  const HostPort address_ = FreeAddress();
  std::unique_ptr<Service> service_ = Service::Start(address_, kFabric).value();
};

TEST_F(Membership, MembersFindEachOtherAndTheirRecords) {
  auto one = Join(address_, 1).value(), two = Join(address_).value();
  EXPECT_EQ(one->node(), 1U);
  EXPECT_GE(two->node(), kFirstDynamicNode);
  EXPECT_EQ(one->Query(two->incarnation()), PeerState::kAlive);
  EXPECT_EQ(one->Lookup("meta").status(), StatusCode::kNotFound);
  KRCORE_EXPECT_OK(two->Publish("meta", Bytes("value")));
  EXPECT_EQ(one->Lookup("meta").value(), Bytes("value"));
  EXPECT_EQ(one->Publish("meta", Bytes("mine")), StatusCode::kExists);
  EXPECT_EQ(one->Publish("Not a name", {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Join(address_, 1).status(), StatusCode::kExists);
  EXPECT_EQ(Join(address_, 9, "another").status(), StatusCode::kNotFound);
}

TEST_F(Membership, WhoLeavesIsDeadAtOnceAndItsIdFree) {
  auto one = Join(address_, 1).value(), two = Join(address_, 2).value();
  const uint32_t gone = two->incarnation();
  KRCORE_EXPECT_OK(two->Publish("meta", {}));
  EXPECT_FALSE(one->KnownDead(gone));
  two->Leave();
  EXPECT_EQ(one->Query(gone), PeerState::kDead);
  EXPECT_TRUE(one->KnownDead(gone));
  EXPECT_EQ(one->Lookup("meta").status(), StatusCode::kNotFound);
  EXPECT_EQ(Join(address_, 2).value()->node(), 2U);
}

TEST_F(Membership, WhoLeavesBehindABrokenNetworkIsDeadAtOnce) {
  auto one = Join(address_, 1).value();
  for (int round = 0; round < 20; ++round) {
    auto two = Join(address_, 2).value();
    Socket last = Connect(address_, Soon()).value();
    EXPECT_EQ(one->Lookup("meta").status(), StatusCode::kNotFound);  // so `last` was accepted
    service_->BreakConnections();
    std::byte byte;
    EXPECT_EQ(last.Receive({&byte, 1}, Soon()), StatusCode::kUnavailable);  // and with it all that came before
    two->Leave();
    EXPECT_EQ(one->Query(two->incarnation()), PeerState::kDead);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(Membership, WhoLeftIsHungUpOn) {
  Socket socket = Connect(address_, Soon()).value();
  Header header;
  IdentityBody identity;
  KRCORE_EXPECT_OK(socket.Send(BytesOf(JoinMessage()), Soon()));
  KRCORE_EXPECT_OK(socket.Receive(WritableBytesOf(header), Soon()));
  KRCORE_EXPECT_OK(socket.Receive(WritableBytesOf(identity), Soon()));
  EXPECT_EQ(header.status, 0);
  header = {};
  header.type = MessageType::kLeave;
  KRCORE_EXPECT_OK(socket.Send(BytesOf(header), Soon()));
  KRCORE_EXPECT_OK(socket.Receive(WritableBytesOf(header), Soon()));
  EXPECT_EQ(header.status, 0);
  std::byte byte;
  EXPECT_EQ(socket.Receive({&byte, 1}, Deadline::After(*RealClock(), 20'000'000'000)), StatusCode::kUnavailable);
}

// The child's descriptors with these numbers are whatever it has opened since.
TEST_F(Membership, AForkedChildSaysNothingInItsParentsName) {
  auto one = Join(address_, 1).value();
  const pid_t child = fork();
  if (child == 0) {
    std::array<std::array<int, 2>, 16> pairs;
    for (auto& pair : pairs) {
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()) != 0) _exit(1);
    }
    if (one->Query(one->incarnation() + 1) != PeerState::kUnreachable) _exit(2);
    if (!(one->Publish("meta", {}) == StatusCode::kBadState)) _exit(3);
    one->Leave();
    one.reset();
    for (const auto& pair : pairs) {
      std::byte byte;
      for (const int fd : pair) {
        if (read(fd, &byte, 1) > 0) _exit(4);
      }
    }
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(one->Query(one->incarnation()), PeerState::kAlive);
}

TEST_F(Membership, ANetworkThatFailsCostsNobodyItsIdentity) {
  auto one = Join(address_, 1).value(), two = Join(address_, 2).value();
  KRCORE_EXPECT_OK(two->Publish("meta", Bytes("kept")));
  for (int round = 0; round < 3; ++round) {
    service_->BreakConnections();
    // A request brings its connection back by itself, and the thread brings back the other one.
    EXPECT_EQ(one->Lookup("meta").value(), Bytes("kept"));
    EXPECT_TRUE(Eventually([&] {
      const PeerState state = one->Query(two->incarnation());
      EXPECT_NE(state, PeerState::kDead);
      return state == PeerState::kAlive;
    }));
  }
  EXPECT_EQ(Join(address_, 2).status(), StatusCode::kExists);
}

// The service of this test takes any loss for a long one.
TEST(MembershipAway, WhoWasAwayIsAMemberAgainAndHasToPublishAnew) {
  const HostPort address = FreeAddress();
  const auto service = Service::Start(address, kFabric, /*resume_ns=*/0).value();
  auto one = Join(address, 1).value(), two = Join(address, 2).value();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(Eventually([&] { return two->Publish("meta", Bytes("old")).ok(); }));
    service->BreakConnections();
    EXPECT_TRUE(Eventually([&] { return one->Lookup("meta").status() == StatusCode::kNotFound; }));
    EXPECT_TRUE(Eventually([&] {
      const PeerState state = one->Query(two->incarnation());
      EXPECT_NE(state, PeerState::kDead);
      return state == PeerState::kAlive;
    }));
    EXPECT_TRUE(Eventually([&] { return one->Query(one->incarnation()) == PeerState::kAlive; }));
    EXPECT_EQ(Join(address, 2).status(), StatusCode::kExists);
    KRCORE_EXPECT_OK(two->Publish("meta", Bytes("new")));
    EXPECT_EQ(one->Lookup("meta").value(), Bytes("new"));
  }
}

TEST_F(Membership, ARestartedServiceKnowsNobodyAndCallsNobodyDead) {
  auto one = Join(address_, 1).value();
  service_.reset();
  service_ = Service::Start(address_, kFabric).value();
  EXPECT_TRUE(Eventually([&] { return one->Publish("meta", {}) == StatusCode::kUnavailable; }));
  auto two = Join(address_, 2).value();
  EXPECT_EQ(two->Query(one->incarnation()), PeerState::kUnreachable);
}

TEST_F(Membership, WithoutAServiceNobodyIsDead) {
  auto one = Join(address_, 1).value(), two = Join(address_, 2).value();
  service_.reset();
  EXPECT_EQ(one->Query(two->incarnation()), PeerState::kUnreachable);
  // A caller gets the same answer as the keeper: that nobody listens.
  EXPECT_TRUE(Eventually([&] { return one->Publish("meta", {}) == StatusCode::kNotFound; }));
  EXPECT_EQ(Join(address_, 3).status(), StatusCode::kNotFound);
  // This is known by now, so no call waits for the next try: the test's limit is far below so many of them.
  for (int i = 0; i < 100'000; ++i) ASSERT_EQ(one->Query(two->incarnation()), PeerState::kUnreachable);
}

// If a member's kernel gave up a connection, it would answer the service's with a reset, which looks like death.
TEST_F(Membership, AMembersKernelDoesNotGiveUpBeforeTheServices) {
  auto member = Join(address_, 1).value();
  int connections = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sin_family != AF_INET ||
        std::to_string(ntohs(peer.sin_port)) != address_.port)
      continue;
    ++connections;
    unsigned int timeout_ms = 0;
    length = sizeof(timeout_ms);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &length), 0);
    EXPECT_GT(timeout_ms, 10U * 60 * 1000);
  }
  EXPECT_EQ(connections, 2);
}

TEST_F(Membership, StrangersHarmNobody) {
  auto member = Join(address_, 1).value();
  std::vector<Socket> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(Connect(address_, Soon()).value());
  const auto closed = [](Socket& socket) {
    std::byte byte;
    return socket.Receive({&byte, 1}, Soon()) == StatusCode::kUnavailable;
  };
  const auto send = [&](const void* data, size_t length) {
    Socket socket = Connect(address_, Soon()).value();
    KRCORE_EXPECT_OK(socket.Send({static_cast<const std::byte*>(data), length}, Soon()));
    return socket;
  };
  Socket text = send("GET / HTTP/1.1\r\n\r\n", 18);
  EXPECT_TRUE(closed(text));
  Header header;
  header.type = MessageType::kQuery;  // from a connection that has not said which member it is
  header.body_bytes = sizeof(IncarnationBody);
  std::byte query[sizeof(Header) + sizeof(IncarnationBody)] = {};
  std::memcpy(query, &header, sizeof(header));
  Socket nobody = send(query, sizeof(query));
  EXPECT_TRUE(closed(nobody));
  header.type = MessageType::kJoin;
  header.body_bytes = 5000;
  Socket longer = send(&header, sizeof(header));
  EXPECT_TRUE(closed(longer));
  header.type = static_cast<MessageType>(200);
  header.body_bytes = 0;
  Socket unknown = send(&header, sizeof(header));
  EXPECT_TRUE(closed(unknown));
  AttachBody attach;
  std::memcpy(attach.fabric, kFabric, sizeof(kFabric));
  attach.incarnation = member->incarnation();
  attach.token = 12345;
  std::byte impostor[sizeof(Header) + sizeof(attach)];
  header.type = MessageType::kAttach;
  header.body_bytes = sizeof(attach);
  std::memcpy(impostor, &header, sizeof(header));
  std::memcpy(impostor + sizeof(header), &attach, sizeof(attach));
  Socket false_member = send(impostor, sizeof(impostor));
  KRCORE_EXPECT_OK(false_member.Receive({reinterpret_cast<std::byte*>(&header), sizeof(header)}, Soon()));
  EXPECT_EQ(static_cast<StatusCode>(header.status), StatusCode::kNotFound);
  EXPECT_EQ(member->Query(member->incarnation()), PeerState::kAlive);
}

// Byte by byte, as a network may deliver it.
TEST_F(Membership, AMessageInPiecesIsOneMessage) {
  Socket socket = Connect(address_, Soon()).value();
  const JoinMessage message;
  for (const std::byte& byte : BytesOf(message)) {
    KRCORE_EXPECT_OK(socket.Send({&byte, 1}, Soon()));
    std::this_thread::yield();
  }
  struct {
    Header header;
    IdentityBody identity;
  } reply;
  KRCORE_EXPECT_OK(socket.Receive({reinterpret_cast<std::byte*>(&reply), sizeof(reply)}, Soon()));
  EXPECT_EQ(reply.header.status, 0);
  EXPECT_EQ(reply.identity.node, 5U);
}

TEST(MembershipV6, ServesOverIpv6) {
  HostPort address = FreeAddress();
  address.host = "::1";
  auto service = Service::Start(address, kFabric);
  if (service.status() == StatusCode::kNotFound) GTEST_SKIP() << "this machine has no IPv6 loopback";
  EXPECT_EQ(Join(address, 6).value()->node(), 6U);
}

TEST(MembershipService, OneAddressHasOneService) {
  const HostPort address = FreeAddress();
  auto service = Service::Start(address, kFabric).value();
  EXPECT_EQ(Service::Start(address, "another").status(), StatusCode::kExists);
  // TEST-NET-1: no machine has it.
  EXPECT_EQ(Service::Start({"192.0.2.1", "7400"}, kFabric).status(), StatusCode::kNotFound);
}

TEST(MembershipService, ANameOfSeveralAddressesHasOneService) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  ASSERT_EQ(getaddrinfo("localhost", nullptr, &hints, &found), 0);
  const bool several = found->ai_next != nullptr;
  freeaddrinfo(found);
  if (!several) GTEST_SKIP() << "localhost has one address on this machine";
  HostPort address = FreeAddress();
  address.host = "localhost";
  auto service = Service::Start(address, kFabric).value();
  EXPECT_EQ(Service::Start(address, kFabric).status(), StatusCode::kExists);
}

// Runs in a process of its own, which may have few descriptors.
TEST(MembershipService, StrangersMakeRoomForMembersWhereDescriptorsAreFew) {
  constexpr rlim_t kDescriptors = 64;
  constexpr int kStrangers = 200;
  const HostPort address = FreeAddress();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t host = fork();
  if (host == 0) {
    const rlimit few{kDescriptors, kDescriptors};
    auto service = Service::Start(address, kFabric);
    const bool started = service.ok() && setrlimit(RLIMIT_NOFILE, &few) == 0;
    (void)!write(ready[1], &started, sizeof(started));
    for (;;) pause();
  }
  bool started = false;
  EXPECT_EQ(read(ready[0], &started, sizeof(started)), static_cast<ssize_t>(sizeof(started)));
  EXPECT_TRUE(started);
  std::vector<Socket> strangers;
  for (int i = 0; i < kStrangers; ++i) strangers.push_back(Connect(address, Soon()).value());
  auto member = Join(address, 1);
  EXPECT_TRUE(member.ok()) << member.status().ToString();
  if (member.ok()) {
    EXPECT_EQ((*member)->Query((*member)->incarnation()), PeerState::kAlive);
  }
  EXPECT_TRUE(testing_support::KillProcess(host));
  waitpid(host, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

// A process that is a member. A line tells it where the service is. Forked while this process has one thread.
class MemberProcess {
 public:
  explicit MemberProcess(bool with_child) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pipe_), 0);
    pid_ = fork();
    if (pid_ != 0) {
      close(pipe_[1]);
      return;
    }
    close(pipe_[0]);
    char port[8] = {};
    (void)!read(pipe_[1], port, sizeof(port) - 1);
    auto member = Join({"127.0.0.1", port}, 2);
    uint32_t told[2] = {member.ok() ? (*member)->incarnation() : 0, 0};
    if (with_child) {
      const pid_t child = fork();
      if (child == 0) {
        for (;;) pause();
      }
      told[1] = static_cast<uint32_t>(child);
    }
    (void)!write(pipe_[1], told, sizeof(told));
    for (;;) pause();
  }
  ~MemberProcess() {
    Kill();
    (void)testing_support::KillProcess(child_);
    close(pipe_[0]);
  }
  // Starts the member and returns its incarnation.
  uint32_t Start(const HostPort& address) {
    (void)!write(pipe_[0], address.port.c_str(), address.port.size());
    uint32_t told[2] = {};
    EXPECT_EQ(read(pipe_[0], told, sizeof(told)), static_cast<ssize_t>(sizeof(told)));
    child_ = static_cast<pid_t>(told[1]);
    return told[0];
  }
  void Kill() {
    if (pid_ <= 0) return;
    (void)testing_support::KillProcess(pid_);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  int pipe_[2];
  pid_t pid_ = -1, child_ = -1;
};

void ExpectDeathIsKnown(bool with_child) {
  MemberProcess process(with_child);
  const HostPort address = FreeAddress();
  auto service = Service::Start(address, kFabric).value();
  auto observer = Join(address, 1).value();
  const uint32_t incarnation = process.Start(address);
  ASSERT_EQ(observer->Query(incarnation), PeerState::kAlive);
  process.Kill();
  EXPECT_TRUE(Eventually([&] { return observer->Query(incarnation) == PeerState::kDead; }));
  EXPECT_TRUE(Join(address, 2).ok());
}

TEST(MembershipDeath, AKilledProcessIsDead) { ExpectDeathIsKnown(/*with_child=*/false); }
TEST(MembershipDeath, AKilledProcessIsDeadThoughItsForkedChildLives) { ExpectDeathIsKnown(/*with_child=*/true); }

}  // namespace
}  // namespace krcore::rnic::verbs
