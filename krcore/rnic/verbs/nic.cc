#include "krcore/rnic/verbs/nic.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/resources.h"
#include "krcore/rnic/verbs/library.h"

namespace krcore::rnic::verbs {

WcStatus FromWcStatus(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS: return WcStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR: return WcStatus::kLocalLengthError;
    case IBV_WC_LOC_QP_OP_ERR: return WcStatus::kLocalQpError;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return WcStatus::kLocalProtectionError;
    case IBV_WC_WR_FLUSH_ERR: return WcStatus::kFlushed;
    case IBV_WC_REM_INV_REQ_ERR: return WcStatus::kRemoteInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR: return WcStatus::kRemoteAccessError;
    case IBV_WC_REM_OP_ERR: return WcStatus::kRemoteOperationError;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return WcStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR: return WcStatus::kRnrRetryExceeded;
    default: return WcStatus::kGeneralError;
  }
}

void FillReceived(const ibv_wc& wc, Completion* completion) {
  completion->status = FromWcStatus(wc.status);
  completion->opcode = Opcode::kRecv;
  if (wc.status != IBV_WC_SUCCESS) return;
  if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) completion->opcode = Opcode::kRecvWithImm;
  completion->byte_len = wc.byte_len;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
    completion->flags |= kWithImm;
    completion->imm = ntohl(wc.imm_data);
  }
}

ibv_wr_opcode ToWrOpcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead: return IBV_WR_RDMA_READ;
    case Opcode::kWrite: return IBV_WR_RDMA_WRITE;
    case Opcode::kWriteImm: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kSend: return IBV_WR_SEND;
    case Opcode::kSendImm: return IBV_WR_SEND_WITH_IMM;
    case Opcode::kCompareSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Opcode::kFetchAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Opcode::kRecv:
    case Opcode::kRecvWithImm: break;  // never posted
  }
  return IBV_WR_SEND;
}

unsigned int ToAccessFlags(uint32_t access_rights) {
  unsigned int flags = 0;
  if ((access_rights & kLocalWrite) != 0) flags |= IBV_ACCESS_LOCAL_WRITE;
  if ((access_rights & kRemoteRead) != 0) flags |= IBV_ACCESS_REMOTE_READ;
  if ((access_rights & kRemoteWrite) != 0) flags |= IBV_ACCESS_REMOTE_WRITE;
  if ((access_rights & kRemoteAtomic) != 0) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

unsigned int ToSendFlags(uint8_t flags) {
  unsigned int converted = 0;
  if ((flags & kSignaled) != 0) converted |= IBV_SEND_SIGNALED;
  if ((flags & kFence) != 0) converted |= IBV_SEND_FENCE;
  if ((flags & kInline) != 0) converted |= IBV_SEND_INLINE;
  if ((flags & kSolicited) != 0) converted |= IBV_SEND_SOLICITED;
  return converted;
}

const char* DcKindName(DcKind kind) {
  switch (kind) {
    case DcKind::kSoftware: return "DC in software";
    case DcKind::kMlx5V1: return "DC of Connect-IB and ConnectX-4";
    case DcKind::kMlx5V2: return "DC of ConnectX-5 and newer";
  }
  return "DC of a kind that is not known here";
}

PortAddress PortOf(const DeviceAddress& address) {
  PortAddress port;
  std::memcpy(&port, address.bytes, sizeof(port));
  return port;
}

Status FailedCall(int error, const std::string& what) {
  const Status status = Status::FromErrno(error != 0 ? error : EIO, "cannot " + what);
  // Memory that a NIC reads and writes is locked.
  return error == ENOMEM ? Status(status.code(), std::string(status.message()) + LimitOfLockedMemory()) : status;
}

// ---- port

namespace {

struct DeviceListDeleter {
  void operator()(ibv_device** list) const { ibv.free_device_list(list); }
};

bool ParseByte(const std::string& text, uint8_t* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end && !text.empty();
}

int GidScore(const ibv_gid_entry& entry) {
  static constexpr std::array<uint8_t, 12> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool ipv4 = std::memcmp(entry.gid.raw, kIpv4Prefix.data(), kIpv4Prefix.size()) == 0;
  const bool link_local = entry.gid.raw[0] == 0xfe && (entry.gid.raw[1] & 0xc0) == 0x80;
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0) + (ipv4 ? 2 : link_local ? 0 : 1);
}

int Bytes(ibv_mtu mtu) { return 128 << mtu; }  // IBV_MTU_256 is 1

bool ParseMtu(const std::string& text, std::optional<ibv_mtu>* mtu) {
  for (const ibv_mtu known : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (text == std::to_string(Bytes(known))) *mtu = known;
  }
  return mtu->has_value();
}

// As the function of this name in verbs.h, which is inline and calls libibverbs by name. Returns 0 or an errno.
int QueryPort(ibv_context* context, uint8_t number, ibv_port_attr* attr) {
  const verbs_context* const extended = verbs_get_ctx(context);
  // It grows at its beginning, and a driver's may be shorter.
  const bool has_it = extended != nullptr && extended->sz >= sizeof(*extended) - offsetof(verbs_context, query_port) &&
                      extended->query_port != nullptr;
  if (has_it) return extended->query_port(context, number, attr, sizeof(*attr));
  *attr = {};
  return ibv.query_port(context, number, reinterpret_cast<_compat_ibv_port_attr*>(attr));
}

// Returns false if no GID fits.
bool ChooseGid(ibv_context* context, const PortChoice& choice, Port* port) {
  int best = -1;
  for (int index = 0; index < std::min(port->attr.gid_tbl_len, 256); ++index) {
    if (choice.gid_index && *choice.gid_index != index) continue;
    ibv_gid_entry entry{};
    const auto of_table = static_cast<uint32_t>(index);
    if (ibv.query_gid_ex(context, port->number, of_table, &entry, 0, sizeof(entry)) != 0) continue;
    if (GidScore(entry) <= best) continue;
    best = GidScore(entry);
    port->gid_index = static_cast<uint8_t>(index);
    port->gid = entry.gid;
  }
  return best >= 0;
}

}  // namespace

Result<PortChoice> ParsePortChoice(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  PortChoice choice{parts[0], {}, {}, {}};
  uint8_t value = 0;
  bool valid = parts.size() <= 4 && (parts.size() == 1 || !parts[0].empty());
  if (valid && parts.size() > 1 && (valid = ParseByte(parts[1], &value) && value > 0)) choice.port = value;
  if (valid && parts.size() > 2 && (valid = ParseByte(parts[2], &value))) choice.gid_index = value;
  if (valid && parts.size() > 3) valid = ParseMtu(parts[3], &choice.mtu);
  if (valid) return choice;
  return Status(StatusCode::kInvalidArgument,
                "'" + text +
                    "' names no port of an RDMA device: say device, device:port, device:port:gid_index or "
                    "device:port:gid_index:mtu, such as rxe0:1:1 or rxe0:1:1:1024");
}

Result<Port> OpenPort(const PortChoice& choice) {
  int count = 0;
  const std::unique_ptr<ibv_device*, DeviceListDeleter> list(ibv.get_device_list(&count));
  std::string seen;
  for (int i = 0; list != nullptr && i < count; ++i) {
    ibv_device* const device = list.get()[i];
    const std::string name = ibv.get_device_name(device);
    Port port;
    port.context.reset(ibv.open_device(device));
    if (port.context == nullptr || ibv.query_device(port.context.get(), &port.device) != 0) {
      seen += "\n  " + name + ": cannot be opened: " + std::strerror(errno);
      continue;
    }
    for (unsigned int number = 1; number <= port.device.phys_port_cnt; ++number) {
      port.number = static_cast<uint8_t>(number);
      port.name = name + ":" + std::to_string(number);
      if (QueryPort(port.context.get(), port.number, &port.attr) != 0) continue;
      const bool wanted = (choice.device.empty() || choice.device == name) && choice.port.value_or(number) == number;
      const bool active = port.attr.state == IBV_PORT_ACTIVE;
      const bool fits = choice.mtu.value_or(port.attr.active_mtu) <= port.attr.active_mtu;
      if (wanted && active && fits && ChooseGid(port.context.get(), choice, &port)) {
        port.attr.active_mtu = choice.mtu.value_or(port.attr.active_mtu);
        return port;
      }
      seen += "\n  " + port.name + ": " + ibv.port_state_str(port.attr.state) + ", MTU " +
              std::to_string(Bytes(port.attr.active_mtu)) + (wanted && active && fits ? ", no such GID" : "");
    }
  }
  const std::string what = choice.device.empty() ? "no RDMA device with an active port"
                           : choice.port ? "no active port " + choice.device + ":" + std::to_string(*choice.port)
                                         : "no RDMA device " + choice.device + " with an active port";
  const std::string mtu = choice.mtu ? " of MTU " + std::to_string(Bytes(*choice.mtu)) + " or more" : "";
  return Status(StatusCode::kUnavailable,
                what + mtu + (seen.empty() ? "; this machine has no RDMA device" : "; it has:" + seen));
}

// ---- context

namespace {

constexpr uint8_t kMaxReadDepth = 16;

// A forked child's copies of a NIC's mapped queues would keep the NIC's context after the parent's death. This reads
// /proc/self/maps without allocating: nothing else is safe between fork and exec.
void UnmapNics() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  static char text[8192];
  size_t held = 0;
  for (;;) {
    const ssize_t got = read(fd, text + held, sizeof(text) - 1 - held);
    if (got <= 0) break;
    held += static_cast<size_t>(got);
    text[held] = 0;
    char* line = text;
    for (char* end = nullptr; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = 0;
      if (std::strstr(line, " /dev/infiniband/uverbs") == nullptr) continue;
      char* rest = nullptr;
      const auto begin = static_cast<uintptr_t>(std::strtoull(line, &rest, 16));
      const auto after = static_cast<uintptr_t>(std::strtoull(rest + 1, nullptr, 16));
      munmap(reinterpret_cast<void*>(begin), after - begin);
    }
    held = static_cast<size_t>(text + held - line);
    std::memmove(text, line, held);
    if (held == sizeof(text) - 1) held = 0;  // no line is that long
  }
  close(fd);
}

}  // namespace

Result<std::unique_ptr<Context>> Context::Open(const PortChoice& choice, int floor) {
  // Without this, a child, or the parent when it writes while there is a child, would take registered pages away from
  // the NIC. ibv_fork_init keeps these pages out of children, with whatever else lies on them. A kernel that copies
  // them for children (from 5.12 on) needs none of that, although libibverbs would do it there as well.
  if (ibv.is_fork_initialized() != IBV_FORK_UNNEEDED) {
    if (const int error = ibv.fork_init(); error != 0) return FailedCall(error, "prepare libibverbs for fork");
  }
  RunInForkedChildren(UnmapNics);
  auto stop = NewEvent();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<Context> context;
  {
    // A child that is forked between open and guard would keep the context, and what is posted on it later.
    ForksHeld forks;
    HoldStandard();
    auto port = OpenPort(choice);
    if (!port.ok()) return port.status();
    int duplicate = -1;
    if (port->context->cmd_fd <= floor) {
      duplicate = fcntl(port->context->cmd_fd, F_DUPFD_CLOEXEC, floor + 1);
      if (duplicate < 0) return Status::FromErrno(errno, "cannot duplicate the NIC's descriptor");
      forks.Guard(duplicate);
    }
    for (const int fd : {port->context->cmd_fd, port->context->async_fd}) forks.Guard(fd);
    context.reset(new Context(*std::move(port), *std::move(stop), duplicate));
  }
  auto thread = StartThread("events of the NIC", [self = context.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  context->thread_ = *std::move(thread);
  return context;
}

Context::Context(Port port, Socket stop, int duplicate)
    : port_(std::move(port)), stop_(std::move(stop)), duplicate_(duplicate) {
  const int events = get()->async_fd;
  fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);
}

Context::~Context() {
  SetEvent(stop_);
  if (thread_.joinable()) thread_.join();
  if (duplicate_ >= 0) UnguardAndClose(duplicate_, generation_);
  ForksHeld forks;
  for (const int fd : {get()->cmd_fd, get()->async_fd}) forks.Unguard(fd);
  port_.context.reset();
}

PortAddress Context::address() const {
  PortAddress address;
  std::memcpy(address.gid, port_.gid.raw, sizeof(address.gid));
  address.lid = port_.attr.lid;
  address.mtu = static_cast<uint8_t>(port_.attr.active_mtu);
  const int depth = std::min(port_.device.max_qp_rd_atom, port_.device.max_qp_init_rd_atom);
  address.read_depth = static_cast<uint8_t>(std::clamp<int>(depth, 1, kMaxReadDepth));
  return address;
}

int Context::highest_descriptor() const { return std::max(get()->cmd_fd, duplicate_); }

void Context::Run() {
  for (;;) {
    pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {get()->async_fd, POLLIN, 0}};
    poll(polled, std::size(polled), -1);
    if (polled[0].revents != 0) return;
    // The device was removed from the system: no event will come, so do not wait for one.
    if ((polled[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      port_active_ = false;
      poll(polled, 1, -1);
      return;
    }
    ibv_async_event event{};
    while (ibv.get_async_event(get(), &event) == 0) {
      Handle(event);
      ibv.ack_async_event(&event);  // a queue can be destroyed only after its events were acknowledged
    }
  }
}

void Context::Handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      // Null: a queue whose owner looks only at its completions.
      if (auto* const owner = static_cast<QueueEvents*>(event.element.qp->qp_context); owner != nullptr)
        owner->fatal.store(true, std::memory_order_release);
      break;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == port_.number) port_active_ = true;
      break;
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == port_.number) port_active_ = false;
      break;
    case IBV_EVENT_DEVICE_FATAL: port_active_ = false; break;
    default: break;
  }
}

// ---- address handles

namespace {

constexpr uint8_t kHopLimit = 64;

}  // namespace

ibv_ah_attr PathTo(const Context& context, const PortAddress& address) {
  ibv_ah_attr attr{};
  attr.is_global = 1;
  std::memcpy(attr.grh.dgid.raw, address.gid, sizeof(attr.grh.dgid.raw));
  attr.grh.sgid_index = context.port().gid_index;
  attr.grh.hop_limit = kHopLimit;
  attr.dlid = address.lid;
  attr.port_num = context.port().number;
  return attr;
}

// The mutex is held. Handles that are made for the port stay in the list, whatever happens to the rest.
Result<std::shared_ptr<PortHandles>> AddressHandles::Enter(const Context& context, const PortAddress& address) {
  std::array<uint8_t, 18> key{};
  std::copy(std::begin(address.gid), std::end(address.gid), key.begin());
  std::memcpy(key.data() + sizeof(address.gid), &address.lid, sizeof(address.lid));
  auto found = ports_.find(key);
  if (found == ports_.end()) {
    if (ports_.size() >= kMaxPorts && !DropUnused())
      return Status(StatusCode::kOutOfMemory, "more than " + std::to_string(kMaxPorts) + " peers' ports are in use");
    auto handles = std::make_shared<PortHandles>();
    handles->attr = PathTo(context, address);
    found = ports_.emplace(key, std::move(handles)).first;
  }
  found->second->asked = ++asked_;
  return found->second;
}

bool AddressHandles::DropUnused() {
  auto oldest = ports_.end();
  for (auto port = ports_.begin(); port != ports_.end(); ++port) {
    // New references come only under the mutex, or from an existing one.
    if (port->second.use_count() > 1) continue;
    if (oldest == ports_.end() || port->second->asked < oldest->second->asked) oldest = port;
  }
  if (oldest == ports_.end()) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the release of the last reference
  for (auto& of_pd : oldest->second->of_pd) {
    if (ibv_ah* const made = of_pd.load(std::memory_order_relaxed); made != nullptr) ibv.destroy_ah(made);
  }
  ports_.erase(oldest);
  return true;
}

Result<std::shared_ptr<PortHandles>> AddressHandles::Get(const Context& context, const PortAddress& address) {
  std::unique_lock lock(mutex_);
  auto entered = Enter(context, address);
  if (!entered.ok()) return entered;
  for (uint32_t index = 0; index < kMaxPds; ++index) {
    if (pds_[index].pd == nullptr || Make(lock, **entered, index) != nullptr) continue;
    return Status(StatusCode::kUnavailable,
                  std::string(Status::FromErrno(errno, "cannot make an address handle for the peer").message()));
  }
  return entered;
}

ibv_ah* AddressHandles::Make(PortHandles& handles, uint32_t pd_index) {
  std::unique_lock lock(mutex_);
  return Make(lock, handles, pd_index);
}

ibv_ah* AddressHandles::Make(std::unique_lock<std::mutex>& lock, PortHandles& handles, uint32_t pd_index) {
  std::atomic<ibv_ah*>& of_pd = handles.of_pd[pd_index];
  if (ibv_ah* const made = of_pd.load(std::memory_order_relaxed); made != nullptr) return made;
  Slot& slot = pds_[pd_index];
  ++slot.makers;
  lock.unlock();
  ibv_ah_attr attr = handles.attr;
  ibv_ah* made = ibv.create_ah(slot.pd, &attr);
  const int error = errno;
  lock.lock();
  if (ibv_ah* const others = of_pd.load(std::memory_order_relaxed); others != nullptr) {
    if (made != nullptr) ibv.destroy_ah(made);
    made = others;
  }
  of_pd.store(made, std::memory_order_release);
  if (--slot.makers == 0) made_.notify_all();
  errno = error;
  return made;
}

Result<uint32_t> AddressHandles::AddPd(ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  const auto free = std::find_if(pds_.begin(), pds_.end(), [](const Slot& slot) { return slot.pd == nullptr; });
  if (free == pds_.end())
    return Status(StatusCode::kOutOfMemory, "a device has at most " + std::to_string(kMaxPds) + " PDs");
  free->pd = pd;
  return static_cast<uint32_t>(free - pds_.begin());
}

void AddressHandles::RemovePd(uint32_t index) {
  std::unique_lock lock(mutex_);
  // Takes as long as the kernel waits for the network, some seconds.
  made_.wait(lock, [&] { return pds_[index].makers == 0; });
  for (const auto& [key, handles] : ports_) {
    ibv_ah* const made = handles->of_pd[index].exchange(nullptr, std::memory_order_relaxed);
    if (made != nullptr) ibv.destroy_ah(made);
  }
  pds_[index].pd = nullptr;
}

}  // namespace krcore::rnic::verbs
