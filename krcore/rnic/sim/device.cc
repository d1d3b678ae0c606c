// A device of the simulated RNIC and its objects: tables, memory, DC targets, protection domains with their MRs.
#include "krcore/rnic/sim/device.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "krcore/rnic.h"
#include "krcore/rnic/providers.h"
#include "krcore/rnic/sim/fabric.h"
#include "krcore/rnic/sim/qp.h"
#include "krcore/rnic/sim/world.h"

namespace krcore::rnic::sim {
namespace {

// Takes a free index, or a new one at the end; false: none left.
template <typename Entry>
bool TakeIndex(std::vector<Entry>* entries, std::vector<uint32_t>* free, uint32_t limit, uint32_t* index) {
  if (!free->empty()) {
    *index = free->back();
    free->pop_back();
    return true;
  }
  if (entries->size() == limit) return false;
  *index = static_cast<uint32_t>(entries->size());
  entries->emplace_back();
  return true;
}

}  // namespace

Result<uint32_t> MrTable::Add(uint32_t pd, const void* addr, size_t length, uint32_t rights) {
  uint32_t index = 0;
  if (!TakeIndex(&entries_, &free_, kMaxMrs, &index)) return TableFull("memory regions", kMaxMrs);
  const uint32_t generation = entries_[index].generation == 0xffff ? 1 : entries_[index].generation + 1;
  entries_[index] = {reinterpret_cast<uint64_t>(addr), length, generation << 16 | index, rights, pd, generation};
  return entries_[index].key;
}

void MrTable::RemoveMr(uint32_t key) {
  MrEntry& entry = entries_[key & 0xffff];
  entry.key = 0;
  free_.push_back(key & 0xffff);
}

Result<uint32_t> QpTable::Add(EntryType type, uint32_t pd) {
  uint32_t index = 0;
  if (!TakeIndex(&entries_, &free_, kMaxQps, &index)) return TableFull("queue pairs and DC targets", kMaxQps);
  const uint32_t generation = entries_[index].generation == 0xfff ? 1 : entries_[index].generation + 1;
  entries_[index] = {.number = generation << 12 | index, .generation = generation, .type = type, .pd = pd};
  return entries_[index].number;
}

void QpTable::Remove(uint32_t number) {
  QpEntry& entry = entries_[number & 0xfff];
  entry = {.generation = entry.generation};
  free_.push_back(number & 0xfff);
}

// Memory from AllocMemory. Named memory belongs to the World and outlives the device that made it.

class SimMemory final : public Memory {
 public:
  static Result<std::unique_ptr<Memory>> Allocate(Fabric* fabric, DeviceState* device, size_t length,
                                                  const AllocOptions& options);
  ~SimMemory() override;
  void DoNotKeep() override { options_.keep_on_close = false; }
  Status CollapseToHugePages(size_t, size_t) override {
    return {StatusCode::kUnsupported, "the simulated RNIC leaves its memory's pages alone"};
  }

 private:
  SimMemory(Fabric* fabric, DeviceState* device, std::shared_ptr<Pages> pages, size_t length,
            const AllocOptions& options, bool adopted);
  Fabric* const fabric_;
  DeviceState* const device_;
  const std::shared_ptr<Pages> pages_;
  AllocOptions options_;
};

Result<std::unique_ptr<Memory>> SimMemory::Allocate(Fabric* fabric, DeviceState* device, size_t length,
                                                    const AllocOptions& options) {
  KRCORE_RETURN_IF_ERROR(fabric->CheckAlive(*device));
  KRCORE_RETURN_IF_ERROR(CheckMemoryLength(length));
  KRCORE_RETURN_IF_ERROR(CheckMemoryName(options.name));
  std::shared_ptr<Pages> pages;
  if (!options.name.empty()) {
    NamedMemory& named = fabric->named(device->node, options.name);
    if (named.holder == device) {
      return Status(StatusCode::kExists, "this device has memory '" + options.name + "' already");
    }
    if (named.pages != nullptr && named.pages->bytes().size() != length) {
      return Status(StatusCode::kInvalidArgument,
                    "memory '" + options.name + "' of node " + std::to_string(device->node) + " was left with " +
                        std::to_string(named.pages->bytes().size()) + " bytes, not " + std::to_string(length));
    }
    pages = named.pages;
  }
  const bool adopted = pages != nullptr;
  if (!adopted) {
    auto made = Pages::Map(length, Pages::Use::kSparse);
    if (!made.ok()) return made.status();
    pages = *std::move(made);
  }
  if (!options.name.empty()) fabric->named(device->node, options.name) = {pages, device};
  return std::unique_ptr<Memory>(new SimMemory(fabric, device, std::move(pages), length, options, adopted));
}

SimMemory::SimMemory(Fabric* fabric, DeviceState* device, std::shared_ptr<Pages> pages, size_t length,
                     const AllocOptions& options, bool adopted)
    : fabric_(fabric), device_(device), pages_(std::move(pages)), options_(options) {
  bytes_ = pages_->bytes().first(length);
  adopted_ = adopted;
}

SimMemory::~SimMemory() {
  if (options_.name.empty()) return;
  NamedMemory& named = fabric_->named(device_->node, options_.name);
  // What a dead process held stays for its successor, which may already have taken it.
  if (named.holder != device_ || device_->life == Life::kKilled) return;
  named.holder = nullptr;
  if (!options_.keep_on_close) fabric_->ForgetNamed(device_->node, options_.name);
}

// DC target: an entry among the device's Qps, open to any initiator that has the key.
class SimDct final : public Dct {
 public:
  static Result<std::unique_ptr<Dct>> Create(Fabric* fabric, DeviceState* device, const DctAttr& attr, uint32_t pd);
  ~SimDct() override { device_->qps.Remove(num_); }
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

 private:
  explicit SimDct(DeviceState* device) : device_(device) {}
  DeviceState* const device_;
  std::unique_ptr<Receiver> receiver_;  // null: one-sided requests only
};

Result<std::unique_ptr<Dct>> SimDct::Create(Fabric* fabric, DeviceState* device, const DctAttr& attr, uint32_t pd) {
  KRCORE_RETURN_IF_ERROR(fabric->CheckAlive(*device));
  auto number = device->qps.Add(EntryType::kDct, pd);
  if (!number.ok()) return number.status();
  device->control_ns += fabric->engine().cost().create_qp_ns;
  std::unique_ptr<SimDct> dct(new SimDct(device));
  dct->num_ = *number;
  dct->dc_key_ = attr.dc_key;
  QpEntry& entry = *device->qps.Find(*number);
  entry.dc_key = attr.dc_key;
  entry.rights = attr.access_rights;
  entry.state = QpState::kRts;
  if (attr.rq_depth > 0) {
    dct->receiver_ = std::make_unique<Receiver>(
        device, Receiver::Options{EntryType::kDct, *number, pd, static_cast<SimCq*>(attr.recv_cq), attr.rq_depth,
                                  attr.max_recv_bytes});
    entry.receiver = dct->receiver_.get();
  }
  return std::unique_ptr<Dct>(std::move(dct));
}

Status SimDct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  return PostReceives(receiver_.get(), QpState::kRts, wrs, bad_index);
}

// Protection domain, and the MRs, Qps and Dcts made from it.
class SimPd final : public Pd {
 public:
  SimPd(Fabric* fabric, DeviceState* device) : fabric_(fabric), device_(device), number_(device->next_pd++) {}
  Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) override;
  Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) override;
  Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) override;

 private:
  Fabric* const fabric_;
  DeviceState* const device_;
  const uint32_t number_;
};

namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<Mr>> SimPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*device_));
  KRCORE_RETURN_IF_ERROR(CheckRegistration(addr, length, access_rights));
  auto key = device_->mrs.Add(number_, addr, length, access_rights);
  if (!key.ok()) return key.status();
  const CostModel& cost = fabric_->engine().cost();
  const auto pages = static_cast<int64_t>((length + kPageBytes - 1) / kPageBytes);
  device_->control_ns += cost.register_ns + pages * cost.register_page_ns;
  return std::unique_ptr<Mr>(std::make_unique<SoftwareMr<MrTable>>(&device_->mrs, addr, length, *key));
}

Result<std::unique_ptr<Qp>> SimPd::CreateQp(const QpAttr& attr) {
  if (attr.host_qp != kPrivateQp) return Status(StatusCode::kUnsupported, "processes of a simulated host share no QPs");
  KRCORE_RETURN_IF_ERROR(CheckSoftwareQp(attr));
  return SimQp::Create(fabric_, device_, attr, number_);
}

Result<std::unique_ptr<Dct>> SimPd::CreateDct(const DctAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckDct(attr));
  return SimDct::Create(fabric_, device_, attr, number_);
}

namespace {

class SimDevice final : public Device {
 public:
  SimDevice(Fabric* fabric, DeviceState* state)
      : fabric_(fabric), state_(state), caps_(SoftwareCaps("sim")), address_(fabric->AddressOf(*state)) {}
  ~SimDevice() override { fabric_->Leave(*state_); }

  const Caps& caps() const override { return caps_; }
  const DeviceAddress& address() const override { return address_; }

  Result<std::unique_ptr<Pd>> CreatePd() override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    return std::unique_ptr<Pd>(std::make_unique<SimPd>(fabric_, state_));
  }

  Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    KRCORE_RETURN_IF_ERROR(CheckCqDepth(depth));
    state_->control_ns += fabric_->engine().cost().create_cq_ns;
    return std::unique_ptr<Cq>(std::make_unique<SimCq>(&fabric_->engine(), state_, depth));
  }

  Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) override {
    return SimMemory::Allocate(fabric_, state_, length, options);
  }

  Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    DeviceState* const peer = fabric_->FindAlive(address);
    if (peer == nullptr) return fabric_->Gone(address);
    return std::unique_ptr<AddressHandle>(std::make_unique<SimAddressHandle>(peer));
  }

  PeerState QueryPeer(const DeviceAddress& address, Deadline deadline) override {
    // A dead device learns nothing.
    if (!fabric_->CheckAlive(*state_).ok() || !fabric_->Answers(deadline)) return PeerState::kUnreachable;
    return fabric_->Query(address);
  }

  PeerState QueryIncarnation(uint32_t incarnation, Deadline deadline) override {
    if (!fabric_->CheckAlive(*state_).ok() || !fabric_->Answers(deadline)) return PeerState::kUnreachable;
    return fabric_->Query(incarnation);
  }

  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline) override {
    return fabric_->PublishRecord(*state_, name, value, deadline);
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    if (!fabric_->Answers(deadline)) return Status(StatusCode::kTimeout, "the fabric does not answer");
    return fabric_->LookupRecord(name);
  }
  Result<FabricRecord> ReadRecord(const std::string& name, Deadline deadline) override {
    return fabric_->ReadRecord(*state_, name, deadline);
  }
  Status CompareAndSetRecord(const std::string& name, uint64_t expected, std::span<const std::byte> value,
                             Deadline deadline) override {
    return fabric_->CompareAndSetRecord(*state_, name, expected, value, deadline);
  }

 private:
  Fabric* const fabric_;
  DeviceState* const state_;
  const Caps caps_;
  const DeviceAddress address_;
};

}  // namespace

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options) {
  Fabric* const fabric = Fabric::Find(options.fabric);
  if (fabric == nullptr) {
    return Status(StatusCode::kNotFound, "no simulated World '" + options.fabric +
                                             "' in this process; the provider sim is for programs that make one");
  }
  auto state = fabric->Join(options.node);
  if (!state.ok()) return state.status();
  return std::unique_ptr<Device>(std::make_unique<SimDevice>(fabric, *state));
}

Result<CleanReport> CleanStale(const std::string&, bool) { return CleanReport{}; }

}  // namespace krcore::rnic::sim
