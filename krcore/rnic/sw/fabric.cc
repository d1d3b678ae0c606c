#include "krcore/rnic/sw/fabric.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/sw/shm_file.h"

namespace krcore::rnic::sw {

void InitControl(Control& control) {
  // Random, so that metadata of an earlier fabric of the same name never fits a device of this fabric.
  uint32_t first = 0;
  if (getrandom(&first, sizeof(first), 0) != sizeof(first)) first = static_cast<uint32_t>(getpid());
  control.next_incarnation = std::max(first & 0x3fff'ffff, 1U);
  control.next_node = kFirstDynamicNode;
  control.next_record_version = 1;
  std::atomic_ref(control.magic).store(kControlMagic, std::memory_order_release);
}

Status CheckFabricName(const std::string& fabric) {
  if (fabric.starts_with(kInprocPrefix)) return {};
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (!fabric.empty() && fabric.size() <= 40 && std::all_of(fabric.begin(), fabric.end(), allowed)) return {};
  return {StatusCode::kInvalidArgument, "fabric name '" + fabric + "' is not 1 to 40 of [A-Za-z0-9_-]"};
}

std::string Fabric::SegmentSuffix(uint32_t index, uint32_t incarnation, uint64_t serial) {
  char text[kSuffixBytes];
  std::snprintf(text, sizeof(text), "d%u-%u.%llu", index, incarnation, static_cast<unsigned long long>(serial));
  return text;
}

Result<std::unique_ptr<Fabric>> Fabric::Join(const DeviceOptions& options) {
  KRCORE_RETURN_IF_ERROR(CheckFabricName(options.fabric));
  auto backing = options.fabric.starts_with(kInprocPrefix) ? OpenInprocBacking(options.fabric, options.create_fabric)
                                                           : OpenShmBacking(options.fabric, options.create_fabric);
  if (!backing.ok()) return backing.status();
  Clock& clock = options.clock != nullptr ? *options.clock : *RealClock();
  std::unique_ptr<Fabric> fabric(new Fabric(options.fabric, *std::move(backing), clock));
  fabric->Reclaim();
  Status taken;
  if (!options.create_fabric && !fabric->AnybodyAlive()) {
    taken = {StatusCode::kNotFound, "fabric " + options.fabric +
                                        " has no living device; start its memory nodes again, whose data may still be "
                                        "there, or remove it all (memnode --clean)"};
  } else {
    taken = fabric->TakeSlot(options.node);
  }
  fabric->backing_->UnlockAdmin();
  if (!taken.ok()) return taken;
  return fabric;
}

Status Fabric::TakeSlot(NodeId wanted) {
  Control& shared = control();
  auto node = ChooseNode(wanted);
  if (!node.ok()) return node.status();
  uint32_t index = 0;
  while (index < kMaxDevices && shared.devices[index].life.load(std::memory_order_relaxed) != 0) ++index;
  if (index == kMaxDevices) {
    return {StatusCode::kOutOfMemory,
            "fabric " + name_ + " has " + std::to_string(kMaxDevices) + " devices, its limit"};
  }
  // A death after this point leaves at most files of an incarnation that is in no slot; Reclaim finds them.
  const uint32_t incarnation = shared.next_incarnation++;
  if (shared.next_incarnation == 0) shared.next_incarnation = 1;
  auto segment = backing_->Create(SegmentSuffix(index, incarnation, 0), sizeof(DeviceSegment), /*claimed=*/true);
  if (!segment.ok()) return segment.status();
  // The slot is held before its word says alive: a device that is alive and not held may be taken for dead.
  if (Status held = backing_->Hold(index); !held.ok()) {
    backing_->Remove(SegmentSuffix(index, incarnation, 0));
    return held;
  }
  DeviceSlot& slot = shared.devices[index];
  slot.node.store(*node, std::memory_order_relaxed);
  slot.pid.store(getpid(), std::memory_order_relaxed);
  slot.life.store(LifeWord(incarnation, Life::kAlive), std::memory_order_release);
  segment_ = *std::move(segment);
  node_ = *node;
  index_ = index;
  incarnation_ = incarnation;
  return {};
}

Result<NodeId> Fabric::ChooseNode(NodeId wanted) {
  Control& shared = control();
  const auto holder = [&](NodeId node) -> const DeviceSlot* {
    for (const DeviceSlot& slot : shared.devices) {
      if (slot.life.load(std::memory_order_relaxed) != 0 && slot.node.load(std::memory_order_relaxed) == node)
        return &slot;
    }
    return nullptr;
  };
  if (wanted != kNoNode) {
    const DeviceSlot* slot = holder(wanted);
    if (slot == nullptr) return wanted;
    return Status(StatusCode::kExists, "node id " + std::to_string(wanted) + " of fabric " + name_ +
                                           " is held by process " +
                                           std::to_string(slot->pid.load(std::memory_order_relaxed)) +
                                           "; choose another id or stop that process");
  }
  // Not the lowest free id, so that ids of the recently dead stay unused for a while; but from a bounded range, because
  // every id that ever published itself keeps a place in the metadata server's table.
  for (;;) {
    const NodeId node = shared.next_node++;
    if (shared.next_node >= kFirstDynamicNode + kDynamicNodes) shared.next_node = kFirstDynamicNode;
    if (node >= kFirstDynamicNode && holder(node) == nullptr) return node;
  }
}

bool Fabric::ConfirmAlive(uint32_t index, uint32_t incarnation) {
  DeviceSlot& slot = control().devices[index];
  uint64_t alive = LifeWord(incarnation, Life::kAlive);
  if (slot.life.load(std::memory_order_acquire) != alive) return false;
  if (index == index_ && incarnation == incarnation_) return true;
  // The slot is held from before its word says alive until after it no longer does, and a word that has left
  // alive(incarnation) never returns to it. So a slot that is held, and still alive after, is held by that incarnation.
  if (backing_->HeldByOther(index)) return slot.life.load(std::memory_order_acquire) == alive;
  slot.life.compare_exchange_strong(alive, LifeWord(incarnation, Life::kDead), std::memory_order_acq_rel);
  return false;
}

bool Fabric::ConfirmAlive(uint32_t incarnation) {
  const uint64_t alive = LifeWord(incarnation, Life::kAlive);
  for (uint32_t index = 0; index < kMaxDevices; ++index) {
    if (control().devices[index].life.load(std::memory_order_acquire) == alive) return ConfirmAlive(index, incarnation);
  }
  return false;
}

bool Fabric::AnybodyAlive() {
  for (uint32_t index = 0; index < kMaxDevices; ++index) {
    const uint64_t word = control().devices[index].life.load(std::memory_order_relaxed);
    if (LifeOf(word) == Life::kAlive && ConfirmAlive(index, IncarnationOf(word))) return true;
  }
  return false;
}

void Fabric::Reclaim() {
  Control& shared = control();
  std::vector<std::pair<uint32_t, uint32_t>> alive;  // index, incarnation
  for (uint32_t index = 0; index < kMaxDevices; ++index) {
    std::atomic<uint64_t>& life = shared.devices[index].life;
    const uint64_t word = life.load(std::memory_order_acquire);
    if (word == 0) continue;
    if (LifeOf(word) == Life::kAlive && ConfirmAlive(index, IncarnationOf(word))) {
      alive.emplace_back(index, IncarnationOf(word));
    } else {
      life.store(0, std::memory_order_release);
    }
  }
  for (RecordSlot& record : shared.records) {
    const auto owns = [&](const auto& device) { return device.second == record.owner; };
    if (record.version != 0 && std::none_of(alive.begin(), alive.end(), owns)) record.version = 0;
  }
  for (HostQp& qp : shared.host_qps) {
    for (std::atomic<uint64_t>& holder : qp.holders) {
      uint64_t word = holder.load(std::memory_order_acquire);
      const auto owns = [&](const auto& device) { return device.second == word >> 32; };
      // By CAS: a living device that is given another dead device's part claims it without the admin lock.
      if (word != 0 && std::none_of(alive.begin(), alive.end(), owns)) holder.compare_exchange_strong(word, 0);
    }
  }
  const auto suffixes = backing_->List();
  if (!suffixes.ok()) return;  // the next one reclaims the files of the dead
  const bool ended = alive.empty() && std::ranges::none_of(*suffixes, IsNamedMemory);
  for (const std::string& suffix : *suffixes) {
    if (ended && suffix.starts_with(kRecordPrefix)) (void)backing_->RemoveLeft(suffix);
    uint32_t index = 0, incarnation = 0;
    if (std::sscanf(suffix.c_str(), "d%u-%u.", &index, &incarnation) != 2) continue;
    if (std::find(alive.begin(), alive.end(), std::pair(index, incarnation)) == alive.end())
      (void)backing_->RemoveLeft(suffix);
  }
}

Fabric::~Fabric() {
  if (index_ == kMaxDevices) return;
  const AdminLock lock(*backing_);
  control().devices[index_].life.store(LifeWord(incarnation_, Life::kDead), std::memory_order_release);
  // Without the lock, others reclaim what is left here, as after a crash.
  if (!lock.status().ok()) return;
  backing_->Remove(OwnSuffix(0));
  Reclaim();
  backing_->Release(index_);
  index_ = kMaxDevices;
  if (!AnybodyAlive()) backing_->RemoveControl();
}

// ---- records

namespace {

// Returns the newest record of that name whose owner lives; null: none. A publisher that died while replacing a value
// leaves two records, of which the newer one counts. The admin lock is held.
RecordSlot* Find(Fabric& fabric, const std::string& name) {
  RecordSlot* newest = nullptr;
  for (RecordSlot& record : fabric.control().records) {
    if (record.version == 0 || name != record.name) continue;
    if ((newest == nullptr || record.version > newest->version) && fabric.ConfirmAlive(record.owner)) newest = &record;
  }
  return newest;
}

}  // namespace

Status PublishRecord(Fabric& fabric, const std::string& name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckRecord(name, value));
  const AdminLock lock(fabric.backing(), deadline, fabric.clock());
  KRCORE_RETURN_IF_ERROR(lock.status());
  const RecordSlot* taken = Find(fabric, name);
  if (taken != nullptr && taken->owner != fabric.incarnation()) {
    return {StatusCode::kExists,
            "record '" + name + "' is published by another living device of fabric " + fabric.name()};
  }
  auto& records = fabric.control().records;
  RecordSlot* free = nullptr;
  for (RecordSlot& record : records) {
    if (record.version == 0 || !fabric.ConfirmAlive(record.owner)) {
      free = &record;
      break;
    }
  }
  if (free == nullptr) {
    return {StatusCode::kOutOfMemory,
            "fabric " + fabric.name() + " has " + std::to_string(kMaxRecords) + " records, its limit"};
  }
  std::atomic_ref(free->version).store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // only a death can look in between, and it sees program order
  free->owner = fabric.incarnation();
  free->length = static_cast<uint32_t>(value.size());
  std::memset(free->name, 0, sizeof(free->name));
  std::memcpy(free->name, name.data(), name.size());
  if (!value.empty()) std::memcpy(free->value, value.data(), value.size());
  std::atomic_ref(free->version).store(fabric.control().next_record_version++, std::memory_order_release);
  for (RecordSlot& record : records) {
    if (&record != free && record.version != 0 && record.owner == fabric.incarnation() && name == record.name)
      record.version = 0;
  }
  return {};
}

Result<std::vector<std::byte>> LookupRecord(Fabric& fabric, const std::string& name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  const AdminLock lock(fabric.backing(), deadline, fabric.clock());
  KRCORE_RETURN_IF_ERROR(lock.status());
  const RecordSlot* record = Find(fabric, name);
  if (record == nullptr) {
    return Status(StatusCode::kNotFound,
                  "no living device of fabric " + fabric.name() + " publishes a record '" + name + "'");
  }
  return std::vector<std::byte>(record->value, record->value + record->length);
}

// ---- records of the fabric itself
//
// A record is a segment "r-<name>" that is never changed. CompareAndSetRecord makes a whole new segment under a name of
// its own device, and then gives it the record's name by one rename(2), which ends the old segment. That is all, so:
//
// - Whoever opens the name gets one version, whole, and keeps it while it is mapped, though the name may be another's
//   by then. The name is never missing between two versions.
// - A read takes effect when it opens the name, a set when it renames. Both are single steps of the kernel (of the
//   process's table, for "inproc:").
// - Look, compare and rename are done under the admin lock, and nothing else gives or takes the name while a device
//   lives. So the version that is replaced is the one that was compared. Without the lock a file for each next version,
//   made only if there is none, would not do: a writer that sleeps between its look and its link() finds the name free
//   once that version has been replaced and removed.
// - A death before the rename leaves the old version and a segment that has the dead device's incarnation, which the
//   next to join or leave removes as any other (Reclaim). A death after it leaves the new version. The kernel drops
//   both locks (admin, names) with the process, and not before the rename is over: other threads of it hold the
//   descriptors, too.
// - If somebody has removed the fabric's files, a record does not seem to be unset: Backing::Open then finds nothing,
//   and NameIsOurs says why. (Nobody notices if a record's file alone is removed.)

namespace {

Result<FabricRecord> Parse(const Mapping& segment, const std::string& name) {
  FabricRecordHeader header{};
  if (segment.length() >= sizeof(header)) std::memcpy(&header, segment.addr(), sizeof(header));
  if (header.magic != kFabricRecordMagic || header.length > segment.length() - sizeof(header))
    return Status(StatusCode::kCorrupt, std::string("the file ") + kRecordPrefix + name + " is not a record");
  const std::byte* const value = segment.addr() + sizeof(header);
  return FabricRecord{header.version, {value, value + header.length}};
}

}  // namespace

Result<FabricRecord> ReadRecord(Fabric& fabric, const std::string& name) {
  KRCORE_RETURN_IF_ERROR(CheckFabricRecord(name, {}));
  const auto segment = fabric.backing().Open(kRecordPrefix + name);
  if (segment.ok()) return Parse(**segment, name);
  if (!(segment.status() == StatusCode::kNotFound)) return segment.status();
  KRCORE_RETURN_IF_ERROR(fabric.backing().NameIsOurs());
  return FabricRecord{};
}

Status CompareAndSetRecord(Fabric& fabric, const std::string& own, const std::string& name, uint64_t expected,
                           std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(CheckFabricRecord(name, value));
  Backing& backing = fabric.backing();
  const AdminLock lock(backing, deadline, fabric.clock());
  KRCORE_RETURN_IF_ERROR(lock.status());
  const auto current = ReadRecord(fabric, name);
  if (!current.ok()) return current.status();
  if (current->version != expected) return RecordIsAt(name, current->version, expected);
  const auto segment = backing.Create(own, sizeof(FabricRecordHeader) + value.size(), /*claimed=*/false);
  if (!segment.ok()) return segment.status();
  const FabricRecordHeader header{kFabricRecordMagic, expected + 1, value.size()};
  std::memcpy((*segment)->addr(), &header, sizeof(header));
  if (!value.empty()) std::memcpy((*segment)->addr() + sizeof(header), value.data(), value.size());
  const Status named = backing.Replace(own, kRecordPrefix + name, deadline, fabric.clock());
  if (!named.ok()) backing.Remove(own);
  return named;
}

// ---- peers

Peer::Peer(Fabric* fabric, uint32_t index, uint32_t incarnation, std::shared_ptr<Mapping> segment)
    : fabric_(fabric),
      index_(index),
      incarnation_(incarnation),
      segment_(std::move(segment)),
      tables_(reinterpret_cast<DeviceSegment*>(segment_->addr())),
      life_(&fabric->control().devices[index].life),
      alive_word_(LifeWord(incarnation, Life::kAlive)) {}

bool Peer::Translate(uint32_t key, Translation* out) {
  if (key == 0) return false;
  const MrEntry& entry = tables_->mrs[MrIndex(key)];
  if (entry.key.load(std::memory_order_acquire) != key) return false;
  const uint32_t segment = entry.segment.load(std::memory_order_relaxed);
  const uint64_t serial = entry.serial.load(std::memory_order_relaxed);
  const uint64_t offset = entry.offset.load(std::memory_order_relaxed);
  out->base = entry.base.load(std::memory_order_relaxed);
  out->length = entry.length.load(std::memory_order_relaxed);
  out->rights = entry.rights.load(std::memory_order_relaxed);
  out->pd = entry.pd.load(std::memory_order_relaxed);
  // The key is unchanged after the fields were read, so they belong to it. Pairs with the release store of the next
  // key.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.key.load(std::memory_order_relaxed) != key || segment == kNoSegment) return false;
  const std::shared_ptr<Mapping> mapping = MapSegment(segment, serial);
  if (mapping == nullptr || offset > mapping->length() || out->length > mapping->length() - offset) return false;
  out->peer = this;
  out->key = key;
  out->live_key = &entry.key;
  out->delta = static_cast<int64_t>(reinterpret_cast<uint64_t>(mapping->addr()) + offset - out->base);
  out->mapping = mapping;
  out->owner = shared_from_this();
  return true;
}

std::shared_ptr<Mapping> Peer::MapSegment(uint32_t segment, uint64_t serial) {
  if (segment >= kMaxSegments) return nullptr;
  const std::lock_guard lock(mutex_);
  Mapped& mapped = segments_[segment];
  if (mapped.mapping != nullptr && mapped.serial == serial) return mapped.mapping;
  const SegmentEntry& entry = tables_->segments[segment];
  if (entry.serial.load(std::memory_order_acquire) != serial) return nullptr;
  uint64_t words[kSuffixBytes / 8];
  for (size_t i = 0; i < std::size(words); ++i) words[i] = entry.suffix[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.serial.load(std::memory_order_relaxed) != serial) return nullptr;
  char suffix[kSuffixBytes + 1] = {};
  std::memcpy(suffix, words, kSuffixBytes);
  auto opened = fabric_->backing().Open(suffix);
  if (!opened.ok()) return nullptr;
  mapped.serial = serial;
  mapped.mapping = *std::move(opened);
  return mapped.mapping;
}

Result<std::shared_ptr<Peer>> PeerCache::Get(const DeviceAddress& address) {
  const uint32_t index = IndexOf(address);
  if (index >= kMaxDevices) return Status(StatusCode::kNotFound, "not the address of a device of this fabric");
  const std::lock_guard lock(mutex_);
  const auto gone = [&] {
    return Status(StatusCode::kNotFound, "node " + std::to_string(address.node) + " (incarnation " +
                                             std::to_string(address.incarnation) + ") has no living device on fabric " +
                                             fabric_->name());
  };
  if (!fabric_->ConfirmAlive(index, address.incarnation)) return gone();
  const auto found = peers_.find(index);
  if (found != peers_.end() && found->second->incarnation() == address.incarnation) return found->second;
  auto segment = fabric_->backing().Open(Fabric::SegmentSuffix(index, address.incarnation, 0));
  if (!segment.ok()) return fabric_->ConfirmAlive(index, address.incarnation) ? segment.status() : gone();
  auto peer = std::make_shared<Peer>(fabric_, index, address.incarnation, *std::move(segment));
  peers_[index] = peer;
  return peer;
}

}  // namespace krcore::rnic::sw
