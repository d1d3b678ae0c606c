#include "krcore/rnic/sim/fabric.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/qp.h"

namespace krcore::rnic::sim {
namespace {

constexpr uint32_t kNearSpins = 200;
constexpr int64_t kNearNs = 10'000;  // how far a wait that has just begun may move the time in one step
constexpr int64_t kFarNs = 50'000;   // and a wait that has lasted; the real clock then sleeps as long

struct Worlds {
  std::mutex mutex;
  std::map<std::string, Fabric*> by_name;
};
Worlds& AllWorlds() {
  static Worlds worlds;
  return worlds;
}

constexpr int64_t kAskNs = 10'000'000'000;  // as long as verbs waits for the membership service

}  // namespace

void SimClock::Relax(uint32_t spins) {
  const int64_t until_ns = engine_->now_ns() + (spins < kNearSpins ? kNearNs : kFarNs);
  if (engine_->NextEventNs() <= until_ns) {
    (void)engine_->Step();
  } else {
    engine_->RunUntil(until_ns);
  }
}

Fabric::Fabric(const WorldOptions& options)
    : name_(options.fabric), engine_(options.cost, options.chaos, options.seed), clock_(&engine_) {
  Worlds& worlds = AllWorlds();
  const std::lock_guard lock(worlds.mutex);
  if (!worlds.by_name.emplace(name_, this).second) {
    std::fprintf(stderr, "sim: there is a World '%s' already\n", name_.c_str());
    std::abort();
  }
}

Fabric::~Fabric() {
  if (open_devices_ != 0) {
    std::fprintf(stderr, "sim: World '%s' ends before %u of its devices\n", name_.c_str(), open_devices_);
    std::abort();
  }
  // Verbs refer to queues, so what the dead left is dropped while the engine is whole.
  for (const auto& device : engine_.devices()) engine_.Fence(*device);
  Worlds& worlds = AllWorlds();
  const std::lock_guard lock(worlds.mutex);
  worlds.by_name.erase(name_);
}

Fabric* Fabric::Find(const std::string& name) {
  Worlds& worlds = AllWorlds();
  const std::lock_guard lock(worlds.mutex);
  const auto found = worlds.by_name.find(name);
  return found == worlds.by_name.end() ? nullptr : found->second;
}

// ---- devices

DeviceState* Fabric::LastHolder(NodeId node) const {
  const auto found = holders_.find(node);
  return found == holders_.end() ? nullptr : found->second;
}

Result<DeviceState*> Fabric::Join(NodeId wanted) {
  const auto taken = [&](NodeId node) {
    const DeviceState* holder = LastHolder(node);
    return holder != nullptr && holder->life == Life::kAlive;
  };
  if (wanted != kNoNode && taken(wanted)) {
    return Status(StatusCode::kExists,
                  "node id " + std::to_string(wanted) + " of fabric " + name_ + " is held by a living device");
  }
  // Ids of the recently dead stay unused for a while, but within a bounded range: each id that ever published itself
  // keeps a place in the metadata server's table.
  const uint32_t range = std::max(kDynamicNodes, 2 * open_devices_);
  while (wanted == kNoNode) {
    if (next_node_ >= kFirstDynamicNode + range) next_node_ = kFirstDynamicNode;
    const NodeId node = next_node_++;
    if (!taken(node)) wanted = node;
  }
  auto device = std::make_unique<DeviceState>();
  device->index = static_cast<uint32_t>(engine_.devices().size());
  device->node = wanted;
  device->incarnation = device->index + 1;
  device->control_ns = engine_.cost().open_device_ns;
  ++open_devices_;
  holders_[wanted] = device.get();
  engine_.devices().push_back(std::move(device));
  return engine_.devices().back().get();
}

void Fabric::Leave(DeviceState& device) {
  --open_devices_;
  ForgetRecords(device);
  if (device.life == Life::kAlive) device.life = Life::kClosed;
  device.mrs = {};
  device.qps = {};
  std::vector<int64_t>().swap(device.word_free);
}

void Fabric::Kill(DeviceState& device, int64_t linger_ns) {
  if (device.life != Life::kAlive) return;
  device.life = Life::kKilled;
  device.verbs_left = 0;
  ++engine_.stats().killed_devices;
  device.linger_until_ns = engine_.now_ns() + std::max<int64_t>(linger_ns, 0);
  for (QpEntry& entry : device.qps.entries()) {
    if (entry.number == 0 || entry.qp == nullptr) continue;
    device.orphans.push_back(entry.qp->Die(device.linger_until_ns));
  }
  ForgetRecords(device);
  if (linger_ns <= 0) {
    engine_.Fence(device);
  } else {
    engine_.ScheduleFence(device, device.linger_until_ns);
  }
}

DeviceState* Fabric::FindByAddress(const DeviceAddress& address) {
  const uint32_t index = IndexOf(address);
  if (index >= engine_.devices().size()) return nullptr;
  DeviceState* const device = engine_.devices()[index].get();
  return device->incarnation == address.incarnation ? device : nullptr;
}

DeviceState* Fabric::FindAlive(const DeviceAddress& address) {
  DeviceState* const device = FindByAddress(address);
  return device != nullptr && device->life == Life::kAlive ? device : nullptr;
}

PeerState Fabric::Query(const DeviceAddress& address) {
  DeviceState* const device = FindByAddress(address);
  if (device == nullptr || device->life == Life::kClosed) return PeerState::kDead;
  if (device->life == Life::kAlive) return PeerState::kAlive;
  // Chance decides whether the fabric already knows. Once it says so, nothing is left.
  if (device->zombies != 0 && engine_.now_ns() < device->linger_until_ns && engine_.random()() % 4 != 0)
    return PeerState::kUnreachable;
  engine_.Fence(*device);
  return PeerState::kDead;
}

PeerState Fabric::Query(uint32_t incarnation) {
  for (const auto& device : engine_.devices()) {
    if (device->incarnation == incarnation) return Query(AddressOf(*device));
  }
  return PeerState::kDead;
}

DeviceAddress Fabric::AddressOf(const DeviceState& device) const {
  return MakeAddress(device.node, device.incarnation, device.index);
}

Status Fabric::Gone(const DeviceAddress& address) const {
  return {StatusCode::kNotFound, "node " + std::to_string(address.node) + " (incarnation " +
                                     std::to_string(address.incarnation) + ") has no living device on fabric " + name_};
}

Status Fabric::CheckAlive(const DeviceState& device) const {
  if (device.life == Life::kAlive) return {};
  return {StatusCode::kUnavailable, "node " + std::to_string(device.node) + " was killed in World " + name_};
}

// ---- records

void Fabric::ForgetRecords(const DeviceState& device) {
  std::erase_if(records_, [&](const Record& record) { return record.owner == &device; });
}

bool Fabric::Answers(Deadline deadline) {
  if (!unanswered_) return true;
  const Deadline patience = Deadline::After(clock_, kAskNs);
  for (uint32_t spins = 0; !deadline.Passed(clock_) && !patience.Passed(clock_); ++spins) clock_.Relax(spins);
  return false;
}

Status Fabric::PublishRecord(const DeviceState& device, const std::string& name, std::span<const std::byte> value,
                             Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckAlive(device));
  if (!Answers(deadline)) return {StatusCode::kTimeout, "the fabric does not answer"};
  KRCORE_RETURN_IF_ERROR(CheckRecord(name, value));
  for (Record& record : records_) {
    if (record.name != name) continue;
    if (record.owner != &device) {
      return {StatusCode::kExists, "record '" + name + "' is published by another living device of fabric " + name_};
    }
    record.value.assign(value.begin(), value.end());
    return {};
  }
  if (records_.size() == kMaxRecords) {
    return {StatusCode::kOutOfMemory,
            "fabric " + name_ + " has " + std::to_string(kMaxRecords) + " records, its limit"};
  }
  records_.push_back({name, {value.begin(), value.end()}, &device});
  return {};
}

Result<std::vector<std::byte>> Fabric::LookupRecord(const std::string& name) const {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  for (const Record& record : records_) {
    if (record.name == name) return record.value;
  }
  return Status(StatusCode::kNotFound, "no living device of fabric " + name_ + " publishes a record '" + name + "'");
}

Result<FabricRecord> Fabric::ReadRecord(const DeviceState& device, const std::string& name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckAlive(device));
  KRCORE_RETURN_IF_ERROR(CheckFabricRecord(name, {}));
  if (!Answers(deadline)) return Status(StatusCode::kTimeout, "the fabric does not answer");
  const auto found = fabric_records_.find(name);
  return found == fabric_records_.end() ? FabricRecord{} : found->second;
}

Status Fabric::CompareAndSetRecord(const DeviceState& device, const std::string& name, uint64_t expected,
                                   std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckAlive(device));
  KRCORE_RETURN_IF_ERROR(CheckFabricRecord(name, value));
  // Of a question without an answer, chance decides whether the question was lost or the answer.
  const bool lost = unanswered_ && engine_.random()() % 2 == 0;
  FabricRecord& record = fabric_records_[name];
  const uint64_t version = record.version;
  if (version == expected && !lost) record = {expected + 1, {value.begin(), value.end()}};
  if (!Answers(deadline)) return {StatusCode::kTimeout, "the fabric does not answer; the record may have been set"};
  return version == expected ? Status() : RecordIsAt(name, version, expected);
}

}  // namespace krcore::rnic::sim
