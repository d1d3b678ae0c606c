// The directory model: it holds, and each of its protections is needed (the table is in README.md).
#include "tests/model/model_testing.h"

namespace model {
namespace {

class DirectoryModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(DirectoryModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(SplitMergeSplit, DirectoryModelHolds,
                         testing::Values("directory S0M0S0 G1", "directory --any-outcome S0M0S0 G1",
                                         "directory S0M0S0 U1", "directory --key1 -1 S0M0S0 I1",
                                         "directory S0M0S0 S0M0S0", "directory S0M0 S0 S0",
                                         "directory --solo S0M0S0 S0M0", "directory --buckets 2 S0M0 D1I1",
                                         "directory S0M0S0 C1", "directory --key1 -1 S0M0 C1C1"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Merge, DirectoryModelHolds,
                         testing::Values("directory --split-before --solo --any-outcome M0 M0 U1",
                                         "directory --split-before --any-outcome M0 U1 G1",
                                         "directory --split-before --any-outcome M0 C1 C1",
                                         "directory --split-before M0 S0 G1",
                                         "directory --split-before --key0 0 M0 U0 U1",
                                         "directory --split-before --slots 3 --key0 0 M0 I0 U1",
                                         "directory --split-before --key0 0 M0S0 M0 U1"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(NestedSplit, DirectoryModelHolds,
                         testing::Values("directory --hash1 3 S0 S0 S1M1", "directory --hash1 2 S0 S0S0 U1",
                                         "directory --split-before --hash1 3 S1 M0 U1",
                                         "directory --split-before --hash1 3 S1M1 M0 G1",
                                         "directory --split-before --hash1 3 --key1 -1 S1 M0 I1"),
                         LineName());

class DirectoryModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(DirectoryModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(Read, DirectoryModelNeeds,
                         testing::Values(Needed{"read-splitting-unasked", "directory S0M0S0 G1"},
                                         Needed{"resolve-parent-first", "directory S0M0S0 G1"},
                                         Needed{"read-closed-unasked", "directory S0M0S0 G1"},
                                         Needed{"read-wrong-half", "directory S0M0S0 G1"},
                                         Needed{"read-foreign-record", "directory S0M0S0 S0 G1"},
                                         Needed{"keep-merged-child", "directory --solo --split-before M0 G1"},
                                         Needed{"read-closed-parent-only",
                                                "directory --solo --split-before --any-outcome M0 G1"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(Split, DirectoryModelNeeds,
                         testing::Values(Needed{"split-sets-no-state", "directory S0M0 S0"},
                                         Needed{"split-without-reread", "directory S0M0S0 S0"},
                                         Needed{"publish-on-late-word", "directory S0M0 S0"},
                                         Needed{"finish-without-first-look", "directory S0M0 S0"},
                                         Needed{"finish-of-another-split", "directory --key0 0 --key1 -1 S0M0S0 S0 G0"},
                                         Needed{"any-merging-is-old", "directory --hash1 3 S0 S0 S1M1"},
                                         Needed{"clear-without-reread", "directory --hash1 2 S0 S0S0"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(
    Merge, DirectoryModelNeeds,
    testing::Values(Needed{"engage-parent-only", "directory S0M0S0 G1"},
                    Needed{"close-late", "directory --split-before --key1 -1 M0 S0 I1"},
                    Needed{"ignore-ins", "directory --split-before --key1 -1 M0 S0 I1"},
                    Needed{"insert-without-headers", "directory --split-before --key1 -1 M0 S0 I1"},
                    Needed{"copy-without-freeze", "directory --split-before M0 U1G1"},
                    Needed{"publish-without-cas", "directory --split-before M0 U1G1"},
                    Needed{"merge-without-outcome", "directory --split-before --any-outcome M0 M0 U1"},
                    Needed{"replace-child-first", "directory --split-before --any-outcome M0 U1"}),
    NeededName());

}  // namespace
}  // namespace model
