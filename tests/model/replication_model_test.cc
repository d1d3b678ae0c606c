// The replication model: it holds, and each of its protections is needed (the table is in README.md).
#include "tests/model/model_testing.h"

namespace model {
namespace {

class ReplicationModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(ReplicationModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    Chain, ReplicationModelHolds,
    testing::Values("replication --solo U0G0 U0G0 D0", "replication --solo --views 012 U0G0 U0G0 D0",
                    "replication --views 012 D0I0 D0I0", "replication --slots 2 --absent I0G0 I0D0",
                    "replication --slots 2 --absent --views 012 I0 I0", "replication --absent I0D0 I0 F0",
                    "replication C0C0 C0D0", "replication --views 012 C0 C0 G0"),
    LineName());
INSTANTIATE_TEST_SUITE_P(ReplicaLeaves, ReplicationModelHolds,
                         testing::Values("replication --solo --views 01,1 --mortal 0 --expel 1 U0G0 U0G0 D0",
                                         "replication --views 01,1 --mortal 0 --expel 2 U0G0 U0G0 D0",
                                         "replication --views 01,1 --mortal 0 --expel 1 D0I0 D0I0",
                                         "replication --views 01,0 --mortal 1 --expel 1 U0G0 D0I0 G0",
                                         "replication --solo --views 01,1 --suspect 0 --expel 1 U0G0 U0G0 D0",
                                         "replication --solo --views 01,0 --suspect 1 --expel 1 U0G0 U0G0 D0",
                                         "replication --slots 2 --absent --views 01,1 --mortal 0 --expel 1 I0G0 I0",
                                         "replication --slots 2 --absent --views 01,0 --suspect 1 --expel 1 I0G0 I0",
                                         "replication --absent --views 01,1 --mortal 0 --expel 1 I0 F0",
                                         "replication --views 012,12,1 --suspect 02 --expel 1 U0G0 D0I0",
                                         "replication --slots 2 --absent --views 012,12 --mortal 0 --expel 1 I0 I0",
                                         "replication --views 01,1 --mortal 0 --expel 1 C0G0 C0",
                                         "replication --views 01,0 --suspect 1 --expel 1 C0 C0G0"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(ReplicaJoins, ReplicationModelHolds,
                         testing::Values("replication --views 1,1+2,12 --expel 1 U0G0 U0G0 S0",
                                         "replication --views 1,1+2,12 --expel 2 U0G0 D0 S0S0",
                                         "replication --views 1,1+2,12 --absent --expel 1 I0 D0 S0",
                                         "replication --views 1,1+2,12 --expel 1 D0I0 U0G0 S0",
                                         "replication --views 1,1+2,12,1+2,12 --suspect 2 --expel 2 U0G0 D0 S0S0",
                                         "replication --views 1,1+2,12,2 --mortal 1 --expel 1 U0G0 D0 S0G0",
                                         "replication --views 1,1+2,1 --mortal 2 --expel 1 U0G0 U0 S0",
                                         "replication --views 1,1+2,12 --expel 1 C0 C0G0 S0"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(
    TwoPools, ReplicationModelHolds,
    testing::Values("replication --views 01,01,01 --blocks 2,2+3,23 --expel 2 U0 U0G0 S0S0",
                    "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 F0 S0",
                    "replication --views 01,01,1,1 --mortal 0 --blocks 2,2+3,2+3,23 --expel 1 U0 U0G0 S0",
                    "replication --slots 2 --absent --views 01,01,01 --blocks 2,2+3,23 --expel 1 I0 D0 S0"),
    LineName());
INSTANTIATE_TEST_SUITE_P(Handover, ReplicationModelHolds,
                         testing::Values("replication --views 1,1=2,12 --expel 2 U0G0 D0 S0G0",
                                         "replication --views 1,1=2,12 --absent --expel 1 I0 D0 S0"),
                         LineName());

class ReplicationModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(ReplicationModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(
    Chain, ReplicationModelNeeds,
    testing::Values(Needed{"tail-first", "replication --views 01,0 --mortal 1 --expel 1 U0 G0G0"},
                    Needed{"read-head", "replication --views 01,1 --mortal 0 --expel 1 U0 G0G0"},
                    Needed{"tail-before-middle", "replication --views 012,12 --mortal 0 U0G0 U0"},
                    Needed{"no-help", "replication U0 U0"}, Needed{"hop-failure-is-loss", "replication U0G0 U0G0"},
                    Needed{"help-backwards", "replication U0G0 U0U0 U0"},
                    Needed{"ins-at-head-only",
                           "replication --slots 2 --absent --views 01,1 --mortal 0 --expel 1 I0G0 I0G0"},
                    Needed{"free-recurs-by-delete", "replication --absent I0D0 I0"},
                    Needed{"reuse-ins-block", "replication --slots 2 --absent I0 I0"}),
    NeededName());
INSTANTIATE_TEST_SUITE_P(
    View, ReplicationModelNeeds,
    testing::Values(Needed{"activate-at-once", "replication --views 01,0 --suspect 1 U0 G0"},
                    Needed{"act-before-active", "replication --views 01,1 --suspect 0 U0 U0 G0"},
                    Needed{"report-before-active", "replication --views 01,0 --suspect 1 U0 G0"},
                    Needed{"new-word-at-new-head", "replication --views 01,1 --mortal 0 --expel 1 U0G0 U0 G0"},
                    Needed{"unknown-is-lost", "replication --views 01,1 --mortal 0 --expel 1 U0G0 U0 G0"},
                    Needed{"quiet-posts", "replication --views 01,0 --suspect 1 U0 G0"},
                    Needed{"quiet-with-verb", "replication --views 1,1+2,12 U0 G0G0 S0"},
                    Needed{"expelled-hop-counts", "replication --views 01,1 --suspect 0 --expel 1 D0 U0"}),
    NeededName());
INSTANTIATE_TEST_SUITE_P(
    Join, ReplicationModelNeeds,
    testing::Values(Needed{"promote-uncopied", "replication --views 1,1+2,12 U0 G0"},
                    Needed{"ignore-learner", "replication --views 1,1+2,12 U0 G0 S0"},
                    Needed{"skip-uncopied", "replication --views 1,1+2,12 U0 G0 S0"},
                    Needed{"learner-own-word", "replication --views 1,1+2,12 U0 U0 S0"},
                    Needed{"sync-without-block", "replication --views 1,1+2,12 U0 G0 S0"},
                    Needed{"help-without-block", "replication --views 1,1+2,12 --expel 1 U0 U0G0 S0"},
                    Needed{"block-not-rewritten", "replication --views 1,1+2,12 U0 G0 S0"},
                    Needed{"ack-midway", "replication --views 1,1+2,12 U0 U0G0 S0"},
                    Needed{"promote-despite-loss", "replication --views 1,1+2,12 --expel 1 U0 G0G0 S0"},
                    Needed{"promote-with-zombies", "replication --views 1,1+2,12 --expel 1 U0 G0G0 S0"},
                    Needed{"handover-reads-tail", "replication --views 1,1=2,12 --expel 1 U0 G0G0 S0"},
                    Needed{"expelled-read-returns", "replication --views 1,1=2,12 --expel 1 G0 U0 S0G0"}),
    NeededName());

// The word is in one pool, and names a block in another that a replica joins.
INSTANTIATE_TEST_SUITE_P(
    TwoPools, ReplicationModelNeeds,
    testing::Values(
        Needed{"ack-per-pool", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"ignore-learner", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"block-not-rewritten", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"help-without-block", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"sync-without-block", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"sweep-ignores-head", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"},
        Needed{"promote-with-zombies", "replication --views 01,01,01 --blocks 2,2+3,23 --expel 1 U0 U0G0 S0"}),
    NeededName());

TEST(ReplicationModel, AliveClientEndsAloneOnlyIfItHelps) { ExpectNeeded("no-help", "replication --solo U0 U0"); }

// What is wrong in a view rather than in a step: to join at the head, or before the tail, or with the memory of before.
class ReplicationModelForbids : public testing::TestWithParam<const char*> {};
TEST_P(ReplicationModelForbids, TheViews) { EXPECT_EQ(model::Run(GetParam()).verdict, Verdict::kViolation); }
INSTANTIATE_TEST_SUITE_P(Join, ReplicationModelForbids,
                         testing::Values("replication --views 01,01+2,201 --expel 1 U0G0 U0 S0",
                                         "replication --views 01,01+2,021 --expel 1 U0G0 U0 S0",
                                         "replication --views 01,1,1+0,10 --suspect 0 --expel 1 U0G0 U0 S0"),
                         LineName());

// Without a handover, a READ at a replica that has left may be believed: nothing changes there any more.
class ReplicationModelDoesWithout : public testing::TestWithParam<const char*> {};
TEST_P(ReplicationModelDoesWithout, TheProtection) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    ExpelledReadReturns, ReplicationModelDoesWithout,
    testing::Values("replication --views 01,0 --suspect 1 --expel 1 G0G0 U0U0 G0G0 --without expelled-read-returns",
                    "replication --views 012,12,1 --suspect 012 --expel 1 G0G0 U0D0 G0 --without expelled-read-returns",
                    "replication --views 01,0 --suspect 1 --expel 1 --slots 2 --absent G0G0 I0G0 G0 --without "
                    "expelled-read-returns",
                    "replication --views 1,1+2,12 --expel 1 G0G0 U0 S0G0 --without expelled-read-returns"),
    LineName());

// Where only a pool of blocks gets a learner, a client that is lost after the sweep has left nothing that the learner
// lacks: its words are in the other pool, and its blocks were written to the learner before.
INSTANTIATE_TEST_SUITE_P(
    TwoPools, ReplicationModelDoesWithout,
    testing::Values(
        "replication --views 01,01,01 --blocks 2,2+3,23 --expel 2 U0 U0G0 S0 --without promote-despite-loss",
        "replication --views 01,01,01 --blocks 2,2+3,23 --expel 2 U0 F0 S0 --without promote-despite-loss",
        "replication --views 01,01,01 --blocks 2,2+3,23 --expel 2 U0 U0G0 S0 --without ack-midway"),
    LineName());

}  // namespace
}  // namespace model
