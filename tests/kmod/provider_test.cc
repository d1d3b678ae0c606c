// Control plane "kernel" while the module cannot reach the metadata server: its calls wait for it, up to their
// deadlines.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>

#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "tests/kmod/fixture.h"

namespace kmod_test {
namespace {

constexpr char kFabric[] = "provider_test";
constexpr int64_t kMsNs = 1'000'000;

// The device has no address, so no connection can be built; the existing ones break.
class Outage {
 public:
  // Waits until the module finds that out, too.
  Outage() {
    EXPECT_EQ(witness_.queue.Join(kFabric), 0);
    EXPECT_EQ(Shell("ip addr del 10.9.0.1/24 dev dummy0"), 0);
    uint64_t value;
    for (int error = 0; error == 0 || error == ENOENT; error = witness_.queue.GetService("none", &value))
      BreakConnections();
  }
  ~Outage() { End(); }
  void End() {
    if (std::exchange(ended_, true)) return;
    EXPECT_EQ(Shell("ip addr add 10.9.0.1/24 dev dummy0"), 0);
  }

 private:
  static int Shell(const char* line) { return system(line); }  // NOLINT: the guest is the test's own

  Side witness_{8};
  bool ended_ = false;
};

TEST(KernelProvider, WaitsForTheMetadataServerUpToItsDeadline) {
  const auto open = [](krcore::NodeId id) {
    auto opened = krcore::OpenNode("kernel", {.fabric = kFabric, .node = id});
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return *std::move(opened);
  };
  auto target = open(3), node = open(krcore::kNoNode);
  krcore::Clock& clock = node->clock();
  const auto within = [&](int64_t ms) { return krcore::Deadline::After(clock, ms * kMsNs); };
  const uint64_t value = 42;
  ASSERT_TRUE(target->Publish(within(5000)).ok());
  ASSERT_TRUE(target->PublishService("service", std::as_bytes(std::span(&value, 1)), within(5000)).ok());
  ASSERT_TRUE(node->Publish(within(5000)).ok());
  auto pool = node->CreateQueuePool({}).value();
  auto queue = pool->CreateQueue(8).value();

  const struct {
    const char* name;
    std::function<krcore::Status(krcore::Deadline)> call;
  } kCalls[] = {
      {"LookupService", [&](krcore::Deadline deadline) { return node->LookupService("service", deadline).status(); }},
      {"Publish", [&](krcore::Deadline deadline) { return node->Publish(deadline); }},
      {"PublishService",
       [&](krcore::Deadline deadline) {
         return target->PublishService("service", std::as_bytes(std::span(&value, 1)), deadline);
       }},
      {"Connect", [&](krcore::Deadline deadline) { return queue->Connect(3, deadline); }},
  };
  for (const auto& [name, call] : kCalls) {
    Outage outage;
    const krcore::StatusCode in_vain = call(within(50)).code();
    EXPECT_TRUE(in_vain == krcore::StatusCode::kTimeout || in_vain == krcore::StatusCode::kUnavailable) << name;
    std::thread ends([&] {
      usleep(200'000);  // by then the call usually waits
      outage.End();
    });
    const krcore::Status status = call(within(20'000));
    EXPECT_TRUE(status.ok()) << name << ": " << status.ToString();
    ends.join();
  }
}

}  // namespace
}  // namespace kmod_test
