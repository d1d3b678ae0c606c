#include "tests/sim/script.h"

namespace surgekv_sim {
namespace {

// These keys are greater than all that are inserted to fill a table.
constexpr uint32_t kFirstTwin = 1'000, kLastTwin = 2'000;

}  // namespace

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
    // A merge that begins while the operation runs first looks at the tables.
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

Twins FindTwins(uint32_t groups) {
  const auto same = [](const kvs::CombinedBucket& a, const kvs::CombinedBucket& b) {
    return a.group == b.group && a.half == b.half;
  };
  for (uint32_t moving = kFirstTwin; moving < kLastTwin; ++moving) {
    const kvs::KeyHash& hash = Stage::HashOf(moving);
    if (hash.Suffix(1) == 0) continue;
    const kvs::KeyPlaces places = kvs::PlacesOf(hash, groups);
    for (uint32_t staying = kFirstTwin; staying < kLastTwin; ++staying) {
      const kvs::KeyHash& other = Stage::HashOf(staying);
      if (other.Suffix(1) == 1 || other.fingerprint() != hash.fingerprint()) continue;
      const kvs::KeyPlaces others = kvs::PlacesOf(other, groups);
      if (same(places.place[0], others.place[0]) && same(places.place[1], others.place[1])) return {moving, staying};
    }
  }
  return {};
}

}  // namespace surgekv_sim
