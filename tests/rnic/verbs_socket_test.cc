// Connecting to a name: a resolver or an address that does not answer uses no more than its share of the time. Names
// are this test's own: its getaddrinfo takes the place of libc's.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "krcore/rnic/verbs/socket.h"
#include "tests/rnic/harness.h"

namespace {

constexpr char kSilentFirst[] = "silent-first.test", kNeverResolved[] = "never-resolved.test";
constexpr char kSilentHost[] = "127.0.0.2", kHost[] = "127.0.0.1";

struct Resolver {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
  int waiting = 0;
};
Resolver& TheResolver() {
  static auto& resolver = *new Resolver;  // never destroyed: threads may still be in it
  return resolver;
}

}  // namespace

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string name = node == nullptr ? "" : node;
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (name == kSilentFirst && !numeric) {
    addrinfo* second = nullptr;
    const int error = real(kSilentHost, service, hints, found);
    if (error != 0) return error;
    if (real(kHost, service, hints, &second) == 0) (*found)->ai_next = second;
    return 0;
  }
  if (name == kNeverResolved && !numeric) {
    Resolver& resolver = TheResolver();
    std::unique_lock lock(resolver.mutex);
    ++resolver.waiting;
    resolver.changed.wait(lock, [&] { return resolver.released; });
    --resolver.waiting;
    resolver.changed.notify_all();
    return EAI_AGAIN;
  }
  return real(node, service, hints, found);
}

namespace krcore::rnic::verbs {
namespace {

constexpr int64_t kPatienceNs = 1'000'000'000;

// Its queue is full, so it answers nobody, like an address at which there is nobody.
class SilentListener {
 public:
  explicit SilentListener(const std::string& port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    inet_pton(AF_INET, kSilentHost, &at.sin_addr);
    at.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    const auto* where = reinterpret_cast<const sockaddr*>(&at);
    fds_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(fds_[0], where, sizeof(at)), 0) << strerror(errno);
    EXPECT_EQ(listen(fds_[0], 0), 0);
    for (int i = 0; i < 4; ++i) {
      fds_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(fds_.back(), where, sizeof(at));
    }
  }
  ~SilentListener() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

HostPort FreeAddress() {
  return ParseHostPort(testing::AddressOf({"Verbs", "verbs", ""}, testing::UniqueFabric(""))).value();
}

TEST(VerbsSocket, AnAddressThatDoesNotAnswerLeavesTimeForTheNext) {
  const HostPort address = FreeAddress();
  const SilentListener silent(address.port);
  EXPECT_EQ(Connect({kSilentHost, address.port}, Deadline::After(*RealClock(), 1'000'000)).status(),
            StatusCode::kTimeout);
  const Socket listener = Listen({kHost, address.port}).value();
  const auto connected = Connect({kSilentFirst, address.port}, Deadline::After(*RealClock(), kPatienceNs));
  EXPECT_TRUE(connected.ok()) << connected.status().ToString();
}

TEST(VerbsSocket, AResolverThatDoesNotAnswerIsWaitedForUntilTheDeadline) {
  EXPECT_EQ(Connect({kNeverResolved, "1"}, Deadline::After(*RealClock(), 1'000'000)).status(), StatusCode::kTimeout);
  Resolver& resolver = TheResolver();
  std::unique_lock lock(resolver.mutex);
  resolver.released = true;
  resolver.changed.notify_all();
  resolver.changed.wait(lock, [&] { return resolver.waiting == 0; });
}

}  // namespace
}  // namespace krcore::rnic::verbs
