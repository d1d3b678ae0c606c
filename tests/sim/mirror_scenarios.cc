#include "tests/sim/mirror_scenarios.h"

#include <algorithm>
#include <initializer_list>
#include <ranges>

#include "kvs/client/client_core.h"
#include "kvs/memory/views.h"
#include "tests/sim/script.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

using krcore::rnic::sim::Chaos;
using kvs::Mutation;

constexpr uint32_t kKey = 7;
constexpr int64_t kLeaseNs = 1'000 * kMs;

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

// Whether the head of the home has a word in the key's slots that the tail does not have yet.
bool IsUnderWay(Stage& stage) {
  const std::vector<krcore::NodeId> chain = stage.memory_nodes().ChainOf(1);
  const auto head = stage.memory_nodes().BytesOf(chain.front()), tail = stage.memory_nodes().BytesOf(chain.back());
  const kvs::GlobalAddress table = stage.Entry(0).subtable();
  const size_t bytes = kvs::SubtableGeometry{2}.bytes();
  return !std::ranges::equal(head.subspan(table.offset, bytes), tail.subspan(table.offset, bytes));
}

// A tail leaves alive. A writer goes on in the new view while a reader, which is not polled, knows nothing of it: then
// the writer has to wait until the reader knows.
RunResult ReaderOfAnOldView(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2}, &result, [point](Stage& stage) {
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    (void)stage.Do(writer, OpKind::kInsert, kKey);
    (void)stage.Do(reader, OpKind::kGet, kKey);
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
    const uint32_t writer = stage.AddClient(), reader = stage.AddClient();
    (void)stage.Do(writer, OpKind::kInsert, kKey);
    (void)stage.Do(reader, OpKind::kGet, kKey);
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
    (void)stage.PollUntil(writer, [&] { return !ViewsOf(stage, writer).changing(); });
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
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLeaseNs}, &result, [](Stage& stage) {
    const uint32_t late = stage.AddClient(), other = stage.AddClient();
    (void)stage.Do(other, OpKind::kInsert, kKey);
    (void)stage.Do(late, OpKind::kGet, kKey);
    stage.set_tempo(200);
    (void)stage.Begin(late, OpKind::kDelete, kKey);
    if (!stage.PollUntil(late, [&] { return IsUnderWay(stage); })) return false;
    stage.set_tempo(5 * kUs);
    stage.Stall(late, 4 * kLeaseNs);
    stage.Poll(late, 2);  // takes the head's answer, and posts the next verb
    const bool held = IsUnderWay(stage);
    Suspect(stage, other, true);
    const uint32_t update = stage.Begin(other, OpKind::kUpdate, kKey);
    for (uint32_t round = 0; round < 4'000 && !stage.Ended(update); ++round) {
      stage.Poll(other);
      stage.Wait(kMs);
    }
    stage.Wait(4 * kLeaseNs);
    return held && stage.Ended(update);
  });
  return result;
}

// The same, but the client's lease holds: it learns of the new view, and must not acknowledge it while the verb is on
// its way.
RunResult HopWhileAViewIsAcknowledged(uint64_t point) {
  RunResult result;
  OnStage({.seed = point + 1, .replicas = 2, .breaks = true, .lease_ns = kLeaseNs}, &result, [point](Stage& stage) {
    const uint32_t late = stage.AddClient(), other = stage.AddClient();
    (void)stage.Do(other, OpKind::kInsert, kKey);
    (void)stage.Do(late, OpKind::kGet, kKey);
    stage.set_tempo(200);
    (void)stage.Begin(late, OpKind::kDelete, kKey);
    if (!stage.PollUntil(late, [&] { return IsUnderWay(stage); })) return false;
    stage.set_tempo(5 * kUs);
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

}  // namespace

std::vector<Scenario> MirrorScenarios() {
  return {
      {"ReaderOfAnOldView", {Mutation::kViewActiveAtOnce}, 8, ReaderOfAnOldView},
      {"ReaderThatHasAcknowledged", {Mutation::kPostsToClosed}, 8, ReaderThatHasAcknowledged},
      {"HopThatArrivesBehindTheLease", {Mutation::kHopsWithoutLease}, 4, HopThatArrivesBehindTheLease},
      {"HopWhileAViewIsAcknowledged", {Mutation::kAcknowledgedEarly}, 16, HopWhileAViewIsAcknowledged},
  };
}

}  // namespace surgekv_sim
