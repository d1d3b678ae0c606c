// Memory from the kernel, and its move into huge pages.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "krcore/base/os.h"

namespace krcore {
namespace {

// Returns how many KiB of huge pages the mapping that holds `address` has.
uint64_t HugeKiBAt(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = at >= begin && at < end;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kib) == 1) {
      return kib;
    }
  }
  return 0;
}

TEST(Pages, BeginAtAHugePageFromThatSizeOn) {
  for (const size_t length : {size_t{1}, kHugePageBytes - 1, kHugePageBytes, 3 * kHugePageBytes + 5}) {
    const auto pages = Pages::Map(length).value();
    ASSERT_EQ(pages->bytes().size(), length);
    if (length >= kHugePageBytes) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pages->bytes().data()) % kHugePageBytes, 0u);
    }
    EXPECT_EQ(pages->bytes().front(), std::byte{0});
    EXPECT_EQ(pages->bytes().back(), std::byte{0});
  }
}

TEST(Pages, MoreThanThereIsIsRefused) {
  for (const auto use : {Pages::Use::kDense, Pages::Use::kSparse}) {
    EXPECT_FALSE(Pages::Map(std::numeric_limits<size_t>::max(), use).ok());
    EXPECT_FALSE(Pages::Map(size_t{1} << 60, use).ok());
  }
}

TEST(Collapse, MovesTheWholeHugePagesOfMemoryThatBeginsAnywhere) {
  const auto pages = Pages::Map(8 * kHugePageBytes, Pages::Use::kSparse).value();
  // Five huge pages long, of which four are whole, for it begins 4 KiB behind the beginning of one.
  const std::span<std::byte> memory = pages->bytes().subspan(kHugePageBytes + 4096, 5 * kHugePageBytes);
  for (size_t at = 0; at < memory.size(); at += 4096) memory[at] = std::byte{7};
  const uint64_t before_kib = HugeKiBAt(memory.data());
  const Status status = CollapseToHugePages(memory, 0, memory.size());
  if (status == StatusCode::kUnsupported || status == StatusCode::kOutOfMemory)
    GTEST_SKIP() << "this machine has no huge pages to give: " << status.ToString();
  ASSERT_TRUE(status.ok()) << status.ToString();
  if (before_kib == 0) {
    EXPECT_EQ(HugeKiBAt(memory.data()), 4 * kHugePageBytes / 1024);
  }
  for (size_t at = 0; at < memory.size(); at += 4096) ASSERT_EQ(memory[at], std::byte{7});
  EXPECT_EQ(CollapseToHugePages(memory, 1, memory.size()), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace krcore
