// An expelled client that never gets to acknowledge: whatever it waits for must end all the same.
#include <gtest/gtest.h>

#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

constexpr int64_t kLeaseNs = 1'000'000'000;

TEST(Expelled, WhoCannotReachTheHomeAnyMoreEndsItsOperationsAtTheirDeadline) {
  Stage stage({.lease_ns = kLeaseNs});
  const uint32_t client = stage.AddClient(), other = stage.AddClient();
  EXPECT_EQ(stage.Do(client, OpKind::kPut, 1), krcore::StatusCode::kOk);
  stage.set_tempo(kLeaseNs / 100);
  ASSERT_TRUE(stage.PollUntil(other, [&] { return stage.client(other).stats().expulsions == 1; }));

  // It has learnt that it is expelled, and is cut off before it can say that it has stopped.
  ASSERT_TRUE(stage.PollUntil(client, [&] { return stage.client(client).stats().fenced == 1; }));
  stage.world().Kill(stage.NodeOf(client), /*linger_ns=*/0);
  const uint32_t get = stage.Begin(client, OpKind::kGet, 1);
  EXPECT_TRUE(stage.PollUntil(
      client, [&] { return stage.Ended(get); }, /*most=*/20'000))
      << "it waits for ever";
}

}  // namespace
}  // namespace surgekv_sim
