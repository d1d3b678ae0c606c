// Clients that end, and their entries at the home, which nobody else can give back while their process lives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvs/layout/pool.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

constexpr krcore::NodeId kHome = 1;

ptrdiff_t Entries(const Stage& stage) {
  const kvs::HomeArea home = stage.Home();
  return std::ranges::count_if(home.clients,
                               [](const kvs::ClientEntry& entry) { return kvs::OwnerWord(entry.owner).held(); });
}

// The last client of a process has nobody to leave its entry to.
TEST(Goodbye, IsSaidThoughTheQueueHasJustBroken) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Stage stage({.seed = seed, .breaks = true});
    const uint32_t other = stage.AddClient(), client = stage.AddClient();
    ASSERT_EQ(Entries(stage), 2);
    // The queue breaks twice in a row, so that it is not connected again at once.
    for (int i = 0; i < 2; ++i) {
      (void)stage.Begin(client, OpKind::kInsert, i);
      stage.Poll(client);
      stage.world().BreakQueues(stage.NodeOf(client), kHome);
      stage.Finish(client);
    }
    stage.Close(client);
    EXPECT_EQ(Entries(stage), 1) << "seed " << seed;
    stage.Close(other);
    EXPECT_EQ(Entries(stage), 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace surgekv_sim
