// Bringing DC initiators and targets up.
#ifndef KRCORE_DCT_INITIATOR_H_
#define KRCORE_DCT_INITIATOR_H_

#include <cstdint>
#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::dct {

// A DC initiator in RTS that completes into `cq`; see QpAttr for `host_qp`.
Result<std::unique_ptr<rnic::Qp>> CreateInitiator(rnic::Pd& pd, rnic::Cq& cq, uint32_t sq_depth,
                                                  uint32_t host_qp = rnic::kPrivateQp);

// From any state through RESET to RTS. What was posted and has not completed is dropped.
Status ResetToRts(rnic::Qp& initiator);

// A target for one-sided requests. Its key: incarnation in the high half, random low half.
Result<std::unique_ptr<rnic::Dct>> CreateTarget(rnic::Pd& pd, uint32_t incarnation);

}  // namespace krcore::dct

#endif  // KRCORE_DCT_INITIATOR_H_
