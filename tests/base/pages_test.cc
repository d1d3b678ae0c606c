// Memory from the kernel, and its move into huge pages.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "krcore/base/os.h"

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25  // Linux 6.1; Debian 12's libc headers are older
#endif

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
    EXPECT_EQ(Pages::Map(std::numeric_limits<size_t>::max(), use).status(), StatusCode::kOutOfMemory);
    EXPECT_EQ(Pages::Map(size_t{1} << 60, use).status(), StatusCode::kOutOfMemory);
  }
}

// Returns whether the mapping that holds `address` has the flag, two letters of VmFlags (proc(5)).
bool HasFlagAt(const std::byte* address, const std::string& flag) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = at >= begin && at < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return (line + " ").find(" " + flag + " ") != std::string::npos;
    }
  }
  return false;
}

TEST(Pages, TheKernelIsAdvisedByTheirUse) {
  const auto dense = Pages::Map(2 * kHugePageBytes).value();
  const auto sparse = Pages::Map(2 * kHugePageBytes, Pages::Use::kSparse).value();
  EXPECT_TRUE(HasFlagAt(dense->bytes().data(), "hg"));
  EXPECT_FALSE(HasFlagAt(dense->bytes().data(), "nr"));
  EXPECT_FALSE(HasFlagAt(sparse->bytes().data(), "hg"));
  EXPECT_TRUE(HasFlagAt(sparse->bytes().data(), "nr"));
}

TEST(Collapse, MovesTheWholeHugePagesOfMemoryThatBeginsAnywhere) {
  const auto pages = Pages::Map(8 * kHugePageBytes, Pages::Use::kSparse).value();
  // Small pages until then, whatever the system's default is.
  ASSERT_EQ(madvise(pages->bytes().data(), pages->bytes().size(), MADV_NOHUGEPAGE), 0);
  // Five huge pages long, of which four are whole, for it begins 4 KiB behind the beginning of one.
  const std::span<std::byte> memory = pages->bytes().subspan(kHugePageBytes + 4096, 5 * kHugePageBytes);
  for (size_t at = 0; at < memory.size(); at += 4096) memory[at] = std::byte{7};
  ASSERT_EQ(HugeKiBAt(memory.data()), 0u);
  ASSERT_EQ(madvise(pages->bytes().data(), pages->bytes().size(), MADV_HUGEPAGE), 0);
  std::byte* const last = pages->bytes().data() + 7 * kHugePageBytes;
  *last = std::byte{1};
  if (madvise(last, kHugePageBytes, MADV_COLLAPSE) != 0)
    GTEST_SKIP() << "this machine has no huge page to give: " << std::strerror(errno);
  // With the last one. The kernel may move those around them by itself (khugepaged), and leave one for the next time.
  constexpr uint64_t kLeast = 5 * kHugePageBytes / 1024;
  for (int tries = 0; tries < 100 && HugeKiBAt(memory.data()) < kLeast; ++tries) {
    const Status status = CollapseToHugePages(memory, 0, memory.size());
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GE(HugeKiBAt(memory.data()), kLeast);
  for (size_t at = 0; at < memory.size(); at += 4096) ASSERT_EQ(memory[at], std::byte{7});
  EXPECT_EQ(CollapseToHugePages(memory, 1, memory.size()), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace krcore
