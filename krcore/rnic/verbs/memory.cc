#include "krcore/rnic/verbs/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "krcore/base/os.h"
#include "krcore/rnic.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/nic.h"

namespace krcore::rnic::verbs {
namespace {

// Maps pages that the administrator set aside; null: too few are left.
void* MapReserved(size_t length) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
  void* const addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (addr == MAP_FAILED) return nullptr;
  // Where libibverbs keeps registered memory out of forked children, it does so by small pages, and the kernel does not
  // split these pages. There is nothing to split if all of the memory is kept out already.
  if (ibv.is_fork_initialized() == IBV_FORK_ENABLED) madvise(addr, length, MADV_DONTFORK);
  return addr;
}

}  // namespace

Result<std::unique_ptr<Memory>> VerbsMemory::Allocate(size_t length, const AllocOptions& options) {
  KRCORE_RETURN_IF_ERROR(CheckMemoryLength(length));
  if (!options.name.empty())
    return Status(StatusCode::kUnsupported, "memory that outlives its process is not offered by provider verbs");
  size_t mapped = length;
  if (length >= kHugePageBytes) {
    mapped = (length + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    if (void* const addr = MapReserved(mapped); addr != nullptr)
      return std::unique_ptr<Memory>(new VerbsMemory({static_cast<std::byte*>(addr), mapped}, length, nullptr));
  }
  auto pages = Pages::Map(mapped);  // in whatever huge pages the kernel can find
  if (!pages.ok()) return pages.status();
  const std::span<std::byte> bytes = (*pages)->bytes();
  return std::unique_ptr<Memory>(new VerbsMemory(bytes, length, *std::move(pages)));
}

VerbsMemory::VerbsMemory(std::span<std::byte> mapped, size_t length, std::unique_ptr<Pages> pages)
    : mapped_(mapped.size()), pages_(std::move(pages)) {
  bytes_ = mapped.first(length);
}

VerbsMemory::~VerbsMemory() {
  if (pages_ == nullptr) munmap(bytes_.data(), mapped_);
}

Status VerbsMemory::CollapseToHugePages(size_t offset, size_t length) {
  return pages_ == nullptr ? Status{} : krcore::CollapseToHugePages(bytes_, offset, length);
}

Result<std::unique_ptr<RegisteredPages>> RegisteredPages::Allocate(ibv_pd* pd, size_t length, const char* what) {
  auto memory = Pages::Map(length);
  if (!memory.ok())
    return Status(memory.status().code(), "cannot allocate " + std::string(what) + ": " + memory.status().ToString());
  ibv_mr* const mr = ibv.reg_mr(pd, (*memory)->bytes().data(), length, int{IBV_ACCESS_LOCAL_WRITE});
  if (mr == nullptr) return FailedCall(errno, std::string("register ") + what);
  return std::unique_ptr<RegisteredPages>(new RegisteredPages(*std::move(memory), mr));
}

RegisteredPages::~RegisteredPages() { ibv.dereg_mr(mr_); }

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
