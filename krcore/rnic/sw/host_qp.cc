#include "krcore/rnic/sw/host_qp.h"

#include <string>

namespace krcore::rnic::sw {
namespace {

std::atomic<uint64_t>* ClaimFree(HostQp* qp, uint64_t self) {
  for (std::atomic<uint64_t>& holder : qp->holders) {
    uint64_t free = 0;
    if (holder.load(std::memory_order_relaxed) == free &&
        holder.compare_exchange_strong(free, self, std::memory_order_acq_rel))
      return &holder;
  }
  return nullptr;
}

// Returns how many parts it freed. Those who join or leave do the same (Fabric::Reclaim).
uint32_t FreePartsOfTheDead(Fabric* fabric, HostQp* qp) {
  uint32_t freed = 0;
  for (std::atomic<uint64_t>& holder : qp->holders) {
    uint64_t word = holder.load(std::memory_order_acquire);
    if (word == 0) continue;
    const auto incarnation = static_cast<uint32_t>(word >> 32);
    const uint32_t index = fabric->FindIncarnation(incarnation);
    if (index < kMaxDevices && fabric->ConfirmAlive(index, incarnation)) continue;
    // A word names one QP of one device for ever, so this frees nobody else's part.
    freed += holder.compare_exchange_strong(word, 0, std::memory_order_acq_rel) ? 1 : 0;
  }
  return freed;
}

}  // namespace

Result<std::unique_ptr<HostQpPart>> HostQpPart::Claim(Fabric* fabric, uint32_t host_qp, uint32_t number) {
  if (host_qp >= kHostQps) {
    return Status(StatusCode::kInvalidArgument,
                  "a host has " + std::to_string(kHostQps) + " initiators, no number " + std::to_string(host_qp));
  }
  HostQp* const qp = &fabric->control().host_qps[host_qp];
  const uint64_t self = PeerWord(fabric->incarnation(), number);
  std::atomic<uint64_t>* holder = ClaimFree(qp, self);
  if (holder == nullptr && FreePartsOfTheDead(fabric, qp) != 0) holder = ClaimFree(qp, self);
  if (holder == nullptr) {
    return Status(StatusCode::kOutOfMemory, "initiator " + std::to_string(host_qp) + " of the host has " +
                                                std::to_string(kHostQpParts) + " holders, its limit");
  }
  return std::unique_ptr<HostQpPart>(new HostQpPart(qp, holder));
}

HostQpPart::~HostQpPart() { holder_->store(0, std::memory_order_release); }

void HostQpPart::Reset() {
  uint64_t state = qp_->state.load(std::memory_order_acquire);
  if ((state & kInError) == 0) return;
  // One more reset, not in ERR. If it fails somebody else was faster, and whatever became of it since concerns later
  // requests.
  qp_->state.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel);
}

}  // namespace krcore::rnic::sw
