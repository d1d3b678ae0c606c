// The checker accepts what a register can do and rejects what it cannot.
#include "tests/kvs/linearizability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace surgekv_test {
namespace {

using enum OpKind;
using enum OpResult;

constexpr Verdict kGood = Verdict::kLinearizable;
constexpr Verdict kBad = Verdict::kViolation;

TEST(Linearizability, AnEmptyHistoryIsLinearizable) { EXPECT_EQ(CheckLinearizable({}), kGood); }

TEST(Linearizability, ASequentialHistoryMustBeThatOfARegister) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kGet, kNotFound, 0},
                               {2, 3, kInsert, kOk, 1},
                               {4, 5, kInsert, kExists, 2},
                               {6, 7, kGet, kOk, 1},
                               {8, 9, kUpdate, kOk, 3},
                               {10, 11, kDelete, kOk, 0},
                               {12, 13, kUpdate, kNotFound, 4},
                               {14, 15, kDelete, kNotFound, 0},
                               {16, 17, kPut, kOk, 5},
                               {18, 19, kGet, kOk, 5}}),
            kGood);
}

TEST(Linearizability, ALostUpdateIsRejected) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1}, {2, 3, kUpdate, kOk, 2}, {4, 5, kGet, kOk, 1}}), kBad);
}

TEST(Linearizability, AStaleReadBehindAFreshOneIsRejected) {
  const RegisterOp put1{0, 1, kPut, kOk, 1}, put2{2, 9, kPut, kOk, 2};
  EXPECT_EQ(CheckLinearizable({put1, put2, {3, 4, kGet, kOk, 1}, {5, 6, kGet, kOk, 2}}), kGood);
  EXPECT_EQ(CheckLinearizable({put1, put2, {3, 4, kGet, kOk, 2}, {5, 6, kGet, kOk, 1}}), kBad);
}

TEST(Linearizability, AFalseMissIsRejected) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kInsert, kOk, 1}, {2, 3, kGet, kNotFound, 0}}), kBad);
  EXPECT_EQ(CheckLinearizable({{0, 3, kInsert, kOk, 1}, {2, 3, kGet, kNotFound, 0}}), kGood);
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1}, {2, 3, kUpdate, kNotFound, 2}}), kBad);
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1}, {2, 3, kDelete, kNotFound, 0}}), kBad);
}

TEST(Linearizability, TwoInsertsOfOneKeyCannotBothWin) {
  EXPECT_EQ(CheckLinearizable({{0, 5, kInsert, kOk, 1}, {1, 6, kInsert, kOk, 2}}), kBad);
  EXPECT_EQ(CheckLinearizable({{0, 5, kInsert, kOk, 1}, {1, 6, kInsert, kExists, 2}}), kGood);
  EXPECT_EQ(CheckLinearizable({{0, 5, kInsert, kOk, 1}, {1, 6, kInsert, kOk, 2}, {2, 4, kDelete, kOk, 0}}), kGood);
}

TEST(Linearizability, ExistsNeedsAValueThatIsThere) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kInsert, kExists, 1}}), kBad);
  // The rival has begun, but nobody reads its value: it may have been there for a moment.
  EXPECT_EQ(CheckLinearizable({{0, 9, kInsert, kOk, 1}, {1, 2, kInsert, kExists, 2}}), kGood);
  // ... but not if a later read, still before the rival's end, finds nothing although nobody deleted.
  EXPECT_EQ(CheckLinearizable({{0, 9, kInsert, kOk, 1}, {1, 2, kInsert, kExists, 2}, {3, 4, kGet, kNotFound, 0}}),
            kBad);
}

TEST(Linearizability, TwoModifiesOfOneValueCannotBothBeDone) {
  const RegisterOp put{0, 1, kPut, kOk, 1}, first{2, 9, kModify, kOk, 2, 1};
  EXPECT_EQ(CheckLinearizable({put, first, {2, 9, kModify, kOk, 3, 2}}), kGood);
  EXPECT_EQ(CheckLinearizable({put, first, {2, 9, kModify, kOk, 3, 1}}), kBad);
  EXPECT_EQ(CheckLinearizable({put, first, {2, 0, kModify, kUnknown, 3, 1}, {10, 11, kGet, kOk, 2}}), kGood);
  EXPECT_EQ(CheckLinearizable({put, first, {2, 0, kModify, kUnknown, 3, 1}, {10, 11, kGet, kOk, 3}}), kBad);
}

TEST(Linearizability, AResurrectedValueIsRejected) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1}, {2, 3, kDelete, kOk, 0}, {4, 5, kGet, kOk, 1}}), kBad);
}

TEST(Linearizability, AValueThatNobodyWroteIsRejected) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1}, {0, 9, kGet, kOk, 7}}), kBad);
}

TEST(Linearizability, AnUnknownWriteMayHappenOnceAtAnyTimeOrNever) {
  const RegisterOp put{0, 1, kPut, kOk, 1}, unknown{2, 0, kPut, kUnknown, 2};
  EXPECT_EQ(CheckLinearizable({put, unknown, {3, 4, kGet, kOk, 1}}), kGood);
  EXPECT_EQ(CheckLinearizable({put, unknown, {3, 4, kGet, kOk, 1}, {50, 60, kGet, kOk, 2}}), kGood);
  EXPECT_EQ(CheckLinearizable({put, unknown, {3, 4, kGet, kOk, 2}, {5, 6, kGet, kOk, 1}}), kBad);
  EXPECT_EQ(CheckLinearizable({put, {0, 1, kGet, kOk, 2}, unknown}), kBad);  // not before it began
}

TEST(Linearizability, AnUnknownDeleteExplainsAMiss) {
  const RegisterOp put{0, 1, kPut, kOk, 1};
  EXPECT_EQ(CheckLinearizable({put, {2, 0, kDelete, kUnknown, 0}, {3, 4, kGet, kNotFound, 0}}), kGood);
  EXPECT_EQ(CheckLinearizable({put, {2, 0, kInsert, kUnknown, 2}, {3, 4, kGet, kNotFound, 0}}), kBad);
}

TEST(Linearizability, AnUnknownInsertThatFoundTheKeyAtFirstMayStillHappenLater) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kPut, kOk, 1},
                               {2, 0, kInsert, kUnknown, 2},
                               {3, 4, kGet, kOk, 1},
                               {5, 6, kDelete, kOk, 0},
                               {7, 8, kGet, kOk, 2}}),
            kGood);
}

TEST(Linearizability, TheInitialValueCounts) {
  EXPECT_EQ(CheckLinearizable({{0, 1, kGet, kOk, 4}}, 4), kGood);
  EXPECT_EQ(CheckLinearizable({{0, 1, kGet, kOk, 4}}, 5), kBad);
}

// Random concurrent histories made from a sequential one: each operation is stretched around the moment at which it
// took effect. Then one read is falsified.
TEST(Linearizability, LongConcurrentHistoriesAreAcceptedAndOneFalseReadIsFound) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<RegisterOp> history;
    uint32_t state = kAbsent;
    for (uint32_t i = 0; i < 5'000; ++i) {
      const int64_t at = int64_t{i} * 10;
      RegisterOp op{at - static_cast<int64_t>(random() % 60), at + static_cast<int64_t>(random() % 60),
                    static_cast<OpKind>(random() % 6), kOk, i + 1};
      const bool present = state != kAbsent;
      switch (op.kind) {
        case kGet:
          op.result = present ? kOk : kNotFound;
          op.value = state;
          break;
        case kPut: state = op.value; break;
        case kInsert:
          op.result = present ? kExists : kOk;
          if (!present) state = op.value;
          break;
        case kUpdate:
          op.result = present ? kOk : kNotFound;
          if (present) state = op.value;
          break;
        case kDelete:
          op.result = present ? kOk : kNotFound;
          state = kAbsent;
          break;
        case kModify:
          op.read = state;
          if (i % 4 == 0) op.value = kAbsent;
          state = op.value;
          break;
      }
      history.push_back(op);
    }
    std::shuffle(history.begin(), history.end(), random);
    EXPECT_EQ(CheckLinearizable(history), kGood);
    for (RegisterOp& op : history) {
      if (op.kind != kGet || op.result != kOk || op.start_ns < 20'000) continue;
      op.value = op.value > 1'000 ? op.value - 1'000 : op.value + 1'000;
      break;
    }
    EXPECT_EQ(CheckLinearizable(history), kBad);
  }
}

// Returns what a register in state `state` answers to `op`, and updates the state.
OpResult Answer(const RegisterOp& op, uint32_t* state) {
  const bool present = *state != kAbsent;
  switch (op.kind) {
    case kGet: return present ? kOk : kNotFound;
    case kPut: *state = op.value; return kOk;
    case kInsert:
      if (present) return kExists;
      *state = op.value;
      return kOk;
    case kUpdate:
      if (!present) return kNotFound;
      *state = op.value;
      return kOk;
    case kDelete: *state = kAbsent; return present ? kOk : kNotFound;
    case kModify:
      if (*state != op.read) return kUnknown;
      *state = op.value;
      return kOk;
  }
  return kUnknown;
}

// Follows the definition, without optimisation: is there an order of all known operations and some unknown ones that
// respects time and gives every result?
bool TryAllOrders(const std::vector<RegisterOp>& history, std::vector<bool>& used, uint32_t state) {
  int64_t first_end = INT64_MAX;
  bool left = false;
  for (size_t i = 0; i < history.size(); ++i) {
    if (used[i] || history[i].result == kUnknown) continue;
    left = true;
    first_end = std::min(first_end, history[i].end_ns);
  }
  if (!left) return true;
  for (size_t i = 0; i < history.size(); ++i) {
    if (used[i] || history[i].start_ns > first_end) continue;
    uint32_t next = state;
    const OpResult answer = Answer(history[i], &next);
    const bool suits = history[i].result == kUnknown ||
                       (answer == history[i].result && (history[i].kind != kGet || history[i].value == state));
    if (!suits) continue;
    used[i] = true;
    const bool found = TryAllOrders(history, used, next);
    used[i] = false;
    if (found) return true;
  }
  return false;
}

TEST(Linearizability, AgreesWithTheDefinitionOnSmallHistoriesOfEveryKind) {
  std::mt19937 random(4711);
  uint32_t good = 0, bad = 0;
  for (uint32_t run = 0; run < 60'000; ++run) {
    std::vector<RegisterOp> history;
    const uint32_t count = random() % 7 + 1, values = random() % 3 == 0 ? 2 : 100;
    const uint32_t initial = random() % 4 == 0 ? 1 : kAbsent;
    for (uint32_t i = 0; i < count; ++i) {
      RegisterOp op;
      op.start_ns = random() % 12;
      op.end_ns = op.start_ns + random() % 6;
      op.kind = static_cast<OpKind>(random() % 6);
      static constexpr OpResult kPossible[6][2] = {{kOk, kNotFound}, {kOk, kOk},       {kOk, kExists},
                                                   {kOk, kNotFound}, {kOk, kNotFound}, {kOk, kOk}};
      op.result = random() % 6 == 0 ? kUnknown : kPossible[static_cast<int>(op.kind)][random() % 2];
      const bool writes = op.kind == kModify ? random() % 3 != 0 : op.kind != kGet && op.kind != kDelete;
      if (writes) op.value = values == 2 ? random() % 2 + 1 : i + 2;
      if (op.kind == kModify && random() % 3 != 0)
        op.read = values == 2 ? random() % 2 + 1 : random() % (count + 2) + 1;
      if (op.kind == kGet && op.result == kOk) op.value = values == 2 ? random() % 2 + 1 : random() % (count + 2) + 1;
      history.push_back(op);
    }
    std::vector<bool> used(history.size());
    const bool expected = TryAllOrders(history, used, initial);
    ++(expected ? good : bad);
    ASSERT_EQ(CheckLinearizable(history, initial), expected ? kGood : kBad)
        << "run " << run << ", initial " << initial << "\n"
        << Describe(history);
  }
  EXPECT_GT(good, 5'000u);
  EXPECT_GT(bad, 5'000u);
}

// A history of `clients` that each do one operation after another, each of which takes effect somewhere in its
// interval. Some clients die: their last operation has no result, and took effect at once, long after, or never.
struct Simulated {
  std::vector<RegisterOp> history;
  std::vector<int64_t> effect;  // of each operation
};
Simulated Simulate(uint32_t seed, uint32_t clients, uint32_t operations, uint32_t unknown_percent) {
  std::mt19937 random(seed);
  struct Pending {
    RegisterOp op;
    int64_t effect;
  };
  std::vector<Pending> all;
  for (uint32_t c = 0; c < clients; ++c) {
    int64_t now = random() % 50;
    for (uint32_t i = 0; i < operations / clients; ++i) {
      RegisterOp op;
      op.kind = static_cast<OpKind>(random() % 6);
      op.start_ns = now;
      const int64_t length = 1 + static_cast<int64_t>(random() % 100);
      op.end_ns = now + length;
      op.value = c * 10'000 + i + 1;
      int64_t effect = now + static_cast<int64_t>(random() % (length + 1));
      if (op.kind != kGet && random() % 100 < unknown_percent) {
        op.result = kUnknown;
        const uint32_t fate = random() % 3;
        if (fate == 1) effect = now + static_cast<int64_t>(random() % 5'000);
        if (fate == 2) effect = INT64_MAX;
      }
      all.push_back({op, effect});
      now = op.end_ns + 1 + static_cast<int64_t>(random() % 20);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Pending& a, const Pending& b) { return a.effect < b.effect; });
  Simulated simulated;
  uint32_t state = kAbsent;
  for (Pending& pending : all) {
    if (pending.effect != INT64_MAX) {
      if (pending.op.kind == kGet) pending.op.value = state;
      if (pending.op.kind == kModify) pending.op.read = state;
      const OpResult answer = Answer(pending.op, &state);
      if (pending.op.result != kUnknown) pending.op.result = answer;
    }
    simulated.history.push_back(pending.op);
    simulated.effect.push_back(pending.effect);
  }
  return simulated;
}

// This budget ensures that the check is fast: a step of the search takes some 100 ns.
constexpr uint64_t kSteps = 2'000'000;

TEST(Linearizability, EightClientsAndHundredsOfOperationsWithUnknownOnesAreCheckedFast) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EXPECT_EQ(CheckLinearizable(Simulate(seed, 8 + seed % 9, 600, seed % 4).history, kAbsent, kSteps), kGood);
  }
}

// One result is falsified. If one client works alone, the history is then wrong. With many clients, another order may
// explain it; the checker decides, and does not give up.
TEST(Linearizability, FalsifiedResultsOfEachKindAreRefused) {
  struct Kind {
    const char* name;
    bool (*falsify)(RegisterOp& op);
  };
  static constexpr Kind kKinds[] = {
      {"a lost write",
       [](RegisterOp& op) {
         if (op.kind != kGet || op.result != kOk || op.value % 10'000 < 10) return false;
         op.value -= 8;  // of the same client: overwritten long ago, or never written
         return true;
       }},
      {"a false miss",
       [](RegisterOp& op) {
         if (op.kind != kGet || op.result != kOk) return false;
         op.result = kNotFound;
         op.value = kAbsent;
         return true;
       }},
      {"a modify of another value",
       [](RegisterOp& op) {
         if (op.kind != kModify || op.result != kOk || op.read % 10'000 < 10) return false;
         op.read -= 8;
         return true;
       }},
      {"an update of nothing",
       [](RegisterOp& op) {
         if (op.kind != kUpdate || op.result != kNotFound) return false;
         op.result = kOk;
         return true;
       }},
      {"a delete of nothing",
       [](RegisterOp& op) {
         if (op.kind != kDelete || op.result != kNotFound) return false;
         op.result = kOk;
         return true;
       }},
      {"a second insert",
       [](RegisterOp& op) {
         if (op.kind != kInsert || op.result != kExists) return false;
         op.result = kOk;
         return true;
       }},
      {"exists of nothing",
       [](RegisterOp& op) {
         if (op.kind != kInsert || op.result != kOk) return false;
         op.result = kExists;
         return true;
       }},
  };
  uint32_t refused = 0;
  for (const Kind& kind : kKinds) {
    uint32_t tried = 0;
    for (uint32_t seed = 1; seed <= 25; ++seed) {
      // One client: any wrong result is wrong.
      Simulated alone = Simulate(seed, 1, 200, 0);
      std::mt19937 random(seed);
      std::vector<size_t> order(alone.history.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        if (!kind.falsify(alone.history[i])) continue;
        EXPECT_EQ(CheckLinearizable(alone.history, kAbsent, kSteps), kBad) << kind.name << ", seed " << seed;
        break;
      }
      Simulated many = Simulate(seed + 1'000, 8, 400, 0);
      order.resize(many.history.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        if (!kind.falsify(many.history[i])) continue;
        const Verdict verdict = CheckLinearizable(many.history, kAbsent, 10 * kSteps);
        EXPECT_NE(verdict, Verdict::kGaveUp);
        ++tried;
        refused += verdict == kBad;
        break;
      }
    }
    EXPECT_EQ(tried, 25u) << kind.name;
  }
  EXPECT_GT(refused, 30u);
}

}  // namespace
}  // namespace surgekv_test
