// The home model and the join model: they hold, and their protections are needed (the tables are in README.md).
#include "tests/model/model_testing.h"

namespace model {
namespace {

class HomeModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(HomeModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Leases, HomeModelHolds,
                         testing::Values("home --views 01,1 N0 N0R0", "home --views 01,0 N0 R0R0",
                                         "home --leaseless 1 --views 01,1 N0 N0R0",
                                         "home --leaseless 1 --views 01,0 N0 R0R0"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(
    Leaseless, HomeModelHolds,
    testing::Values("home --leaseless 3 --views 01,1 N0 N0R0", "home --leaseless 3 --views 01,0 N0 N0R0",
                    "home --leaseless 3 --views 012,1 N0 N0R0", "home --leaseless 3 --views 012,01,1 N0 N0R0",
                    "home --leaseless 7 --views 01,1 N0 N0 R0", "home --leaseless 3 --ghosts 1 --views 01,1 N0 N0"),
    LineName());
INSTANTIATE_TEST_SUITE_P(Claims, HomeModelHolds,
                         testing::Values("home --leaseless 3 --claims --views 01,1 N0 N0R0",
                                         "home --leaseless 3 --claims --views 012,1 N0 N0",
                                         "home --leaseless 1 --claims --views 01,0 N0 N0R0",
                                         "home --leaseless 3 --ghosts 1 --claims --views 012,1 N0 N0",
                                         "home --leaseless 3 --ghosts 1 --claims --views 01,0 N0 N0R0"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Learner, HomeModelHolds,
                         testing::Values("home --leaseless 3 --views 1,1+2,12 N0 R0R0",
                                         "home --leaseless 2 --views 1,1+2,12 N0 R0R0",
                                         "home --leaseless 3 --views 01,01+2,012 N0 R0"),
                         LineName());

class HomeModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(HomeModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(Leaseless, HomeModelNeeds,
                         testing::Values(Needed{"unchecked", "home --leaseless 3 --views 01,1 N0 N0R0"},
                                         Needed{"checked-at-head", "home --leaseless 3 --views 01,1 N0 N0R0"},
                                         Needed{"checked-at-tail", "home --leaseless 3 --views 012,1 N0 N0R0"},
                                         Needed{"checked-at-ends", "home --leaseless 3 --views 012,1 N0 N0R0"},
                                         Needed{"read-unchecked", "home --leaseless 3 --views 01,1 N0 N0R0"},
                                         Needed{"read-checked-at-tail", "home --leaseless 3 --views 01,0 N0 N0R0"},
                                         Needed{"adopts-pending", "home --leaseless 1 --views 01,0 N0 R0R0"},
                                         Needed{"found-is-mine", "home --leaseless 3 --views 01,1 N0 N0R0"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Learner, HomeModelNeeds,
                         testing::Values(Needed{"no-last-sweep", "home --leaseless 3 --views 1,1+2,12 N0 R0"},
                                         Needed{"sweep-before-number", "home --leaseless 3 --views 1,1+2,12 N0 R0"},
                                         Needed{"sweep-before-acks", "home --leaseless 1 --views 1,1+2,12 N0 R0"},
                                         Needed{"no-number", "home --leaseless 3 --views 1,1+2,12 N0 R0"},
                                         Needed{"number-at-one", "home --leaseless 3 --views 1,1+2,12 N0 R0"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Lease, HomeModelNeeds,
                         testing::Values(Needed{"activate-at-once", "home --views 01,0 N0 R0R0"},
                                         Needed{"wait-from-decision", "home --views 01,0 N0 R0R0"},
                                         Needed{"lease-from-answer", "home --views 01,0 N0 R0R0"},
                                         Needed{"beats-at-head", "home --views 01,1 N0 N0R0"},
                                         Needed{"beats-at-tail", "home --views 01,0 N0 R0R0"},
                                         Needed{"quiet-seen-early", "home --views 01,0 N0 R0R0"},
                                         Needed{"quiet-seen-anywhere", "home --views 01,0 N0 R0R0"},
                                         Needed{"quiet-posts", "home --views 01,0 N0 R0R0"}),
                         NeededName());

class HomeModelDoesWithout : public testing::TestWithParam<const char*> {};
TEST_P(HomeModelDoesWithout, TheProtection) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Learner, HomeModelDoesWithout,
                         testing::Values("home --leaseless 3 --views 1,1+2,12 N0 R0R0 --without skip-learner",
                                         "home --leaseless 2 --views 1,1+2,12 N0 R0R0 --without skip-learner",
                                         "home --leaseless 3 --views 1,1+2,12 N0 R0R0 --without sweep-ignores-head",
                                         "home --leaseless 3 --views 01,01+2,012 N0 R0 --without sweep-ignores-head",
                                         "home --leaseless 3 --views 1,1+2,12 N0 R0R0 --without no-first-sweep"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(CheckedOnce, HomeModelDoesWithout,
                         testing::Values("home --leaseless 3 --views 01,1 N0 N0R0 --without checked-once",
                                         "home --leaseless 3 --views 012,1 N0 N0R0 --without checked-once",
                                         "home --leaseless 3 --views 012,01,1 N0 N0R0 --without checked-once",
                                         "home --leaseless 3 --claims --views 012,1 N0 N0 --without checked-once"),
                         LineName());

class JoinModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(JoinModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Moves, JoinModelHolds, testing::Values("join", "join --moves 3 --updates 2"), LineName());

class JoinModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(JoinModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(
    Moves, JoinModelNeeds,
    testing::Values(Needed{"move-without-block", "join"}, Needed{"table-at-tail-only", "join --moves 1"},
                    Needed{"table-not-rewritten", "join --moves 1"}, Needed{"sweep-early", "join --moves 1"},
                    Needed{"no-tables", "join --moves 1"}, Needed{"sweep-once", "join --moves 1"},
                    Needed{"sweep-trusts-slots", "join --moves 1"}, Needed{"promote-midway", "join --moves 1"}),
    NeededName());

}  // namespace
}  // namespace model
