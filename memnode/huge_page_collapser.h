// HugePageCollapser: moves a region into huge pages piece by piece, while the region is in use. A process that uses the
// region then takes fewer page faults and fewer TLB misses. What can be moved within a second is moved before the
// constructor returns, the rest on a thread that takes a quarter of a core. Both begin where a store fills the region
// first.
//
// Thread safety: create, destroy and ask from one thread. The destructor stops within one piece.
#ifndef MEMNODE_HUGE_PAGE_COLLAPSER_H_
#define MEMNODE_HUGE_PAGE_COLLAPSER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "krcore/clock.h"
#include "krcore/node.h"

namespace memnode {

class HugePageCollapser {
 public:
  static constexpr int64_t kAtOnceNs = 1'000'000'000;

  // Moves pieces for `at_once_ns`, less if `clock` jumps. If the system has no thread for the rest, only logs a
  // warning. `region` must outlive this.
  HugePageCollapser(krcore::Region& region, krcore::Clock& clock, int64_t at_once_ns = kAtOnceNs);
  ~HugePageCollapser();
  HugePageCollapser(const HugePageCollapser&) = delete;
  HugePageCollapser& operator=(const HugePageCollapser&) = delete;

  // Ends the thread, whether it has finished or not; afterwards the figures below are final.
  void Stop();

  uint64_t collapsed_bytes() const { return collapsed_bytes_.load(std::memory_order_relaxed); }
  int64_t cpu_ns() const { return cpu_ns_.load(std::memory_order_relaxed); }

 private:
  // Returns false when nothing is left to move.
  bool MovePiece();
  void MoveRest();

  krcore::Region& region_;
  // Of whoever moves pieces: the constructor, then the thread.
  size_t offset_ = 0;
  uint64_t refused_bytes_ = 0;
  krcore::Status last_refusal_;
  // Figures only: nothing is published through them. Stop()'s join orders their last values.
  std::atomic<uint64_t> collapsed_bytes_{0};
  std::atomic<int64_t> cpu_ns_{0};
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;  // under the mutex
  std::thread thread_;
};

}  // namespace memnode

#endif  // MEMNODE_HUGE_PAGE_COLLAPSER_H_
