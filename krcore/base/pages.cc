#include "krcore/base/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "krcore/base/os.h"

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25  // Linux 6.1; Debian 12's libc headers are older
#endif

namespace krcore {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 46;  // more than a process can map

}  // namespace

Result<std::unique_ptr<Pages>> Pages::Map(size_t length, Use use) {
  if (use == Use::kDense) KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  if (length > kMaxBytes) return Status::FromErrno(ENOMEM, "mmap of " + std::to_string(length) + " bytes");
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = huge ? length + kHugePageBytes : length;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (use == Use::kSparse ? MAP_NORESERVE : 0);
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapping == MAP_FAILED) return Status::FromErrno(errno, "mmap of " + std::to_string(mapped) + " bytes");
  auto start = reinterpret_cast<uintptr_t>(mapping);
  if (huge) {
    start = (start + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    // Advice only: without huge pages everything works, but slower.
    if (use == Use::kDense) (void)madvise(reinterpret_cast<void*>(start), length, MADV_HUGEPAGE);
  }
  return std::unique_ptr<Pages>(new Pages(mapping, mapped, {reinterpret_cast<std::byte*>(start), length}));
}

Pages::~Pages() { munmap(mapping_, mapped_); }

namespace {

constexpr int kCollapseTries = 4;  // the kernel answers EAGAIN while it cannot isolate a page

}  // namespace

Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length) {
  if (offset > memory.size() || length > memory.size() - offset) {
    return {StatusCode::kInvalidArgument, "range to collapse lies outside the memory"};
  }
  const uintptr_t from = reinterpret_cast<uintptr_t>(memory.data()) + offset;
  const uintptr_t begin = (from + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (from + length) / kHugePageBytes * kHugePageBytes;
  // Goes page by page, so that a page that the kernel cannot take now does not keep the others back.
  for (uintptr_t at = begin; at < end; at += kHugePageBytes) {
    int error = 0;
    for (int tries = 0; tries < kCollapseTries; ++tries) {
      error = madvise(reinterpret_cast<void*>(at), kHugePageBytes, MADV_COLLAPSE) == 0 ? 0 : errno;
      if (error != EAGAIN) break;
    }
    if (error == EINVAL) return {StatusCode::kUnsupported, "this kernel cannot collapse this memory to huge pages"};
    if (error == ENOMEM) return {StatusCode::kOutOfMemory, "no huge page is free"};
    if (error != 0 && error != EAGAIN && error != EBUSY)
      return Status::FromErrno(error, "cannot collapse to huge pages");
  }
  return {};
}

}  // namespace krcore
