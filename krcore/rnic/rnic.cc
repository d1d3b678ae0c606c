#include "krcore/rnic.h"

namespace krcore::rnic {

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

}  // namespace krcore::rnic
