// A device of the simulated RNIC: its limits, its tables, and what the World knows of it.
#ifndef KRCORE_RNIC_SIM_DEVICE_H_
#define KRCORE_RNIC_SIM_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sim/cost_model.h"
#include "krcore/rnic/sim/verb.h"
#include "krcore/rnic/software_nic.h"

namespace krcore::rnic::sim {

inline constexpr uint32_t kMaxMrs = 1 << 16;     // per device
inline constexpr uint32_t kMaxQps = 1 << 12;     // per device; Qps and Dcts
inline constexpr uint32_t kMaxRecords = 256;     // per fabric
inline constexpr uint32_t kDynamicNodes = 2048;  // ids handed out, in a cycle; more if more are in use

class Receiver;
class SimQp;

// What a device knows by key or number: its MRs, and its Qps and Dcts. The tables grow with use.

// The key is generation << 16 | index, so that it is reused after 65,535 registrations at the earliest.
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
  void RemoveMr(uint32_t key);
  // Returns null if there is no such key.
  const MrEntry* Find(uint32_t key) const {
    const uint32_t index = key & 0xffff;
    return index < entries_.size() && entries_[index].key == key && key != 0 ? &entries_[index] : nullptr;
  }

 private:
  std::vector<MrEntry> entries_;
  std::vector<uint32_t> free_;
};

// The number is 24 bits wide as in verbs: generation << 12 | index.
struct QpEntry {
  uint32_t number = 0;  // 0: free
  uint32_t generation = 0;
  EntryType type = EntryType::kRc;
  QpState state = QpState::kReset;
  uint32_t pd = 0;
  uint32_t rights = 0;
  uint32_t qkey = 0;
  uint32_t peer_number = 0;       // RC: the connected Qp
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
  // Returns null if there is no such Qp or Dct.
  QpEntry* Find(uint32_t number) {
    const uint32_t index = number & 0xfff;
    return index < entries_.size() && entries_[index].number == number && number != 0 ? &entries_[index] : nullptr;
  }
  // Returns all entries, including free ones.
  std::vector<QpEntry>& entries() { return entries_; }

 private:
  std::vector<QpEntry> entries_;
  std::vector<uint32_t> free_;
};

enum class Life : uint8_t { kAlive, kKilled, kClosed };

// DeviceState: what the World knows of one device. It stays when the device is closed, so that those who still name the
// device learn that it is gone.
struct DeviceState {
  uint32_t index = 0;  // in the World; the address has it, too
  NodeId node = kNoNode;
  uint32_t incarnation = 0;
  Life life = Life::kAlive;
  bool ready_listed = false;

  uint32_t next_pd = 1;
  MrTable mrs;
  QpTable qps;

  // ---- its NIC
  int64_t send_free_ns = 0;        // when the next verb can leave
  int64_t serve_free_ns = 0;       // when the next verb can be served
  int64_t stalled_until_ns = 0;    // for doorbells
  std::vector<int64_t> word_free;  // when the next atomic on a word can be served; by hash, made when first used
  uint64_t unpolled = 0;           // completions in its CQs
  std::optional<Chaos> chaos;      // for the verbs that it posts; none: the World's
  int64_t control_ns = 0;          // modelled time of its control path calls

  // ---- what keeps verbs from it
  int64_t cut_off_until_ns = 0;  // no verb reaches it, and none of its own arrives
  int64_t frozen_until_ns = 0;   // it serves nothing, and what arrives waits

  // ---- what happens at one of its verbs
  uint64_t verbs_to_act = 0;  // that execute until then; 0: nothing happens
  bool acts_before = false;
  std::function<void()> action;

  // ---- its death
  uint64_t verbs_left = 0;  // verbs until it dies; 0: not planned
  bool dies_before = false;
  int64_t dies_linger_ns = 0;
  int64_t linger_until_ns = 0;
  uint64_t zombies = 0;  // verbs in `orphans` that may still execute
  std::vector<std::unique_ptr<SendQueue>> orphans;
};

class SimAddressHandle final : public AddressHandle {
 public:
  explicit SimAddressHandle(DeviceState* device) : device_(device) {}
  DeviceState* device() const { return device_; }

 private:
  DeviceState* const device_;
};

inline DeviceState* DeviceOf(const AddressHandle* ah) { return static_cast<const SimAddressHandle*>(ah)->device(); }

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_DEVICE_H_
