#include "krcore/rnic.h"

#include <algorithm>

#include "krcore/rnic/request_form.h"

namespace krcore::rnic {
namespace {

bool HasNameLetters(const std::string& name) {
  return std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; });
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
