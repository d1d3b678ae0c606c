// Memory, and the memory regions through which NICs and the software DC reach it.
#ifndef KRCORE_RNIC_VERBS_MEMORY_H_
#define KRCORE_RNIC_VERBS_MEMORY_H_

#include <infiniband/verbs.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>

#include "krcore/base/os.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::rnic::verbs {

// Anonymous memory for a NIC, in huge pages if there are any.
class VerbsMemory final : public Memory {
 public:
  static Result<std::unique_ptr<Memory>> Allocate(size_t length, const AllocOptions& options);
  ~VerbsMemory() override;
  Status CollapseToHugePages(size_t offset, size_t length) override;

 private:
  VerbsMemory(std::span<std::byte> mapped, size_t length, std::unique_ptr<Pages> pages);
  const size_t mapped_;
  const std::unique_ptr<Pages> pages_;  // null: huge pages that were set aside
};

// The software DC's own memory, which the NIC reads and writes. It has pages of its own, because with kernels before
// 5.12 forked children do not get registered pages.
class RegisteredPages {
 public:
  // Allocates it zeroed. `what` it is for appears in errors.
  static Result<std::unique_ptr<RegisteredPages>> Allocate(ibv_pd* pd, size_t length, const char* what);
  // Call when queues that use them are gone.
  ~RegisteredPages();
  RegisteredPages(const RegisteredPages&) = delete;
  RegisteredPages& operator=(const RegisteredPages&) = delete;

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory_->bytes().data()); }
  uint32_t lkey() const { return mr_->lkey; }

 private:
  RegisteredPages(std::unique_ptr<Pages> memory, ibv_mr* mr) : memory_(std::move(memory)), mr_(mr) {}

  const std::unique_ptr<Pages> memory_;
  ibv_mr* const mr_;
};

// A std::shared_mutex in which exclusive waiters go before shared ones: the sharing threads here take it again and
// again, and would keep the other out for ever. Not recursive, not even shared.
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

// The MRs of a PD, for code that does in software what a NIC does: the agent of the software DC and its initiators.
// They hold the lock while they copy, so a removed MR is not touched any more.
// Thread safety: Add and Remove may be called from any thread; finding needs the lock.
class Regions {
 public:
  using Lock = std::shared_lock<WriterFirstMutex>;

  void Add(const Mr& mr, uint32_t access_rights);
  // When it returns, nobody who found the MR is still using it.
  void Remove(const Mr& mr);

  Lock Use() { return Lock(mutex_); }
  // Returns [addr, addr + length) if it is in the MR of that key with all of `rights`; else null. length > 0.
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

// The keys of the most recently destroyed MRs. Drivers give keys a generation, but not all promise how soon a key comes
// again; it must not for 255 registrations.
//
// Thread safety: all methods may be called from any thread.
class RecentKeys {
 public:
  void Add(uint32_t rkey) {
    const std::lock_guard lock(mutex_);
    keys_[count_++ % keys_.size()] = rkey;
  }
  bool Has(uint32_t rkey) {
    const std::lock_guard lock(mutex_);
    const auto end = keys_.begin() + static_cast<ptrdiff_t>(std::min(count_, keys_.size()));
    return std::find(keys_.begin(), end, rkey) != end;
  }

 private:
  std::mutex mutex_;
  std::array<uint32_t, 256> keys_{};
  size_t count_ = 0;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MEMORY_H_
