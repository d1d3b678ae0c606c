// The models of memory and of the address cache: they hold, and every protection is needed (the table is in README.md).
#include "tests/model/model_testing.h"

namespace model {
namespace {

class MemoryModelHolds : public testing::TestWithParam<const char*> {};
TEST_P(MemoryModelHolds, InEveryState) { ExpectHolds(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Epoch, MemoryModelHolds,
                         testing::Values("epoch --blocks 2 --epochs 4", "epoch --blocks 2 --epochs 3 --expel",
                                         "epoch --blocks 2 --epochs 4 --cached"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Sweep, MemoryModelHolds,
                         testing::Values("sweep --insert", "sweep --split --read", "sweep --split --insert",
                                         "sweep --late", "sweep --die"),
                         LineName());
INSTANTIATE_TEST_SUITE_P(Cache, MemoryModelHolds, testing::Values("cache", "cache --blocks 3 --updates 6 --gets 5"),
                         LineName());

class MemoryModelNeeds : public testing::TestWithParam<Needed> {};
TEST_P(MemoryModelNeeds, TheProtection) { ExpectNeeded(GetParam().protection, GetParam().line); }
INSTANTIATE_TEST_SUITE_P(Epoch, MemoryModelNeeds,
                         testing::Values(Needed{"free-at-once", "epoch --blocks 2 --epochs 3"},
                                         Needed{"free-at-stamp", "epoch --blocks 2 --epochs 4"},
                                         Needed{"stamp-before-unlink", "epoch --blocks 2 --epochs 4"},
                                         Needed{"announce-newest", "epoch --blocks 2 --epochs 4"},
                                         Needed{"no-quarantine", "epoch --blocks 2 --epochs 3 --expel"},
                                         Needed{"keep-cache", "epoch --blocks 2 --epochs 4 --cached"},
                                         Needed{"counter-before-epoch", "epoch --blocks 2 --epochs 4 --cached"},
                                         Needed{"count-late", "epoch --blocks 2 --epochs 4 --cached"},
                                         Needed{"cache-late-entry", "epoch --blocks 2 --epochs 4 --cached"}),
                         NeededName());
INSTANTIATE_TEST_SUITE_P(
    Sweep, MemoryModelNeeds,
    testing::Values(Needed{"scan-at-once", "sweep --insert"}, Needed{"scan-ignores-directory", "sweep --split --read"},
                    Needed{"free-at-once", "sweep --read"}, Needed{"scan-ignores-ins", "sweep --die"},
                    Needed{"keep-free-list", "sweep --insert"},
                    Needed{"slots-before-epoch", "sweep --insert --read --epochs 3"},
                    Needed{"keep-own-block", "sweep --insert"}, Needed{"take-over-unregistered", "sweep --late"},
                    Needed{"take-over-unchecked", "sweep --late"},
                    Needed{"scan-ignores-frozen", "sweep --split --read"}),
    NeededName());
INSTANTIATE_TEST_SUITE_P(Cache, MemoryModelNeeds,
                         testing::Values(Needed{"unordered", "cache"}, Needed{"trust-without-slot", "cache"},
                                         Needed{"no-grace", "cache"}),
                         NeededName());

}  // namespace
}  // namespace model
