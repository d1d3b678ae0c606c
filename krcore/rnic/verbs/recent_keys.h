// The keys of MRs that were destroyed last. Drivers give keys a generation, but do not all promise how soon one comes
// again; a key must not for 255 registrations.
#ifndef KRCORE_RNIC_VERBS_RECENT_KEYS_H_
#define KRCORE_RNIC_VERBS_RECENT_KEYS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace krcore::rnic::verbs {

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

#endif  // KRCORE_RNIC_VERBS_RECENT_KEYS_H_
