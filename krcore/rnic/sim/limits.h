// What Caps reports of the simulated RNIC.
#ifndef KRCORE_RNIC_SIM_LIMITS_H_
#define KRCORE_RNIC_SIM_LIMITS_H_

#include <cstdint>

namespace krcore::rnic::sim {

inline constexpr uint32_t kMaxQpWr = 16384;
inline constexpr uint32_t kMaxSge = 16;
inline constexpr uint32_t kMaxCqe = uint32_t{1} << 20;
inline constexpr uint32_t kMaxInlineBytes = 512;
inline constexpr uint32_t kUdMtuBytes = 4096;
inline constexpr uint32_t kMaxMessageBytes = uint32_t{1} << 30;  // READ and WRITE
inline constexpr uint32_t kMaxRecvBytes = uint32_t{1} << 20;
inline constexpr uint32_t kGrhBytes = 40;
inline constexpr uint32_t kMaxMrs = 1 << 16;     // per device
inline constexpr uint32_t kMaxQps = 1 << 12;     // per device; Qps and Dcts
inline constexpr uint32_t kMaxRecords = 256;     // per fabric
inline constexpr uint32_t kDynamicNodes = 2048;  // ids handed out, in a cycle; more where more are in use

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_LIMITS_H_
