// Larger configurations of the models, up to a minute each.
#include "tests/model/model_testing.h"

namespace model {
namespace {

class ModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(ModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Table, ModelHolds,
                         testing::Values("table --key1 0 X1 D1I1 G1", "table X1 I1 I1", "table X1 I1 D1G1",
                                         "table --slots 3 X1 I1 G1", "table --key1 0 X1 U1 D1 G1",
                                         "table --key1 0 X1 X1 P1 G1", "table --key1 0 --key0 1 X1 D0P0 D1I1",
                                         "table --in-order X1 I1 I1 G1", "table --in-order X1 X1 I1 I1",
                                         "table --merge --key1 0 X1 D1I1 P1", "table --merge X1 I1 D1G1",
                                         "table --reuse 1 --key1 0 --key0 1 X1 U1U0 G1",
                                         "table --reuse 2 --key1 0 --key0 1 --expel 1 X1 U1 U0"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Directory, ModelHolds,
                         testing::Values("directory S0M0S0 S0M0S0 U1", "directory S0M0S0 U1 G1",
                                         "directory --split-before --any-outcome M0 M0 U1 G1",
                                         "directory --hash1 3 S0S1M1M0 S0 G1", "directory --hash1 3 S0S1M1M0 S0 U1",
                                         "directory --hash1 3 --any-outcome S0S1M1M0 U1 G1",
                                         "directory --split-before M0S0 M0S0 G1",
                                         "directory --split-before --key1 -1 M0S0 I1 I1",
                                         "directory --split-before --any-outcome M0 D1I1 P1",
                                         "directory --split-before --buckets 2 --key1 -1 M0 I1 G1"),
                         LineName());

INSTANTIATE_TEST_SUITE_P(Memory, ModelHolds,
                         testing::Values("epoch --blocks 2 --epochs 4 --cached --expel",
                                         "sweep --split --insert --read"),
                         LineName());

INSTANTIATE_TEST_SUITE_P(
    Replication, ModelHolds,
    testing::Values("replication --views 01,1 --suspect 0 --mortal 0 --expel 1 U0G0 D0I0 F0",
                    "replication --views 012,12,2 --mortal 01 --expel 1 U0G0 U0G0 D0",
                    "replication --views 012,01,0 --mortal 12 --expel 1 U0G0 U0G0 D0",
                    "replication --views 012,02,2 --mortal 01 --suspect 01 --expel 1 U0G0 U0 D0",
                    "replication --views 01,1,1+2,12 --mortal 0 --expel 1 U0G0 U0G0 S0",
                    "replication --views 01,1,1+2,12 --suspect 0 --expel 1 U0G0 D0I0 S0",
                    "replication --slots 2 --views 1,1+2,12 --absent I0 I0 S0",
                    "replication --views 01,01+2,1+2,12 --mortal 0 --expel 1 U0G0 D0 S0S0",
                    "replication --views 01,01+2,0+2,02 --mortal 1 --expel 1 U0G0 D0 S0S0",
                    "replication --views 1,1+2,1=2,12 --expel 1 U0G0 U0G0 S0S0",
                    "replication --views 012,12,12=3,123 --mortal 0 --expel 1 U0G0 U0 S0",
                    // Copy and sweep look at the head, too. So these are not needed: the copy of the block of a word
                    // that is being pushed when the view changes, and a new sweep in a new view.
                    "replication --views 01,01+2,1+2,12 --mortal 0 --expel 1 U0G0 D0 S0 --without helped-not-rewritten",
                    "replication --views 012,12,12+3,123 --mortal 0 --expel 1 U0G0 U0 S0 --without "
                    "helped-not-rewritten",
                    "replication --views 01,01+2,0+2,02 --mortal 1 --expel 1 U0G0 D0 S0 --without sync-outlives-view",
                    "replication --views 01,01+2,1+2,12,2 --mortal 01 --expel 1 U0G0 D0 S0S0 --without "
                    "sync-outlives-view"),
    LineName());

INSTANTIATE_TEST_SUITE_P(Home, ModelHolds,
                         testing::Values("home --leaseless 1 --views 1,1+2,12 N0 R0R0",
                                         "home --leaseless 3 --views 01,01+2,012 N0 R0R0",
                                         "home --leaseless 3 --claims --views 1,1+2,12 N0 N0",
                                         "home --leaseless 3 --ghosts 1 --views 1,1+2,12 N0 R0R0",
                                         "home --leaseless 3 --ghosts 1 --views 01,01+2,012 N0 R0",
                                         "home --leaseless 3 --ghosts 2 --claims --views 012,01,1 N0 N0",
                                         "join --moves 3 --updates 3"),
                         LineName());

// The bound z + 1, and the rule that the epoch may not run away from a client: both need three blocks.
class ModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(ModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(Memory, ModelNeeds,
                         testing::Values(Needed{"quarantine-too-short", "epoch --blocks 3 --epochs 4 --expel"},
                                         Needed{"advance-alone", "epoch --blocks 3 --epochs 5 --expel"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(
    Replication, ModelNeeds,
    testing::Values(Needed{"free-recurs-by-kill", "replication --views 012 --absent I0 I0 F0"},
                    Needed{"sweep-ignores-head", "replication --views 012,12,12+3,123 --mortal 0 --expel 1 U0G0 U0 S0"},
                    Needed{"learner-unseen-word",
                           "replication --views 01,01+2,1+2,12,2 --mortal 01 --expel 1 U0G0 D0 S0S0"}),
    NeededName());

}  // namespace
}  // namespace model
