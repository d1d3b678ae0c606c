// GlobalAddress: a 16-byte-aligned place in the memory of some memory node, in 42 bits, as slots and directory
// entries hold it. Offsets count from the start of the node's pool region: 34 bits of 16-byte units, 256 GiB.
#ifndef KVS_LAYOUT_ADDRESS_H_
#define KVS_LAYOUT_ADDRESS_H_

#include <cstdint>

#include "krcore/types.h"

namespace kvs {

inline constexpr uint64_t kUnitBytes = 16;
inline constexpr int kOffsetBits = 34;
inline constexpr uint64_t kMaxPoolBytes = (uint64_t{1} << kOffsetBits) * kUnitBytes;

struct GlobalAddress {
  krcore::NodeId node = krcore::kNoNode;  // 1..255
  uint64_t offset = 0;                    // bytes, a multiple of kUnitBytes

  bool valid() const { return node != krcore::kNoNode; }
  friend bool operator==(const GlobalAddress&, const GlobalAddress&) = default;
};

}  // namespace kvs

#endif  // KVS_LAYOUT_ADDRESS_H_
