#include "krcore/rnic/sw/records.h"

#include <algorithm>
#include <cstring>

namespace krcore::rnic::sw {
namespace {

Status CheckRecordName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  if (!name.empty() && name.size() < kRecordNameBytes && std::all_of(name.begin(), name.end(), allowed)) return {};
  return {StatusCode::kInvalidArgument, "record name '" + name + "' is not 1 to 15 of [a-z0-9_-]"};
}

bool OwnerAlive(Fabric& fabric, const RecordSlot& record) {
  const uint32_t index = fabric.FindIncarnation(record.owner);
  return index < kMaxDevices && fabric.ConfirmAlive(index, record.owner);
}

// The newest record of that name whose owner lives; null: none. A publisher that died while replacing a value
// leaves two, of which the newer one counts. The admin lock is held.
RecordSlot* Find(Fabric& fabric, const std::string& name) {
  RecordSlot* newest = nullptr;
  for (RecordSlot& record : fabric.control().records) {
    if (record.version == 0 || name != record.name) continue;
    if ((newest == nullptr || record.version > newest->version) && OwnerAlive(fabric, record)) newest = &record;
  }
  return newest;
}

}  // namespace

Status PublishRecord(Fabric& fabric, const std::string& name, std::span<const std::byte> value) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  if (value.size() > kRecordValueBytes) {
    return {StatusCode::kInvalidArgument,
            "value of record '" + name + "' is longer than " + std::to_string(kRecordValueBytes) + " bytes"};
  }
  const AdminLock lock(fabric.backing());
  KRCORE_RETURN_IF_ERROR(lock.status());
  const RecordSlot* taken = Find(fabric, name);
  if (taken != nullptr && taken->owner != fabric.incarnation()) {
    return {StatusCode::kExists,
            "record '" + name + "' is published by another living device of fabric " + fabric.name()};
  }
  auto& records = fabric.control().records;
  RecordSlot* free = nullptr;
  for (RecordSlot& record : records) {
    if (record.version == 0 || !OwnerAlive(fabric, record)) {
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

Result<std::vector<std::byte>> LookupRecord(Fabric& fabric, const std::string& name) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  const AdminLock lock(fabric.backing());
  KRCORE_RETURN_IF_ERROR(lock.status());
  const RecordSlot* record = Find(fabric, name);
  if (record == nullptr) {
    return Status(StatusCode::kNotFound,
                  "no living device of fabric " + fabric.name() + " publishes a record '" + name + "'");
  }
  return std::vector<std::byte>(record->value, record->value + record->length);
}

}  // namespace krcore::rnic::sw
