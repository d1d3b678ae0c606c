#include "krcore/rnic/verbs/memory.h"

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "krcore/base/limits.h"
#include "krcore/rnic/huge_pages.h"

namespace krcore::rnic::verbs {
namespace {

size_t RoundUp(size_t length, size_t unit) { return (length + unit - 1) / unit * unit; }

void* Map(size_t length, int flags) {
  void* const addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return addr == MAP_FAILED ? nullptr : addr;
}

// Pages that the administrator set aside; null: not so many are left.
void* MapReserved(size_t length) {
  void* const addr = Map(length, MAP_HUGETLB);
  // Where libibverbs keeps what is registered out of forked children, it does so page by small page, and the kernel
  // does not divide these. It has nothing to divide where all of it is kept out already.
  if (addr != nullptr && ibv_is_fork_initialized() == IBV_FORK_ENABLED) madvise(addr, length, MADV_DONTFORK);
  return addr;
}

// At a multiple of a huge page, so that the kernel can use them.
void* MapAligned(size_t length) {
  auto* const wider = static_cast<std::byte*>(Map(length + kHugePageBytes, 0));
  if (wider == nullptr) return nullptr;
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(wider) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) munmap(wider, before);
  munmap(wider + before + length, kHugePageBytes - before);
  madvise(wider + before, length, MADV_HUGEPAGE);
  return wider + before;
}

}  // namespace

Result<std::unique_ptr<Memory>> VerbsMemory::Allocate(size_t length, const AllocOptions& options) {
  if (length == 0) return Status(StatusCode::kInvalidArgument, "memory of 0 bytes");
  if (!options.name.empty())
    return Status(StatusCode::kUnsupported, "memory that outlives its process is not offered by provider verbs");
  if (length > size_t{1} << 46)
    return Status(StatusCode::kOutOfMemory, "memory of " + std::to_string(length) + " bytes is more than there is");
  KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = RoundUp(length, huge ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  void* addr = huge ? MapReserved(mapped) : Map(mapped, 0);
  const bool reserved = huge && addr != nullptr;
  if (addr == nullptr && huge) addr = MapAligned(mapped);  // those that the kernel can find
  if (addr == nullptr) return Status::FromErrno(errno, "cannot allocate " + std::to_string(length) + " bytes");
  return std::unique_ptr<Memory>(new VerbsMemory(addr, length, mapped, reserved));
}

VerbsMemory::VerbsMemory(void* addr, size_t length, size_t mapped, bool reserved)
    : mapped_(mapped), reserved_(reserved) {
  bytes_ = {static_cast<std::byte*>(addr), length};
}

VerbsMemory::~VerbsMemory() { munmap(bytes_.data(), mapped_); }

Status VerbsMemory::CollapseToHugePages(size_t offset, size_t length) {
  return reserved_ ? Status{} : rnic::CollapseToHugePages(bytes_, offset, length);
}

}  // namespace krcore::rnic::verbs
