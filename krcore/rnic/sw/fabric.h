// One device's membership of a fabric: its slot in the device table, its device segment, and what it knows of
// the life of others.
//
// Thread safety: all methods may be called from any thread.
#ifndef KRCORE_RNIC_SW_FABRIC_H_
#define KRCORE_RNIC_SW_FABRIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic/registry.h"
#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/backing.h"

namespace krcore::rnic::sw {

class Fabric {
 public:
  // Reclaims what dead devices left, then takes a slot. Statuses as OpenDevice.
  static Result<std::unique_ptr<Fabric>> Join(const DeviceOptions& options);
  // Leaves; the last living device removes the fabric's files, but for named memory that is to be kept.
  ~Fabric();

  const std::string& name() const { return name_; }
  NodeId node() const { return node_; }
  uint32_t index() const { return index_; }
  uint32_t incarnation() const { return incarnation_; }
  DeviceSegment& segment() { return *reinterpret_cast<DeviceSegment*>(segment_->addr()); }
  Backing& backing() { return *backing_; }
  Control& control() { return backing_->control(); }

  // Asks the kernel, and if the process is gone marks the slot dead, so that everybody sees it.
  bool ConfirmAlive(uint32_t index, uint32_t incarnation);
  // The slot of a living device of that incarnation, or kMaxDevices.
  uint32_t FindIncarnation(uint32_t incarnation);

  // Suffix of a segment of the device: "d<index>-<incarnation>.<serial>"; serial 0 is its device segment.
  static std::string SegmentSuffix(uint32_t index, uint32_t incarnation, uint64_t serial);
  std::string OwnSuffix(uint64_t serial) const { return SegmentSuffix(index_, incarnation_, serial); }

 private:
  Fabric(std::string name, std::unique_ptr<Backing> backing) : name_(std::move(name)), backing_(std::move(backing)) {}
  Status TakeSlot(NodeId wanted);
  Result<NodeId> ChooseNode(NodeId wanted);
  // Both with the admin lock held. Frees the slots of the dead, their records and unnamed segments.
  void Reclaim();
  bool AnybodyAlive();

  const std::string name_;
  const std::unique_ptr<Backing> backing_;
  std::shared_ptr<Mapping> segment_;
  NodeId node_ = kNoNode;
  uint32_t index_ = kMaxDevices;
  uint32_t incarnation_ = 0;
};

// [A-Za-z0-9_-]{1,40}, or "inproc:" and anything.
Status CheckFabricName(const std::string& fabric);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_FABRIC_H_
