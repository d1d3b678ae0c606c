// The engine and the monitor on histories whose answer is known; the command line of kvs_model.
#include "tests/model/engine.h"

#include "tests/model/model_testing.h"
#include "tests/model/monitor.h"

namespace model {
namespace {

// Two processes that each add 1 to a counter, by READ and WRITE or in one step.
struct CounterModel {
  bool atomic;
  int wanted;

  struct State {
    uint8_t counter = 0, step[2] = {0, 0}, seen[2] = {0, 0};
  };
  void Hash(const State& state, Hasher* hasher) const { hasher->AddBytes(state); }
  template <typename Emit>
  void Successors(const State& state, const Emit& emit) const {
    for (int p = 0; p < 2; ++p) {
      State next = state;
      if (state.step[p] == 2) continue;
      ++next.step[p];
      if (atomic) {
        next.step[p] = 2;
        ++next.counter;
      } else if (state.step[p] == 0) {
        next.seen[p] = state.counter;
      } else {
        next.counter = static_cast<uint8_t>(state.seen[p] + 1);
      }
      emit(p, "step", next);
    }
  }
  std::string Violation(const State& state) const {
    return state.step[0] == 2 && state.step[1] == 2 && state.counter != wanted ? "wrong count" : "";
  }
  std::string Describe(const State& state) const { return std::to_string(state.counter); }
};

TEST(Explore, FindsTheLostUpdateAndShowsHow) {
  const CounterModel model{.atomic = false, .wanted = 2};
  const Result result = Explore(model, {});
  EXPECT_EQ(result.verdict, Verdict::kViolation);
  EXPECT_EQ(result.violation, "wrong count");
  EXPECT_EQ(result.trace.size(), 4u);
}

TEST(Explore, VisitsEveryStateOnceWhereNothingIsWrong) {
  const CounterModel model{.atomic = true, .wanted = 2};
  const Result result = Explore(model, {});
  EXPECT_EQ(result.verdict, Verdict::kHolds);
  EXPECT_EQ(result.states, 4u);
  EXPECT_EQ(result.transitions, 4u);
}

TEST(Explore, SaysWhenALimitWasMet) {
  const CounterModel model{.atomic = true, .wanted = 2};
  EXPECT_EQ(Explore(model, {}, {.max_states = 2}).verdict, Verdict::kIncomplete);
}

TEST(VisitedSet, RemembersAllWhileItGrows) {
  VisitedSet set;
  for (uint64_t i = 0; i < 100'000; ++i) {
    ASSERT_FALSE(set.Contains({i, 1}));
    set.Insert({i, 1});
  }
  for (uint64_t i = 0; i < 100'000; ++i) ASSERT_TRUE(set.Contains({i, 1}));
  EXPECT_EQ(set.size(), 100'000u);
}

class MonitorTest : public testing::Test {
 protected:
  void Invoke(int process, Op op) {
    ops_[process] = op;
    monitor_.Invoke(process, ops_);
  }
  Monitor monitor_;
  Monitor::InFlight ops_{};
};

TEST_F(MonitorTest, AReadBesideAWriteMaySeeEither) {
  Invoke(0, {.kind = OpKind::kPut, .value = 3});
  Invoke(1, {.kind = OpKind::kGet});
  Monitor other = monitor_;
  monitor_.Respond(1, 3);
  EXPECT_TRUE(monitor_.linearizable());
  other.Respond(1, 0);
  EXPECT_TRUE(other.linearizable());
}

TEST_F(MonitorTest, AReadBehindAWriteSeesIt) {
  Invoke(0, {.kind = OpKind::kPut, .value = 3});
  monitor_.Respond(0, 1);
  Invoke(1, {.kind = OpKind::kGet});
  monitor_.Respond(1, 0);
  EXPECT_FALSE(monitor_.linearizable());
}

TEST_F(MonitorTest, OnlyOneOfTwoInsertsIsDone) {
  Invoke(0, {.kind = OpKind::kInsert, .value = 1});
  Invoke(1, {.kind = OpKind::kInsert, .value = 2});
  monitor_.Respond(0, 1);
  EXPECT_TRUE(monitor_.linearizable());
  monitor_.Respond(1, 1);
  EXPECT_FALSE(monitor_.linearizable());
}

TEST_F(MonitorTest, TwoReadsCannotGoBack) {
  Invoke(0, {.kind = OpKind::kPut, .value = 3});
  Invoke(1, {.kind = OpKind::kGet});
  monitor_.Respond(1, 3);
  Invoke(1, {.kind = OpKind::kGet});
  monitor_.Respond(1, 0);
  EXPECT_FALSE(monitor_.linearizable());
}

TEST(CommandLine, SaysWhatIsWrong) {
  const auto error_of = [](std::vector<std::string> words) {
    Command command;
    std::string error;
    EXPECT_FALSE(ParseCommand(words, &command, &error));
    return error;
  };
  EXPECT_NE(error_of({}), "");
  EXPECT_NE(error_of({"tables"}), "");
  EXPECT_NE(error_of({"table"}), "");
  EXPECT_NE(error_of({"table", "G"}), "");
  EXPECT_NE(error_of({"table", "G2"}), "");
  EXPECT_NE(error_of({"table", "S0"}), "");
  EXPECT_NE(error_of({"table", "--slots"}), "");
  EXPECT_NE(error_of({"table", "--slots", "4", "G1"}), "");
  EXPECT_NE(error_of({"table", "--without", "sleep", "G1"}), "");
  EXPECT_NE(error_of({"directory", "--merge", "G1"}), "");
  EXPECT_NE(error_of({"directory", "G1", "G1", "G1", "G1", "G1"}), "");
}

}  // namespace
}  // namespace model
