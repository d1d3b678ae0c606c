// What the tests of the simulated RNIC share: a World with the test's options, and endpoints in it.
#ifndef TESTS_RNIC_SIM_FIXTURE_H_
#define TESTS_RNIC_SIM_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {

inline constexpr sim::Chaos kNone{};

// A World with endpoint 1, which posts, its targets 2 and 3, and a DC initiator of 1 that reaches both.
struct SimWorld {
  explicit SimWorld(const sim::Chaos& chaos, uint64_t seed = 1, const sim::CostModel& cost = {})
      : fabric(UniqueFabric("sim-")),
        world(MakeWorld({.fabric = fabric, .seed = seed, .cost = cost, .chaos = chaos})),
        a(std::make_unique<Endpoint>(kProvider, fabric, 1, false)),
        b(std::make_unique<Endpoint>(kProvider, fabric, 2, false)),
        c(std::make_unique<Endpoint>(kProvider, fabric, 3, false)),
        to_b(std::make_unique<Link>(a.get(), b.get(), Transport::kDc, 256)),
        to_c(std::make_unique<Link>(a.get(), c.get(), Transport::kDc, 256)),
        qp(to_b->qp.get()) {}

  // Posts on the only initiator, whichever the target.
  void Post(const std::vector<SendWr>& wrs) { KRCORE_EXPECT_OK(qp->PostSend(wrs, nullptr)); }
  // Takes all completions that are there.
  std::vector<Completion> Take() {
    std::vector<Completion> all;
    Completion completion;
    while (a->cq->Poll({&completion, 1}) == 1) all.push_back(completion);
    return all;
  }
  std::vector<Completion> Finish() {
    while (world->Step()) {
    }
    return Take();
  }
  void Reconnect() {
    KRCORE_EXPECT_OK(qp->ToReset());
    KRCORE_EXPECT_OK(qp->ToInit(0, 0));
    KRCORE_EXPECT_OK(qp->ToRtr({}));
    KRCORE_EXPECT_OK(qp->ToRts());
  }

  static inline const Provider kProvider{"Sim", "sim", "", {}};
  std::string fabric;
  std::unique_ptr<sim::World> world;
  std::unique_ptr<Endpoint> a, b, c;
  std::unique_ptr<Link> to_b, to_c;
  Qp* qp;
};

inline SendWr Flagged(SendWr wr, uint8_t flags) {
  wr.flags = flags;
  return wr;
}
inline SendWr Adding(SendWr wr, uint64_t addend) {
  wr.compare_add = addend;
  return wr;
}

}  // namespace krcore::rnic::testing

#endif  // TESTS_RNIC_SIM_FIXTURE_H_
