// What goes wrong in the simulated RNIC when a test asks for it, and what holds all the same: rnic.h, promises 4 and 5.
#include <set>

#include "tests/rnic/sim_fixture.h"

namespace krcore::rnic::testing {
namespace {

constexpr int64_t kLingerNs = 1'000'000;

// WRITEs of 1 to `count` to the first word of b, in this order, each from a buffer of its own.
std::vector<SendWr> Countdown(SimWorld& sim, std::vector<Sge>* sges, size_t count) {
  sges->resize(count);
  std::vector<SendWr> wrs;
  for (size_t i = 0; i < count; ++i) {
    sim.a->Word(64 + 8 * i) = i + 1;
    (*sges)[i] = sim.a->Local(64 + 8 * i, 8);
    wrs.push_back(sim.to_b->Wr(Opcode::kWrite, &(*sges)[i], 0, i));
  }
  return wrs;
}

TEST(SimKill, WhatTheDeadPostedExecutesLateInOrderOrNeverAndNothingIsLeftOnceItIsConfirmedDead) {
  std::set<uint64_t> at_death, at_the_end;
  int unreachable = 0, confirmed_early = 0;
  uint64_t zombies = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimWorld sim({.delay = 0.3, .max_delay_ns = 10'000}, seed);
    std::vector<Sge> sges;
    sim.Post(Countdown(sim, &sges, 8));
    sim.world->RunUntil(sim.world->now_ns() + 1'200);
    at_death.insert(sim.b->Word());
    const DeviceAddress address = sim.a->device->address();
    sim.world->Kill(1, kLingerNs);
    EXPECT_TRUE(sim.world->IsDead(1));
    // The dead process's memory may be reused; what it had posted goes on unchanged.
    std::memset(sim.a->Text(), 0xff, 256);
    const auto flushed = sim.Take();
    for (size_t i = 1; i < flushed.size(); ++i) EXPECT_EQ(flushed[i].wr_id, flushed[i - 1].wr_id + 1);
    EXPECT_TRUE(!flushed.empty() && flushed.back().wr_id == 7 && flushed.back().status == WcStatus::kFlushed);
    const int64_t killed_ns = sim.world->now_ns();
    uint64_t last = sim.b->Word();
    PeerState state = PeerState::kUnreachable;
    while (state != PeerState::kDead) {
      sim.world->RunUntil(sim.world->now_ns() + 50'000);
      ASSERT_GE(sim.b->Word(), last) << "out of order";
      ASSERT_LE(sim.b->Word(), 8U) << "not what was posted";
      last = sim.b->Word();
      state = sim.b->device->QueryPeer(address);
      ASSERT_NE(state, PeerState::kAlive);
      unreachable += state == PeerState::kUnreachable;
    }
    EXPECT_LE(sim.world->now_ns(), killed_ns + kLingerNs + 50'000);
    confirmed_early += sim.world->now_ns() < killed_ns + kLingerNs && last < 8;
    const uint64_t zombies_before = sim.world->stats().zombie_verbs;
    sim.world->RunUntil(sim.world->now_ns() + 10 * kLingerNs);
    EXPECT_EQ(sim.b->Word(), last) << "something executed after the death was confirmed";
    EXPECT_EQ(sim.world->stats().zombie_verbs, zombies_before);
    zombies += zombies_before;
    at_the_end.insert(last);
    EXPECT_EQ(sim.world->stats().killed_devices, 1U);
  }
  EXPECT_GT(zombies, 100U);
  EXPECT_GT(unreachable, 50);
  EXPECT_GT(confirmed_early, 20);
  EXPECT_GE(at_death.size(), 3U);
  EXPECT_GE(at_the_end.size(), 5U);
}

TEST(SimKill, WithoutLingeringNothingOfTheDeadExecutes) {
  SimWorld sim(kNone);
  std::vector<Sge> sges;
  sim.Post(Countdown(sim, &sges, 8));
  sim.world->Kill(1, 0);
  EXPECT_EQ(sim.b->device->QueryPeer(sim.a->device->address()), PeerState::kDead);
  sim.b->Settle();
  EXPECT_EQ(sim.Finish().size(), 8U);
  EXPECT_EQ(sim.b->Word(), 0U);
}

TEST(SimKill, AtAVerbBeforeOrAfterItIsPosted) {
  for (const bool before : {true, false}) {
    SimWorld sim(kNone);
    std::vector<Sge> sges;
    const auto wrs = Countdown(sim, &sges, 4);
    sim.Post(wrs);
    sim.world->KillAtVerb(1, 3, before, kLingerNs);
    EXPECT_FALSE(sim.world->IsDead(1));
    const std::vector<SendWr> adds(5, Adding(sim.to_c->Wr(Opcode::kFetchAdd, &sges[0], 0), 1));
    sim.Post(adds);
    EXPECT_TRUE(sim.world->IsDead(1));
    const auto done = sim.Take();
    EXPECT_EQ(done.size(), 9U) << "all that was accepted completes";
    sim.Finish();
    EXPECT_EQ(sim.c->Word(), before ? 2U : 3U);
  }
}

TEST(SimKill, TheDeadLearnNothingAndReachNobody) {
  SimWorld sim(kNone);
  sim.world->Kill(1, kLingerNs);
  const Sge sge = sim.a->Local(0, 8);
  EXPECT_EQ(sim.qp->state(), QpState::kErr);
  EXPECT_EQ(sim.to_b->Run(sim.to_b->Wr(Opcode::kWrite, &sge, 0)).status, WcStatus::kFlushed);
  EXPECT_EQ(sim.qp->ToReset().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->CreatePd().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->CreateCq(4).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->pd->CreateQp({.send_cq = sim.a->cq.get()}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->pd->RegisterMemory(sim.a->Text(), 8, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->AllocMemory(4096, {}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->QueryPeer(sim.b->device->address()), PeerState::kUnreachable);
  EXPECT_EQ(sim.a->device->PublishRecord("x", {}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->LookupRecord("x").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->ReadRecord("x").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.a->device->CompareAndSetRecord("x", 0, {}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(sim.b->device->ReadRecord("x").value().version, 0U);
}

TEST(SimKill, AFabricsRecordOutlivesEveryDevice) {
  SimWorld sim(kNone);
  KRCORE_EXPECT_OK(sim.a->device->CompareAndSetRecord("config", 0, {}));
  for (NodeId node = 1; node <= 3; ++node) sim.world->Kill(node, 0);
  const Endpoint next(SimWorld::kProvider, sim.fabric, 1, false);
  EXPECT_EQ(next.device->ReadRecord("config").value().version, 1U);
}

// Two Worlds of one seed do the same.
TEST(SimKill, AFabricsRecordMayHaveBeenSetWhereNobodyAnswered) {
  std::string histories[2];
  for (std::string& history : histories) {
    SimWorld sim(kNone);
    for (int i = 0; i < 64; ++i) {
      const uint64_t version = sim.b->device->ReadRecord("config").value().version;
      sim.world->LeaveUnanswered(true);
      const Deadline soon = Deadline::After(sim.world->clock(), 1000);
      EXPECT_EQ(sim.a->device->CompareAndSetRecord("config", version, {}, soon).code(), StatusCode::kTimeout);
      EXPECT_EQ(sim.a->device->CompareAndSetRecord("config", version + 2, {}, soon).code(), StatusCode::kTimeout);
      EXPECT_EQ(sim.a->device->ReadRecord("config", soon).status().code(), StatusCode::kTimeout);
      sim.world->LeaveUnanswered(false);
      const uint64_t now = sim.b->device->ReadRecord("config").value().version;
      history += now == version ? '.' : now == version + 1 ? '+' : '?';
    }
  }
  EXPECT_EQ(histories[0].find('?'), std::string::npos) << histories[0];
  EXPECT_NE(histories[0].find('.'), std::string::npos) << histories[0];
  EXPECT_NE(histories[0].find('+'), std::string::npos) << histories[0];
  EXPECT_EQ(histories[0], histories[1]);
}

TEST(SimKill, ADeadTargetIsRetryExceededAndItsSuccessorFindsItsMemory) {
  SimWorld sim(kNone);
  auto memory = sim.b->device->AllocMemory(8192, {.name = "pool"}).value();
  EXPECT_FALSE(memory->adopted());
  memory->bytes()[100] = std::byte{42};
  EXPECT_EQ(sim.b->device->AllocMemory(8192, {.name = "pool"}).status().code(), StatusCode::kExists);
  const Sge sge = sim.a->Local(0, 8);
  EXPECT_EQ(OpenDevice({.provider = "sim", .fabric = sim.fabric, .node = 2}).status().code(), StatusCode::kExists);
  sim.world->Kill(2, kLingerNs);
  const Completion done = sim.to_b->Run(sim.to_b->Wr(Opcode::kRead, &sge, 0));
  EXPECT_EQ(done.status, WcStatus::kRetryExceeded);
  Endpoint successor(SimWorld::kProvider, sim.fabric, 2, false);
  EXPECT_NE(successor.device->address().incarnation, sim.b->device->address().incarnation);
  EXPECT_EQ(successor.device->AllocMemory(4096, {.name = "pool"}).status().code(), StatusCode::kInvalidArgument);
  auto adopted = successor.device->AllocMemory(8192, {.name = "pool"}).value();
  EXPECT_TRUE(adopted->adopted());
  memory.reset();  // destroying the dead device's memory object takes nothing away
  EXPECT_EQ(adopted->bytes()[100], std::byte{42});
  EXPECT_EQ(successor.device->AllocMemory(8192, {.name = "pool"}).status().code(), StatusCode::kExists);
  adopted.reset();  // a clean close does
  EXPECT_FALSE(successor.device->AllocMemory(8192, {.name = "pool"}).value()->adopted());
  auto kept = successor.device->AllocMemory(4096, {.name = "kept", .keep_on_close = true}).value();
  kept->bytes()[0] = std::byte{7};
  kept.reset();
  kept = successor.device->AllocMemory(4096, {.name = "kept", .keep_on_close = true}).value();
  EXPECT_TRUE(kept->adopted());
  EXPECT_EQ(kept->bytes()[0], std::byte{7});
}

TEST(SimKill, NamedMemoryOutlivesTheObjectsOfTheDead) {
  SimWorld sim(kNone);
  auto memory = sim.b->device->AllocMemory(8192, {.name = "pool"}).value();
  memory->bytes()[8] = std::byte{5};
  sim.world->Kill(2, 0);
  memory.reset();
  Endpoint successor(SimWorld::kProvider, sim.fabric, 2, false);
  memory = successor.device->AllocMemory(8192, {.name = "pool"}).value();
  EXPECT_TRUE(memory->adopted());
  EXPECT_EQ(memory->bytes()[8], std::byte{5});
}

TEST(SimStall, WhatIsPostedLeavesOnlyWhenTheStallIsOver) {
  SimWorld sim(kNone);
  const Sge sge = sim.a->Local(0, 8);
  sim.a->Word() = 9;
  const int64_t begin_ns = sim.world->now_ns();
  sim.world->StallDoorbells(1, 500'000);
  sim.Post({sim.to_b->Wr(Opcode::kWrite, &sge, 0)});
  sim.world->RunUntil(begin_ns + 500'000);
  EXPECT_EQ(sim.b->Word(), 0U);
  sim.world->RunUntil(begin_ns + 510'000);
  EXPECT_EQ(sim.b->Word(), 9U);
  EXPECT_EQ(sim.Take().size(), 1U);
}

// What a broken queue shows of its last verbs: how far b's word had come when the failure completed, and how much
// further it went until the QP was reset.
struct Broken {
  uint64_t seen = 0, later = 0;
  size_t succeeded = 0;
};
Broken BreakOnce(SimWorld& sim, bool by_chance) {
  std::vector<Sge> sges;
  const auto wrs = Countdown(sim, &sges, 12);
  sim.b->Word() = 0;
  sim.Post(wrs);
  if (!by_chance) {
    sim.world->RunUntil(sim.world->now_ns() + static_cast<int64_t>(sim.world->random()() % 2'500));
    sim.world->BreakQueues(1, 2);
  }
  uint64_t last = 0;
  const auto look = [&] {
    EXPECT_GE(sim.b->Word(), last) << "out of order";
    last = sim.b->Word();
  };
  while (sim.qp->state() != QpState::kErr && sim.world->Step()) look();
  const auto done = sim.Take();
  EXPECT_EQ(done.size(), wrs.size());
  Broken broken{.seen = sim.b->Word()};
  bool failed = false;
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].wr_id, i);
    if (done[i].status == WcStatus::kSuccess) {
      EXPECT_FALSE(failed);
      ++broken.succeeded;
      continue;
    }
    EXPECT_EQ(done[i].status, failed ? WcStatus::kFlushed : WcStatus::kRetryExceeded);
    failed = true;
  }
  EXPECT_GE(broken.seen, broken.succeeded) << "what succeeded has happened";
  // The buffers belong to the user again: verbs that execute later must not read them.
  for (size_t i = 0; i < wrs.size(); ++i) sim.a->Word(64 + 8 * i) = ~uint64_t{0};
  sim.world->RunUntil(sim.world->now_ns() + static_cast<int64_t>(sim.world->random()() % 300'000));
  look();
  EXPECT_LE(last, wrs.size());
  broken.later = last - broken.seen;
  sim.Reconnect();
  while (sim.world->Step()) {
  }
  EXPECT_EQ(sim.b->Word(), last) << "something executed after the reset";
  EXPECT_TRUE(sim.Take().empty());
  return broken;
}

TEST(SimBreak, AFailedVerbHasExecutedOrNotOrDoesLaterAndNoneDoesAfterTheReset) {
  for (const bool by_chance : {true, false}) {
    int executed = 0, lost = 0, late = 0, late_many = 0;
    for (uint64_t seed = 1; seed <= 300; ++seed) {
      SimWorld sim({.delay = 0.1, .max_delay_ns = 5'000, .break_queue = by_chance ? 0.3 : 0.0}, seed);
      const Broken broken = BreakOnce(sim, by_chance);
      if (sim.world->stats().broken == 0 || broken.succeeded == 12) continue;
      executed += broken.seen > broken.succeeded;
      lost += broken.seen == broken.succeeded && broken.later == 0;
      late += broken.later > 0;
      late_many += broken.later > 1;  // in order, including those after the failed one
    }
    EXPECT_GT(executed, 20) << by_chance;
    EXPECT_GT(lost, 20) << by_chance;
    EXPECT_GT(late, 20) << by_chance;
    EXPECT_GT(late_many, 5) << by_chance;
  }
}

TEST(SimBreak, LateAtomicsAndReadsDoNotTouchBuffersThatWereGivenBack) {
  int late = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimWorld sim({.tear = 0.5, .break_queue = 1}, seed);
    const Sge old = sim.a->Local(0, 8), in = sim.a->Local(8, 64);
    sim.Post({Adding(sim.to_b->Wr(Opcode::kFetchAdd, &old, 0), 1), sim.to_b->Wr(Opcode::kRead, &in, 0)});
    while (sim.qp->state() != QpState::kErr && sim.world->Step()) {
    }
    const uint64_t before = sim.b->Word();
    std::memset(sim.a->Text(), 0x55, 72);
    while (sim.world->Step()) {
    }
    late += sim.b->Word() != before;
    for (size_t at = 0; at < 72; at += 8) ASSERT_EQ(sim.a->Word(at), 0x5555555555555555U);
  }
  EXPECT_GT(late, 20);
}

TEST(SimBreak, DestroyingTheQpEndsItsLateVerbsToo) {
  int pending = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimWorld sim({.break_queue = 1}, seed);
    std::vector<Sge> sges;
    sim.Post(Countdown(sim, &sges, 4));
    while (sim.qp->state() != QpState::kErr && sim.world->Step()) {
    }
    pending += sim.world->next_event_ns() != INT64_MAX;
    const uint64_t before = sim.b->Word();
    sim.to_b->qp.reset();
    while (sim.world->Step()) {
    }
    EXPECT_EQ(sim.b->Word(), before);
  }
  EXPECT_GT(pending, 20);
}

}  // namespace
}  // namespace krcore::rnic::testing
