#include "tests/sim/script.h"

namespace surgekv_sim {

bool FillUntilSplit(Stage& stage, uint32_t c, Keys& keys, uint32_t index) {
  const auto splitting = [&stage, index] { return stage.Entry(index).splitting(); };
  for (uint32_t i = 0; i < 200 && stage.fine(); ++i) {
    const uint32_t insert = stage.Begin(c, OpKind::kInsert, keys.Next());
    stage.PollUntil(c, [&] { return stage.Ended(insert) || splitting(); });
    if (splitting()) return true;
  }
  return false;
}

bool DeleteUntilMerge(Stage& stage, uint32_t c, Keys& keys, const std::vector<uint32_t>& kept, uint32_t index) {
  const auto merging = [&stage, index] { return stage.Entry(index).merging(); };
  const auto run = [&](OpKind kind, uint32_t key) {
    const uint32_t operation = stage.Begin(c, kind, key);
    stage.PollUntil(c, [&] { return stage.Ended(operation) || merging(); });
    // A merge that was begun beside the operation first looks at the tables.
    for (uint32_t i = 0; i < 6 && kind == OpKind::kDelete && !merging(); ++i) stage.Poll(c);
  };
  for (const uint32_t key : keys.TakeAllBut(kept)) {
    if (!merging()) {
      run(OpKind::kDelete, key);
    } else {
      keys.GiveBack(key);
    }
  }
  for (uint32_t i = 0; i < 100 && !merging() && stage.fine(); ++i) {
    const uint32_t key = keys.Next();
    run(OpKind::kInsert, key);
    keys.Take(key);
    run(OpKind::kDelete, key);
  }
  return merging();
}

std::vector<uint32_t> SomeMoving(const Keys& keys, size_t count) {
  std::vector<uint32_t> moving;
  for (const uint32_t key : keys.given()) {
    if (Stage::HashOf(key).h1 % 2 == 1 && key != keys.given().back() && moving.size() < count) moving.push_back(key);
  }
  return moving;
}

}  // namespace surgekv_sim
