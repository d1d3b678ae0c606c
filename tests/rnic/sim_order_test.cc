// Which orders the simulated RNIC shows, and that it shows no others: rnic.h, promises 1 to 4.
#include <algorithm>
#include <set>

#include "tests/rnic/sim_fixture.h"

namespace krcore::rnic::testing {
namespace {

constexpr sim::Chaos kDelays{.delay = 0.4, .max_delay_ns = 20'000};
constexpr sim::Chaos kTearing{.tear = 1, .delay = 0.2, .max_delay_ns = 5'000};
constexpr int kRounds = 400;

TEST(SimOrder, AWriteOvertakesAnEarlierReadUnlessItIsFenced) {
  for (const bool fenced : {false, true}) {
    SimWorld sim(kDelays);
    const Sge in = sim.a->Local(0, 8), out = sim.a->Local(8, 8);
    sim.a->Word(8) = 2;
    int overtaken = 0;
    for (int i = 0; i < kRounds; ++i) {
      sim.b->Word() = 1;
      sim.Post({sim.to_b->Wr(Opcode::kRead, &in, 0),
                Flagged(sim.to_b->Wr(Opcode::kWrite, &out, 0), kSignaled | (fenced ? kFence : 0))});
      ASSERT_EQ(sim.Finish().size(), 2U);
      overtaken += sim.a->Word() == 2;
    }
    if (fenced) {
      EXPECT_EQ(overtaken, 0);
    } else {
      EXPECT_GT(overtaken, kRounds / 20);
      EXPECT_LT(overtaken, kRounds / 2);
    }
  }
}

TEST(SimOrder, AReadSeesEveryEarlierWriteAndAtomicOfItsQueueWhateverTheDelays) {
  for (const sim::Chaos& chaos : {kDelays, kTearing}) {
    SimWorld sim(chaos);
    constexpr uint32_t kBytes = 256;
    const Sge out = sim.a->Local(0, kBytes), in = sim.a->Local(1024, kBytes), old = sim.a->Local(2048, 8);
    for (int i = 1; i <= kRounds; ++i) {
      for (size_t at = 0; at < kBytes; at += 8) sim.a->Word(at) = static_cast<uint64_t>(i);
      sim.Post({sim.to_b->Wr(Opcode::kWrite, &out, 0), Adding(sim.to_b->Wr(Opcode::kFetchAdd, &old, 0), 1000),
                sim.to_b->Wr(Opcode::kRead, &in, 0)});
      ASSERT_EQ(sim.Finish().size(), 3U);
      EXPECT_EQ(sim.a->Word(2048), static_cast<uint64_t>(i)) << "the atomic executes behind the whole WRITE";
      EXPECT_EQ(sim.a->Word(1024), static_cast<uint64_t>(i) + 1000);
      for (size_t at = 8; at < kBytes; at += 8) ASSERT_EQ(sim.a->Word(1024 + at), static_cast<uint64_t>(i));
    }
  }
}

TEST(SimOrder, WritesAndAtomicsToOnePeerExecuteInTheirOrder) {
  SimWorld sim(kTearing);
  std::vector<SendWr> wrs;
  std::vector<Sge> sges(64);
  for (size_t i = 0; i < sges.size(); ++i) {
    sim.a->Word(8 * i) = i + 1;
    sges[i] = sim.a->Local(8 * i, 8);
    wrs.push_back(sim.to_b->Wr(Opcode::kWrite, &sges[i], 0, i));
  }
  sim.Post(wrs);
  uint64_t last = 0;
  while (sim.world->Step()) {
    EXPECT_GE(sim.b->Word(), last);
    last = sim.b->Word();
  }
  EXPECT_EQ(last, 64U);
}

TEST(SimOrder, ReadsToOnePeerAreInOrderAmongThemselves) {
  SimWorld sim(kTearing);
  Link busy(sim.c.get(), sim.b.get(), Transport::kDc, 256);
  const Sge old = sim.c->Local(0, 8);
  constexpr uint32_t kBytes = 128;
  for (int i = 0; i < kRounds; ++i) {
    for (int add = 0; add < 20; ++add) {
      for (size_t at = 0; at < kBytes; at += 64) {
        KRCORE_EXPECT_OK(busy.Post(Adding(busy.Wr(Opcode::kFetchAdd, &old, at), 1)));
      }
    }
    const Sge first = sim.a->Local(0, kBytes), second = sim.a->Local(kBytes, kBytes);
    sim.Post({sim.to_b->Wr(Opcode::kRead, &first, 0), sim.to_b->Wr(Opcode::kRead, &second, 0)});
    ASSERT_EQ(sim.Finish().size(), 2U);
    while (!sim.c->Idle()) {
    }
    for (size_t at = 0; at < kBytes; at += 64) ASSERT_LE(sim.a->Word(at), sim.a->Word(kBytes + at));
  }
}

TEST(SimOrder, PeersAreServedInNoParticularOrderAndCompletionsComeInThatOfPosting) {
  SimWorld sim(kDelays);
  const Sge out = sim.a->Local(0, 8);
  int second_first = 0;
  for (int i = 1; i <= kRounds; ++i) {
    sim.a->Word() = static_cast<uint64_t>(i);
    sim.Post({sim.to_b->Wr(Opcode::kWrite, &out, 0, 1), sim.to_c->Wr(Opcode::kWrite, &out, 0, 2)});
    while (sim.b->Word() != sim.a->Word() && sim.c->Word() != sim.a->Word()) ASSERT_TRUE(sim.world->Step());
    second_first += sim.c->Word() == sim.a->Word();
    const auto done = sim.Finish();
    ASSERT_EQ(done.size(), 2U);
    EXPECT_EQ(done[0].wr_id, 1U);
    EXPECT_EQ(done[1].wr_id, 2U);
  }
  EXPECT_GT(second_first, kRounds / 20);
  EXPECT_LT(second_first, kRounds / 2);
}

TEST(SimOrder, AFenceWaitsForReadsFromOtherPeersToo) {
  SimWorld sim(kDelays);
  const Sge in = sim.a->Local(0, 8), out = sim.a->Local(8, 8);
  for (int i = 1; i <= kRounds; ++i) {
    sim.a->Word(0) = 0;
    sim.a->Word(8) = static_cast<uint64_t>(i);
    sim.b->Word() = 77;
    sim.Post({Flagged(sim.to_b->Wr(Opcode::kRead, &in, 0), 0),
              Flagged(sim.to_c->Wr(Opcode::kWrite, &out, 0), kSignaled | kFence)});
    while (sim.c->Word() != static_cast<uint64_t>(i)) {
      ASSERT_TRUE(sim.world->Step()) << "a fenced verb behind an unsignaled one never left";
    }
    EXPECT_EQ(sim.a->Word(0), 77U);
    ASSERT_EQ(sim.Finish().size(), 1U);
  }
}

// The answer to the second, signaled request often comes before that to the first, which nobody waits for.
TEST(SimOrder, AnUnsignaledRequestToASlowPeerDelaysACompletionAndDoesNotLoseIt) {
  SimWorld sim(kDelays);
  const Sge out = sim.a->Local(0, 8);
  for (int i = 0; i < kRounds; ++i) {
    sim.Post({Flagged(sim.to_b->Wr(Opcode::kWrite, &out, 0, 1), 0), sim.to_c->Wr(Opcode::kWrite, &out, 0, 2)});
    ASSERT_EQ(sim.Finish().size(), 1U);
  }
}

TEST(SimTearing, AWriteOfManyWordsArrivesInPartsAndEachWordWhole) {
  SimWorld sim({.tear = 1});
  constexpr uint32_t kBytes = 24 << 10;
  const Sge out = sim.a->Local(4, kBytes);
  std::memset(sim.a->Text(), 'n', kBytes + 8);
  std::set<size_t> changed;  // how many words, after each event
  for (int i = 0; i < 20; ++i) {
    std::memset(sim.b->Text(), 'o', kBytes + 8);
    sim.Post({sim.to_b->Wr(Opcode::kWrite, &out, 4)});  // the first and the last word are halves
    while (sim.world->Step()) {
      size_t words = 0;
      for (size_t at = 8; at < kBytes; at += 8) {
        const uint64_t word = sim.b->Word(at);
        ASSERT_TRUE(word == 0x6f6f6f6f6f6f6f6f || word == 0x6e6e6e6e6e6e6e6e) << std::hex << word;
        words += word == 0x6e6e6e6e6e6e6e6e;
      }
      changed.insert(words);
    }
    EXPECT_EQ(std::string(sim.b->Text(), 4), "oooo");
    EXPECT_EQ(std::string(sim.b->Text(4), kBytes), std::string(kBytes, 'n'));
    EXPECT_EQ(std::string(sim.b->Text(kBytes + 4), 4), "oooo");
    sim.Take();
  }
  EXPECT_GT(changed.size(), 20U) << "different parts each time";
  EXPECT_EQ(sim.world->stats().torn, 20U);
}

TEST(SimTearing, AReadMixesWhatWasThereBeforeAndAfterAnothersWrite) {
  SimWorld sim({.tear = 1});
  Link writer(sim.c.get(), sim.b.get(), Transport::kDc);
  constexpr uint32_t kBytes = 512;
  const Sge in = sim.a->Local(0, kBytes), out = sim.c->Local(0, kBytes);
  // A WRITE of several SGEs is torn as well.
  const Sge parts[2] = {sim.a->Local(kBytes, 100), sim.a->Local(2 * kBytes, kBytes - 100)};
  int mixed = 0, mixed_parts = 0;
  for (int i = 1; i <= kRounds; ++i) {
    std::memset(sim.c->Text(), i, kBytes);
    SendWr scattered = sim.to_b->Wr(Opcode::kRead, parts, 0);
    scattered.num_sge = 2;
    sim.Post({sim.to_b->Wr(Opcode::kRead, &in, 0), scattered});
    KRCORE_EXPECT_OK(writer.Post(writer.Wr(Opcode::kWrite, &out, 0)));
    ASSERT_EQ(sim.Finish().size(), 2U);
    (void)sim.c->Next();
    bool one = false, all = true, part = false;
    for (size_t at = 0; at < kBytes; at += 8) {
      ASSERT_EQ(sim.a->Word(at), (sim.a->Word(at) & 0xff) * 0x0101010101010101) << "a torn word";
      const bool is_new = (sim.a->Word(at) & 0xff) == static_cast<uint64_t>(i & 0xff);
      one |= is_new;
      all &= is_new;
    }
    mixed += one && !all;
    for (size_t at = 1; at < kBytes - 100; ++at) part |= sim.a->Text(2 * kBytes)[at] != sim.a->Text(2 * kBytes)[0];
    mixed_parts += part;
  }
  EXPECT_GT(mixed, 10);
  EXPECT_GT(mixed_parts, 10);
}

}  // namespace
}  // namespace krcore::rnic::testing
