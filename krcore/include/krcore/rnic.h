// The RNIC interface: what krcore needs of "a NIC", independent of the provider (sw: shared memory; sim: virtual time;
// verbs: libibverbs). The conformance suite in tests/rnic/ is written against this header and runs on every provider.
//
// Objects. A Device is one port of one NIC as one process opened it. From it come Pds; from a Pd come Mrs,
// Qps and Dcts; Cqs belong to the Device. Every object is owned by the caller through unique_ptr and must be
// destroyed before what it was made from. Destroying a Qp flushes it; destroying an Mr makes its keys invalid.
//
// Promises of every provider, and no more (docs/architecture.md, N1 to N8):
//  1. Only an aligned 8-byte word is atomic. A longer READ or WRITE may tear anywhere at word boundaries, and
//     the words of one READ or WRITE are touched in no particular order.
//  2. WRs posted on one Qp to one peer execute in order, with one exception: a WRITE, SEND or atomic does not
//     wait for an earlier READ unless it carries kFence. A READ posted after an atomic sees it.
//  3. Nothing is ordered across Qps or, on a DC initiator, across peers. But a WR that is posted after another one has
//     completed executes after it.
//  4. Completions of one Qp's send queue appear in posting order, each at most once. An unsignaled WR
//     completes silently with the next signaled one; a failed WR always completes, and moves the Qp to ERR,
//     which flushes everything posted later (kFlushed).
//  5. A flushed or kRetryExceeded WRITE or atomic has an unknown outcome, and may still be executed after it completed.
//     Once ToReset or the destruction of its Qp has returned, no WR posted on it executes any more.
//  6. The target's CPU takes no part in READ, WRITE and atomics, except where Caps::software_dc says so.
//  7. Atomics are atomic against other NICs' atomics through the same device; against CPU atomics only where
//     Caps::cpu_coherent_atomics says so.
//  8. A peer is kDead only when nothing that it posted can still execute (PeerState).
//
// An operation that a provider lacks returns kUnsupported.
//
// Thread safety: a Device and a Pd may be used from several threads. A Cq, together with every Qp and Dct
// that completes into it, belongs to one thread at a time.
// Blocking: posting, polling and queries of an object's own properties do not block, except for the first post to a
// peer with a Pd younger than its address handle, which may make the handle's part for that Pd. All else makes system
// calls. These may wait longer: CreateAddressHandle (for the network, seconds where nobody answers); Qp::ToReset and
// the destruction of a Qp (until nothing of it executes any more, at most Caps::max_retransmission_ns); the destruction
// of an Mr (until nobody touches its memory); and, where others keep the fabric's list, calls with a deadline until
// then, on the clock that the device was opened with (RealClock, or a World's). The default is for callers that can
// wait for some seconds; a caller that polls gives a deadline.
#ifndef KRCORE_RNIC_H_
#define KRCORE_RNIC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::rnic {

struct Caps {
  std::string provider;    // "sw", "verbs", "sim"
  uint32_t max_qp_wr = 0;  // largest sq_depth / rq_depth
  uint32_t max_sge = 0;
  uint32_t max_cqe = 0;
  uint32_t max_inline_bytes = 0;
  uint32_t ud_mtu_bytes = 0;       // payload of one UD send
  uint32_t max_message_bytes = 0;  // READ and WRITE
  bool dc = false;                 // QpType::kDci and CreateDct work
  bool software_dc = false;        // ... but by software over UD, which uses CPU at the target
  bool cpu_coherent_atomics = false;
  int64_t max_retransmission_ns = 0;    // how long after its doorbell a WR may still reach its target
  bool shared_memory_required = false;  // remote access needs memory from AllocMemory
  uint32_t host_qps = 0;                // QpAttr::host_qp is below this; 0: processes share none
  // ToRtr knows whether the peer's QP exists. Otherwise, as with a NIC, the first WR to a missing QP is kRetryExceeded.
  bool finds_missing_peers = true;
  // QueryPeer is answered over the network. On such a provider nothing dead answers a READ either.
  bool asks_over_network = false;
  // A WR has been executed when its post returns, and Qp::Execute does the same without the queue's rings.
  bool executes_at_post = false;
};

// Where a peer's device is: the input for an address handle. 32 bytes of plain data, as the metadata server keeps them.
// `bytes` belongs to the provider (sw: device index; verbs: GID, LID, MTU and more).
struct DeviceAddress {
  NodeId node = kNoNode;
  uint32_t incarnation = 0;  // a successor of a dead device has another
  uint8_t bytes[24] = {};
};
static_assert(sizeof(DeviceAddress) == 32);

enum class QpType : uint8_t { kRc, kUd, kDci };
enum class QpState : uint8_t { kReset, kInit, kRtr, kRts, kErr };
std::string_view QpStateName(QpState state);

// Resolves a DeviceAddress once, so that WRs need not. Immutable; usable with every Qp of its Device.
class AddressHandle : public OfOneProcess {};

// One element of Qp::PostSend: a WorkRequest plus, for UD and DC, its destination.
struct SendWr : WorkRequest {
  const AddressHandle* ah = nullptr;  // UD, DCI
  uint32_t remote_qpn = 0;            // UD: QP number; DCI: DCT number
  uint32_t qkey = 0;                  // UD
  uint64_t dc_key = 0;                // DCI
};

// Memory that a key opens, as the poster knows it. It is not empty and does not wrap around.
struct KeyedRange {
  uint64_t addr = 0, length = 0;
  uint32_t key = 0;

  bool Covers(uint64_t begin, uint64_t bytes) const { return bytes <= length && begin - addr <= length - bytes; }
};

// For Qp::Execute: where its requests go (as in SendWr), and the memory that they may name.
struct Reach {
  const AddressHandle* ah = nullptr;
  uint32_t remote_qpn = 0;
  uint64_t dc_key = 0;
  const KeyedRange& local;
  const KeyedRange& remote;
};

struct RecvWr {
  uint64_t wr_id = 0;
  const Sge* sg_list = nullptr;
  uint8_t num_sge = 0;
};

class Mr : public OfOneProcess {
 public:
  void* addr() const { return addr_; }
  size_t length() const { return length_; }
  uint32_t lkey() const { return lkey_; }
  uint32_t rkey() const { return rkey_; }

 protected:
  void* addr_ = nullptr;
  size_t length_ = 0;
  uint32_t lkey_ = 0;
  uint32_t rkey_ = 0;
};

class Cq : public OfOneProcess {
 public:
  // Moves up to out.size() completions into `out`, oldest first, and returns how many. Drives the provider where no
  // hardware does.
  virtual size_t Poll(std::span<Completion> out) = 0;
  // True once completions were lost because more WRs were outstanding than the Cq holds. Sticky.
  virtual bool overrun() const = 0;
};

inline constexpr uint32_t kPrivateQp = ~uint32_t{0};

struct QpAttr {
  QpType type = QpType::kRc;
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;           // may equal send_cq
  uint32_t sq_depth = 128;         // WRs
  uint32_t rq_depth = 0;           // WRs; 0: the queue receives nothing
  uint32_t max_recv_bytes = 4096;  // longest message a receive may carry (sw reserves rq_depth of them)
  // kDci: the host's initiator of this number, which the fabric's processes on the host share. Each holder has its own
  // part of the send queue, sq_depth WRs, and its own completions. The state is common: a failed WR of one holder moves
  // the QP to ERR for all, and any holder that takes it from RESET to RTS brings it back for all. What was posted and
  // not executed is then lost. A killed holder's part becomes free again. kOutOfMemory: there is no part left.
  uint32_t host_qp = kPrivateQp;
};

// What Qp::ToRtr needs to know of the peer (RC). UD and DCI take a default-constructed one.
struct QpPeer {
  DeviceAddress device;
  uint32_t qpn = 0;
  // Where the sequence numbers of this life of the connection start, in both directions. The peer gives the same
  // number, and both give another one after a RESET. Reset both ends of an RC connection or none: otherwise the NIC at
  // the other end would take new requests for repetitions of old ones, and confirm a WRITE that it does not execute.
  uint32_t psn = 0;
};

class Qp : public OfOneProcess {
 public:
  uint32_t num() const { return num_; }
  virtual QpType type() const = 0;
  virtual QpState state() const = 0;

  // The verbs' state machine: RESET -> INIT -> RTR -> RTS; any -> ERR; any -> RESET. Another order returns kBadState
  // and changes nothing. PostRecv is legal from INIT on; PostSend from RTS on (in ERR a posted WR is flushed); incoming
  // requests are served from RTR on.
  virtual Status ToInit(uint32_t access_rights, uint32_t qkey) = 0;  // rights granted to the RC peer; qkey: UD
  virtual Status ToRtr(const QpPeer& peer) = 0;  // kNotFound: no such device or Qp, see Caps::finds_missing_peers
  virtual Status ToRts() = 0;
  virtual Status ToErr() = 0;
  virtual Status ToReset() = 0;
  // For callers that cannot wait: ends what is in flight, and returns whether ToReset would return at once. Call it
  // again until it returns true; nothing may be posted meanwhile.
  virtual bool BeginReset() { return true; }

  // Posts all WRs in order under one doorbell. On failure posts those before *bad_index and none after. kQueueFull: a
  // slot of the send queue becomes free when its completion, or a later one, is polled. kInvalidArgument: malformed
  // (SGE count, atomic not 8 bytes or unaligned, inline too long, opcode that the type lacks, missing address handle).
  // Everything that a real NIC finds only while executing (keys, bounds, rights, the peer's state) is reported by
  // completion.
  virtual Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) = 0;
  virtual Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) = 0;

  // RC and DCI, where Caps::executes_at_post is set: executes all of `wrs` (at least one) in order and after everything
  // posted before, without a place in the send queue and without completions. All or none: returns false if it cannot
  // (for so many), or if one of them is not a READ, WRITE or atomic of one SGE, not inline, that succeeds and names no
  // memory beyond `reach`. Then nothing has been done, and PostSend tells what is wrong, if anything.
  virtual bool Execute(std::span<const WorkRequest> wrs, const Reach& reach);
  // A hint that `wrs`, which go to `ah` and name `rkey`, will be executed soon. A provider whose CPU will wait for
  // their memory can fetch it now. Nothing is checked, and nothing else is done.
  virtual void Prefetch(std::span<const WorkRequest> wrs, const AddressHandle* ah, uint32_t rkey);

 protected:
  uint32_t num_ = 0;
};

// A DC target: accepts requests of any DC initiator that knows (address, number, dc_key).
class Dct : public OfOneProcess {
 public:
  uint32_t num() const { return num_; }
  uint64_t dc_key() const { return dc_key_; }
  // Receives for SENDs and WRITE_WITH_IMMs from any initiator (the DCT's SRQ).
  virtual Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) = 0;

 protected:
  uint32_t num_ = 0;
  uint64_t dc_key_ = 0;
};

struct DctAttr {
  uint64_t dc_key = 0;
  uint32_t access_rights = kRemoteRead | kRemoteWrite | kRemoteAtomic;
  Cq* recv_cq = nullptr;  // null: one-sided requests only
  uint32_t rq_depth = 0;
  uint32_t max_recv_bytes = 4096;
};

class Pd : public OfOneProcess {
 public:
  // Registers [addr, addr + length). Remote rights on memory that peers cannot reach (not from AllocMemory,
  // where Caps::shared_memory_required) return kUnsupported. Keys carry a generation: a key of a destroyed Mr
  // is refused, not reused, for at least 255 registrations.
  virtual Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) = 0;
  virtual Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) = 0;
  virtual Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) = 0;
};

// Memory that peers can reach. Zeroed when fresh, page-aligned (2 MiB-aligned from 2 MiB up), reserved (no
// SIGBUS later). Unmapped on destruction; whether a named one is deleted then, see AllocOptions.
class Memory : public OfOneProcess {
 public:
  std::span<std::byte> bytes() const { return bytes_; }
  // True when the contents are those that a dead or stopped predecessor of the same name left.
  bool adopted() const { return adopted_; }
  // The memory ends with this object even if keep_on_close was set.
  virtual void DoNotKeep() {}
  // Asks the kernel to back the next `length` bytes from `offset` with huge pages; may take seconds per GiB.
  // kUnsupported where the kernel cannot. Safe while the memory is in use.
  virtual Status CollapseToHugePages(size_t offset, size_t length) = 0;

 protected:
  std::span<std::byte> bytes_;
  bool adopted_ = false;
};

struct AllocOptions {
  // If not empty, the memory survives this process, and a later Device of the same node id and fabric finds it again
  // under this name ([a-z0-9_-]{1,32}). The length must match, or kInvalidArgument.
  std::string name;
  bool keep_on_close = false;  // named memory survives even a clean close
};

enum class PeerState : uint8_t {
  kAlive,
  kDead,         // confirmed: the kernel reported its process gone, or it closed. Nothing it posted can still execute.
  kUnreachable,  // cannot be told from slow; never treat as dead
};

// How long a thread that polls, and has others' deadlines to keep, waits for the fabric's answer to one question unless
// it is given longer.
inline constexpr int64_t kPollingAskNs = 100'000'000;

class Device : public OfOneProcess {
 public:
  virtual const Caps& caps() const = 0;
  virtual const DeviceAddress& address() const = 0;

  virtual Result<std::unique_ptr<Pd>> CreatePd() = 0;
  virtual Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) = 0;
  virtual Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) = 0;
  // Returns what other node ids of the fabric have, or have left, on this host in memory of this name: the first
  // `bytes` of each. None where memory ends with its process.
  virtual Result<std::vector<FoundMemory>> FindMemory(const std::string& /*name*/, size_t /*bytes*/) {
    return std::vector<FoundMemory>();
  }
  virtual Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) = 0;
  // Asks the kernel or fabric, may make a system call. kUnreachable also when there is no answer before the deadline.
  virtual PeerState QueryPeer(const DeviceAddress& address, Deadline deadline = {}) = 0;
  // The same by the incarnation alone, where the fabric keeps a list of its devices, no two of which share one.
  // Otherwise kUnreachable.
  virtual PeerState QueryIncarnation(uint32_t incarnation, Deadline deadline = {}) = 0;

  // kUnavailable: newcomers do not find this device's fabric by its name, or do not find all that this device has
  // there, because somebody has removed files of it; the message says which. Makes system calls.
  virtual Status CheckName() { return {}; }

  // All 0 without Caps::software_dc.
  virtual SoftwareDcStats DcStats() const { return {}; }

  // Returns memory that all devices of this host and fabric share, zeroed when the fabric is made; 64-byte aligned. A
  // process that writes it may be killed in the middle. Empty: the provider has none.
  virtual std::span<std::byte> HostMemory() { return {}; }

  // Small records that every device of the fabric can read before it is connected to anything (on sw in the fabric's
  // control segment; on verbs over TCP). Names [a-z0-9_-]{1,15}, values up to 112 bytes. A record goes when the device
  // that published it closes or dies; until then only that device may replace it (kExists). kTimeout, kUnavailable: no
  // answer; it may have been published.
  virtual Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline = {}) = 0;
  // kNotFound: there is none. kTimeout, kUnavailable: no answer.
  virtual Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline = {}) = 0;

  // As Node::ReadRecord and Node::CompareAndSetRecord: records of the fabric itself, which no device owns.
  virtual Result<FabricRecord> ReadRecord(const std::string& name, Deadline deadline = {});
  virtual Status CompareAndSetRecord(const std::string& name, uint64_t expected, std::span<const std::byte> value,
                                     Deadline deadline = {});
};

// ---- opening

struct DeviceOptions {
  std::string provider = "sw";
  // sw: the fabric's name ([A-Za-z0-9_-]{1,40}), shared by processes of one user on one host. A name that starts with
  // "inproc:" is private to this process: nothing appears in the file system. sim: the name of a World of this process.
  std::string fabric;
  NodeId node = kNoNode;       // kNoNode: the fabric assigns one from kFirstDynamicNode up
  bool create_fabric = false;  // otherwise a missing fabric is kNotFound
  // verbs: address of the fabric's membership service, "host", "host:port" or "[host]:port". The process that creates
  // the fabric becomes the service, if the address is this host's and not in use. It must stay: without it no device
  // joins and no death is known.
  std::string address{};
  // verbs: the NIC, "device[:port[:gid_index[:mtu]]]". Parts that are left out are chosen: the first active port, and
  // its GID of RoCE v2 and IPv4 before others.
  std::string port{};
  // The clock for the deadlines of questions; null: RealClock. sim: always its World's.
  Clock* clock = nullptr;
  // For opening. verbs: at most twenty seconds in any case for the membership service, which need not answer.
  Deadline deadline{};
};

// kNotFound: no such fabric. kExists: a living device has the node id. kUnsupported: provider unknown to this build
// (the message lists the known ones). kInvalidArgument: malformed name, or an address or port that the provider cannot
// use. kUnavailable: no such NIC, or no active port; the message lists the existing ones. kTimeout, kUnavailable: the
// membership service does not answer.
Result<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options);

// Opens the NIC that OpenDevice would choose, and closes it again; joins no fabric. kUnavailable, kInvalidArgument: as
// OpenDevice. kUnsupported: provider unknown, or it has no NICs to choose from.
Status TryNic(const DeviceOptions& options);

std::vector<std::string> ProviderNames();

// Returns the names of this user's existing fabrics in alphabetical order, also of those without a living device. Empty
// where the provider keeps no list. kUnsupported: provider unknown.
Result<std::vector<std::string>> ListFabrics(const std::string& provider);

// Returns the processes that have a device on a fabric of this name whose files were removed, so that nobody else finds
// it. Empty where fabrics have no files. kUnsupported: provider unknown.
Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& provider, const std::string& fabric);

struct CleanReport {
  std::vector<std::string> removed;  // names of fabrics that had no living device
};
// Removes the shared memory of this user's fabrics without a living device: of all, or of the named one. Fabrics whose
// memory was to be kept (AllocOptions::keep_on_close) stay unless `also_kept`.
Result<CleanReport> CleanStaleFabrics(const std::string& provider, const std::string& fabric, bool also_kept);

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_H_
