#include "tests/sim/mirror_scenarios.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <ranges>
#include <vector>

#include "kvs/client/client_core.h"
#include "kvs/memory/views.h"
#include "tests/sim/script.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

using krcore::rnic::sim::Chaos;
using kvs::Mutation;

constexpr uint32_t kKey = 7;
constexpr uint32_t kKeys = 4;
constexpr uint32_t kSomeKeys = 16;
constexpr uint32_t kSameSlot = kSomeKeys + 4;  // a key that gets the slot of kSomeKeys if that is free
constexpr uint32_t kMostKeys = 60;             // until a subtable splits
constexpr krcore::NodeId kOtherPool = 2;       // the home is pool 1
constexpr int64_t kLongLeaseNs = 1'000 * kMs;
constexpr uint32_t kPollsToCas = 5;  // of an Update of a key of which the client knows nothing

kvs::Views& ViewsOf(Stage& stage, uint32_t c) { return *static_cast<kvs::ClientCore&>(stage.client(c)).views(); }

// The client suspects the head or the tail of the home, which lives: so it leaves the chain alive.
void Suspect(Stage& stage, uint32_t c, bool head) {
  kvs::Views& views = ViewsOf(stage, c);
  const kvs::PoolChain chain = *views.Find(1);
  (void)views.Suspect(1, head ? chain.replicas[0] : chain.tail());
}

// Polls all of these once, in turn.
void PollAll(Stage& stage, std::initializer_list<uint32_t> clients, uint32_t rounds) {
  for (; rounds > 0; --rounds) {
    for (const uint32_t c : clients) stage.Poll(c);
  }
}

// Returns what a memory node of the home has of the root table.
std::vector<std::byte> TableAt(Stage& stage, krcore::NodeId node) {
  const auto bytes =
      stage.memory_nodes().BytesOf(node).subspan(stage.Entry(0).subtable().offset, kvs::SubtableGeometry{2}.bytes());
  return {bytes.begin(), bytes.end()};
}

// Whether the head of the home has a word in the root table that the tail does not have yet.
bool IsUnderWay(Stage& stage) {
  const std::vector<krcore::NodeId> chain = stage.memory_nodes().ChainOf(1);
  return TableAt(stage, chain.front()) != TableAt(stage, chain.back());
}

// Whether such a word names a block in that pool, and the tail's does not.
bool NamesAtHeadAlone(Stage& stage, krcore::NodeId pool) {
  const std::vector<krcore::NodeId> chain = stage.memory_nodes().ChainOf(1);
  const std::vector<std::byte> head = TableAt(stage, chain.front()), tail = TableAt(stage, chain.back());
  const auto names = [pool](const std::byte* at) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    return kvs::Slot(word).has_block() && kvs::Slot(word).block().node == pool;
  };
  for (uint32_t s = 0; kvs::SlotOffset(s) < head.size(); ++s) {
    const uint64_t at = kvs::SlotOffset(s);
    if (names(&head[at]) && !names(&tail[at])) return true;
  }
  return false;
}

// Whether the head of the home has a directory entry that names a subtable in the other pool, and the tail has not.
bool NamesTableAtHeadAlone(Stage& stage) {
  const std::vector<krcore::NodeId> chain = stage.memory_nodes().ChainOf(1);
  const auto entry = [&](krcore::NodeId node, uint32_t index) {
    uint64_t word = 0;
    std::memcpy(&word, &stage.memory_nodes().BytesOf(node)[kvs::kDirectoryOffset + index * sizeof(word)], sizeof(word));
    return kvs::DirectoryEntry(word);
  };
  for (uint32_t index = 0; index < 64; ++index) {
    const kvs::DirectoryEntry head = entry(chain.front(), index), tail = entry(chain.back(), index);
    if (head.present() && !tail.present() && head.subtable().node == kOtherPool) return true;
  }
  return false;
}

// Steps the keeper and polls these clients until the memory node that joins is a replica.
void AwaitMember(Stage& stage, std::initializer_list<uint32_t> clients) {
  for (uint32_t round = 0; round < 400'000 && stage.keeper().state != kvs::ReplicaState::kMember; ++round) {
    stage.StepKeeper();
    PollAll(stage, clients, 1);
  }
}

// Two clients that know the key, which the second one has inserted.
struct Pair {
  uint32_t reader, writer;
};
Pair AddPair(Stage& stage) {
  const Pair pair{.reader = stage.AddClient(), .writer = stage.AddClient()};
  (void)stage.Do(pair.writer, OpKind::kInsert, kKey);
  (void)stage.Do(pair.reader, OpKind::kGet, kKey);
  return pair;
}

// Polls the client in short steps, so that it is held as soon as this is true. False: it never is.
bool HoldWhen(Stage& stage, uint32_t c, const std::function<bool()>& is_there) {
  stage.set_tempo(200);
  const bool held = stage.PollUntil(c, is_there);
  stage.set_tempo(5 * kUs);
  return held;
}

// A tail leaves alive. A writer goes on in the new view while a reader, which is not polled, knows nothing of it: then
// the writer has to wait until the reader knows.
RunResult ReaderOfAnOldView(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2}, &result, [point](Stage& stage) {
    const auto [reader, writer] = AddPair(stage);
    PollAll(stage, {writer, reader}, static_cast<uint32_t>(point));
    Suspect(stage, writer, false);
    const uint32_t update = stage.Begin(writer, OpKind::kUpdate, kKey);
    (void)stage.PollUntil(
        writer, [&] { return stage.Ended(update); }, 2'000);
    const bool waited = !stage.Ended(update);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, kKey);
    for (uint32_t round = 0; round < 4'000 && !(stage.Ended(get) && stage.Ended(update)); ++round) {
      PollAll(stage, {reader, writer}, 1);
    }
    return waited;
  });
  return result;
}

// The same, but the reader has acknowledged the new view, and is then not polled until the writer has used it.
RunResult ReaderThatHasAcknowledged(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2}, &result, [point](Stage& stage) {
    const auto [reader, writer] = AddPair(stage);
    PollAll(stage, {writer, reader}, static_cast<uint32_t>(point));
    Suspect(stage, writer, false);
    stage.Poll(writer, 10);
    ViewsOf(stage, reader).NoteNewer();
    const auto acknowledged = [&] {
      const kvs::HomeArea home = stage.Home();
      return std::ranges::count(home.acknowledged, home.configuration) == (home.configuration > 1 ? 2 : -1);
    };
    for (uint32_t round = 0; round < 2'000 && !acknowledged(); ++round) PollAll(stage, {writer, reader}, 1);
    const bool held = acknowledged() && ViewsOf(stage, reader).changing();
    (void)stage.PollUntil(writer, [&stage, writer = writer] { return !ViewsOf(stage, writer).changing(); });
    (void)stage.Do(writer, OpKind::kUpdate, kKey);
    const uint32_t get = stage.Begin(reader, OpKind::kGet, kKey);
    (void)stage.PollUntil(
        reader, [&] { return stage.Ended(get); }, 2'000);
    return held;
  });
  return result;
}

// A Delete has been done at the head; its verb to the tail is on its way. The head leaves alive, the lease ends, and
// another client updates the key at the tail. Only then does the verb arrive there, and finds another word. It must not
// be taken for a helper's.
RunResult HopThatArrivesBehindTheLease(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result, [](Stage& stage) {
    const auto [late, other] = AddPair(stage);
    (void)stage.Begin(late, OpKind::kDelete, kKey);
    if (!HoldWhen(stage, late, [&] { return IsUnderWay(stage); })) return false;
    stage.Stall(late, 4 * kLongLeaseNs);
    stage.Poll(late, 2);  // takes the head's answer, and posts the next verb
    const bool held = IsUnderWay(stage);
    Suspect(stage, other, true);
    const uint32_t update = stage.Begin(other, OpKind::kUpdate, kKey);
    for (uint32_t round = 0; round < 4'000 && !stage.Ended(update); ++round) {
      stage.Poll(other);
      stage.Wait(kMs);
    }
    stage.Wait(4 * kLongLeaseNs);
    return held && stage.Ended(update);
  });
  return result;
}

// The same, but the client's lease holds: it learns of the new view, and must not acknowledge it while the verb is on
// its way.
RunResult HopWhileAViewIsAcknowledged(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result, [point](Stage& stage) {
    const auto [late, other] = AddPair(stage);
    (void)stage.Begin(late, OpKind::kDelete, kKey);
    if (!HoldWhen(stage, late, [&] { return IsUnderWay(stage); })) return false;
    stage.world().set_chaos(stage.NodeOf(late), {.delay = 1, .max_delay_ns = 200 * kMs});
    stage.Poll(late, 2);  // takes the head's answer, and posts the next verb
    stage.world().set_chaos(stage.NodeOf(late), Chaos{});
    const bool held = IsUnderWay(stage);
    Suspect(stage, other, true);
    const uint32_t update = stage.Begin(other, OpKind::kUpdate, kKey);
    PollAll(stage, {other}, 10 + static_cast<uint32_t>(point));
    ViewsOf(stage, late).NoteNewer();
    PollAll(stage, {late, other}, 4'000);
    stage.Wait(200 * kMs);
    (void)update;
    return held;
  });
  return result;
}

// Kills the tail of the home, and polls these clients until they use a view without it.
bool LoseTail(Stage& stage, uint32_t a, uint32_t b) {
  const size_t length = stage.memory_nodes().ChainOf(1).size();
  stage.KillMemoryNode(stage.memory_nodes().ChainOf(1).back());
  (void)stage.Begin(b, OpKind::kGet, kKey);
  const auto used = [&](uint32_t c) { return ViewsOf(stage, c).used().Find(1)->chain.size() < length; };
  for (uint32_t round = 0; round < 4'000 && !(used(a) && used(b)); ++round) PollAll(stage, {a, b}, 1);
  return used(a) && used(b);
}

// An Update's CAS is late. It arrives while a memory node that joins copies the slot, or has just done so, and its
// client dies. So the learner lacks a word that others have read.
RunResult LateCasWhileAReplicaJoins(uint64_t point) {
  RunResult result;
  const auto replicas = static_cast<uint32_t>(2 + point % 2);
  OnStage({.seed = point + 1, .replicas = replicas, .breaks = true, .lease_ns = kLongLeaseNs}, &result,
          [point](Stage& stage) {
            const auto [other, late] = AddPair(stage);  // the late one has memory for a block already
            if (!LoseTail(stage, late, other)) return false;
            (void)stage.Begin(late, OpKind::kUpdate, kKey);
            stage.set_tempo(10 * kUs);
            stage.Poll(late, kPollsToCas);
            stage.Stall(late, 3 * kLongLeaseNs);
            stage.Poll(late);
            const int64_t arrives_ns = stage.world().now_ns() + 3 * kLongLeaseNs;
            // Before the view with the learner the joiner waits half a lease for that client, and in it 1.5 leases. So
            // the copy comes a little before the CAS.
            stage.Wait(kLongLeaseNs / 4);
            const krcore::NodeId head = stage.memory_nodes().ChainOf(1).front(), learner = stage.Join();
            stage.set_tempo(20 * kUs);
            for (uint32_t round = 0; round < 200'000 && stage.keeper().tables == 0; ++round) stage.StepKeeper();
            stage.set_tempo(5 * kUs);
            for (uint32_t round = 0; round < point / 2 * 2; ++round) stage.StepKeeper();
            const std::vector<std::byte> before = TableAt(stage, head);
            stage.world().RunUntil(arrives_ns + 50 * kUs);
            const std::vector<std::byte> after = TableAt(stage, head);
            const bool held = after != before && TableAt(stage, learner) != after && stage.keeper().passes == 1;
            (void)stage.Do(other, OpKind::kGet, kKey);
            stage.Kill(late);
            AwaitMember(stage, {other});
            (void)stage.Do(other, OpKind::kGet, kKey);
            (void)stage.Do(other, OpKind::kUpdate, kKey);
            return held && stage.keeper().state == kvs::ReplicaState::kMember;
          });
  return result;
}

// The only client gives memory back, of which there is none. For a lease from then on it does not try again, although
// it finds a client dead: the mover would bring words of the head to the tail.
void CompactInVain(Stage& stage, uint32_t c) {
  stage.BeginCompaction(c);
  stage.Finish(c);
}

// A client dies when the head of the home, and no other replica, has a word that names a block in another pool. Then a
// memory node joins that pool. It must get the block: somebody will bring that word to the tail.
RunResult BlockOfAWordAtTheHead(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .memory_nodes = 2, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result,
          [](Stage& stage) {
            const uint32_t other = stage.AddClient();
            for (uint32_t key = 0; key < kKeys; ++key) (void)stage.Do(other, OpKind::kInsert, key);
            CompactInVain(stage, other);
            // A client takes memory in any pool until it knows where the tables are.
            const uint32_t dying = stage.AddClient();
            for (uint32_t key = 0; key < kKeys; ++key) (void)stage.Begin(dying, OpKind::kUpdate, key);
            const bool held = HoldWhen(stage, dying, [&] { return NamesAtHeadAlone(stage, kOtherPool); });
            stage.Kill(dying);
            stage.KillMemoryNode(stage.memory_nodes().ChainOf(kOtherPool).back());
            (void)stage.Join();
            AwaitMember(stage, {other});
            for (uint32_t key = 0; key < kKeys; ++key) (void)stage.Do(other, OpKind::kUpdate, key);
            return held && stage.keeper().state == kvs::ReplicaState::kMember;
          });
  return result;
}

// A client dies when the head of the home, and no other replica, has its word that names a block. Another client
// empties the chunk of that block, uses it again, and then brings that word to the tail.
RunResult ChunkOfAWordAtTheHead(uint64_t point) {
  RunResult result;
  const auto replicas = static_cast<uint32_t>(2 + point % 2);
  OnStage({.seed = point + 1, .replicas = replicas, .breaks = true, .lease_ns = kLongLeaseNs}, &result,
          [point](Stage& stage) {
            const uint32_t dying = stage.AddClient(), other = stage.AddClient();
            for (uint32_t key = 0; key < kKeys; ++key) (void)stage.Do(dying, OpKind::kInsert, key);
            (void)stage.Begin(dying, OpKind::kInsert, kKey);
            const bool held = HoldWhen(stage, dying, [&] { return IsUnderWay(stage); });
            stage.Kill(dying);
            stage.BeginCompaction(other);
            for (uint32_t round = 0; round < 4'000 && !stage.Idle(other); ++round) {
              stage.Poll(other);
              stage.Wait(kMs);
            }
            for (uint32_t key = 0; key < kKeys; ++key) (void)stage.Do(other, OpKind::kUpdate, key);
            if (point / 2 % 2 == 0) (void)stage.Do(other, OpKind::kInsert, kKey);
            return held && stage.client(other).stats().chunks_freed > 0;
          });
  return result;
}

// The same, but a second client has met that word at the head, and its verb to the next replica is late. The head dies.
// The mover scans in the view that follows, before the verb arrives: it must wait until that client has ended, and look
// again.
RunResult ChunkOfAWordOfALostHead(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 3, .breaks = true, .lease_ns = kLongLeaseNs}, &result, [point](Stage& stage) {
    const uint32_t dying = stage.AddClient(), mover = stage.AddClient(), late = stage.AddClient();
    for (uint32_t key = 0; key < kSomeKeys; ++key) (void)stage.Do(dying, OpKind::kInsert, key);
    (void)stage.Do(late, OpKind::kGet, 0);
    (void)stage.Begin(dying, OpKind::kInsert, kSomeKeys);
    if (!HoldWhen(stage, dying, [&] { return IsUnderWay(stage); })) return false;
    stage.Kill(dying);
    stage.BeginCompaction(mover);
    // Until the mover begins the scan for which it has waited for all.
    uint64_t announced = 0;
    const auto scans = [&] {
      const kvs::HomeArea home = stage.Home();
      const auto is_set = [](uint64_t slot) { return !kvs::EvacuationWord(slot).empty(); };
      if (std::ranges::none_of(home.evacuation, is_set)) return false;
      if (announced == 0) announced = home.mover;
      return home.mover != announced;
    };
    for (uint32_t round = 0; round < 20'000 && !scans(); ++round) PollAll(stage, {late, mover}, 1);
    if (!scans()) return false;
    stage.Poll(late, 200);  // renews its lease
    (void)stage.Begin(late, OpKind::kInsert, kSameSlot);
    stage.Poll(late, 8 + static_cast<uint32_t>(point));  // until its CAS has met that word
    stage.Stall(late, 2 * kLongLeaseNs);
    stage.Poll(late);
    const int64_t arrives_ns = stage.world().now_ns() + 2 * kLongLeaseNs;
    stage.KillMemoryNode(stage.memory_nodes().ChainOf(1).front());
    const auto poll_until = [&](int64_t ns) {
      while (stage.world().now_ns() < ns) {
        stage.Poll(mover);
        stage.Wait(kMs);
      }
    };
    poll_until(arrives_ns);
    for (uint32_t round = 0; round < 20'000 && !stage.Idle(late); ++round) stage.Poll(late);
    poll_until(arrives_ns + kLongLeaseNs / 4);
    for (uint32_t round = 0; round < 20'000 && !stage.Idle(mover); ++round) PollAll(stage, {late, mover}, 1);
    return stage.client(mover).stats().chunks_freed > 0;
  });
  return result;
}

// A client dies in a split, when the head of the home, and no other replica, has the directory entry that names the new
// subtable. A memory node joins that table's pool, and must get the table.
RunResult TableOfAWordAtTheHead(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .memory_nodes = 2, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result,
          [](Stage& stage) {
            const uint32_t other = stage.AddClient();
            const std::vector<krcore::NodeId> chain = stage.memory_nodes().ChainOf(kOtherPool);
            stage.KillMemoryNode(chain.back());
            (void)ViewsOf(stage, other).Suspect(kOtherPool, ViewsOf(stage, other).Find(kOtherPool)->tail());
            (void)stage.PollUntil(other, [&] { return !ViewsOf(stage, other).changing(); });
            CompactInVain(stage, other);
            const uint32_t dying = stage.AddClient();
            bool held = false;
            uint32_t key = 0;
            for (; key < kMostKeys && !held; ++key) {
              const uint32_t insert = stage.Begin(dying, OpKind::kInsert, key);
              (void)HoldWhen(stage, dying, [&] { return stage.Ended(insert) || NamesTableAtHeadAlone(stage); });
              held = !stage.Ended(insert);
            }
            stage.Kill(dying);
            (void)stage.Join();
            AwaitMember(stage, {other});
            stage.KillMemoryNode(chain.front());
            for (; key > 0; --key) (void)stage.Do(other, OpKind::kPut, key - 1);
            return held && stage.keeper().state == kvs::ReplicaState::kMember;
          });
  return result;
}

// Steps the keeper and polls one client. The other is held, and only acknowledges views.
void StepKeeperBeside(Stage& stage, uint32_t polled, uint32_t held) {
  stage.StepKeeper();
  stage.Poll(polled);
  if (ViewsOf(stage, polled).changing()) ViewsOf(stage, held).NoteNewer();
  if (ViewsOf(stage, held).changing()) stage.Poll(held);
}

// A memory node joins after each poll of a client that merges two tables. If the client has frozen their slots by then,
// it writes the new table to the learner, which has none of the blocks that the table names. Then the other replica
// dies.
RunResult MergeWhileAReplicaJoins(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result, [point](Stage& stage) {
    const auto [other, merger] = AddPair(stage);
    if (!LoseTail(stage, merger, other)) return false;
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, merger, keys, 0)) return false;
    stage.Finish(merger);
    const std::vector<uint32_t> kept(keys.given().end() - 6, keys.given().end());
    if (!DeleteUntilMerge(stage, merger, keys, kept)) return false;
    stage.Poll(merger, static_cast<uint32_t>(point));
    const krcore::NodeId left = stage.memory_nodes().ChainOf(1).front();
    (void)stage.Join();
    const auto learns = [&stage, merger = merger] { return ViewsOf(stage, merger).used().Find(1)->learner.exists(); };
    for (uint32_t round = 0; round < 200'000 && !learns(); ++round) StepKeeperBeside(stage, other, merger);
    const bool held = learns() && stage.Entry(0).merging();
    AwaitMember(stage, {other, merger});
    stage.Finish(merger);
    stage.Close(merger);
    if (stage.keeper().state != kvs::ReplicaState::kMember) return false;
    stage.KillMemoryNode(left);
    for (const uint32_t key : kept) (void)stage.Do(other, OpKind::kGet, key);
    return held;
  });
  return result;
}

// A client that splits a table has frozen what moves when a memory node joins, and is held until that has read the
// directory. Then it publishes the child and clears the parent, which the memory node has not looked at yet. It has
// nothing of the child but what the client writes to it: the table, and not the blocks.
RunResult SplitWhileAReplicaJoins(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLongLeaseNs}, &result, [point](Stage& stage) {
    const auto [other, splitter] = AddPair(stage);
    if (!LoseTail(stage, splitter, other)) return false;
    Keys keys(0, 0);
    if (!FillUntilSplit(stage, splitter, keys, 0)) return false;
    stage.Poll(splitter, static_cast<uint32_t>(point));
    const krcore::NodeId left = stage.memory_nodes().ChainOf(1).front();
    (void)stage.Join();
    for (uint32_t round = 0; round < 200'000 && stage.keeper().all_tables == 0; ++round) {
      StepKeeperBeside(stage, other, splitter);
    }
    const bool held = stage.keeper().all_tables > 0 && stage.Entry(0).splitting() && !stage.Entry(1).present();
    stage.Finish(splitter);
    AwaitMember(stage, {other, splitter});
    stage.Close(splitter);
    if (stage.keeper().state != kvs::ReplicaState::kMember) return false;
    stage.KillMemoryNode(left);
    for (const uint32_t key : keys.given()) (void)stage.Do(other, OpKind::kGet, key);
    return held;
  });
  return result;
}

}  // namespace

std::vector<Scenario> MirrorScenarios() {
  return {
      {"ReaderOfAnOldView", {Mutation::kViewActiveAtOnce}, 8, ReaderOfAnOldView},
      {"ReaderThatHasAcknowledged", {Mutation::kPostsToClosed}, 8, ReaderThatHasAcknowledged},
      {"HopThatArrivesBehindTheLease", {Mutation::kHopsWithoutLease}, 4, HopThatArrivesBehindTheLease},
      {"HopWhileAViewIsAcknowledged", {Mutation::kAcknowledgedEarly}, 16, HopWhileAViewIsAcknowledged},
      // Not more points: then the promotion is pending, which nobody but the keeper ends, and that is not stepped.
      {"LateCasWhileAReplicaJoins", {Mutation::kPromotionUnchecked}, 20, LateCasWhileAReplicaJoins},
      {"ChunkOfAWordAtTheHead", {Mutation::kScanIgnoresHead}, 4, ChunkOfAWordAtTheHead},
      {"ChunkOfAWordOfALostHead", {Mutation::kScanOfAnotherView}, 12, ChunkOfAWordOfALostHead},
      {"TableOfAWordAtTheHead", {Mutation::kSweepIgnoresHead}, 4, TableOfAWordAtTheHead},
      {"MergeWhileAReplicaJoins", {Mutation::kSweepTrustsSlots}, 32, MergeWhileAReplicaJoins},
      {"SplitWhileAReplicaJoins", {Mutation::kSweepOnce}, 24, SplitWhileAReplicaJoins},
      {"BlockOfAWordAtTheHead", {Mutation::kSweepIgnoresHead}, 4, BlockOfAWordAtTheHead},
  };
}

}  // namespace surgekv_sim
