#include "tests/sim/scenarios.h"

#include <algorithm>

#include "tests/sim/memory_scenarios.h"
#include "tests/sim/mirror_scenarios.h"
#include "tests/sim/node_points.h"
#include "tests/sim/script.h"

namespace surgekv_sim {
namespace {

using kvs::Mutation;
using kvs::SlotState;

constexpr uint32_t kNobodysKey = 2'000;
constexpr int64_t kLongerThanATakeoverNs = 150 * kMs;
// Half of the READs are torn, and half of those last longer than a split.
constexpr krcore::rnic::sim::Chaos kLastingReads{.tear = 0.5, .delay = 1, .max_delay_ns = 1'000 * kMs};

// ---- misses

// Tears readers' READs while the table splits: they see headers from before the split and slots from after it. Each
// reader has one operation, because the READs of a queue wait for each other. It has posted its first READs. Then the
// words of READs begin to lie as far apart as a split takes, and the split goes on.
bool TearReadsDuringASplit(Stage& stage, uint32_t splitter, const std::vector<uint32_t>& readers, const Keys& keys) {
  // Keys whose slot is READ last, so that all the headers may be older.
  std::vector<uint32_t> moving;
  for (const uint32_t key : keys.given()) {
    const bool moves = (Stage::HashOf(key).h1 & 1) != 0;
    if (moves && stage.IsInSecondPlace(stage.Entry(0).subtable(), key)) moving.push_back(key);
  }
  if (moving.empty()) return false;
  for (size_t r = 0; r < std::min(readers.size(), moving.size()); ++r) {
    // Not Update: its READs would wait for the WRITE of its block.
    (void)stage.Begin(readers[r], r % 2 == 0 ? OpKind::kGet : OpKind::kDelete, moving[r]);
  }
  stage.set_tempo(1);
  for (const uint32_t reader : readers) stage.Poll(reader);
  for (const uint32_t reader : readers) stage.world().set_chaos(stage.NodeOf(reader), kLastingReads);
  stage.set_tempo(2'500);
  stage.Finish(splitter);
  return true;
}

constexpr uint32_t kReaders = 24;

RunResult MissDuringASplitOf(uint64_t point, bool multi_get) {
  RunResult result;
  OnStage({.seed = point + 1, .groups = 4, .multi_get = multi_get}, &result, [](Stage& stage) {
    const uint32_t splitter = stage.AddClient();
    std::vector<uint32_t> readers;
    for (uint32_t r = 0; r < kReaders; ++r) {
      readers.push_back(stage.AddClient());
      (void)stage.Do(readers.back(), OpKind::kGet, kNobodysKey);  // so that it knows the table
    }
    Keys keys(0, 0);
    return FillUntilSplit(stage, splitter, keys, 0) && TearReadsDuringASplit(stage, splitter, readers, keys);
  });
  return result;
}

RunResult MissDuringASplit(uint64_t point) { return MissDuringASplitOf(point, false); }
RunResult MissOfMultiGetDuringASplit(uint64_t point) { return MissDuringASplitOf(point, true); }

// ---- writers

// A client has scanned the table and posted the CAS of an Update or Delete, which is late. Meanwhile another key of the
// same fingerprint gets the slot, so the word that the CAS returns names that key's block.
RunResult SlotOfAnotherKey(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t late = stage.AddClient(), writer = stage.AddClient();
    const Twins twins = FindTwins(2);
    (void)stage.Do(late, OpKind::kInsert, 0);  // so that it has memory
    (void)stage.Do(writer, OpKind::kInsert, twins.moving);
    const uint32_t update = stage.Begin(late, point % 2 == 0 ? OpKind::kUpdate : OpKind::kDelete, twins.moving);
    stage.Poll(late, static_cast<uint32_t>(point / 2));
    stage.Stall(late, kMs);
    stage.Poll(late);
    const bool held = !stage.Ended(update);
    (void)stage.Do(writer, OpKind::kDelete, twins.moving);
    (void)stage.Do(writer, OpKind::kInsert, twins.staying);
    stage.Wait(kMs);
    stage.Finish(late);
    return held;
  });
  return result;
}

// The queue of a client breaks during its Delete or Modify. Before it has connected again to look, another client does
// this to the key.
RunResult QueueBreaksAndAnother(uint64_t point, OpKind held_kind, OpKind others) {
  RunResult result;
  OnStage({.seed = point + 1, .breaks = true}, &result, [=](Stage& stage) {
    constexpr uint32_t kKey = 0;
    const uint32_t broken = stage.AddClient(), other = stage.AddClient();
    (void)stage.Do(other, OpKind::kInsert, kKey);
    (void)stage.Do(broken, OpKind::kInsert, kKey + 1);  // so that it knows the table, and has memory
    const uint32_t operation = stage.Begin(broken, held_kind, kKey);
    stage.set_tempo(400);  // several rounds per round trip
    stage.Poll(broken, static_cast<uint32_t>(point % 24));
    stage.world().BreakQueues(stage.NodeOf(broken), 1);
    stage.set_tempo(5 * kUs);
    const bool held = !stage.Ended(operation);
    (void)stage.Do(other, others, kKey);
    stage.Finish(broken);
    (void)stage.Do(other, OpKind::kGet, kKey);
    return held;
  });
  return result;
}

// The deleter finds neither the old word nor its own.
RunResult DeleteWhoseQueueBreaks(uint64_t point) {
  return QueueBreaksAndAnother(point, OpKind::kDelete, OpKind::kUpdate);
}

// Perhaps the other one has deleted the key in its place. Only one of them may say that it did.
RunResult TwoDeletesWhenAQueueBreaks(uint64_t point) {
  return QueueBreaksAndAnother(point, OpKind::kDelete, OpKind::kDelete);
}

// The other one may have read what the first one set. If that one then tried again, it would be done twice.
RunResult TwoModifiesWhenAQueueBreaks(uint64_t point) {
  return QueueBreaksAndAnother(point, OpKind::kModify, OpKind::kModify);
}

// A Modify is held after each of its polls, with what it has just posted late. Meanwhile another client changes the
// key. The first one's address cache knows the key's place, from before an earlier change.
RunResult ModifyAndAnother(uint64_t point) {
  static constexpr OpKind kOthers[] = {OpKind::kUpdate, OpKind::kModify, OpKind::kDelete};
  RunResult result;
  OnStage({.seed = point + 1, .address_cache_entries = 64}, &result, [point](Stage& stage) {
    constexpr uint32_t kKey = 0;
    const uint32_t late = stage.AddClient(), other = stage.AddClient();
    (void)stage.Do(late, OpKind::kInsert, kKey);
    (void)stage.Do(other, OpKind::kUpdate, kKey);
    const uint32_t modify = stage.Begin(late, OpKind::kModify, kKey);
    stage.Poll(late, static_cast<uint32_t>(point / 3));
    stage.Stall(late, kMs);
    stage.Poll(late);
    const bool held = !stage.Ended(modify);
    (void)stage.Do(other, kOthers[point % 3], kKey);
    stage.Wait(kMs);
    stage.Finish(late);
    (void)stage.Do(other, OpKind::kModify, kKey);
    return held;
  });
  return result;
}

// Client c begins an Update, a Delete or an Insert of each of a few keys that leave the table. They begin one after
// another, so that they are at different points.
void BeginWrites(Stage& stage, uint32_t c, const std::vector<uint32_t>& present, Keys& absent) {
  for (size_t i = 0; i < present.size(); ++i) {
    (void)stage.Begin(c, i % 2 == 0 ? OpKind::kUpdate : OpKind::kDelete, present[i]);
    (void)stage.Begin(c, OpKind::kInsert, absent.Next());
    stage.Poll(c);
  }
}

// A splitter is held at each point of a split, and what it has just posted is late. Other clients write keys that
// leave, and are held in their turn. The splitter goes on, and then the writers do.
RunResult WritesBesideASplit(uint64_t point) {
  RunResult result;
  for (uint32_t rounds = 0; rounds < 8; ++rounds) {
    OnStage({.groups = 4}, &result, [point, rounds](Stage& stage) {
      const uint32_t splitter = stage.AddClient(), writer = stage.AddClient();
      (void)stage.Do(writer, OpKind::kGet, kNobodysKey);  // so that it knows the table
      Keys keys(0, 0), newer(1, 1);
      newer.Skip(1'000);
      if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
      stage.Poll(splitter, static_cast<uint32_t>(point));
      stage.Stall(splitter, 10 * kMs);
      stage.Poll(splitter);
      const bool held = stage.Entry(0).splitting();
      BeginWrites(stage, writer, SomeMoving(keys, 8), newer);
      stage.Poll(writer, rounds);
      stage.Wait(10 * kMs);
      stage.Poll(splitter, 100);
      stage.Finish(writer);
      return held;
    });
  }
  return result;
}

// The same with a merger, and with a reader that knows the old tables. In half of the cases the writers are not held:
// they take the merge over, and the merger resumes late what it has begun.
RunResult WritesBesideAMerge(uint64_t point) {
  RunResult result;
  for (uint32_t rounds = 0; rounds < 8; ++rounds) {
    OnStage({}, &result, [point, rounds](Stage& stage) {
      const uint32_t merger = stage.AddClient(), writer = stage.AddClient(), stale = stage.AddClient();
      Keys keys(0, 0), newer(1, 1);
      newer.Skip(1'000);
      if (!FillUntilSplit(stage, merger, keys, 0)) return false;
      stage.Finish(merger);
      const std::vector<uint32_t> kept = SomeMoving(keys, 6);
      for (const uint32_t client : {writer, stale}) {
        for (const uint32_t key : kept) (void)stage.Do(client, OpKind::kGet, key);
      }
      if (!DeleteUntilMerge(stage, merger, keys, kept)) return false;
      stage.Poll(merger, static_cast<uint32_t>(point));
      stage.Stall(merger, 2'000 * kMs);
      stage.Poll(merger);
      const bool held = stage.Entry(0).merging() || stage.Entry(1).merging();
      BeginWrites(stage, writer, kept, newer);
      if (rounds % 2 == 0) {
        stage.Poll(writer, rounds / 2);
        stage.Wait(2'000 * kMs);
        stage.Poll(merger, 100);
      } else {
        stage.set_tempo(kLongerThanATakeoverNs / 64);
        stage.Poll(writer, 200);
        stage.set_tempo(5 * kUs);
        BeginWrites(stage, writer, kept, newer);
        stage.Poll(writer, 20);
        stage.Wait(2'000 * kMs);
        stage.Poll(merger, 100);
      }
      stage.Finish(writer);
      for (const uint32_t key : kept) (void)stage.Begin(stale, OpKind::kGet, key);
      stage.Finish(stale);
      return held;
    });
  }
  return result;
}

// ---- splits

// The first splitter is held. Another one takes over, finishes that split, begins the parent's next one, and is held in
// its turn. Then the first one goes on. Every key is there, meanwhile and afterwards.
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

// A reader sees a slot that is frozen and no longer counts, because the key's new slot was written already, and is
// held. The tables are merged, and the joined one has just published a new child. The reader must go there, and not
// believe the slot that it saw.
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

// A merger has taken its first entry and is held. Before it takes the second one, that entry's table begins to split,
// and the split may have ended.
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

// A client that only keeps its registration knows tables that are merged away. Their memory is reused for another
// joined table, which is written and not published yet when the merger is held. A client that trusted its old knowledge
// would meet it.
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
        // Wait until what was retired is free, and longer.
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

// ---- a directory in which several things go on

// One table begins to split, so that the directory grows, and its splitter is held. Another table splits, its child
// splits, and those two are merged again. Clients that know nothing of this read, update and insert everywhere.
RunResult DirectoryGrowthWhileEntriesChange(uint64_t point) {
  RunResult result;
  OnStage({.initial_depth = 1}, &result, [point](Stage& stage) {
    const uint32_t grower = stage.AddClient(), changer = stage.AddClient(), stale = stage.AddClient();
    for (uint32_t key = kNobodysKey; key < kNobodysKey + 8; ++key) (void)stage.Do(stale, OpKind::kGet, key);
    Keys odd(1, 1), even(1, 0), newer(0, 0);
    newer.Skip(1'000);
    if (!FillUntilSplit(stage, grower, odd, 1)) return false;
    stage.Poll(grower, static_cast<uint32_t>(point));
    const bool held = stage.Entry(1).splitting();
    const auto use = [&](const Keys& keys) {
      for (const uint32_t key : keys.given()) {
        (void)stage.Begin(stale, key % 3 == 0 ? OpKind::kUpdate : OpKind::kGet, key);
        (void)stage.Begin(stale, OpKind::kInsert, newer.Next());
        stage.Poll(stale, 2);
      }
    };
    if (!FillUntilSplit(stage, changer, even, 0)) return false;
    use(odd);
    stage.Finish(changer);
    use(even);
    Keys deep(2, 2);
    deep.Skip(500);
    if (!FillUntilSplit(stage, changer, deep, 2)) return false;
    use(deep);
    stage.Finish(changer);
    (void)DeleteUntilMerge(stage, changer, deep, {deep.given().front()}, 2);
    stage.Poll(changer, 10);
    use(even);
    stage.Poll(grower, 200);
    use(odd);
    return held;
  });
  return result;
}

// The root splits, and its child is a table of its own already, but the root's entry does not say so yet: the splitter
// is held. The child splits in its turn and begins to merge with its own child; that merger is held, too. A writer of
// the root takes the root's split over, and finds a merge where the child should be. Then all go on.
RunResult MergeInsideASplit(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient(), merger = stage.AddClient(), successor = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    stage.set_tempo(100);
    const auto born = [&] { return stage.Entry(1).state() == kvs::DirectoryState::kNormal; };
    if (!stage.PollUntil(splitter, born, 100'000)) return false;
    stage.set_tempo(5 * kUs);
    Keys odd(1, 1), even(1, 0);
    odd.Skip(500);
    even.Skip(500);
    if (!FillUntilSplit(stage, merger, odd, 1)) return false;
    stage.Finish(merger);
    for (const uint32_t key : SomeMoving(keys, 100)) odd.GiveBack(key);
    if (!DeleteUntilMerge(stage, merger, odd, {odd.given().front(), odd.given().back()}, 1)) return false;
    stage.Poll(merger, static_cast<uint32_t>(point));
    const bool held = stage.Entry(0).splitting() && stage.Entry(1).merging();
    for (uint32_t i = 0; i < 40 && stage.Entry(0).splitting(); ++i) {
      const uint32_t insert = stage.Begin(successor, OpKind::kInsert, even.Next());
      for (uint32_t round = 0; round < 500 && !stage.Ended(insert); ++round) {
        stage.Poll(successor);
        stage.Wait(kLongerThanATakeoverNs / 64);
      }
    }
    stage.Poll(splitter, 100);
    stage.Finish(merger);
    return held;
  });
  return result;
}

// ---- scans over keys

// A table splits while its words are read: the headers of before, and slots of after it. The scans have asked the
// directory before.
RunResult KeyScanDuringASplit(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient();
    std::vector<uint32_t> readers;
    for (uint32_t r = 0; r < kReaders; ++r) readers.push_back(stage.AddClient());
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    for (const uint32_t reader : readers) {
      stage.BeginScan(reader, 1'000);
      stage.Poll(reader, 1 + static_cast<uint32_t>(point % 2));
    }
    stage.set_tempo(1);
    for (const uint32_t reader : readers) stage.Poll(reader);
    for (const uint32_t reader : readers) stage.world().set_chaos(stage.NodeOf(reader), kLastingReads);
    stage.set_tempo(2'500);
    const bool held = stage.Entry(0).splitting();
    stage.Finish(splitter);
    return held;
  });
  return result;
}

// A splitter is held. A scan waits for nobody: it has what is frozen from the table that splits, or from the child.
RunResult KeyScanBesideASplit(uint64_t point) {
  RunResult result;
  OnStage({.groups = 4}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient(), scanner = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    stage.Poll(splitter, static_cast<uint32_t>(point));
    const bool held = stage.Entry(0).splitting();
    stage.BeginScan(scanner, 100);
    stage.Finish(scanner);
    return held;
  });
  return result;
}

// A scan is in the middle of a table, and held. The table is merged with its sibling, and the merger is held. The scan
// goes on, and another one begins.
RunResult KeyScanBesideAMerge(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t merger = stage.AddClient(), scanner = stage.AddClient(), other = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, merger, keys, 0)) return false;
    stage.Finish(merger);
    std::vector<uint32_t> kept = keys.given();
    kept.resize(10);
    stage.BeginScan(scanner, 2);
    if (!stage.PollUntil(scanner, [&] { return stage.Scanned(scanner) >= 2 + point % 8; })) return false;
    if (!DeleteUntilMerge(stage, merger, keys, kept)) return false;
    stage.Poll(merger, static_cast<uint32_t>(point));
    const bool held = stage.Entry(0).merging() || stage.Entry(1).merging();
    stage.BeginScan(other, 3);
    stage.Finish(other);
    stage.Finish(scanner);
    return held;
  });
  return result;
}

// A step of a scan is full in the middle of keys that have one hash.
RunResult KeyScanOfEqualHashes(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t client = stage.AddClient();
    for (uint32_t key = 0; key < 12; ++key) (void)stage.Do(client, OpKind::kInsert, key);
    for (uint32_t key = Stage::kFirstEqual; key < Stage::kKeys; ++key) (void)stage.Do(client, OpKind::kInsert, key);
    stage.BeginScan(client, 1 + static_cast<uint32_t>(point));
    stage.Finish(client);
    return Stage::HashOf(Stage::kFirstEqual).h1 == Stage::HashOf(Stage::kKeys - 1).h1;
  });
  return result;
}

}  // namespace

std::span<const Scenario> Scenarios() {
  static const std::vector<Scenario> kAll = [] {
    std::vector<Scenario> all = {
        {"MissDuringASplit", {Mutation::kGetMissUnchecked, Mutation::kWriteMissUnchecked}, 128, MissDuringASplit},
        {"MissOfMultiGetDuringASplit", {Mutation::kMultiGetMissUnchecked}, 128, MissOfMultiGetDuringASplit},
        {"SlotOfAnotherKey", {Mutation::kLostCasKeyUnchecked}, 12, SlotOfAnotherKey},
        {"DeleteWhoseQueueBreaks", {Mutation::kUnknownIsSuccess}, 96, DeleteWhoseQueueBreaks},
        {"TwoDeletesWhenAQueueBreaks", {Mutation::kFreeRepeats}, 96, TwoDeletesWhenAQueueBreaks},
        {"TwoModifiesWhenAQueueBreaks", {Mutation::kUnknownTriedAgain}, 96, TwoModifiesWhenAQueueBreaks},
        {"ModifyAndAnother",
         {Mutation::kGuessUnchecked, Mutation::kWordReadAgain, Mutation::kLostModifyAgain},
         24,
         ModifyAndAnother},
        {"WritesBesideASplit",
         {Mutation::kSlotBeforeHeader, Mutation::kSplitIgnoresIns, Mutation::kInsertWithoutHeaders,
          Mutation::kLostSwapIgnored},
         16,
         WritesBesideASplit},
        {"WritesBesideAMerge",
         {Mutation::kMergeHeadersLate, Mutation::kMergeIgnoresIns, Mutation::kMergeWithoutFreeze,
          Mutation::kMergePublishByWrite, Mutation::kClosedUnchecked, Mutation::kLostSwapIgnored},
         24,
         WritesBesideAMerge},
        {"LateFinisher",
         {Mutation::kFrzClearedLate, Mutation::kFrzClearedEarly, Mutation::kSplitPublishByWrite},
         32,
         LateFinisher},
        {"FrozenSlotOfAFormerSplit", {Mutation::kSplittingUnchecked}, 12, FrozenSlotOfAFormerSplit},
        {"MergeWhoseChildSplits", {Mutation::kMergeUnengaged}, 4, MergeWhoseChildSplits},
        {"StaleDirectoryCache", {Mutation::kDirectoryCacheKept}, 60, StaleDirectoryCache},
        {"DirectoryGrowthWhileEntriesChange", {Mutation::kCopyWithoutFreeze}, 24, DirectoryGrowthWhileEntriesChange},
        {"MergeInsideASplit", {Mutation::kAnyMergeIsOver}, 24, MergeInsideASplit},
        {"KeyScanDuringASplit", {Mutation::kKeyScanHeadersOnce, Mutation::kKeyScanOfOldTable}, 32, KeyScanDuringASplit},
        {"KeyScanBesideASplit", {Mutation::kKeyScanIgnoresFrozen}, 24, KeyScanBesideASplit},
        {"KeyScanBesideAMerge", {Mutation::kKeyScanIgnoresFrozen, Mutation::kKeyScanBySlots}, 24, KeyScanBesideAMerge},
        {"KeyScanOfEqualHashes", {Mutation::kKeyScanSplitsEquals}, 8, KeyScanOfEqualHashes},
    };
    for (const auto& others : {MemoryScenarios(), MirrorScenarios(), NodePointScenarios()})
      all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return kAll;
}

const Scenario* ScenarioFor(kvs::Mutation mutation) {
  for (const Scenario& scenario : Scenarios()) {
    if (std::find(scenario.catches.begin(), scenario.catches.end(), mutation) != scenario.catches.end()) {
      return &scenario;
    }
  }
  return nullptr;
}

void RunScenario(const Scenario& scenario, RunnerOptions options,
                 const std::function<bool(const SeedResult&)>& on_result) {
  options.from = 0;
  options.seeds = scenario.points;
  options.run = scenario.run;
  RunSeeds(options, on_result);
}

}  // namespace surgekv_sim
