// What Caps reports of the software RNIC.
#ifndef KRCORE_RNIC_SW_LIMITS_H_
#define KRCORE_RNIC_SW_LIMITS_H_

#include <cstdint>

namespace krcore::rnic::sw {

inline constexpr uint32_t kMaxQpWr = 16384;
inline constexpr uint32_t kMaxSge = 16;
inline constexpr uint32_t kMaxCqe = uint32_t{1} << 20;
inline constexpr uint32_t kMaxInlineBytes = 512;
inline constexpr uint32_t kUdMtuBytes = 4096;
inline constexpr uint32_t kMaxMessageBytes = uint32_t{1} << 30;  // READ and WRITE
inline constexpr uint32_t kMaxRecvBytes = uint32_t{1} << 20;
inline constexpr uint32_t kGrhBytes = 40;

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_LIMITS_H_
