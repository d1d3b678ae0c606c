// The vocabulary shared by queues and NICs: node ids, scatter/gather elements, work requests, completions.
//
// Layouts and names follow libibverbs (ibv_sge, ibv_send_wr, ibv_wc), so readers of the verbs manual have nothing to
// relearn. Types are narrowed to what every provider can promise.
#ifndef KRCORE_TYPES_H_
#define KRCORE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace krcore {

// Identity of one device on a fabric, unique among the living. Memory nodes use 1..255 (a slot of the table has 8 bits
// for it); the fabric gives compute nodes ids from kFirstDynamicNode up.
using NodeId = uint32_t;
inline constexpr NodeId kNoNode = 0;
inline constexpr NodeId kMaxMemoryNode = 255;
inline constexpr NodeId kFirstDynamicNode = 256;

struct Sge {
  uint64_t addr;    // address in the caller's address space
  uint32_t length;  // bytes
  uint32_t lkey;    // of the local MR that covers [addr, addr + length)
};

enum class Opcode : uint8_t {
  kRead,      // remote -> local SGEs
  kWrite,     // local SGEs -> remote
  kWriteImm,  // kWrite, and consumes one receive at the target with the immediate
  kSend,      // local SGEs -> the target's next receive
  kSendImm,
  kCompareSwap,  // 8 bytes, aligned; the old word lands in the one 8-byte SGE
  kFetchAdd,     // likewise
  kRecv,         // completions only: a receive matched kSend(Imm)
  kRecvWithImm,  // completions only: a receive consumed by kWriteImm
};
std::string_view OpcodeName(Opcode opcode);

enum SendFlags : uint8_t {
  kSignaled = 1,  // report success in a completion; errors are always reported
  kFence = 2,     // start after every earlier READ and atomic of this queue has completed
  kInline = 4,    // copy the payload at post: its buffer may be reused when the post returns; lkey is ignored
  kSolicited = 8,
};

// A request of VirtualQueue::Push. `sg_list` needs to live only until the call returns; the buffers it names
// are borrowed until the completion.
struct WorkRequest {
  uint64_t wr_id = 0;
  const Sge* sg_list = nullptr;
  uint8_t num_sge = 0;
  Opcode opcode = Opcode::kRead;
  uint8_t flags = kSignaled;  // of SendFlags
  uint32_t imm = 0;           // kWriteImm, kSendImm
  uint64_t remote_addr = 0;   // READ, WRITE, atomics: address in the target's MR
  uint32_t rkey = 0;
  uint64_t compare_add = 0;  // kCompareSwap: expected; kFetchAdd: addend
  uint64_t swap = 0;         // kCompareSwap: desired
};

// Completion statuses, one per verbs status that a provider here can produce.
enum class WcStatus : uint8_t {
  kSuccess,
  kLocalLengthError,      // IBV_WC_LOC_LEN_ERR
  kLocalQpError,          // IBV_WC_LOC_QP_OP_ERR
  kLocalProtectionError,  // IBV_WC_LOC_PROT_ERR: bad lkey, bounds or local access right
  kFlushed,               // IBV_WC_WR_FLUSH_ERR: outcome of a WRITE or atomic is unknown
  kRemoteInvalidRequest,  // IBV_WC_REM_INV_REQ_ERR: e.g. message longer than the receive
  kRemoteAccessError,     // IBV_WC_REM_ACCESS_ERR: bad rkey, bounds, right or protection domain
  kRemoteOperationError,  // IBV_WC_REM_OP_ERR
  kRetryExceeded,         // IBV_WC_RETRY_EXC_ERR: peer dead or not connected to us; outcome unknown
  kRnrRetryExceeded,      // IBV_WC_RNR_RETRY_EXC_ERR: the target had no receive posted
  kGeneralError,          // IBV_WC_GENERAL_ERR
  kDiscarded,             // not a verbs status: QueuePool::DiscardStaged took the WR back; it was never posted
};
std::string_view WcStatusName(WcStatus status);

enum WcFlags : uint8_t {
  kWithImm = 1,  // `imm` is valid
  kWithGrh = 2,  // the first 40 bytes of a UD receive are a GRH
};

struct Completion {
  uint64_t wr_id = 0;
  WcStatus status = WcStatus::kSuccess;
  Opcode opcode = Opcode::kRead;  // valid only on success, as in verbs
  uint8_t flags = 0;              // of WcFlags
  uint32_t byte_len = 0;          // receives: bytes received (a UD receive counts its GRH)
  uint32_t imm = 0;
  uint32_t qp_num = 0;        // the local QP
  uint32_t src_qp = 0;        // UD receives: the sender's QP
  NodeId src_node = kNoNode;  // UD receives: the sender's device, where a provider knows it
};

enum AccessRights : uint32_t {
  kLocalWrite = 1,
  kRemoteRead = 2,
  kRemoteWrite = 4,   // requires kLocalWrite, as in verbs
  kRemoteAtomic = 8,  // requires kLocalWrite
};

// What another node has, or has left, in named memory on this host.
struct FoundMemory {
  NodeId node = kNoNode;
  std::vector<std::byte> begin;
};

// A record of the fabric itself (Node::ReadRecord).
struct FabricRecord {
  uint64_t version = 0;  // how often it was set; 0: never
  std::vector<std::byte> value;
};
inline constexpr size_t kMaxFabricRecordBytes = size_t{64} << 10;
inline constexpr size_t kMaxFabricRecordName = 32;

// What a node's software DC has done so far, as initiator and as target (docs/software_dc.md).
struct SoftwareDcStats {
  int64_t agent_cpu_ns = 0;                  // of the thread that serves peers' requests
  uint64_t sent = 0, sent_again = 0;         // requests
  uint64_t timeouts = 0;                     // times that no answer came
  uint64_t sessions = 0, sessions_gone = 0;  // asked for; forgotten by a target
  uint64_t served = 0, served_again = 0;  // requests of peers; those of them whose answer was lost or that came twice
  uint64_t early = 0;                     // requests that came before an earlier one, which was late or lost
  uint64_t expired = 0;                   // requests that came after their deadline
  uint64_t busy = 0;                      // peers that got no session
  uint64_t atomic_repairs = 0;            // times that the queue for atomics was made anew
};

}  // namespace krcore

#endif  // KRCORE_TYPES_H_
