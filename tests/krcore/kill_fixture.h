// What the tests that kill at every store of krcore share: nodes whose time passes while somebody waits. After each
// death the living go on without waiting, and another node does the same to its end. It uses places that would soon run
// out if the dead kept theirs. The fabric must hold no more than before.
#ifndef TESTS_KRCORE_KILL_FIXTURE_H_
#define TESTS_KRCORE_KILL_FIXTURE_H_

#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tests/krcore/fixture.h"
#include "tests/krcore/kill_each_store.h"

namespace krcore::test {

inline constexpr NodeId kVictim = 7;
inline constexpr uint32_t kMetaCapacity = 1;  // the smallest table: 24 places for nodes

// A victim that is made by `make` and then runs `act`, whose every store counts.
template <typename Make, typename Act>
std::function<void()> Victim(Make make, Act act) {
  return [make, act] {
    auto self = make();
    EnumerateFromHere();
    if constexpr (requires { *self; })
      act(*self);
    else
      act(self);
  };
}

// Time passes while somebody waits, and other processes get to run: for victims, whose partner is another process.
class VictimsClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns_; }
  void Relax(uint32_t) override {
    now_ns_ += 100'000;
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }

 private:
  int64_t now_ns_ = 1;
};

class KillNode : public ::testing::Test {
 protected:
  // The clock of the living, who wait only for the dead.
  FakeClock clock_;
  VictimsClock victims_clock_;
  const std::string fabric_ = UniqueFabric(false);

  Clock& clock() { return InVictim() ? static_cast<Clock&>(victims_clock_) : clock_; }
  // The parent decides when a victim ends.
  Deadline Soon() { return Deadline::After(clock(), InVictim() ? 3600 * kSecondNs : 5 * kSecondNs); }
  std::unique_ptr<Node> Open(NodeId id, uint32_t rc_peers = 0) {
    auto node = Node::Open({.rnic = kRnic,
                            .fabric = fabric_,
                            .node = id,
                            .create_fabric = true,
                            .clock = &clock(),
                            .mr_lease_ns = 1'000'000,
                            .rc_peers = rc_peers});
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    return node.ok() ? *std::move(node) : nullptr;
  }
  // The living must not wait until a deadline for what the dead left.
  Status Promptly(const std::function<Status()>& act) {
    const int64_t before_ns = clock_.NowNs();
    Status status = act();
    EXPECT_LT(clock_.NowNs() - before_ns, kSecondNs) << status.ToString();
    return status;
  }
  static std::span<const std::byte> Text(const char* text) { return std::as_bytes(std::span(text, std::strlen(text))); }
  std::string ValueOf(Node& node, const char* service) {
    std::string value;
    const Status status = Promptly([&]() -> Status {
      auto found = node.LookupService(service, Soon());
      if (!found.ok()) return found.status();
      value.assign(reinterpret_cast<const char*>(found->data()), found->size());
      return {};
    });
    return status.ok() ? value : std::string(StatusCodeName(status.code()));
  }
};

}  // namespace krcore::test

#endif  // TESTS_KRCORE_KILL_FIXTURE_H_
