// A device's part in one of the host's DC initiators.
//
// Why that is a part and not the whole queue: the software RNIC executes a WR in the process that posted it, whose
// private memory the WR names, so no process could execute what another one posted. What holders have in common is
// what they would feel of each other on a NIC: the state, which one's fault changes for all, and the places of the send
// queue, of which each holder owns a part. All of it is one word each, changed by single atomics; a holder that is
// killed leaves words that say whose they are, and whoever needs a part asks the kernel whether that one lives.
//
// Thread safety: as a Qp.
#ifndef KRCORE_RNIC_SW_HOST_QP_H_
#define KRCORE_RNIC_SW_HOST_QP_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/status.h"

namespace krcore::rnic::sw {

class HostQpPart {
 public:
  // For QP `number` of the fabric's device. kInvalidArgument: there is no such initiator. kOutOfMemory: every part of
  // it has a living holder.
  static Result<std::unique_ptr<HostQpPart>> Claim(Fabric* fabric, uint32_t host_qp, uint32_t number);
  // Gives the part back.
  ~HostQpPart();
  HostQpPart(const HostQpPart&) = delete;
  HostQpPart& operator=(const HostQpPart&) = delete;

  // Acquire: whoever sees that it works again sees what the one who reset it had seen.
  bool in_error() const { return (qp_->state.load(std::memory_order_acquire) & kInError) != 0; }
  void Break() { qp_->state.fetch_or(kInError, std::memory_order_acq_rel); }
  // Brings it back unless somebody else has.
  void Reset();

 private:
  static constexpr uint64_t kInError = 1;
  HostQpPart(HostQp* qp, std::atomic<uint64_t>* holder) : qp_(qp), holder_(holder) {}

  HostQp* const qp_;
  std::atomic<uint64_t>* const holder_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_HOST_QP_H_
