// A membership service whose process is held up: nothing is lost, and nobody waits without end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "krcore/rnic/verbs/member.h"
#include "krcore/rnic/verbs/service.h"
#include "tests/rnic/harness.h"
#include "tests/support/kill_process.h"

namespace krcore::rnic::verbs {
namespace {

constexpr char kFabric[] = "fabric";
constexpr int64_t kPatienceNs = 120'000'000'000;
constexpr std::array<uint8_t, 24> kNoAddress{};

template <typename Condition>
bool Eventually(Condition condition) {
  const Deadline deadline = Deadline::After(*RealClock(), kPatienceNs);
  for (uint32_t spins = 0; !deadline.Passed(*RealClock()); ++spins) {
    if (condition()) return true;
    RealClock()->Relax(spins);
  }
  return false;
}

// The service in a process of its own, forked while this one has one thread.
class ServiceProcess {
 public:
  ServiceProcess() {
    EXPECT_EQ(pipe(told_), 0);
    EXPECT_EQ(pipe(done_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      auto service = Service::Start(address_, kFabric);
      bool done = service.ok();
      char word;
      do {
        (void)!write(done_[1], &done, sizeof(done));
        if (read(told_[0], &word, 1) != 1) _exit(0);
        (*service)->BreakConnections();
      } while (true);
    }
    Await();
  }
  ~ServiceProcess() {
    (void)testing_support::KillProcess(pid_);
    waitpid(pid_, nullptr, 0);
    for (const int fd : {told_[0], told_[1], done_[0], done_[1]}) close(fd);
  }
  const HostPort& address() const { return address_; }
  void Stop() {
    EXPECT_TRUE(testing_support::SignalProcess(pid_, SIGSTOP));
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Continue() { EXPECT_TRUE(testing_support::SignalProcess(pid_, SIGCONT)); }
  // Breaks all members' connections.
  void Break() {
    EXPECT_EQ(write(told_[1], "b", 1), 1);
    Await();
  }

 private:
  void Await() {
    bool done = false;
    EXPECT_EQ(read(done_[0], &done, sizeof(done)), static_cast<ssize_t>(sizeof(done)));
    EXPECT_TRUE(done);
  }

  const HostPort address_ =
      ParseHostPort(testing::AddressOf({"Verbs", "verbs", ""}, testing::UniqueFabric(""))).value();
  pid_t pid_ = -1;
  int told_[2], done_[2];
};

std::unique_ptr<Member> Join(const HostPort& address, NodeId node) {
  auto member = Member::Connect(address, kFabric).value();
  KRCORE_EXPECT_OK(member->Join(node, kNoAddress, member->low_descriptor()));
  return member;
}

// The test's limit in CMakeLists.txt is below the 60 s for which the service would wait for a lost member.
TEST(VerbsSilence, WhoAsksAServiceThatIsHeldUpGetsAnAnswerAndStaysAMember) {
  ServiceProcess service;
  auto one = Join(service.address(), 1), two = Join(service.address(), 2);
  service.Stop();
  std::thread other([&] { EXPECT_EQ(two->Lookup("meta").status(), StatusCode::kTimeout); });
  EXPECT_EQ(one->Query(two->incarnation()), PeerState::kUnreachable);
  other.join();
  // This is known by now, so the thousandth call does not wait for an answer either: the test's limit is far below
  // 1,000 waits.
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(two->Lookup("meta").status(), StatusCode::kTimeout);
  service.Continue();
  EXPECT_TRUE(Eventually([&] { return one->Query(two->incarnation()) == PeerState::kAlive; }));
  EXPECT_TRUE(Eventually([&] { return two->Publish("meta", {}).ok(); }));
}

// A caller that polls has no time to wait. It stays connected, and an answer that comes too late is dropped.
TEST(VerbsSilence, AnAnswerBehindItsDeadlineIsNotTakenForTheNextQuestions) {
  ServiceProcess service;
  auto one = Join(service.address(), 1), two = Join(service.address(), 2);
  const std::array<std::byte, 3> value{};
  KRCORE_EXPECT_OK(two->Publish("there", value));
  const auto soon = [] { return Deadline::After(*RealClock(), 1'000'000); };
  service.Stop();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(one->Lookup("there", soon()).ok());
  service.Continue();
  EXPECT_TRUE(Eventually([&] {
    const auto found = one->Lookup("missing", soon());
    EXPECT_FALSE(found.ok()) << "that is what another question was answered";
    return found.status() == StatusCode::kNotFound;
  }));
  EXPECT_EQ(one->Lookup("there").value().size(), value.size());
}

// After the silence, a broken connection is waited for again: it is back within a round trip or two.
TEST(VerbsSilence, IsForgottenWhenItIsOver) {
  ServiceProcess service;
  auto one = Join(service.address(), 1);
  service.Stop();
  EXPECT_EQ(one->Lookup("meta").status(), StatusCode::kTimeout);
  service.Continue();
  ASSERT_TRUE(Eventually([&] { return one->Lookup("meta").status() == StatusCode::kNotFound; }));
  for (int round = 0; round < 20; ++round) {  // the keeper is faster now and then
    service.Break();
    ASSERT_EQ(one->Lookup("meta").status(), StatusCode::kNotFound) << "round " << round;
  }
}

TEST(VerbsSilence, JoiningAndPublishingEndAtTheirDeadlines) {
  ServiceProcess service;
  auto one = Join(service.address(), 1);
  service.Stop();
  const int64_t begin_ns = RealClock()->NowNs();
  const auto soon = [] { return Deadline::After(*RealClock(), 200'000'000); };
  auto two = Member::Connect(service.address(), kFabric, soon());  // the service's kernel accepts
  ASSERT_TRUE(two.ok());
  EXPECT_EQ((*two)->Join(2, kNoAddress, (*two)->low_descriptor(), soon()), StatusCode::kTimeout);
  EXPECT_EQ(one->Publish("meta", {}, soon()), StatusCode::kTimeout);
  EXPECT_LT(RealClock()->NowNs() - begin_ns, 3'000'000'000);
  service.Continue();
  EXPECT_TRUE(Eventually([&] { return one->Publish("meta", {}).ok(); }));
}

TEST(VerbsSilence, WhoClosesWhileTheServiceIsHeldUpIsDeadWhenItGoesOn) {
  ServiceProcess service;
  auto one = Join(service.address(), 1), two = Join(service.address(), 2);
  service.Stop();
  // From now on the member tries to come back, and the service does not say whether it may.
  EXPECT_EQ(one->Query(one->incarnation()), PeerState::kUnreachable);
  const uint32_t gone = one->incarnation();
  one->Leave();
  one.reset();
  service.Continue();
  EXPECT_TRUE(Eventually([&] { return two->Query(gone) == PeerState::kDead; }));
  Join(service.address(), 1);
}

}  // namespace
}  // namespace krcore::rnic::verbs
