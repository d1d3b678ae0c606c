// Memory of providers and huge pages.
#ifndef KRCORE_RNIC_HUGE_PAGES_H_
#define KRCORE_RNIC_HUGE_PAGES_H_

#include <cstddef>
#include <span>

#include "krcore/status.h"

namespace krcore::rnic {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Memory::CollapseToHugePages.
Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length);

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_HUGE_PAGES_H_
