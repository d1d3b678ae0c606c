// The times and sizes of the software DC on this provider. docs/software_dc.md says what each bounds.
#ifndef KRCORE_RNIC_VERBS_SDC_LIMITS_H_
#define KRCORE_RNIC_VERBS_SDC_LIMITS_H_

#include <cstdint>
#include <ctime>

#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/verbs/roster.h"

namespace krcore::rnic::verbs {

// 21 tries in 1.15 s, so that a lost peer is found out before the limit.
inline constexpr sdc_timing kSdcTiming{
    .limit_ns = 2'000'000'000,
    .grace_ns = 1'000'000'000,
    .retry_ns = 4'000'000,
    .retry_max_ns = 64'000'000,
    .idle_ns = 1'000'000'000,
    .rnr_ns = 1'000'000,
    .retries = 20,
    .rnr_retries = 6,
};
inline constexpr uint64_t kSdcHoldNs = 2 * kSdcTiming.idle_ns;
inline constexpr int64_t kSdcMaxRetransmissionNs = kSdcTiming.limit_ns + kSdcTiming.grace_ns;
static_assert(kSettledNs >= kSdcMaxRetransmissionNs, "the dead may still have requests at a target's agent");

inline constexpr uint32_t kSdcQkey = SDC_QKEY;

inline constexpr uint32_t kSdcPeers = 256;           // of an initiator
inline constexpr uint32_t kSdcSessions = 1024;       // of a target
inline constexpr uint32_t kSdcInitiatorSends = 128;  // buffers
inline constexpr uint32_t kSdcInitiatorReceives = 128;
inline constexpr uint32_t kSdcTargetSends = 512;
inline constexpr uint32_t kSdcTargetReceives = 1024;
inline constexpr uint32_t kSdcAtomics = 256;  // of a target, under way at its device
inline constexpr uint32_t kSdcReplyHandles = 1024;

// Counts while the machine sleeps, which is what deadlines need.
inline uint64_t SdcNowNs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SDC_LIMITS_H_
