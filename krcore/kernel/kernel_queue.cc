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

namespace krcore::kernel {
namespace {

static_assert(sizeof(krc_query) == 32 && sizeof(krc_attach) == 96 && sizeof(krc_connect) == 24);
static_assert(sizeof(krc_reg_mr) == 32 && sizeof(krc_dereg_mr) == 8 && sizeof(krc_push) == 16);
static_assert(sizeof(krc_sge) == 16 && sizeof(krc_request) == 112 && offsetof(krc_request, sges) == 48);
static_assert(sizeof(krc_ring_header) == 128 && offsetof(krc_ring_header, tail) == 64 && sizeof(krc_completion) == 16);

int Call(int fd, unsigned long request, void* argument) {
  int result;
  do {
    result = ioctl(fd, request, argument);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

KernelQueue::~KernelQueue() {
  if (ring_ != nullptr) munmap(ring_, ring_bytes_);
  if (fd_ >= 0) close(fd_);
}

int KernelQueue::Open() {
  fd_ = open(KRC_DEVICE_PATH, O_RDWR | O_CLOEXEC);
  return fd_ >= 0 ? 0 : errno;
}

int KernelQueue::Query(krc_query* query) {
  *query = {};
  return Call(fd_, KRC_IOC_QUERY, query);
}

int KernelQueue::Attach(std::string_view device, uint32_t depth) {
  krc_attach attach = {};
  if (device.size() >= sizeof(attach.device)) return ENODEV;
  std::memcpy(attach.device, device.data(), device.size());
  attach.depth = depth;
  if (const int error = Call(fd_, KRC_IOC_ATTACH, &attach); error != 0) return error;
  void* const ring = mmap(nullptr, attach.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (ring == MAP_FAILED) return errno;
  ring_ = static_cast<krc_ring_header*>(ring);
  ring_bytes_ = attach.ring_bytes;
  ring_mask_ = attach.ring_entries - 1;
  std::memcpy(gid_.bytes, attach.gid, sizeof(gid_.bytes));
  return 0;
}

int KernelQueue::Connect(const Gid& peer) {
  krc_connect connect = {};
  std::memcpy(connect.gid, peer.bytes, sizeof(connect.gid));
  return Call(fd_, KRC_IOC_CONNECT, &connect);
}

int KernelQueue::Register(void* addr, size_t length, uint32_t access, uint32_t* key) {
  krc_reg_mr reg = {};
  reg.addr = reinterpret_cast<uint64_t>(addr);
  reg.length = length;
  reg.access = access;
  const int error = Call(fd_, KRC_IOC_REG_MR, &reg);
  if (error == 0) *key = reg.key;
  return error;
}

int KernelQueue::Deregister(uint32_t key) {
  krc_dereg_mr dereg = {};
  dereg.key = key;
  return Call(fd_, KRC_IOC_DEREG_MR, &dereg);
}

int KernelQueue::Push(std::span<const krc_request> requests, uint32_t* bad_index) {
  krc_push push = {};
  push.requests = reinterpret_cast<uint64_t>(requests.data());
  push.count = static_cast<uint32_t>(requests.size());
  const int error = Call(fd_, KRC_IOC_PUSH, &push);
  if (bad_index != nullptr) *bad_index = push.bad_index;
  return error;
}

size_t KernelQueue::Pop(std::span<krc_completion> out) {
  if (ring_ == nullptr) return 0;
  const auto* const entries = reinterpret_cast<const krc_completion*>(ring_ + 1);
  std::atomic_ref<uint32_t> tail_word(ring_->tail);
  const uint32_t tail = tail_word.load(std::memory_order_relaxed);  // ours
  // Pairs with the module's release in krc_queue_complete: the entries before it are whole.
  const uint32_t head = std::atomic_ref<uint32_t>(ring_->head).load(std::memory_order_acquire);
  const size_t count = std::min<size_t>(head - tail, out.size());
  for (size_t i = 0; i < count; ++i) out[i] = entries[(tail + i) & ring_mask_];
  // The module writes these places again only when it has seen this.
  if (count != 0) tail_word.store(tail + static_cast<uint32_t>(count), std::memory_order_release);
  return count;
}

int KernelQueue::Wait(int timeout_ms) const {
  pollfd waited = {fd_, POLLIN, 0};
  int result;
  do {
    result = poll(&waited, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  if (result < 0) return errno;
  if (result == 0) return ETIMEDOUT;
  return (waited.revents & POLLIN) != 0 ? 0 : ENODEV;
}

}  // namespace krcore::kernel
