// What a device knows by key or number: its MRs, and its Qps and Dcts. They grow with use.
#ifndef KRCORE_RNIC_SIM_TABLES_H_
#define KRCORE_RNIC_SIM_TABLES_H_

#include <cstdint>
#include <vector>

#include "krcore/rnic/rnic.h"

namespace krcore::rnic::sim {

class Receiver;
class SimQp;

// The key is generation << 16 | index, so that it comes back after 65,535 registrations at the earliest.
struct MrEntry {
  uint64_t base = 0, length = 0;
  uint32_t key = 0;  // 0: free
  uint32_t rights = 0;
  uint32_t pd = 0;
  uint32_t generation = 0;
};

class MrTable {
 public:
  Result<uint32_t> Add(uint32_t pd, const void* addr, size_t length, uint32_t rights);
  void Remove(uint32_t key);
  // Null: no such key.
  const MrEntry* Find(uint32_t key) const {
    const uint32_t index = key & 0xffff;
    return index < entries_.size() && entries_[index].key == key && key != 0 ? &entries_[index] : nullptr;
  }

 private:
  std::vector<MrEntry> entries_;
  std::vector<uint32_t> free_;
};

enum class EntryType : uint8_t { kRc, kUd, kDci, kDct };

// The number is 24 bits wide as in verbs: generation << 12 | index.
struct QpEntry {
  uint32_t number = 0;  // 0: free
  uint32_t generation = 0;
  EntryType type = EntryType::kRc;
  QpState state = QpState::kReset;
  uint32_t pd = 0;
  uint32_t rights = 0;
  uint32_t qkey = 0;
  uint32_t peer_number = 0;       // RC: whom it is connected to
  uint32_t peer_incarnation = 0;  // RC
  uint64_t dc_key = 0;            // DCT
  Receiver* receiver = nullptr;   // null: receives nothing
  SimQp* qp = nullptr;            // null: a DCT

  bool Serves() const { return state == QpState::kRtr || state == QpState::kRts; }
};

class QpTable {
 public:
  Result<uint32_t> Add(EntryType type, uint32_t pd);
  void Remove(uint32_t number);
  // Null: no such Qp or Dct.
  QpEntry* Find(uint32_t number) {
    const uint32_t index = number & 0xfff;
    return index < entries_.size() && entries_[index].number == number && number != 0 ? &entries_[index] : nullptr;
  }
  // Including free ones.
  std::vector<QpEntry>& entries() { return entries_; }

 private:
  std::vector<QpEntry> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_TABLES_H_
