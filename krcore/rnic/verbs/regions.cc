#include "krcore/rnic/verbs/regions.h"

#include <mutex>

namespace krcore::rnic::verbs {

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
  // One without remote rights may have no rkey.
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
