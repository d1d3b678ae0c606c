// Allocates the entries of a device's own segment: MRs, Qp and Dct numbers, memory segments.
//
// Thread safety: all methods may be called from any thread.
#ifndef KRCORE_RNIC_SW_TABLES_H_
#define KRCORE_RNIC_SW_TABLES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "krcore/rnic/sw/fabric.h"

namespace krcore::rnic::sw {

// Indices with generations, handed out first in, first out, so that a name is reused as late as possible.
class NamePool {
 public:
  NamePool(uint32_t count, uint32_t index_bits, uint32_t max_generation);
  // Returns 0 if all are in use. Otherwise never 0, and never the same name twice in max_generation uses of its index.
  uint32_t Take();
  void Give(uint32_t name);

 private:
  const uint32_t index_bits_, max_generation_;
  std::deque<uint32_t> free_;
  std::vector<uint32_t> generations_;
};

struct SegmentRef {
  uint32_t index = kNoSegment;
  uint64_t serial = 0;
};

class Tables {
 public:
  explicit Tables(Fabric* fabric);

  // Announces memory at `base` that peers may map. kOutOfMemory.
  uint64_t NextSerial();
  Result<SegmentRef> AddSegment(uint64_t serial, const std::string& suffix, const std::byte* base, size_t length,
                                const std::string& name);
  bool NameInUse(const std::string& name);
  void RemoveSegment(const SegmentRef& segment, const std::byte* base);

  // Returns the key. kUnsupported: remote rights on memory that no segment covers.
  Result<uint32_t> AddMr(uint32_t pd, void* addr, size_t length, uint32_t rights);
  void RemoveMr(uint32_t key);

  // Returns a number; its entry is zeroed except for the word, which says type and RESET. kOutOfMemory.
  Result<uint32_t> AddQp(uint32_t pd, EntryType type);
  void RemoveQp(uint32_t number);
  QpEntry& qp(uint32_t number) { return fabric_->segment().qps[QpIndex(number)]; }

  uint32_t NextPd();

 private:
  struct Range {
    size_t length = 0;
    SegmentRef segment;
    std::string name;  // of named memory
  };

  Fabric* const fabric_;
  std::mutex mutex_;
  NamePool mr_keys_, qp_numbers_, segment_indices_;
  std::map<const std::byte*, Range> ranges_;  // by base address
  uint64_t next_serial_ = 1;                  // 0 is the device segment itself
  uint32_t next_pd_ = 1;                      // 0 matches nothing: it is in every free MrEntry
};

// What the objects of one device share. It outlives them all.
struct SharedDevice {
  explicit SharedDevice(std::unique_ptr<Fabric> joined)
      : owned(std::move(joined)), fabric(*owned), tables(&fabric), peers(&fabric) {}
  const std::unique_ptr<Fabric> owned;
  Fabric& fabric;
  Tables tables;
  PeerCache peers;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_TABLES_H_
