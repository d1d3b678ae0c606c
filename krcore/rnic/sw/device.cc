// A device of the software RNIC and its objects: memory, DC targets, protection domains with their MRs.
#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/rnic.h"
#include "krcore/rnic/providers.h"
#include "krcore/rnic/software_nic.h"
#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/rnic/sw/qp.h"
#include "krcore/rnic/sw/shm_file.h"
#include "krcore/rnic/sw/tables.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {

// Memory that peers can reach: a segment of the fabric, announced in the device's segment table.
class SwMemory final : public Memory {
 public:
  void DoNotKeep() override { keep_ = false; }
  static Result<std::unique_ptr<Memory>> Allocate(Fabric* fabric, Tables* tables, size_t length,
                                                  const AllocOptions& options);
  ~SwMemory() override;
  Status CollapseToHugePages(size_t offset, size_t length) override;

 private:
  SwMemory(Fabric* fabric, Tables* tables, std::shared_ptr<Mapping> mapping, std::string suffix, bool keep);

  Fabric* const fabric_;
  Tables* const tables_;
  const std::shared_ptr<Mapping> mapping_;
  const std::string suffix_;
  bool keep_;
  SegmentRef segment_;
};

namespace {

struct Found {
  std::shared_ptr<Mapping> mapping;  // null: nothing to adopt
  std::string suffix;
};

// Looks for what a predecessor of this node left under the name, whether or not it was to be kept after a clean close.
Result<Found> FindPredecessors(Fabric& fabric, const std::string& name, size_t length, bool keep) {
  const std::string rest = std::to_string(fabric.node()) + "-" + name;
  const std::string wanted = (keep ? kKeptPrefix : kNamedPrefix) + rest;
  for (const char prefix : {kNamedPrefix, kKeptPrefix}) {
    auto mapping = fabric.backing().Adopt(prefix + rest);
    if (!mapping.ok()) {
      if (mapping.status() == StatusCode::kNotFound) continue;
      return mapping.status();
    }
    if ((*mapping)->length() != RoundUpToPage(length)) {
      fabric.backing().Disown(prefix + rest);
      return Status(StatusCode::kInvalidArgument, "memory '" + name + "' of node " + std::to_string(fabric.node()) +
                                                      " was left with " + std::to_string((*mapping)->length()) +
                                                      " bytes, not " + std::to_string(RoundUpToPage(length)) +
                                                      "; ask for the same length, or clean the fabric to start afresh");
    }
    if (prefix + rest != wanted) {
      if (const Status renamed = fabric.backing().Rename(prefix + rest, wanted); !renamed.ok()) {
        fabric.backing().Disown(prefix + rest);
        return renamed;
      }
    }
    return Found{*std::move(mapping), wanted};
  }
  return Found{nullptr, wanted};
}

// Returns the node that owns named memory of that name, kept or not.
NodeId OwnerOf(const std::string& suffix, const std::string& name) {
  if (!IsNamedMemory(suffix)) return kNoNode;
  const char* const end = suffix.data() + suffix.size();
  NodeId node = kNoNode;
  const auto [rest, error] = std::from_chars(suffix.data() + 1, end, node);
  return error == std::errc{} && std::string_view(rest, end) == "-" + name ? node : kNoNode;
}

}  // namespace

// As Device::FindMemory.
Result<std::vector<FoundMemory>> FindMemory(Fabric& fabric, const std::string& name, size_t bytes) {
  KRCORE_RETURN_IF_ERROR(CheckMemoryName(name));
  std::vector<FoundMemory> all;
  const auto suffixes = fabric.backing().List();
  if (!suffixes.ok()) return suffixes.status();
  for (std::string suffix : *suffixes) {
    FoundMemory found{OwnerOf(suffix, name), {}};
    if (found.node == kNoNode || found.node == fabric.node()) continue;
    auto mapping = fabric.backing().Open(suffix);
    if (mapping.status() == StatusCode::kNotFound) {  // just adopted, and kept in the other way from now on
      suffix[0] = suffix[0] == kNamedPrefix ? kKeptPrefix : kNamedPrefix;
      mapping = fabric.backing().Open(suffix);
    }
    if (mapping.status() == StatusCode::kNotFound) continue;  // just removed
    if (!mapping.ok()) return mapping.status();
    found.begin.resize(std::min(bytes, (*mapping)->length()));
    LoadWords(found.begin.data(), (*mapping)->addr(), found.begin.size());
    all.push_back(std::move(found));
  }
  return all;
}

Result<std::unique_ptr<Memory>> SwMemory::Allocate(Fabric* fabric, Tables* tables, size_t length,
                                                   const AllocOptions& options) {
  KRCORE_RETURN_IF_ERROR(CheckMemoryLength(length));
  KRCORE_RETURN_IF_ERROR(CheckMemoryName(options.name));
  const bool keep = options.keep_on_close && !options.name.empty();
  const uint64_t serial = tables->NextSerial();
  const std::string own = fabric->OwnSuffix(serial);
  Found found;
  if (!options.name.empty()) {
    if (tables->NameInUse(options.name)) {
      return Status(StatusCode::kExists, "this device has memory '" + options.name + "' already");
    }
    auto looked = FindPredecessors(*fabric, options.name, length, keep);
    if (!looked.ok()) return looked.status();
    found = *std::move(looked);
  }
  const bool adopted = found.mapping != nullptr;
  if (!adopted) {
    auto made = fabric->backing().Create(own, length, /*claimed=*/!options.name.empty());
    if (!made.ok()) return made.status();
    found.mapping = *std::move(made);
    if (options.name.empty()) {
      found.suffix = own;
    } else if (Status named = fabric->backing().Rename(own, found.suffix); !named.ok()) {
      // It gets its name only when it is whole: a crash before leaves an unnamed segment, which is reclaimed.
      fabric->backing().Remove(own);
      return named;
    }
  }
  std::unique_ptr<SwMemory> memory(new SwMemory(fabric, tables, std::move(found.mapping), found.suffix, keep));
  auto segment = tables->AddSegment(serial, memory->suffix_, memory->mapping_->addr(), length, options.name);
  memory->adopted_ = adopted;
  if (!segment.ok()) return segment.status();
  memory->segment_ = *segment;
  memory->bytes_ = {memory->mapping_->addr(), length};
  return std::unique_ptr<Memory>(std::move(memory));
}

SwMemory::SwMemory(Fabric* fabric, Tables* tables, std::shared_ptr<Mapping> mapping, std::string suffix, bool keep)
    : fabric_(fabric), tables_(tables), mapping_(std::move(mapping)), suffix_(std::move(suffix)), keep_(keep) {}

SwMemory::~SwMemory() {
  if (segment_.index == kNoSegment) {
    // It was never announced, for lack of room: what a predecessor left must survive that.
    adopted_ ? fabric_->backing().Disown(suffix_) : fabric_->backing().Remove(suffix_);
    return;
  }
  tables_->RemoveSegment(segment_, mapping_->addr());
  keep_ ? fabric_->backing().Disown(suffix_) : fabric_->backing().Remove(suffix_);
}

Status SwMemory::CollapseToHugePages(size_t offset, size_t length) {
  return krcore::CollapseToHugePages(bytes_, offset, length);
}

// DC target: an entry in the device's Qp table, open to any initiator that has the key.
class SwDct final : public Dct {
 public:
  static Result<std::unique_ptr<Dct>> Create(SharedDevice* device, const DctAttr& attr, uint32_t pd);
  ~SwDct() override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

 private:
  SwDct(SharedDevice* device, const DctAttr& attr, uint32_t number);

  SharedDevice* const device_;
  std::unique_ptr<Receiver> receiver_;  // null: one-sided requests only
};

SwDct::SwDct(SharedDevice* device, const DctAttr& attr, uint32_t number) : device_(device) {
  num_ = number;
  dc_key_ = attr.dc_key;
}

Result<std::unique_ptr<Dct>> SwDct::Create(SharedDevice* device, const DctAttr& attr, uint32_t pd) {
  auto number = device->tables.AddQp(pd, EntryType::kDct);
  if (!number.ok()) return number.status();
  std::unique_ptr<SwDct> dct(new SwDct(device, attr, *number));
  if (attr.rq_depth > 0) {
    const Receiver::Options options{EntryType::kDct,    *number, pd, static_cast<SwCq*>(attr.recv_cq), attr.rq_depth,
                                    attr.max_recv_bytes};
    auto receiver = Receiver::Create(device, options, nullptr);
    if (!receiver.ok()) return receiver.status();
    dct->receiver_ = *std::move(receiver);
  }
  QpEntry& entry = device->tables.qp(*number);
  entry.peer.store(attr.dc_key, std::memory_order_relaxed);
  entry.rights.store(attr.access_rights, std::memory_order_relaxed);
  entry.word.store(QpWord(*number, EntryType::kDct, static_cast<uint8_t>(QpState::kRts)), std::memory_order_release);
  return std::unique_ptr<Dct>(std::move(dct));
}

SwDct::~SwDct() {
  receiver_.reset();
  device_->tables.RemoveQp(num_);
}

Status SwDct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  return PostReceives(receiver_.get(), QpState::kRts, wrs, bad_index);
}

// Protection domain, and the MRs, Qps and Dcts made from it.
class SwPd final : public Pd {
 public:
  explicit SwPd(SharedDevice* device) : device_(device), number_(device->tables.NextPd()) {}
  Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) override;
  Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) override;
  Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) override;

 private:
  SharedDevice* const device_;
  const uint32_t number_;
};

Result<std::unique_ptr<Mr>> SwPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  KRCORE_RETURN_IF_ERROR(CheckRegistration(addr, length, access_rights));
  auto key = device_->tables.AddMr(number_, addr, length, access_rights);
  if (!key.ok()) return key.status();
  return std::unique_ptr<Mr>(std::make_unique<SoftwareMr<Tables>>(&device_->tables, addr, length, *key));
}

Result<std::unique_ptr<Qp>> SwPd::CreateQp(const QpAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckSoftwareQp(attr));
  if (attr.host_qp != kPrivateQp && attr.type != QpType::kDci)
    return Status(StatusCode::kInvalidArgument, "a host shares DC initiators only");
  return SwQp::Create(device_, attr, number_);
}

Result<std::unique_ptr<Dct>> SwPd::CreateDct(const DctAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckDct(attr));
  return SwDct::Create(device_, attr, number_);
}

namespace {

Caps MakeCaps() {
  Caps caps = SoftwareCaps("sw");
  caps.cpu_coherent_atomics = true;
  caps.shared_memory_required = true;
  caps.host_qps = kHostQps;
  caps.executes_at_post = true;
  return caps;
}

class SwDevice final : public Device {
 public:
  explicit SwDevice(std::unique_ptr<Fabric> fabric)
      : caps_(MakeCaps()),
        address_(MakeAddress(fabric->node(), fabric->incarnation(), fabric->index())),
        shared_(std::move(fabric)) {}

  const Caps& caps() const override { return caps_; }
  const DeviceAddress& address() const override { return address_; }

  Result<std::unique_ptr<Pd>> CreatePd() override { return std::unique_ptr<Pd>(std::make_unique<SwPd>(&shared_)); }

  Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) override {
    KRCORE_RETURN_IF_ERROR(CheckCqDepth(depth));
    return std::unique_ptr<Cq>(std::make_unique<SwCq>(depth));
  }

  Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) override {
    return SwMemory::Allocate(&shared_.fabric, &shared_.tables, length, options);
  }

  Result<std::vector<FoundMemory>> FindMemory(const std::string& name, size_t bytes) override {
    return sw::FindMemory(shared_.fabric, name, bytes);
  }

  Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) override {
    auto peer = shared_.peers.Get(address);
    if (!peer.ok()) return peer.status();
    return std::unique_ptr<AddressHandle>(std::make_unique<SwAddressHandle>(*std::move(peer)));
  }

  PeerState QueryPeer(const DeviceAddress& address, Deadline /*deadline*/) override {
    const uint32_t index = IndexOf(address);
    const bool alive = index < kMaxDevices && shared_.fabric.ConfirmAlive(index, address.incarnation);
    return alive ? PeerState::kAlive : PeerState::kDead;
  }

  PeerState QueryIncarnation(uint32_t incarnation, Deadline /*deadline*/) override {
    return shared_.fabric.ConfirmAlive(incarnation) ? PeerState::kAlive : PeerState::kDead;
  }

  Status CheckName() override { return shared_.fabric.backing().CheckName(); }

  std::span<std::byte> HostMemory() override { return shared_.fabric.control().host_memory; }

  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline) override {
    return sw::PublishRecord(shared_.fabric, name, value, deadline);
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline) override {
    return sw::LookupRecord(shared_.fabric, name, deadline);
  }
  Result<FabricRecord> ReadRecord(const std::string& name, Deadline /*deadline*/) override {
    return sw::ReadRecord(shared_.fabric, name);
  }
  Status CompareAndSetRecord(const std::string& name, uint64_t expected, std::span<const std::byte> value,
                             Deadline deadline) override {
    const std::string own = shared_.fabric.OwnSuffix(shared_.tables.NextSerial());
    return sw::CompareAndSetRecord(shared_.fabric, own, name, expected, value, deadline);
  }

 private:
  const Caps caps_;
  const DeviceAddress address_;
  SharedDevice shared_;
};

}  // namespace

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options) {
  auto fabric = Fabric::Join(options);
  if (!fabric.ok()) return fabric.status();
  return std::unique_ptr<Device>(std::make_unique<SwDevice>(*std::move(fabric)));
}

}  // namespace krcore::rnic::sw
