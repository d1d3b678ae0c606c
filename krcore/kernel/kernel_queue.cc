#include "krcore/kernel/kernel_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/types.h"

namespace krcore::kernel {
namespace {

static_assert(sizeof(krc_query) == 16 && sizeof(krc_attach) == 92 && sizeof(krc_connect_device) == 16);
static_assert(sizeof(krc_join) == 72 && sizeof(krc_new_queue) == 16);
static_assert(sizeof(krc_shared_region) == 32 && sizeof(krc_publish) == 168);
static_assert(sizeof(krc_start) == 384 && offsetof(krc_start, attach) == 12 && offsetof(krc_start, join) == 104 &&
              offsetof(krc_start, connect) == 176);
static_assert(sizeof(krc_connect) == 208 && sizeof(krc_service) == 136 && sizeof(krc_peer_state) == 16);
static_assert(sizeof(krc_reg_mr) == 24 && sizeof(krc_dereg_mr) == 4 && sizeof(krc_push) == 16);
static_assert(sizeof(krc_bind) == 24 && sizeof(krc_receive) == 24 && sizeof(krc_push_recv) == 16);
static_assert(sizeof(krc_message) == 32 && sizeof(krc_pop_msgs) == 16 && sizeof(krc_credits) == 8);
static_assert(sizeof(krc_sge) == 16 && sizeof(krc_request) == 104 && offsetof(krc_request, sges) == 40);
static_assert(sizeof(krc_ring_header) == 128 && offsetof(krc_ring_header, tail) == 64 && sizeof(krc_completion) == 16);

// The module's numbers equal krcore's.
template <typename Ours>
constexpr bool Same(int theirs, Ours ours) {
  return theirs == static_cast<int>(ours);
}
static_assert(Same(KRC_LOCAL_WRITE, kLocalWrite) && Same(KRC_REMOTE_READ, kRemoteRead) &&
              Same(KRC_REMOTE_WRITE, kRemoteWrite) && Same(KRC_REMOTE_ATOMIC, kRemoteAtomic));
static_assert(Same(KRC_OP_READ, Opcode::kRead) && Same(KRC_OP_WRITE, Opcode::kWrite) &&
              Same(KRC_OP_WRITE_IMM, Opcode::kWriteImm) && Same(KRC_OP_SEND, Opcode::kSend) &&
              Same(KRC_OP_SEND_IMM, Opcode::kSendImm) && Same(KRC_OP_COMPARE_SWAP, Opcode::kCompareSwap) &&
              Same(KRC_OP_FETCH_ADD, Opcode::kFetchAdd));
static_assert(Same(KRC_SIGNALED, kSignaled) && Same(KRC_FENCE, kFence) && Same(KRC_INLINE, kInline) &&
              Same(KRC_SOLICITED, kSolicited));
static_assert(Same(KRC_SUCCESS, WcStatus::kSuccess) && Same(KRC_LOCAL_LENGTH_ERROR, WcStatus::kLocalLengthError) &&
              Same(KRC_LOCAL_QP_ERROR, WcStatus::kLocalQpError) &&
              Same(KRC_LOCAL_PROTECTION_ERROR, WcStatus::kLocalProtectionError) &&
              Same(KRC_FLUSHED, WcStatus::kFlushed) &&
              Same(KRC_REMOTE_INVALID_REQUEST, WcStatus::kRemoteInvalidRequest) &&
              Same(KRC_REMOTE_ACCESS_ERROR, WcStatus::kRemoteAccessError) &&
              Same(KRC_REMOTE_OPERATION_ERROR, WcStatus::kRemoteOperationError) &&
              Same(KRC_RETRY_EXCEEDED, WcStatus::kRetryExceeded) &&
              Same(KRC_RNR_RETRY_EXCEEDED, WcStatus::kRnrRetryExceeded) &&
              Same(KRC_GENERAL_ERROR, WcStatus::kGeneralError));

// Returns 0, or the errno.
int Call(int fd, unsigned long request, void* argument) {
  int result;
  do {
    result = ioctl(fd, request, argument);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// Translates the errors of krcore_ioctl.h.
StatusCode CodeOf(int error) {
  switch (error) {
    case 0: return StatusCode::kOk;
    case ENOENT: return StatusCode::kNotFound;
    case EEXIST: return StatusCode::kExists;
    case ENOTTY:
    case EOPNOTSUPP: return StatusCode::kUnsupported;
    case EPERM:
    case EACCES: return StatusCode::kPermissionDenied;
    case ENODEV:
    case ENETDOWN:
    case EIO:
    case EHOSTUNREACH: return StatusCode::kUnavailable;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC: return StatusCode::kOutOfMemory;
    case EAGAIN:
    case EBUSY: return StatusCode::kQueueFull;  // requests are outstanding
    case EBADFD:
    case ENOTCONN:
    case ECONNRESET:
    case EPIPE: return StatusCode::kBadState;
    case ETIMEDOUT: return StatusCode::kTimeout;
    case EINVAL:
    case EFAULT:
    case EMSGSIZE:
    case E2BIG: return StatusCode::kInvalidArgument;
    default: return StatusCode::kInternal;
  }
}

Status Outcome(int error, const char* what) {
  if (error == 0) return {};
  Status status(CodeOf(error), std::string(what) + ": " + std::strerror(error));
  errno = error;
  return status;
}

// Copies a name into a field of the module's that has room for a terminating 0.
template <size_t kBytes>
bool CopyName(std::string_view name, uint8_t (&field)[kBytes]) {
  if (name.empty() || name.size() >= kBytes) return false;
  std::memcpy(field, name.data(), name.size());
  return true;
}

}  // namespace

KernelQueue::~KernelQueue() {
  if (krc_ring_header* const ring = ring_.load(std::memory_order_relaxed)) munmap(ring, ring_bytes_);
  if (fd_ >= 0) close(fd_);
}

Status KernelQueue::OpenFile(const std::string& path) {
  fd_ = AboveStandard(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return fd_ < 0 ? Outcome(errno, path.c_str()) : Status();
}

Status KernelQueue::CheckVersion(const std::string& path) {
  Result<krc_query> query = Query();
  if (query.ok() && query->abi_version == KRC_ABI_VERSION) {
    max_message_bytes_ = query->max_message_bytes;
    return {};
  }
  close(std::exchange(fd_, -1));
  if (!query.ok()) return query.status();
  return Status(StatusCode::kUnsupported, path + ": its interface has version " + std::to_string(query->abi_version) +
                                              ", not " + std::to_string(KRC_ABI_VERSION));
}

void KernelQueue::Keep(const krc_attach& attach) {
  std::memcpy(gid_.bytes, attach.gid, sizeof(gid_.bytes));
  ring_bytes_ = attach.ring_bytes;
  ring_mask_ = attach.ring_entries - 1;
}

void KernelQueue::Keep(const krc_join& join) {
  node_ = join.node;
  incarnation_ = join.incarnation;
}

Status KernelQueue::Open(const std::string& path) {
  KRCORE_RETURN_IF_ERROR(OpenFile(path));
  return CheckVersion(path);
}

Result<krc_connect> KernelQueue::Start(const std::string& device, uint32_t depth, const std::string& fabric,
                                       NodeId node, NodeId peer, krc_start_step* done) {
  if (done != nullptr) *done = KRC_NOT_STARTED;
  krc_start start = {};
  start.abi_version = KRC_ABI_VERSION;
  if (device.size() >= sizeof(start.attach.device)) return Outcome(ENODEV, "a device's name is too long");
  std::memcpy(start.attach.device, device.data(), device.size());
  start.attach.depth = depth;
  if (!CopyName(fabric, start.join.fabric)) return Outcome(EINVAL, "a fabric's name is empty or too long");
  start.join.node = node;
  start.connect.node = peer;
  KRCORE_RETURN_IF_ERROR(OpenFile(KRC_DEVICE_PATH));
  const int error = Call(fd_, KRC_IOC_START, &start);
  if (error == ENOTTY) KRCORE_RETURN_IF_ERROR(CheckVersion(KRC_DEVICE_PATH));
  max_message_bytes_ = start.max_message_bytes;
  if (start.done >= KRC_ATTACHED) Keep(start.attach);
  if (start.done >= KRC_JOINED) Keep(start.join);
  if (done != nullptr) *done = static_cast<krc_start_step>(start.done);
  if (error != 0) return Outcome(error, "KRC_IOC_START");
  return start.connect;
}

Status KernelQueue::OpenLike(const KernelQueue& of, uint32_t depth) {
  krc_new_queue made = {depth, -1, 0, 0};
  if (const int error = Call(of.fd_, KRC_IOC_NEW_QUEUE, &made); error != 0) return Outcome(error, "KRC_IOC_NEW_QUEUE");
  if ((fd_ = AboveStandard(made.file)) < 0) return Outcome(errno, "a queue's descriptor");
  ring_bytes_ = made.ring_bytes;
  ring_mask_ = made.ring_entries - 1;
  max_message_bytes_ = of.max_message_bytes_;
  gid_ = of.gid_;
  node_ = of.node_;
  incarnation_ = of.incarnation_;
  return {};
}

Result<krc_query> KernelQueue::Query() {
  krc_query query = {};
  if (const int error = Call(fd_, KRC_IOC_QUERY, &query); error != 0) return Outcome(error, "KRC_IOC_QUERY");
  return query;
}

Status KernelQueue::Attach(const std::string& device, uint32_t depth) {
  krc_attach attach = {};
  if (device.size() >= sizeof(attach.device)) return Outcome(ENODEV, "a device's name is too long");
  std::memcpy(attach.device, device.data(), device.size());
  attach.depth = depth;
  if (const int error = Call(fd_, KRC_IOC_ATTACH, &attach); error != 0) return Outcome(error, "KRC_IOC_ATTACH");
  Keep(attach);
  return {};
}

krc_ring_header* KernelQueue::ring() {
  krc_ring_header* ring = ring_.load(std::memory_order_relaxed);  // only this thread stores it
  if (ring != nullptr) return ring;
  if (ring_bytes_ == 0) {
    errno = EBADFD;
    return nullptr;
  }
  void* const mapped = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // A forked child may make no call on this file, so it does not inherit the mapping either.
  if (madvise(mapped, ring_bytes_, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(mapped, ring_bytes_);
    errno = error;
    return nullptr;
  }
  ring = static_cast<krc_ring_header*>(mapped);
  ring_.store(ring, std::memory_order_release);  // pairs with the acquire of Pop
  return ring;
}

Status KernelQueue::ConnectDevice(const Gid& peer) {
  krc_connect_device connect = {};
  std::memcpy(connect.gid, peer.bytes, sizeof(connect.gid));
  return Outcome(Call(fd_, KRC_IOC_CONNECT_DEVICE, &connect), "KRC_IOC_CONNECT_DEVICE");
}

Status KernelQueue::Join(const std::string& fabric, NodeId node) {
  krc_join join = {};
  if (!CopyName(fabric, join.fabric)) return Outcome(EINVAL, "a fabric's name is empty or too long");
  join.node = node;
  if (const int error = Call(fd_, KRC_IOC_JOIN, &join); error != 0) return Outcome(error, "KRC_IOC_JOIN");
  Keep(join);
  return {};
}

Status KernelQueue::Publish(std::span<const krc_shared_region> regions) {
  krc_publish publish = {};
  if (regions.size() > KRC_MAX_SHARED) return Outcome(EINVAL, "too many regions");
  publish.count = static_cast<uint32_t>(regions.size());
  std::copy(regions.begin(), regions.end(), publish.regions);
  return Outcome(Call(fd_, KRC_IOC_PUBLISH, &publish), "KRC_IOC_PUBLISH");
}

Result<krc_connect> KernelQueue::Connect(NodeId node, uint16_t port) {
  krc_connect connect = {};
  connect.node = node;
  connect.port = port;
  if (const int error = Call(fd_, KRC_IOC_CONNECT, &connect); error != 0) return Outcome(error, "KRC_IOC_CONNECT");
  return connect;
}

Status KernelQueue::SetService(std::string_view name, std::span<const std::byte> value) {
  krc_service service = {};
  if (!CopyName(name, service.name) || value.size() > sizeof(service.value))
    return Outcome(EINVAL, "a service's name or value is empty or too long");
  service.length = static_cast<uint32_t>(value.size());
  if (!value.empty()) std::memcpy(service.value, value.data(), value.size());
  return Outcome(Call(fd_, KRC_IOC_SET_SERVICE, &service), "KRC_IOC_SET_SERVICE");
}

Result<std::vector<std::byte>> KernelQueue::GetService(std::string_view name) {
  krc_service service = {};
  if (!CopyName(name, service.name)) return Outcome(EINVAL, "a service's name is empty or too long");
  if (const int error = Call(fd_, KRC_IOC_GET_SERVICE, &service); error != 0)
    return Outcome(error, "KRC_IOC_GET_SERVICE");
  const auto* const value = reinterpret_cast<const std::byte*>(service.value);
  return std::vector<std::byte>(value, value + service.length);
}

Result<bool> KernelQueue::IsDead(NodeId node, uint32_t incarnation) {
  krc_peer_state state = {node, incarnation, 0, 0};
  if (const int error = Call(fd_, KRC_IOC_PEER_STATE, &state); error != 0) return Outcome(error, "KRC_IOC_PEER_STATE");
  return state.dead != 0;
}

Result<krc_dc_target> KernelQueue::DcTarget() {
  krc_dc_target target = {};
  if (const int error = Call(fd_, KRC_IOC_DC_TARGET, &target); error != 0) return Outcome(error, "KRC_IOC_DC_TARGET");
  return target;
}

Result<uint32_t> KernelQueue::Register(void* addr, size_t length, uint32_t access) {
  krc_reg_mr reg = {};
  reg.addr = reinterpret_cast<uint64_t>(addr);
  reg.length = length;
  reg.access = access;
  if (const int error = Call(fd_, KRC_IOC_REG_MR, &reg); error != 0) return Outcome(error, "KRC_IOC_REG_MR");
  return reg.key;
}

Status KernelQueue::Deregister(uint32_t key) {
  krc_dereg_mr dereg = {key};
  return Outcome(Call(fd_, KRC_IOC_DEREG_MR, &dereg), "KRC_IOC_DEREG_MR");
}

Status KernelQueue::Push(std::span<const krc_request> requests, uint32_t* bad_index) {
  krc_push push = {};
  push.requests = reinterpret_cast<uint64_t>(requests.data());
  push.count = static_cast<uint32_t>(requests.size());
  if (ring_bytes_ != 0 && ring() == nullptr) {
    if (bad_index != nullptr) *bad_index = 0;
    return CodeOf(errno);
  }
  const int error = Call(fd_, KRC_IOC_PUSH, &push);
  if (bad_index != nullptr) *bad_index = push.bad_index;
  return CodeOf(error);
}

Result<uint16_t> KernelQueue::Bind(const krc_bind& options) {
  krc_bind bind = options;
  if (const int error = Call(fd_, KRC_IOC_BIND, &bind); error != 0) return Outcome(error, "KRC_IOC_BIND");
  return static_cast<uint16_t>(bind.port);
}

Status KernelQueue::PushRecv(std::span<const krc_receive> receives, uint32_t* bad_index) {
  krc_push_recv push = {};
  push.receives = reinterpret_cast<uint64_t>(receives.data());
  push.count = static_cast<uint32_t>(receives.size());
  const int error = Call(fd_, KRC_IOC_PUSH_RECV, &push);
  if (bad_index != nullptr) *bad_index = push.bad_index;
  return CodeOf(error);
}

Result<size_t> KernelQueue::PopMessages(std::span<krc_message> out) {
  krc_pop_msgs pop = {reinterpret_cast<uint64_t>(out.data()), static_cast<uint32_t>(out.size()), 0};
  if (const int error = Call(fd_, KRC_IOC_POP_MSGS, &pop); error != 0) return Outcome(error, "KRC_IOC_POP_MSGS");
  return size_t{pop.count};
}

Result<uint32_t> KernelQueue::Credits() {
  krc_credits credits = {};
  if (const int error = Call(fd_, KRC_IOC_CREDITS, &credits); error != 0) return Outcome(error, "KRC_IOC_CREDITS");
  return credits.credits;
}

size_t KernelQueue::Pop(std::span<krc_completion> out) {
  krc_ring_header* const ring = ring_.load(std::memory_order_acquire);
  if (ring == nullptr) return 0;  // nothing was pushed
  const auto* const entries = reinterpret_cast<const krc_completion*>(ring + 1);
  std::atomic_ref<uint32_t> tail_word(ring->tail);
  const uint32_t tail = tail_word.load(std::memory_order_relaxed);  // only ours
  // Pairs with the module's release in krc_queue_complete: the entries before it are whole.
  const uint32_t head = std::atomic_ref<uint32_t>(ring->head).load(std::memory_order_acquire);
  const size_t count = std::min<size_t>(head - tail, out.size());
  for (size_t i = 0; i < count; ++i) out[i] = entries[(tail + i) & ring_mask_];
  // The module writes these places again only after it has seen this.
  if (count != 0) tail_word.store(tail + static_cast<uint32_t>(count), std::memory_order_release);
  return count;
}

Status KernelQueue::Wait(int timeout_ms) const { return WaitFor(POLLIN, timeout_ms); }

Status KernelQueue::WaitForMessage(int timeout_ms) const { return WaitFor(POLLPRI, timeout_ms); }

Status KernelQueue::WaitFor(short events, int timeout_ms) const {
  pollfd waited = {fd_, events, 0};
  int result;
  do {
    result = poll(&waited, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  if (result > 0 && (waited.revents & events) != 0) return {};
  if (result >= 0) errno = result == 0 ? ETIMEDOUT : ENODEV;
  return CodeOf(errno);
}

}  // namespace krcore::kernel
