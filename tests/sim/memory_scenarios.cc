#include "tests/sim/memory_scenarios.h"

#include <algorithm>

#include "tests/sim/script.h"

namespace surgekv_sim {
namespace {

using kvs::Mutation;
using kvs::SlotState;

// ---- blocks

// A reader holds the address of a block. The block is unlinked by a client that still waits for its READ of the epoch.
// The epoch that this READ brings is older than the reader's operation, so it must not be the block's stamp.
RunResult BlockUnlinkedAfterTheEpochWasRead(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .memory_nodes = 2}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, writer, keys, 0)) return false;
    stage.Finish(writer);
    // The key is in a table at the other memory node: on the home's queue its CAS would complete after the READ of the
    // epoch.
    const std::vector<uint32_t> moved = SomeMoving(keys, 6);
    const uint32_t key = moved.front();
    for (const uint32_t one : moved) {
      (void)stage.Do(reader, OpKind::kGet, one);
      (void)stage.Do(writer, OpKind::kUpdate, one);
    }
    // The writer announces an epoch that the reader has not seen yet. It READs the epoch again, but the answer is late.
    stage.Poll(writer, 1'000);
    const uint64_t reads = stage.client(writer).stats().reads;
    if (!stage.PollUntil(writer, [&] { return stage.client(writer).stats().reads != reads; })) return false;
    stage.world().set_chaos(stage.NodeOf(writer), {.tear = 0, .delay = 1, .max_delay_ns = 1'000 * kMs});
    stage.Poll(writer);
    stage.world().set_chaos(stage.NodeOf(writer), {});
    // The reader sees the epoch, advances the store to the next one and announces that.
    stage.Poll(reader, 500);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, key);
    stage.Poll(reader, static_cast<uint32_t>(point % 5));
    const bool held = !stage.Ended(get);
    const uint32_t update = stage.Begin(writer, OpKind::kUpdate, key);
    stage.Poll(writer, 20);
    const bool unlinked = stage.Ended(update);
    // Memory is freed and used again.
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

// A reader's READ of a block is late. Meanwhile its client goes on: it looks after its registration, as others do. The
// block is unlinked. It would be free as soon as all clients, this one included, have announced a later epoch.
RunResult ReaderWhoseClientGoesOn(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .memory_nodes = 2}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, writer, keys, 0)) return false;
    stage.Finish(writer);
    // The key is at the other memory node: on the home's queue maintenance would wait for the late READ.
    const std::vector<uint32_t> moved = SomeMoving(keys, 6);
    for (const uint32_t key : moved) {
      (void)stage.Do(writer, OpKind::kUpdate, key);
      (void)stage.Do(reader, OpKind::kGet, key);
    }
    const uint32_t get = stage.Begin(reader, OpKind::kGet, moved.front());
    stage.Poll(reader, static_cast<uint32_t>(point % 3));
    stage.world().set_chaos(stage.NodeOf(reader), {.tear = 0, .delay = 1, .max_delay_ns = 1'000 * kMs});
    stage.Poll(reader);
    stage.world().set_chaos(stage.NodeOf(reader), {});
    (void)stage.Do(writer, OpKind::kUpdate, moved.front());
    const bool held = !stage.Ended(get);
    for (uint32_t i = 0; i < 2'000 && !stage.Ended(get); ++i) {
      const size_t other = 1 + i % (moved.size() - 1);
      if (stage.InFlight(writer) < 2) (void)stage.Begin(writer, OpKind::kUpdate, moved[other]);
      stage.Poll(writer, 10);
      stage.Poll(reader, 10);
    }
    return held;
  });
  return result;
}

// A reader slept for longer than its lease and was expelled. Now it begins a Get. It must not, because blocks that are
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

// A client has posted the CAS of an Update or Delete, which is late, and sleeps until it is expelled. The block that
// the CAS expects is unlinked, and would be used for another key, which gets the same slot: by the word alone the CAS
// could not tell them apart.
RunResult StalledCasOfAnExpelledClient(uint64_t point) {
  RunResult result;
  OnStage({.lease_ns = 100 * kMs}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), sleeper = stage.AddClient();
    const Twins twins = FindTwins(2);
    (void)stage.Do(writer, OpKind::kInsert, twins.moving);
    (void)stage.Do(sleeper, OpKind::kGet, twins.moving);
    (void)stage.Do(sleeper, OpKind::kInsert, 0);  // so that it has memory
    const uint32_t late = stage.Begin(sleeper, point % 2 == 0 ? OpKind::kUpdate : OpKind::kDelete, twins.moving);
    stage.Poll(sleeper, static_cast<uint32_t>(point / 2));
    stage.Stall(sleeper, 1'000 * kMs);
    stage.Poll(sleeper);
    const bool held = !stage.Ended(late);
    (void)stage.Do(writer, OpKind::kDelete, twins.moving);
    stage.set_tempo(100 * kUs);
    const auto expelled = [&] { return stage.client(writer).stats().expulsions > 0; };
    if (!stage.PollUntil(writer, expelled, 5'000)) return false;
    stage.Poll(writer, 200);  // until what it has retired is free
    (void)stage.Do(writer, OpKind::kInsert, twins.staying);
    stage.Wait(1'000 * kMs);
    stage.set_tempo(5 * kUs);
    return held;
  });
  return result;
}

// A splitter dies when the child is published, and the key's slot in the parent is still frozen. The key is updated in
// the child, and the block that the frozen slot names would be used for a key that stays in the parent. Once that is
// deleted, its reader could not tell the frozen slot from one of its own.
RunResult BlockOfAFrozenSlot(uint64_t point) {
  RunResult result;
  OnStage({.lease_ns = 100 * kMs}, &result, [point](Stage& stage) {
    const uint32_t splitter = stage.AddClient(), updater = stage.AddClient();
    const Twins twins = FindTwins(2);
    (void)stage.Do(updater, OpKind::kInsert, twins.moving);
    (void)stage.Do(updater, OpKind::kInsert, twins.staying);
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    const auto parent = stage.Entry(0).subtable();
    const auto frozen = [&] {
      return stage.Entry(1).migrating() && stage.AnyCandidate(parent, twins.moving, SlotState::kFrz) &&
             stage.AnyCandidate(stage.Entry(1).subtable(), twins.moving, SlotState::kVal);
    };
    if (!stage.PollUntil(splitter, frozen)) return false;
    stage.Poll(splitter, static_cast<uint32_t>(point));
    const bool held = frozen();
    stage.Kill(splitter);
    const auto found = [&] { return stage.client(updater).stats().dead_clients_found > 0; };
    if (!stage.PollUntil(updater, found, 20'000)) return false;
    // A client that finds a death looks for memory that was lost, and so for unfinished splits. This one leaves
    // instead.
    stage.Close(updater);
    stage.Reopen(updater);
    (void)stage.Do(updater, OpKind::kUpdate, twins.moving);
    stage.Poll(updater, 2'000);  // until what it has retired is free
    (void)stage.Do(updater, OpKind::kUpdate, twins.staying);
    (void)stage.Do(updater, OpKind::kDelete, twins.staying);
    (void)stage.Do(updater, OpKind::kGet, twins.staying);
    return held;
  });
  return result;
}

// ---- chunks

void PollAll(Stage& stage, const std::vector<uint32_t>& clients) {
  for (const uint32_t client : clients) stage.Poll(client);
}

// Client `mover` gives memory back while the others run, until it has just announced that it begins a scan of the table
// in which it empties chunks. Returns false if it found none to empty.
bool CompactUntilScan(Stage& stage, uint32_t mover, const std::vector<uint32_t>& clients) {
  stage.BeginCompaction(mover);
  uint64_t announced = 0;  // the mover's word when the chunks were announced; each scan changes it
  for (uint32_t i = 0; i < 20'000 && !stage.Idle(mover); ++i) {
    PollAll(stage, clients);
    const kvs::HomeArea home = stage.Home();
    const bool emptying = std::any_of(std::begin(home.evacuation), std::end(home.evacuation),
                                      [](uint64_t slot) { return !kvs::EvacuationWord(slot).empty(); });
    if (!emptying) continue;
    if (announced == 0) announced = home.mover;
    if (home.mover != announced) return true;
  }
  return false;
}

void FinishCompaction(Stage& stage, uint32_t mover, const std::vector<uint32_t>& clients) {
  for (uint32_t i = 0; i < 20'000 && !stage.Idle(mover); ++i) PollAll(stage, clients);
}

// A client ends and leaves a chunk with little in it. Another one empties the chunk, and a third one takes it. Then a
// client begins in the first one's process and inherits what that one held.
RunResult MemoryKeptFromAnEndedClient(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t heir = stage.AddClient(), mover = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(heir, OpKind::kInsert, keys.Next());
    for (uint32_t i = 0; i < 3; ++i) (void)stage.Do(heir, OpKind::kDelete, keys.given()[i]);
    stage.Close(heir);
    stage.BeginCompaction(mover);
    FinishCompaction(stage, mover, {mover});
    const bool emptied = stage.chunks_freed() > 0;
    const uint32_t taker = stage.AddClient();
    for (uint32_t i = 0; i < 4 + 2 * point; ++i) (void)stage.Do(taker, OpKind::kInsert, keys.Next());
    stage.Reopen(heir);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(heir, OpKind::kInsert, keys.Next());
    return emptied;
  });
  return result;
}

// A client has free blocks, and a span to cut more from, in a chunk that another client empties and a third one takes.
// All are polled meanwhile, so that nobody waits for them.
RunResult FreeBlocksOfAnEmptiedChunk(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t owner = stage.AddClient(), mover = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(owner, OpKind::kInsert, keys.Next());
    for (uint32_t i = 0; i < 3; ++i) (void)stage.Do(owner, OpKind::kDelete, keys.given()[i]);
    stage.BeginCompaction(mover);
    FinishCompaction(stage, mover, {owner, mover});
    const bool emptied = stage.chunks_freed() > 0;
    const uint32_t taker = stage.AddClient();
    for (uint32_t i = 0; i < 4 + 2 * point; ++i) (void)stage.Do(taker, OpKind::kInsert, keys.Next());
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(owner, OpKind::kInsert, keys.Next());
    return emptied;
  });
  return result;
}

// A writer has a block that no slot names yet, and what it has just posted is late. The chunk that holds the block is
// being emptied, and holds nothing else any more when the block is published.
RunResult WriterIntoAnEmptiedChunk(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), mover = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(writer, OpKind::kInsert, keys.Next());
    const uint32_t late = stage.Begin(writer, point % 2 == 0 ? OpKind::kInsert : OpKind::kPut, keys.Next());
    stage.Poll(writer, static_cast<uint32_t>(point / 2));
    stage.Stall(writer, 100 * kMs);
    stage.Poll(writer);
    const bool held = !stage.Ended(late);
    stage.BeginCompaction(mover);
    stage.Poll(mover, 4'000);
    stage.Wait(100 * kMs);
    stage.Finish(writer);
    FinishCompaction(stage, mover, {writer, mover});
    return held;
  });
  return result;
}

// The same, with a writer that has been expelled meanwhile but lives.
RunResult ExpelledWriterIntoAnEmptiedChunk(uint64_t point) {
  RunResult result;
  OnStage({.lease_ns = 100 * kMs}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), mover = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(writer, OpKind::kInsert, keys.Next());
    const uint32_t late = stage.Begin(writer, point % 2 == 0 ? OpKind::kInsert : OpKind::kPut, keys.Next());
    stage.Poll(writer, static_cast<uint32_t>(point / 2));
    stage.Stall(writer, 2'000 * kMs);
    stage.Poll(writer);
    const bool held = !stage.Ended(late);
    stage.set_tempo(100 * kUs);
    const bool expelled = stage.PollUntil(
        mover, [&] { return stage.client(mover).stats().expulsions > 0; }, 10'000);
    stage.set_tempo(5 * kUs);
    stage.BeginCompaction(mover);
    FinishCompaction(stage, mover, {mover});
    const uint32_t taker = stage.AddClient();
    for (uint32_t i = 0; i < 12; ++i) (void)stage.Do(taker, OpKind::kInsert, keys.Next());
    stage.Wait(2'000 * kMs);
    stage.Finish(writer);
    return held && expelled;
  });
  return result;
}

// Two clients fill one chunk.
RunResult ChunkThatTwoFill(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t first = stage.AddClient(), second = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 1 + point; ++i) (void)stage.Do(first, OpKind::kInsert, keys.Next());
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(second, OpKind::kInsert, keys.Next());
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(first, OpKind::kInsert, keys.Next());
    return stage.client(first).stats().chunks_taken + stage.client(second).stats().chunks_taken == 1;
  });
  return result;
}

// A reader has the address of a block and is held while its READ is under way. The block is moved. Then its chunk is
// empty, and would be taken and written by another client.
RunResult ReaderOfAnEmptiedChunk(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), mover = stage.AddClient(), reader = stage.AddClient();
    Keys keys(0, 0);
    for (uint32_t i = 0; i < 6; ++i) (void)stage.Do(writer, OpKind::kInsert, keys.Next());
    const uint32_t key = keys.given()[point % 2];
    (void)stage.Do(reader, OpKind::kGet, key);
    if (!CompactUntilScan(stage, mover, {writer, mover, reader})) return false;
    const uint32_t get = stage.Begin(reader, OpKind::kGet, key);
    stage.Poll(reader, static_cast<uint32_t>(point / 2));
    stage.Stall(reader, 50 * kMs);
    stage.Poll(reader);
    const bool held = !stage.Ended(get);
    for (uint32_t i = 0; i < 1'000 && !stage.Idle(mover); ++i) PollAll(stage, {writer, mover});
    const uint32_t taker = stage.AddClient();
    for (uint32_t i = 0; i < 8; ++i) (void)stage.Do(taker, OpKind::kInsert, keys.Next());
    stage.Wait(50 * kMs);
    stage.Finish(reader);
    FinishCompaction(stage, mover, {writer, mover, reader, taker});
    return held;
  });
  return result;
}

// The mover is held in its scan, after so many polls. The chunk that it empties holds the keys `moving`. The root's
// table has room for few more of `others`.
struct HeldScan {
  uint32_t writer = 0, mover = 0, splitter = 0;
  Keys moving{1, 1}, others{0, 0};
};
bool HoldScan(Stage& stage, uint64_t polls, HeldScan* scan) {
  auto& [writer, mover, splitter, moving, others] = *scan;
  for (uint32_t* const client : {&writer, &mover, &splitter}) *client = stage.AddClient();
  others.Skip(100);
  for (uint32_t i = 0; i < 4; ++i) (void)stage.Do(writer, OpKind::kInsert, moving.Next());
  for (uint32_t i = 0; i < 12; ++i) (void)stage.Do(splitter, OpKind::kInsert, others.Next());
  (void)stage.Do(splitter, OpKind::kGet, others.given().front());
  if (!CompactUntilScan(stage, mover, {writer, mover, splitter})) return false;
  stage.Poll(mover, static_cast<uint32_t>(polls));
  stage.Stall(mover, 20 * kMs);
  stage.Poll(mover);
  return true;
}

// The mover has READ the directory and is about to READ the root's table. The table splits meanwhile, so that what a
// chunk holds has moved to a table that the scan does not visit.
RunResult SplitBehindTheScan(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    HeldScan scan;
    if (!HoldScan(stage, point, &scan)) return false;
    auto& [writer, mover, splitter, moving, others] = scan;
    const bool held = !stage.Idle(mover);
    if (!FillUntilSplit(stage, splitter, others, 0)) return false;
    stage.Finish(splitter);
    stage.Wait(20 * kMs);
    FinishCompaction(stage, mover, {writer, mover, splitter});
    return held;
  });
  return result;
}

// The root splits while the mover is about to scan it, and is held when it has frozen what is in the chunk. The scan
// goes on. The new table, which names the chunk, is published behind it.
RunResult FrozenBlocksOfAnEmptiedChunk(uint64_t point) {
  RunResult result;
  OnStage({}, &result, [point](Stage& stage) {
    HeldScan scan;
    if (!HoldScan(stage, point, &scan)) return false;
    auto& [writer, mover, splitter, moving, others] = scan;
    if (!FillUntilSplit(stage, splitter, others, 0)) return false;
    const kvs::GlobalAddress root = stage.Entry(0).subtable();
    const auto frozen = [&] {
      return std::ranges::all_of(scan.moving.given(),
                                 [&](uint32_t key) { return stage.AnyCandidate(root, key, SlotState::kFrz); });
    };
    if (!stage.PollUntil(splitter, frozen)) return false;
    const bool held = !stage.Idle(mover) && !stage.Entry(1).present();
    for (uint32_t i = 0; i < 4; ++i) {  // it looks again, but not for so long that it takes the split over
      stage.Wait(10 * kMs);
      stage.Poll(mover, 60);
    }
    stage.Finish(splitter);
    FinishCompaction(stage, mover, {writer, mover, splitter});
    for (const uint32_t key : moving.given()) (void)stage.Do(writer, OpKind::kGet, key);
    return held;
  });
  return result;
}

// A writer is about to take a chunk of a memory node, and what it has just posted is late. Meanwhile that node, which
// holds nothing, is drained.
RunResult ChunkTakenAtADrainedNode(uint64_t point) {
  RunResult result;
  OnStage({.memory_nodes = 2}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), drainer = stage.AddClient();
    Keys keys(0, 0);
    // It knows no subtable yet, so that it takes a chunk of each node in turn.
    (void)stage.Begin(writer, OpKind::kInsert, keys.Next());
    const uint32_t late = stage.Begin(writer, OpKind::kInsert, keys.Next());
    stage.Poll(writer, static_cast<uint32_t>(point));
    stage.Stall(writer, 100 * kMs);
    stage.Poll(writer);
    const bool held = !stage.Ended(late);
    stage.BeginDrain(drainer, 2);
    stage.Poll(drainer, 4'000);
    stage.Wait(100 * kMs);
    stage.Finish(writer);
    FinishCompaction(stage, drainer, {writer, drainer});
    return held && stage.drained();
  });
  return result;
}

}  // namespace

std::vector<Scenario> MemoryScenarios() {
  return {
      {"ReaderWhoseLeaseIsOver", {Mutation::kNoLeaseCheck}, 8, ReaderWhoseLeaseIsOver},
      {"BlockUnlinkedAfterTheEpochWasRead", {Mutation::kEarlyStamp}, 100, BlockUnlinkedAfterTheEpochWasRead},
      {"ReaderWhoseClientGoesOn", {Mutation::kNoPin}, 60, ReaderWhoseClientGoesOn},
      {"StalledCasOfAnExpelledClient", {Mutation::kExpelledReused}, 14, StalledCasOfAnExpelledClient},
      {"BlockOfAFrozenSlot", {Mutation::kNoHold}, 4, BlockOfAFrozenSlot},
      {"MemoryKeptFromAnEndedClient", {Mutation::kKeptMemoryUnchecked}, 6, MemoryKeptFromAnEndedClient},
      {"FreeBlocksOfAnEmptiedChunk", {Mutation::kEvacuationNotForgotten}, 6, FreeBlocksOfAnEmptiedChunk},
      {"WriterIntoAnEmptiedChunk", {Mutation::kEvacuationUnannounced}, 10, WriterIntoAnEmptiedChunk},
      {"ExpelledWriterIntoAnEmptiedChunk", {Mutation::kExpelledUnawaited}, 10, ExpelledWriterIntoAnEmptiedChunk},
      {"ChunkThatTwoFill", {Mutation::kSpanFromTheStart}, 4, ChunkThatTwoFill},
      {"ReaderOfAnEmptiedChunk", {Mutation::kNoSecondGrace}, 10, ReaderOfAnEmptiedChunk},
      {"SplitBehindTheScan", {Mutation::kScanUnchecked}, 6, SplitBehindTheScan},
      {"FrozenBlocksOfAnEmptiedChunk", {Mutation::kScanIgnoresFrozen}, 12, FrozenBlocksOfAnEmptiedChunk},
      {"ChunkTakenAtADrainedNode", {Mutation::kDrainUnannounced}, 8, ChunkTakenAtADrainedNode},
  };
}

}  // namespace surgekv_sim
