#include "krcore/rnic.h"

#include <algorithm>

#include "krcore/rnic/request_form.h"

namespace krcore::rnic {
namespace {

bool HasNameLetters(const std::string& name) {
  return std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; });
}

Status NoFabricRecords(const Caps& caps) {
  return {StatusCode::kUnsupported, "provider " + caps.provider + " keeps no records of the fabric itself; sw does"};
}

}  // namespace

std::string_view QpStateName(QpState state) {
  switch (state) {
    case QpState::kReset: return "RESET";
    case QpState::kInit: return "INIT";
    case QpState::kRtr: return "RTR";
    case QpState::kRts: return "RTS";
    case QpState::kErr: return "ERR";
  }
  return "unknown QP state";
}

bool Qp::Execute(std::span<const WorkRequest>, const Reach&) { return false; }

void Qp::Prefetch(std::span<const WorkRequest>, const AddressHandle*, uint32_t) {}

Result<FabricRecord> Device::ReadRecord(const std::string&, Deadline) { return NoFabricRecords(caps()); }

Status Device::CompareAndSetRecord(const std::string&, uint64_t, std::span<const std::byte>, Deadline) {
  return NoFabricRecords(caps());
}

Status CheckFabricRecord(const std::string& name, std::span<const std::byte> value) {
  if (name.empty() || name.size() > kMaxFabricRecordName || !HasNameLetters(name))
    return {StatusCode::kInvalidArgument, "name '" + name + "' of a fabric's record is not 1 to " +
                                              std::to_string(kMaxFabricRecordName) + " of [a-z0-9_-]"};
  if (value.size() <= kMaxFabricRecordBytes) return {};
  return {StatusCode::kInvalidArgument, "a fabric's record has at most " + std::to_string(kMaxFabricRecordBytes) +
                                            " bytes, not " + std::to_string(value.size())};
}

Status RecordIsAt(const std::string& name, uint64_t version, uint64_t expected) {
  return {StatusCode::kExists, "record '" + name + "' of the fabric has version " + std::to_string(version) + ", not " +
                                   std::to_string(expected)};
}

Status CheckRecordName(const std::string& name) {
  if (!name.empty() && name.size() < kRecordNameBytes && HasNameLetters(name)) return {};
  return {StatusCode::kInvalidArgument, "record name '" + name + "' is not 1 to 15 of [a-z0-9_-]"};
}

Status CheckRecord(const std::string& name, std::span<const std::byte> value) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  if (value.size() <= kRecordValueBytes) return {};
  return {StatusCode::kInvalidArgument,
          "value of record '" + name + "' is longer than " + std::to_string(kRecordValueBytes) + " bytes"};
}

Status CheckMemoryName(const std::string& name) {
  if (name.size() <= 32 && HasNameLetters(name)) return {};
  return {StatusCode::kInvalidArgument, "memory name '" + name + "' is not 1 to 32 of [a-z0-9_-]"};
}

}  // namespace krcore::rnic
