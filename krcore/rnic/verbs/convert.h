// libibverbs' numbers in ours, and ours in theirs: the only place that does it.
#ifndef KRCORE_RNIC_VERBS_CONVERT_H_
#define KRCORE_RNIC_VERBS_CONVERT_H_

#include <infiniband/verbs.h>

#include "krcore/rnic/rnic.h"

namespace krcore::rnic::verbs {

WcStatus FromWcStatus(ibv_wc_status status);
// What a receive's completion tells: status, opcode, length, immediate.
void FillReceived(const ibv_wc& wc, Completion* completion);
ibv_wr_opcode ToWrOpcode(Opcode opcode);
unsigned int ToAccessFlags(uint32_t access_rights);
unsigned int ToSendFlags(uint8_t flags);

inline constexpr uint32_t kPsnMask = 0xff'ffff;  // sequence numbers have 24 bits

// Who carries out DC. Queues of one kind do not reach those of another.
enum class DcKind : uint8_t {
  kSoftware,  // software over UD
  kMlx5V1,    // the device: Connect-IB, ConnectX-4
  kMlx5V2,    // the device: ConnectX-5 and newer
};
const char* DcKindName(DcKind kind);

// What DeviceAddress::bytes holds.
struct PortAddress {
  uint8_t gid[16] = {};
  uint16_t lid = 0;        // InfiniBand links
  uint8_t mtu = 0;         // ibv_mtu of the port
  uint8_t read_depth = 0;  // READs and atomics that its queues execute at once for one peer
  DcKind dc = DcKind::kSoftware;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(PortAddress) == sizeof(DeviceAddress::bytes));
PortAddress PortOf(const DeviceAddress& address);

// With what the call was to do. libibverbs' calls return the errno or leave it in errno.
Status FailedCall(int error, const std::string& what);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_CONVERT_H_
