#include "krcore/rnic/verbs/memory.h"

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "krcore/base/os.h"
#include "krcore/base/pages.h"
#include "krcore/rnic.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/nic.h"

namespace krcore::rnic::verbs {
namespace {

size_t RoundUp(size_t length, size_t unit) { return (length + unit - 1) / unit * unit; }

void* Map(size_t length, int flags) {
  void* const addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return addr == MAP_FAILED ? nullptr : addr;
}

// Maps pages that the administrator set aside; null: too few are left.
void* MapReserved(size_t length) {
  void* const addr = Map(length, MAP_HUGETLB);
  // Where libibverbs keeps registered memory out of forked children, it does so by small pages, and the kernel does not
  // split these pages. There is nothing to split if all of the memory is kept out already.
  if (addr != nullptr && ibv_is_fork_initialized() == IBV_FORK_ENABLED) madvise(addr, length, MADV_DONTFORK);
  return addr;
}

// Maps memory at a multiple of a huge page, so that the kernel can use huge pages.
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
  KRCORE_RETURN_IF_ERROR(CheckMemoryLength(length));
  if (!options.name.empty())
    return Status(StatusCode::kUnsupported, "memory that outlives its process is not offered by provider verbs");
  KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = RoundUp(length, huge ? kHugePageBytes : static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  void* addr = huge ? MapReserved(mapped) : Map(mapped, 0);
  const bool reserved = huge && addr != nullptr;
  if (addr == nullptr && huge) addr = MapAligned(mapped);  // in whatever huge pages the kernel can find
  if (addr == nullptr) return Status::FromErrno(errno, "cannot allocate " + std::to_string(length) + " bytes");
  return std::unique_ptr<Memory>(new VerbsMemory(addr, length, mapped, reserved));
}

VerbsMemory::VerbsMemory(void* addr, size_t length, size_t mapped, bool reserved)
    : mapped_(mapped), reserved_(reserved) {
  bytes_ = {static_cast<std::byte*>(addr), length};
}

VerbsMemory::~VerbsMemory() { munmap(bytes_.data(), mapped_); }

Status VerbsMemory::CollapseToHugePages(size_t offset, size_t length) {
  return reserved_ ? Status{} : krcore::CollapseToHugePages(bytes_, offset, length);
}

Result<std::unique_ptr<RegisteredPages>> RegisteredPages::Allocate(ibv_pd* pd, size_t length, const char* what) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (length + page - 1) / page * page;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::FromErrno(errno, std::string("cannot allocate ") + what);
  std::unique_ptr<RegisteredPages> pages(new RegisteredPages(memory, mapped));
  pages->mr_ = ibv_reg_mr(pd, memory, mapped, int{IBV_ACCESS_LOCAL_WRITE});
  if (pages->mr_ == nullptr) return FailedCall(errno, std::string("register ") + what);
  return pages;
}

RegisteredPages::~RegisteredPages() {
  if (mr_ != nullptr) ibv_dereg_mr(mr_);
  munmap(memory_, mapped_);
}

WriterFirstMutex::WriterFirstMutex() {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock_, &attributes);
  pthread_rwlockattr_destroy(&attributes);
}

void Regions::Add(const Mr& mr, uint32_t access_rights) {
  const Region region{reinterpret_cast<uint64_t>(mr.addr()), mr.length(), access_rights};
  const std::lock_guard lock(mutex_);
  by_lkey_[mr.lkey()] = region;
  // An MR without remote rights may have no rkey.
  if ((access_rights & (kRemoteRead | kRemoteWrite | kRemoteAtomic)) != 0) by_rkey_[mr.rkey()] = region;
}

void Regions::Remove(const Mr& mr) {
  const std::lock_guard lock(mutex_);
  by_lkey_.erase(mr.lkey());
  by_rkey_.erase(mr.rkey());
}

void* Regions::Find(const Table& table, uint32_t key, uint64_t addr, uint32_t length, uint32_t rights) {
  const auto found = table.find(key);
  if (found == table.end()) return nullptr;
  const Region& region = found->second;
  if ((region.rights & rights) != rights || addr < region.addr || addr - region.addr > region.length ||
      length > region.length - (addr - region.addr))
    return nullptr;
  return reinterpret_cast<void*>(addr);
}

}  // namespace krcore::rnic::verbs
