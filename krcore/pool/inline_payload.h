#ifndef KRCORE_POOL_INLINE_PAYLOAD_H_
#define KRCORE_POOL_INLINE_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "krcore/types.h"

namespace krcore::pool {

// Copies the payload of an inline WR, which its user may reuse at once though the doorbell comes later. Returns its
// length, bytes.
inline uint32_t CopyInlinePayload(const WorkRequest& wr, std::byte* to) {
  uint32_t length = 0;
  for (const Sge& sge : std::span(wr.sg_list, wr.num_sge)) {
    std::memcpy(to + length, reinterpret_cast<const void*>(sge.addr), sge.length);
    length += sge.length;
  }
  return length;
}

}  // namespace krcore::pool

#endif  // KRCORE_POOL_INLINE_PAYLOAD_H_
