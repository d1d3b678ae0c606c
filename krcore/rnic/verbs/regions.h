// The MRs of a PD, for those who do in software what a NIC does: the agent of the software DC and its initiators. They
// hold the lock while they copy, so an MR that was removed is not touched any more.
#ifndef KRCORE_RNIC_VERBS_REGIONS_H_
#define KRCORE_RNIC_VERBS_REGIONS_H_

#include <pthread.h>

#include <cstdint>
#include <shared_mutex>
#include <unordered_map>

#include "krcore/rnic/rnic.h"

namespace krcore::rnic::verbs {

// A std::shared_mutex in which who wants it alone goes before who wants to share it: those who share it here do so
// again and again, and would keep the other out for ever. Not recursive, not even shared.
class WriterFirstMutex {
 public:
  WriterFirstMutex();
  ~WriterFirstMutex() { pthread_rwlock_destroy(&lock_); }
  WriterFirstMutex(const WriterFirstMutex&) = delete;
  WriterFirstMutex& operator=(const WriterFirstMutex&) = delete;
  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

// Thread safety: Add and Remove may be called from any thread; finding needs the lock.
class Regions {
 public:
  using Lock = std::shared_lock<WriterFirstMutex>;

  void Add(const Mr& mr, uint32_t access_rights);
  // When it returns nobody who found it is still using it.
  void Remove(const Mr& mr);

  Lock Use() { return Lock(mutex_); }
  // [addr, addr + length) if it is in the MR of that key with all of `rights`; else null. length > 0.
  void* FindLocal(uint32_t lkey, uint64_t addr, uint32_t length, uint32_t rights) const {
    return Find(by_lkey_, lkey, addr, length, rights);
  }
  void* FindRemote(uint32_t rkey, uint64_t addr, uint32_t length, uint32_t rights) const {
    return Find(by_rkey_, rkey, addr, length, rights);
  }

 private:
  struct Region {
    uint64_t addr;
    uint64_t length;
    uint32_t rights;
  };
  using Table = std::unordered_map<uint32_t, Region>;
  static void* Find(const Table& table, uint32_t key, uint64_t addr, uint32_t length, uint32_t rights);

  WriterFirstMutex mutex_;
  Table by_lkey_, by_rkey_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_REGIONS_H_
