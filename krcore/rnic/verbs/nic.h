// A NIC as opened by this process: libibverbs' values and ours, its port, its events, and the handles of its peers.
#ifndef KRCORE_RNIC_VERBS_NIC_H_
#define KRCORE_RNIC_VERBS_NIC_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/rnic.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/status.h"

namespace krcore::rnic::verbs {

// The only place that converts between libibverbs' values and ours.

WcStatus FromWcStatus(ibv_wc_status status);
// Fills in what a receive's completion tells: status, opcode, length, immediate.
void FillReceived(const ibv_wc& wc, Completion* completion);
ibv_wr_opcode ToWrOpcode(Opcode opcode);
unsigned int ToAccessFlags(uint32_t access_rights);
unsigned int ToSendFlags(uint8_t flags);

inline constexpr uint32_t kPsnMask = 0xff'ffff;  // sequence numbers have 24 bits

// What carries out DC. Queues of one kind do not reach those of another.
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
  uint8_t read_depth = 0;  // READs and atomics that its queues execute at the same time for one peer
  DcKind dc = DcKind::kSoftware;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(PortAddress) == sizeof(DeviceAddress::bytes));
PortAddress PortOf(const DeviceAddress& address);

// `what`: what the call was to do. libibverbs' calls return the errno or leave it in errno.
Status FailedCall(int error, const std::string& what);

// The port and the NIC that a Device is.

// "device[:port[:gid_index[:mtu]]]"; parts that are left out are chosen.
struct PortChoice {
  std::string device;           // empty: any
  std::optional<uint8_t> port;  // from 1
  std::optional<uint8_t> gid_index;
  std::optional<ibv_mtu> mtu;
};
Result<PortChoice> ParsePortChoice(const std::string& text);

struct ContextDeleter {
  void operator()(ibv_context* context) const { ibv.close_device(context); }
};
using ContextPtr = std::unique_ptr<ibv_context, ContextDeleter>;

struct Port {
  ContextPtr context;
  std::string name;  // "rxe0:1"
  uint8_t number = 0;
  uint8_t gid_index = 0;
  ibv_gid gid{};
  ibv_port_attr attr{};  // active_mtu: the one in use
  ibv_device_attr device{};
};
// Opens the first active port that fits (libibverbs must be loaded), with a routable GID (RoCE v2 before others, IPv4
// before IPv6 before link-local) and an MTU. kUnavailable: there is none; the message lists the existing devices with
// the states and MTUs of their ports.
Result<Port> OpenPort(const PortChoice& choice);

// What the NIC reports of a queue besides its completions. A queue that uses it passes its own to libibverbs as
// context.
struct QueueEvents {
  // Release and acquire: set by the context's thread. It is a hint to ask the NIC, because it may come late.
  std::atomic<bool> fatal{false};
};

// A NIC as opened by this process: the port, its asynchronous events, and what forked children must not keep.
class Context {
 public:
  // Opens the NIC (libibverbs must be loaded); its descriptor, or a duplicate of it, gets above `floor` (member.h).
  static Result<std::unique_ptr<Context>> Open(const PortChoice& choice, int floor);
  ~Context();

  ibv_context* get() const { return port_.context.get(); }
  const Port& port() const { return port_; }
  PortAddress address() const;
  // The highest descriptor that keeps the NIC's context open.
  int highest_descriptor() const;
  bool port_active() const { return port_active_.load(std::memory_order_relaxed); }  // as of the latest event

 private:
  Context(Port port, Socket stop, int duplicate);
  void Run();
  void Handle(const ibv_async_event& event);

  Port port_;
  const uint32_t generation_ = ForkGeneration();
  const Socket stop_;
  const int duplicate_;                  // of the NIC's descriptor; -1: none
  std::atomic<bool> port_active_{true};  // relaxed: a hint
  std::thread thread_;
};

inline constexpr uint32_t kMaxPds = 64;    // of a device
inline constexpr size_t kMaxPorts = 4096;  // of peers

// One peer's port.
struct PortHandles {
  ibv_ah_attr attr{};
  // By the PD's index. Release and acquire: a thread that finds a handle posts with it.
  std::array<std::atomic<ibv_ah*>, kMaxPds> of_pd{};
  uint64_t asked = 0;  // when it was last asked for, in calls of AddressHandles
};

// Address handles. A handle of libibverbs belongs to a PD, and making it may have to ask the network for the peer's
// MAC; one of ours serves all PDs of the device. So libibverbs' handles are made once for each (peer's port, PD), and
// kept. Unused ports are kept while there is room; then the one that was asked for least recently is dropped.
// Thread safety: all methods may be called from any thread. A thread that waits for the network keeps nobody waiting,
// except a thread that removes the PD for which it makes a handle.
class AddressHandles {
 public:
  // Returns handles for all existing PDs. kUnavailable: the network does not know the peer's address. kOutOfMemory: too
  // many ports are in use.
  Result<std::shared_ptr<PortHandles>> Get(const Context& context, const PortAddress& address);
  // Makes one for a PD that is younger than the handle; returns null if it cannot be made.
  ibv_ah* Make(PortHandles& handles, uint32_t pd_index);

  Result<uint32_t> AddPd(ibv_pd* pd);
  void RemovePd(uint32_t index);

 private:
  struct Slot {
    ibv_pd* pd = nullptr;
    uint32_t makers = 0;  // threads that are making a handle in it without the mutex
  };
  using Ports = std::map<std::array<uint8_t, 18>, std::shared_ptr<PortHandles>>;
  Result<std::shared_ptr<PortHandles>> Enter(const Context& context, const PortAddress& address);
  bool DropUnused();
  // Releases the mutex while libibverbs makes the handle.
  ibv_ah* Make(std::unique_lock<std::mutex>& lock, PortHandles& handles, uint32_t pd_index);

  std::mutex mutex_;
  std::condition_variable made_;
  std::array<Slot, kMaxPds> pds_{};
  uint64_t asked_ = 0;
  Ports ports_;  // by GID and LID
};

class VerbsAddressHandle final : public AddressHandle {
 public:
  VerbsAddressHandle(AddressHandles* all, std::shared_ptr<PortHandles> handles)
      : all_(all), handles_(std::move(handles)) {}
  const std::shared_ptr<PortHandles>& handles() const { return handles_; }
  // May wait for the network if the PD is younger than the handle. Null: the network does not know the peer's address.
  ibv_ah* For(uint32_t pd_index) const {
    ibv_ah* const made = handles_->of_pd[pd_index].load(std::memory_order_acquire);
    return made != nullptr ? made : all_->Make(*handles_, pd_index);
  }

 private:
  AddressHandles* const all_;
  const std::shared_ptr<PortHandles> handles_;
};

// Returns how `context`'s port reaches another one.
ibv_ah_attr PathTo(const Context& context, const PortAddress& address);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_NIC_H_
