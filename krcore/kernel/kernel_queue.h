// The user-space half of /dev/krcore: one KernelQueue is one open file of it, a VirtualQueue whose connections belong
// to the kernel and are shared by all processes (kmod/README.md). Requests, completions and error numbers are those of
// krcore_ioctl.h, which this folder alone includes.
//
// Thread safety: one thread at a time, but Push beside Pop. Blocking: Attach, Connect, Register, Deregister; Push makes
// one system call and does not wait for the network; Pop makes none.
#ifndef KRCORE_KERNEL_KERNEL_QUEUE_H_
#define KRCORE_KERNEL_KERNEL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kmod/include/uapi/krcore/krcore_ioctl.h"

namespace krcore::kernel {

// A device's address.
struct Gid {
  uint8_t bytes[KRC_GID_BYTES] = {};
};

class KernelQueue {
 public:
  KernelQueue() = default;
  ~KernelQueue();
  KernelQueue(const KernelQueue&) = delete;
  KernelQueue& operator=(const KernelQueue&) = delete;

  // All return 0 or an errno of krcore_ioctl.h.
  int Open();  // ENOENT: the module is not loaded
  int Query(krc_query* query);
  int Attach(std::string_view device, uint32_t depth);  // and maps the ring
  int Connect(const Gid& peer);
  int Register(void* addr, size_t length, uint32_t access, uint32_t* key);
  int Deregister(uint32_t key);
  // All or none. `bad_index`, if given: the request that is to blame.
  int Push(std::span<const krc_request> requests, uint32_t* bad_index = nullptr);

  // Up to out.size() completions, in posting order.
  size_t Pop(std::span<krc_completion> out);
  // Sleeps until Pop has something: 0. ENODEV: the device is gone. ETIMEDOUT.
  int Wait(int timeout_ms) const;

  int fd() const { return fd_; }
  const Gid& gid() const { return gid_; }
  krc_ring_header* ring() const { return ring_; }

 private:
  int fd_ = -1;
  Gid gid_;
  krc_ring_header* ring_ = nullptr;
  size_t ring_bytes_ = 0;
  uint32_t ring_mask_ = 0;
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_QUEUE_H_
