// Fabric: the devices of a World, their records and named memory, around its Engine.
#ifndef KRCORE_RNIC_SIM_FABRIC_H_
#define KRCORE_RNIC_SIM_FABRIC_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/clock.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/engine.h"
#include "krcore/rnic/sim/world.h"

namespace krcore::rnic::sim {

struct NamedMemory {
  std::shared_ptr<Pages> pages;
  const DeviceState* holder = nullptr;  // the device that allocated or adopted it last
};

// Virtual time. A wait moves it: to the next event if that is near, otherwise by a little, so that a wait for something
// that never comes ends at its deadline.
class SimClock final : public Clock {
 public:
  explicit SimClock(Engine* engine) : engine_(engine) {}
  int64_t NowNs() override { return engine_->now_ns(); }
  uint64_t UnixMs() override { return static_cast<uint64_t>(NowNs()) / 1'000'000; }
  void Relax(uint32_t spins) override;

 private:
  Engine* const engine_;
};

class Fabric {
 public:
  explicit Fabric(const WorldOptions& options);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  // Returns null if there is no World of that name.
  static Fabric* Find(const std::string& name);

  Engine& engine() { return engine_; }
  Clock& clock() { return clock_; }

  // ---- devices
  Result<DeviceState*> Join(NodeId wanted);
  void Leave(DeviceState& device);
  void Kill(DeviceState& device, int64_t linger_ns);
  // Returns the last holder of the id, whatever happened to it; null: there was none.
  DeviceState* LastHolder(NodeId node) const;
  // Returns null if nobody has this address, or the device is gone.
  DeviceState* FindAlive(const DeviceAddress& address);
  PeerState Query(const DeviceAddress& address);
  PeerState Query(uint32_t incarnation);
  DeviceAddress AddressOf(const DeviceState& device) const;
  Status Gone(const DeviceAddress& address) const;
  // kUnavailable: the device was killed.
  Status CheckAlive(const DeviceState& device) const;

  // ---- questions. False: there is no answer, and the deadline, or the longest that anybody waits, has passed.
  bool Answers(Deadline deadline);
  void LeaveUnanswered(bool unanswered) { unanswered_ = unanswered; }

  // ---- records
  Status PublishRecord(const DeviceState& device, const std::string& name, std::span<const std::byte> value,
                       Deadline deadline);
  Result<std::vector<std::byte>> LookupRecord(const std::string& name) const;
  void ForgetRecords(const DeviceState& device);
  // Records of the fabric itself last as long as the World.
  Result<FabricRecord> ReadRecord(const DeviceState& device, const std::string& name, Deadline deadline);
  Status CompareAndSetRecord(const DeviceState& device, const std::string& name, uint64_t expected,
                             std::span<const std::byte> value, Deadline deadline);

  // ---- named memory
  NamedMemory& named(NodeId node, const std::string& name) { return named_[{node, name}]; }
  void ForgetNamed(NodeId node, const std::string& name) { named_.erase({node, name}); }

 private:
  struct Record {
    std::string name;
    std::vector<std::byte> value;
    const DeviceState* owner;
  };
  DeviceState* FindByAddress(const DeviceAddress& address);

  const std::string name_;
  Engine engine_;
  SimClock clock_;
  std::unordered_map<NodeId, DeviceState*> holders_;  // used for lookup only: its order must not matter
  NodeId next_node_ = kFirstDynamicNode;
  uint32_t open_devices_ = 0;
  bool unanswered_ = false;
  std::vector<Record> records_;
  std::map<std::string, FabricRecord> fabric_records_;
  std::map<std::pair<NodeId, std::string>, NamedMemory> named_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_FABRIC_H_
