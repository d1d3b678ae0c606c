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
  // The rival has begun but its value is read by nobody: it may have been there for a moment.
  EXPECT_EQ(CheckLinearizable({{0, 9, kInsert, kOk, 1}, {1, 2, kInsert, kExists, 2}}), kGood);
  // ... not if a later look, still before the rival's end, finds nothing and nobody deleted.
  EXPECT_EQ(CheckLinearizable({{0, 9, kInsert, kOk, 1}, {1, 2, kInsert, kExists, 2}, {3, 4, kGet, kNotFound, 0}}),
            kBad);
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
                    static_cast<OpKind>(random() % 5), kOk, i + 1};
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

}  // namespace
}  // namespace surgekv_test
