// A fabric as one of its devices sees it: its membership, the records of the fabric, and its peers.
//
// Thread safety: all methods may be called from any thread.
#ifndef KRCORE_RNIC_SW_FABRIC_H_
#define KRCORE_RNIC_SW_FABRIC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sw/backing.h"

namespace krcore::rnic::sw {

// One device's membership of a fabric: its slot in the device table, its device segment, and what it knows of which
// others live.
class Fabric {
 public:
  // Reclaims what dead devices left, then takes a slot. Statuses as OpenDevice.
  static Result<std::unique_ptr<Fabric>> Join(const DeviceOptions& options);
  // Leaves; the last living device removes the fabric's files, except named memory that is to be kept.
  ~Fabric();

  const std::string& name() const { return name_; }
  NodeId node() const { return node_; }
  uint32_t index() const { return index_; }
  uint32_t incarnation() const { return incarnation_; }
  DeviceSegment& segment() { return *reinterpret_cast<DeviceSegment*>(segment_->addr()); }
  Backing& backing() { return *backing_; }
  Control& control() { return backing_->control(); }
  Clock& clock() { return clock_; }

  // Asks the kernel. If the process is gone, marks the slot dead, so that everybody sees it.
  bool ConfirmAlive(uint32_t index, uint32_t incarnation);
  // The same of the device of that incarnation, wherever its slot is.
  bool ConfirmAlive(uint32_t incarnation);

  // Suffix of a segment of the device: "d<index>-<incarnation>.<serial>"; serial 0 is its device segment.
  static std::string SegmentSuffix(uint32_t index, uint32_t incarnation, uint64_t serial);
  std::string OwnSuffix(uint64_t serial) const { return SegmentSuffix(index_, incarnation_, serial); }

 private:
  Fabric(std::string name, std::unique_ptr<Backing> backing, Clock& clock)
      : name_(std::move(name)), backing_(std::move(backing)), clock_(clock) {}
  Status TakeSlot(NodeId wanted);
  Result<NodeId> ChooseNode(NodeId wanted);
  // Both need the admin lock. Reclaim frees the slots of the dead, their records and their unnamed segments; and the
  // fabric's own records, if there is neither a living device nor memory that waits for a successor.
  void Reclaim();
  bool AnybodyAlive();

  const std::string name_;
  const std::unique_ptr<Backing> backing_;
  Clock& clock_;  // of deadlines
  std::shared_ptr<Mapping> segment_;
  NodeId node_ = kNoNode;
  uint32_t index_ = kMaxDevices;
  uint32_t incarnation_ = 0;
};

// [A-Za-z0-9_-]{1,40}, or "inproc:" and anything.
Status CheckFabricName(const std::string& fabric);

// Small named values in the control segment, owned by the devices that published them.
Status PublishRecord(Fabric& fabric, const std::string& name, std::span<const std::byte> value, Deadline deadline);
Result<std::vector<std::byte>> LookupRecord(Fabric& fabric, const std::string& name, Deadline deadline);

// As Node::ReadRecord and Node::CompareAndSetRecord. `own`: suffix of a new segment of this device.
Result<FabricRecord> ReadRecord(Fabric& fabric, const std::string& name);
Status CompareAndSetRecord(Fabric& fabric, const std::string& own, const std::string& name, uint64_t expected,
                           std::span<const std::byte> value, Deadline deadline);

// One remote MR as resolved from its key: where it is mapped here, and what its owner says of it.
struct alignas(64) Translation {
  const void* peer = nullptr;  // the Peer; null: empty
  uint32_t key = 0;
  uint32_t rights = 0;
  const std::atomic<uint32_t>* live_key = nullptr;  // MrEntry::key; if it differs from `key`, the MR was destroyed
  uint64_t base = 0;
  uint64_t length = 0;
  int64_t delta = 0;  // remote address + delta = address here
  uint32_t pd = 0;
  std::shared_ptr<const Mapping> mapping;
  std::shared_ptr<const void> owner;  // keeps the Peer alive, and with it live_key
};

// A device as its initiators see it: its life word, its tables, and those of its segments that this process has mapped.
// One Peer per (device of this process, remote incarnation), shared by Qps and address handles.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(Fabric* fabric, uint32_t index, uint32_t incarnation, std::shared_ptr<Mapping> segment);

  // One load; no system call. It tells a death only after somebody has noticed it: see ConfirmAlive.
  bool Alive() const { return life_->load(std::memory_order_acquire) == alive_word_; }
  bool ConfirmAlive() const { return fabric_->ConfirmAlive(index_, incarnation_); }
  uint32_t incarnation() const { return incarnation_; }
  DeviceSegment& tables() const { return *tables_; }

  // Fills `out` from the key; false if there is no such MR, or it is private memory.
  bool Translate(uint32_t key, Translation* out);
  // Maps one of the peer's segments; returns null if it is gone.
  std::shared_ptr<Mapping> MapSegment(uint32_t segment, uint64_t serial);

 private:
  Fabric* const fabric_;
  const uint32_t index_, incarnation_;
  const std::shared_ptr<Mapping> segment_;
  DeviceSegment* const tables_;
  const std::atomic<uint64_t>* const life_;
  const uint64_t alive_word_;
  std::mutex mutex_;
  struct Mapped {
    uint64_t serial = 0;
    std::shared_ptr<Mapping> mapping;
  };
  std::unordered_map<uint32_t, Mapped> segments_;  // by index in the peer's segment table
};

// The Peers of one Device.
class PeerCache {
 public:
  explicit PeerCache(Fabric* fabric) : fabric_(fabric) {}
  // kNotFound: no such living device.
  Result<std::shared_ptr<Peer>> Get(const DeviceAddress& address);

 private:
  Fabric* const fabric_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Peer>> peers_;  // by device index; the latest incarnation asked for
};

class SwAddressHandle final : public AddressHandle {
 public:
  explicit SwAddressHandle(std::shared_ptr<Peer> peer) : peer_(std::move(peer)) {}
  Peer* peer() const { return peer_.get(); }

 private:
  const std::shared_ptr<Peer> peer_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_FABRIC_H_
