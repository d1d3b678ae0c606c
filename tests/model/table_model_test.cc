// The table model: it holds, and each of its protections is needed (the table is in README.md).
#include "tests/model/model_testing.h"

namespace model {
namespace {

class TableModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(TableModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    Split, TableModelHolds,
    testing::Values("table --key1 0 X1 X1 D1G1", "table --key1 0 X1 D1 I1", "table --key1 0 X1 U1 G1G1",
                    "table --key1 0 X1 P1 D1", "table --key1 0 X1 I1 G1", "table --in-order I1 P1 D1",
                    "table --slots 3 I1 I1", "table --key0 1 X1 I1 I1", "table --key1 0 X1 D1 I1D1",
                    "table --key1 0 X1 X1 D1I1", "table --in-order --key1 0 X1 D1I1 P1", "table --key1 0 X1 C1 C1",
                    "table --key1 0 X1 C1 D1", "table C1 C1", "table --in-order X1 C1 I1", "table --key1 0 C1C1 U1D1"),
    LineName());
INSTANTIATE_TEST_SUITE_P(Merge, TableModelHolds,
                         testing::Values("table --merge --key1 0 X1 U1 G1G1", "table --merge --key1 0 X1 X1 D1G1",
                                         "table --merge X1 I1 I1", "table --merge --key1 0 X1 D1 I1G1",
                                         "table --merge --key1 0 X1 X1 U1 G1", "table --merge --key1 0 X1 C1 C1"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Reuse, TableModelHolds,
                         testing::Values("table --reuse 1 --key1 0 X1 U1 G1",
                                         "table --reuse 2 --key1 0 --expel 2 --in-order X1 U1 G1",
                                         "table --reuse 2 --key1 0 --expel 1 U1U1 U1",
                                         "table --reuse 2 --key1 0 U1U1 C1", "table --reuse 2 --key1 0 X1 C1 C1"),
                         LineName());

class TableModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(TableModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(
    Insert, TableModelNeeds,
    testing::Values(Needed{"insert-directly", "table I1 I1"}, Needed{"confirm-without-kill", "table I1 I1"},
                    Needed{"confirm-after-failed-kill", "table I1 I1"}, Needed{"exists-on-ins", "table I1 I1"},
                    Needed{"failed-confirm-is-done", "table I1 I1"}, Needed{"confirm-by-write", "table I1 I1"},
                    Needed{"rescan-ignores-values", "table I1 I1"},
                    Needed{"insert-without-headers", "table --in-order X1 I1 I1"}),
    NeededName());
INSTANTIATE_TEST_SUITE_P(Read, TableModelNeeds,
                         testing::Values(Needed{"return-frozen", "table --key1 0 X1 U1 G1G1"},
                                         Needed{"miss-without-headers", "table --key1 0 X1 U1 G1G1"},
                                         Needed{"update-miss-without-headers", "table --key1 0 X1 U1 G1G1"},
                                         Needed{"return-tentative", "table --in-order I1 I1 G1"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Split, TableModelNeeds,
                         testing::Values(Needed{"clear-early", "table --in-order X1 I1 I1"},
                                         Needed{"headers-late", "table --in-order X1 I1 I1"},
                                         Needed{"copy-without-freeze", "table --in-order X1 I1 I1"},
                                         Needed{"update-frozen", "table --key1 0 X1 U1 G1G1"},
                                         Needed{"ignore-ins", "table --in-order X1 I1 I1"},
                                         Needed{"publish-without-cas", "table --in-order X1 I1 I1"},
                                         Needed{"lost-put-is-done", "table --key1 0 X1 P1 I0"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Modify, TableModelNeeds,
                         testing::Values(Needed{"modify-of-any-word", "table --key1 0 U1 C1"},
                                         Needed{"no-grace", "table --reuse 2 --key1 0 U1U1 C1"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Memory, TableModelNeeds,
                         testing::Values(Needed{"no-grace", "table --reuse 1 --key1 0 X1 U1 G1"},
                                         Needed{"no-quarantine", "table --reuse 1 --key1 0 --expel 1 D1 D1I0G0"},
                                         Needed{"no-hold-while-frozen", "table --reuse 1 --key1 0 X1 U1I0U0"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Merge, TableModelNeeds,
                         testing::Values(Needed{"headers-late", "table --merge --in-order X1 I1 I1"},
                                         Needed{"ignore-ins", "table --merge --in-order X1 I1 I1"},
                                         Needed{"copy-without-freeze", "table --merge --key1 0 X1 U1 G1G1"},
                                         Needed{"publish-without-cas", "table --merge --key1 0 X1 U1 G1G1"}),
                         NeededName());

}  // namespace
}  // namespace model
