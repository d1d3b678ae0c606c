#include "bench/peers/huge_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "krcore/rnic/huge_pages.h"

namespace peers {

using krcore::Status;

krcore::Result<std::unique_ptr<HugeMapping>> HugeMapping::Of(int file, size_t bytes) {
  constexpr size_t kAlignment = krcore::rnic::kHugePageBytes;
  // Their addresses are multiples of their size: reserve more, map over a part of that, and give back the rest.
  void* const room = mmap(nullptr, bytes + kAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return Status::FromErrno(errno, "mmap");
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + kAlignment - 1) / kAlignment * kAlignment;
  void* const mapped = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0);
  const Status failed = Status::FromErrno(errno, "mmap");
  if (mapped == MAP_FAILED) {
    munmap(room, bytes + kAlignment);
    return failed;
  }
  if (aligned > begin) munmap(room, aligned - begin);
  const uintptr_t end = (aligned + bytes + 4095) / 4096 * 4096;
  if (begin + bytes + kAlignment > end) munmap(reinterpret_cast<void*>(end), begin + bytes + kAlignment - end);
  const std::span<std::byte> memory(static_cast<std::byte*>(mapped), bytes);
  // Where the kernel has none, nobody here has any.
  (void)krcore::rnic::CollapseToHugePages(memory, 0, bytes);
  return std::unique_ptr<HugeMapping>(new HugeMapping(memory));
}

HugeMapping::~HugeMapping() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace peers
