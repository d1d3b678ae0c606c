#include "tests/sim/scenarios.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

using kvs::Mutation;
using kvs::SlotState;

constexpr int64_t kUs = 1'000, kMs = 1'000'000;
constexpr uint32_t kNobodysKey = 2'000;
constexpr int64_t kLongerThanATakeoverNs = 150 * kMs;
// Of READs half are torn, and of those half last for longer than a split.
constexpr krcore::rnic::sim::Chaos kLastingReads{.tear = 0.5, .delay = 1, .max_delay_ns = 1'000 * kMs};

// `play`: was the client held in what the scenario is about?
template <typename Play>
void OnStage(const StageOptions& options, RunResult* result, Play play) {
  if (!result->violation.empty()) return;
  auto stage = std::make_unique<Stage>(options);
  const bool held = play(*stage);
  if (stage->fine()) stage->Judge();
  result->counts.pauses += held;
  result->violation = stage->violation();
  result->text = stage->text();
  if (!stage->fine()) (void)stage.release();
}

// Keys in order, of those whose hash ends with `suffix` in `bits` bits.
class Keys {
 public:
  Keys(uint32_t bits, uint64_t suffix) : mask_((uint64_t{1} << bits) - 1), suffix_(suffix) {}
  uint32_t Next() {
    while ((Stage::HashOf(next_).h1 & mask_) != suffix_) ++next_;
    given_.push_back(next_);
    return next_++;
  }
  const std::vector<uint32_t>& given() const { return given_; }
  // The caller deletes them.
  std::vector<uint32_t> TakeAllBut(const std::vector<uint32_t>& kept) {
    std::vector<uint32_t> taken;
    for (const uint32_t key : given_) {
      if (std::find(kept.begin(), kept.end(), key) == kept.end()) taken.push_back(key);
    }
    given_ = kept;
    return taken;
  }
  void Skip(uint32_t key) { next_ = std::max(next_, key); }
  void Take(uint32_t key) { std::erase(given_, key); }
  void GiveBack(uint32_t key) { given_.push_back(key); }

 private:
  const uint64_t mask_, suffix_;
  uint32_t next_ = 0;
  std::vector<uint32_t> given_;
};

// Client c inserts keys until one of them has begun the split of dir[index], and is held there. False: none did.
bool FillUntilSplit(Stage& stage, uint32_t c, Keys& keys, uint32_t index) {
  const auto splitting = [&stage, index] { return stage.Entry(index).splitting(); };
  for (uint32_t i = 0; i < 200 && stage.fine(); ++i) {
    const uint32_t insert = stage.Begin(c, OpKind::kInsert, keys.Next());
    stage.PollUntil(c, [&] { return stage.Ended(insert) || splitting(); });
    if (splitting()) return true;
  }
  return false;
}

// ---- misses

// Readers' READs are torn while a table of `depth` splits that has the keys: they see headers from before the split and
// slots from after it. Each has one operation, as the READs of a queue wait for each other. It has made `calm` rounds
// of it and posted the READs of the next one when the words of READs begin to lie as far apart as a split takes, and
// the split goes on.
bool TearReadsDuringASplit(Stage& stage, uint32_t splitter, const std::vector<uint32_t>& readers, const Keys& keys,
                           uint32_t index, uint32_t depth, uint32_t calm) {
  // Those whose slot is READ last, so that all the headers may be older.
  std::vector<uint32_t> moving;
  for (const uint32_t key : keys.given()) {
    const bool moves = (Stage::HashOf(key).h1 >> depth & 1) != 0;
    if (moves && stage.IsInSecondPlace(stage.Entry(index).subtable(), key)) moving.push_back(key);
  }
  if (moving.empty()) return false;
  for (size_t r = 0; r < std::min(readers.size(), moving.size()); ++r) {
    // Not Update: its READs would wait for the WRITE of its block.
    (void)stage.Begin(readers[r], r % 2 == 0 ? OpKind::kGet : OpKind::kDelete, moving[r]);
    stage.Poll(readers[r], calm);
  }
  stage.set_tempo(1);
  for (const uint32_t reader : readers) stage.Poll(reader);
  for (const uint32_t reader : readers) stage.world().set_chaos(stage.NodeOf(reader), kLastingReads);
  stage.set_tempo(2'500);
  stage.Finish(splitter);
  return true;
}

constexpr uint32_t kReaders = 24;

RunResult MissDuringASplit(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .groups = 4}, &result, [](Stage& stage) {
    const uint32_t splitter = stage.AddClient();
    std::vector<uint32_t> readers;
    for (uint32_t r = 0; r < kReaders; ++r) {
      readers.push_back(stage.AddClient());
      (void)stage.Do(readers.back(), OpKind::kGet, kNobodysKey);  // so that it knows the table
    }
    Keys keys(0, 0);
    return FillUntilSplit(stage, splitter, keys, 0) && TearReadsDuringASplit(stage, splitter, readers, keys, 0, 0, 0);
  });
  return result;
}

// The readers do not know of the table's birth: they come there from its parent, and it splits in its turn.
RunResult MissInAChildThatSplits(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .groups = 4}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient();
    std::vector<uint32_t> readers;
    for (uint32_t r = 0; r < kReaders; ++r) {
      readers.push_back(stage.AddClient());
      (void)stage.Do(readers.back(), OpKind::kGet, kNobodysKey);
    }
    Keys keys(1, 1);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    // All keys went to the child, so it splits at once.
    return stage.PollUntil(splitter, [&] { return stage.Entry(1).splitting(); }) &&
           TearReadsDuringASplit(stage, splitter, readers, keys, 1, 1, 3 + point % 3);
  });
  return result;
}

// ---- splits

// The first splitter is held; another one takes over, finishes that split, begins the parent's next one, and is held in
// its turn; the first one goes on. Meanwhile and afterwards every key is there.
RunResult LateFinisher(uint64_t point) {
  RunResult result;
  for (uint32_t second_pause = 0; second_pause < 24; ++second_pause) {
    OnStage({}, &result, [point, second_pause](Stage& stage) {
      const uint32_t first = stage.AddClient(), second = stage.AddClient(), third = stage.AddClient(64);
      Keys staying(1, 0);  // in the root, at its first split
      if (!FillUntilSplit(stage, first, staying, 0)) return false;
      stage.Poll(first, static_cast<uint32_t>(point));
      if (stage.client(first).stats().splits > 0) return false;
      (void)stage.Begin(second, OpKind::kInsert, staying.Next());
      for (uint32_t i = 0; i < 2'000 && !stage.Idle(second) && stage.client(second).stats().splits == 0; ++i) {
        stage.Poll(second);
        stage.Wait(kLongerThanATakeoverNs / 64);
      }
      const auto begun = [&stage] { return stage.Entry(0).splitting(); };
      for (uint32_t i = 0; i < 100 && !begun(); ++i) {
        if (stage.Idle(second)) (void)stage.Begin(second, OpKind::kInsert, staying.Next());
        stage.PollUntil(second, [&] { return stage.Idle(second) || begun(); });
      }
      stage.Poll(second, second_pause);
      const bool both = !stage.Idle(second) && stage.Entry(0).splitting();
      for (uint32_t i = 0; i < 400 && !stage.Idle(first); ++i) stage.Poll(first);
      for (const uint32_t key : staying.given()) (void)stage.Begin(third, OpKind::kGet, key);
      stage.Finish(third);
      return both;
    });
  }
  return result;
}

// ---- tables that go and come

// Client c deletes all keys but those in `kept`, and then inserts and deletes a few more, until the tables of dir[0]
// and dir[1] are merging, and is held there. False: it did not come to that.
bool DeleteUntilMerge(Stage& stage, uint32_t c, Keys& keys, const std::vector<uint32_t>& kept) {
  const auto merging = [&stage] { return stage.Entry(0).merging(); };
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

// The first `count` of the keys that leave the root at its first split, and were inserted.
std::vector<uint32_t> SomeMoving(const Keys& keys, size_t count) {
  std::vector<uint32_t> moving;
  for (const uint32_t key : keys.given()) {
    if (Stage::HashOf(key).h1 % 2 == 1 && key != keys.given().back() && moving.size() < count) moving.push_back(key);
  }
  return moving;
}

// A writer at a new table is about to help with its birth and is held. The split ends, the table is merged into its
// parent again, and a joined table is where the parent was.
RunResult HelperOfAFormerSplit(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient(), helper = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    stage.PollUntil(splitter, [&] { return stage.Entry(1).migrating(); });
    const std::vector<uint32_t> kept = SomeMoving(keys, 8);
    const uint32_t update = stage.Begin(helper, OpKind::kUpdate, kept.front());
    stage.Poll(helper, static_cast<uint32_t>(point));
    const bool held = !stage.Ended(update) && stage.Entry(1).migrating();
    stage.Finish(splitter);
    if (!DeleteUntilMerge(stage, splitter, keys, kept)) return false;
    stage.PollUntil(splitter, [&] { return !stage.Entry(1).present(); });
    stage.Poll(helper, 100);
    return held;
  });
  return result;
}

// A reader sees a slot that is frozen and history, since the key's new slot was written already, and is held. The
// tables are merged, and the joined one splits: what a new child says nothing of yet must not make that slot count
// again.
RunResult FrozenSlotOfAFormerSplit(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient(), updater = stage.AddClient(), reader = stage.AddClient();
    (void)stage.Do(reader, OpKind::kGet, kNobodysKey);
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    const std::vector<uint32_t> kept = SomeMoving(keys, 4);
    const uint32_t key = kept.front();
    const auto parent = stage.Entry(0).subtable();
    const bool moved = stage.PollUntil(splitter, [&] {
      return stage.Entry(1).migrating() && stage.AnyCandidate(parent, key, SlotState::kFrz) &&
             stage.AnyCandidate(stage.Entry(1).subtable(), key, SlotState::kVal);
    });
    if (!moved) return false;
    (void)stage.Do(updater, OpKind::kUpdate, key);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, key);
    stage.Poll(reader, static_cast<uint32_t>(point));
    const bool held = !stage.Ended(get);
    stage.Finish(splitter);
    if (!DeleteUntilMerge(stage, splitter, keys, kept)) return false;
    stage.PollUntil(splitter, [&] { return !stage.Entry(1).present() && !stage.Entry(0).merging(); });
    stage.Finish(splitter);
    stage.Poll(splitter, 20);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    stage.PollUntil(splitter, [&] { return stage.Entry(1).migrating(); });
    stage.Poll(reader, 100);
    return held;
  });
  return result;
}

// A merger has taken its first entry and is held. Before it takes the second one that table begins to split, and may
// have ended.
RunResult MergeWhoseChildSplits(uint64_t point) {
  RunResult result;
  for (uint32_t rounds = 0; rounds < 32; ++rounds) {
    OnStage({.initial_depth = 1}, &result, [point, rounds](Stage& stage) {
      const uint32_t merger = stage.AddClient(), splitter = stage.AddClient();
      Keys keys(0, 0);
      for (uint32_t i = 0; i < 8; ++i) (void)stage.Do(splitter, OpKind::kInsert, keys.Next());
      if (!DeleteUntilMerge(stage, merger, keys, keys.given())) return false;
      stage.Poll(merger, static_cast<uint32_t>(point));
      if (stage.Entry(1).merging()) return false;
      Keys more(1, 1);
      more.Skip(1'000);
      if (!FillUntilSplit(stage, splitter, more, 1)) return false;
      stage.Poll(splitter, rounds);
      stage.Poll(merger, 200);
      return true;
    });
  }
  return result;
}

// A client that does nothing but keep its registration knows tables that are merged away. Their memory becomes that of
// another joined table, which is written and not published yet when the merger is held: who went by what he knew would
// meet it.
RunResult StaleDirectoryCache(uint64_t point) {
  RunResult result;
  for (uint32_t cycle = 1; cycle < 4; ++cycle) {
    OnStage({.initial_depth = 1}, &result, [point, cycle](Stage& stage) {
      const uint32_t merger = stage.AddClient(), stale = stage.AddClient(), fresh = stage.AddClient();
      Keys keys(0, 0);
      for (uint32_t i = 0; i < 8; ++i) (void)stage.Do(merger, OpKind::kInsert, keys.Next());
      const std::vector<uint32_t> kept = keys.given();
      for (const uint32_t key : kept) (void)stage.Do(stale, OpKind::kGet, key);
      for (uint32_t c = 0; c < cycle; ++c) {
        if (!DeleteUntilMerge(stage, merger, keys, kept)) return false;
        stage.PollUntil(merger, [&] { return !stage.Entry(1).present() && !stage.Entry(0).merging(); });
        stage.Finish(merger);
        // Until what was retired is free, and longer.
        stage.set_tempo(50 * kUs);
        for (uint32_t i = 0; i < 200; ++i) {
          for (const uint32_t client : {merger, stale, fresh}) stage.Poll(client, 4);
        }
        stage.set_tempo(5 * kUs);
        if (!FillUntilSplit(stage, merger, keys, 0)) return false;
        stage.Finish(merger);
      }
      if (!DeleteUntilMerge(stage, merger, keys, kept)) return false;
      stage.Poll(merger, static_cast<uint32_t>(point));
      const bool held = stage.Entry(0).merging() || stage.Entry(1).merging();
      for (const uint32_t key : kept) {
        const uint32_t update = stage.Begin(stale, OpKind::kUpdate, key);
        stage.Poll(stale, 12);
        if (stage.Ended(update)) (void)stage.Begin(fresh, OpKind::kGet, key);
        stage.Poll(fresh, 12);
      }
      return held;
    });
  }
  return result;
}

// ---- memory

// A reader holds the address of a block that is unlinked while the client which unlinks it still waits for what it READ
// of the epochs. Its reading is older than the reader's operation, so it must not be the block's stamp.
RunResult BlockUnlinkedAfterTheEpochWasRead(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .memory_nodes = 2}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, writer, keys, 0)) return false;
    stage.Finish(writer);
    // In a table at the other memory node, as on the home's queue its CAS would complete behind the READ of the epoch.
    const std::vector<uint32_t> moved = SomeMoving(keys, 6);
    const uint32_t key = moved.front();
    for (const uint32_t one : moved) {
      (void)stage.Do(reader, OpKind::kGet, one);
      (void)stage.Do(writer, OpKind::kUpdate, one);
    }
    // The writer announces an epoch that the reader has not seen yet; and READs it again, but the answer is late.
    stage.Poll(writer, 1'000);
    const uint64_t reads = stage.client(writer).stats().reads;
    if (!stage.PollUntil(writer, [&] { return stage.client(writer).stats().reads != reads; })) return false;
    stage.world().set_chaos(stage.NodeOf(writer), {.tear = 0, .delay = 1, .max_delay_ns = 1'000 * kMs});
    stage.Poll(writer);
    stage.world().set_chaos(stage.NodeOf(writer), {});
    // The reader sees it, takes the store to the next one and announces that.
    stage.Poll(reader, 500);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, key);
    stage.Poll(reader, static_cast<uint32_t>(point % 5));
    const bool held = !stage.Ended(get);
    const uint32_t update = stage.Begin(writer, OpKind::kUpdate, key);
    stage.Poll(writer, 20);
    const bool unlinked = stage.Ended(update);
    // Memory is freed, and used again.
    stage.set_tempo(100 * kUs);
    for (uint32_t i = 0; i < 300; ++i) {
      if (i >= 100) {
        for (size_t other = 1; other < moved.size(); ++other) {
          if (stage.InFlight(writer) < 4) (void)stage.Begin(writer, OpKind::kUpdate, moved[other]);
        }
      }
      stage.Poll(writer, 10);
    }
    stage.set_tempo(5 * kUs);
    stage.Finish(reader);
    return held && unlinked;
  });
  return result;
}

// A reader that slept for longer than its lease, and was expelled, begins a Get. It must not, as blocks that are
// younger than what it has announced are used again without waiting for it.
RunResult ReaderWhoseLeaseIsOver(uint64_t point) {
  RunResult result;
  OnStage({.lease_ns = 1'000 * kMs}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(writer, OpKind::kInsert, keys.Next());
    const uint32_t key = keys.given().front();
    (void)stage.Do(reader, OpKind::kGet, key);
    const auto write = [&](size_t first, size_t last, uint32_t rounds) {
      for (uint32_t i = 0; i < rounds; ++i) {
        for (size_t k = first; k < last && stage.InFlight(writer) < 4; ++k) {
          (void)stage.Begin(writer, OpKind::kUpdate, keys.given()[k]);
        }
        stage.Poll(writer, 10);
      }
    };
    stage.set_tempo(100 * kUs);
    stage.PollUntil(
        writer, [&] { return stage.client(writer).stats().expulsions > 0; }, 50'000);
    const bool expelled = stage.client(writer).stats().expulsions > 0;
    write(0, 1, 20);  // young blocks
    stage.set_tempo(5 * kUs);
    stage.Finish(writer);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, key);
    stage.Poll(reader, static_cast<uint32_t>(point));
    const bool held = !stage.Ended(get);
    (void)stage.Do(writer, OpKind::kUpdate, key);
    stage.set_tempo(100 * kUs);
    stage.Poll(writer, 200);
    write(1, 6, 20);
    stage.set_tempo(5 * kUs);
    return expelled && held;
  });
  return result;
}

}  // namespace

std::span<const Scenario> Scenarios() {
  static const std::vector<Scenario> kAll = {
      {"MissDuringASplit", {Mutation::kGetMissUnchecked, Mutation::kWriteMissUnchecked}, 128, MissDuringASplit},
      {"MissInAChildThatSplits", {Mutation::kChildMissUnchecked}, 128, MissInAChildThatSplits},
      {"LateFinisher", {Mutation::kFrzClearedLate}, 32, LateFinisher},
      {"HelperOfAFormerSplit", {Mutation::kHelperTrustsIndexes}, 12, HelperOfAFormerSplit},
      {"FrozenSlotOfAFormerSplit", {Mutation::kFrzFromAnyParent}, 12, FrozenSlotOfAFormerSplit},
      {"MergeWhoseChildSplits", {Mutation::kMergeUnengaged}, 4, MergeWhoseChildSplits},
      {"StaleDirectoryCache", {Mutation::kDirectoryCacheKept}, 60, StaleDirectoryCache},
      {"ReaderWhoseLeaseIsOver", {Mutation::kNoLeaseCheck}, 8, ReaderWhoseLeaseIsOver},
      {"BlockUnlinkedAfterTheEpochWasRead", {Mutation::kEarlyStamp}, 100, BlockUnlinkedAfterTheEpochWasRead},
  };
  return kAll;
}

void RunScenario(const Scenario& scenario, RunnerOptions options,
                 const std::function<bool(const SeedResult&)>& on_result) {
  options.from = 0;
  options.seeds = scenario.points;
  options.run = scenario.run;
  RunSeeds(options, on_result);
}

}  // namespace surgekv_sim
