// The user-space half of /dev/krcore. A KernelQueue is one open file of it: a VirtualQueue whose connections belong to
// the kernel and are shared by all processes (kmod/README.md). Requests and completions are those of krcore_ioctl.h,
// which only this folder includes.
//
// Thread safety: one thread at a time, except that Push and Pop may run at the same time. Blocking: Attach, Connect,
// Register and Deregister block. Push makes one system call and does not wait for the network; the first Push makes two
// more, to map the completion ring. Pop makes none. A forked child cannot use the queue.
#ifndef KRCORE_KERNEL_KERNEL_QUEUE_H_
#define KRCORE_KERNEL_KERNEL_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kmod/include/uapi/krcore/krcore_ioctl.h"
#include "krcore/status.h"
#include "krcore/types.h"

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

  // All calls: kPermissionDenied: not the process that opened it; kUnavailable: no such device, or it is gone;
  // kBadState: not attached; kInvalidArgument. Errno stays as the module set it, for callers that need more detail.

  // kNotFound: the module is not loaded; kUnsupported: `path` is not the module, or has another KRC_ABI_VERSION.
  Status Open(const std::string& path = KRC_DEVICE_PATH);
  // Open, Attach, Join and, unless `peer` is kNoNode, Connect, by one call after the open. If it fails, the steps that
  // succeeded stay done (`done`, if given, tells how far it came), and the missing ones may be called one by one.
  Result<krc_connect> Start(const std::string& device, uint32_t depth, const std::string& fabric, NodeId node,
                            NodeId peer, krc_start_step* done = nullptr);
  // Opens another queue of the node that `of` has joined, attached to its device with `depth` places: one call instead
  // of Open, Attach and Join. kOutOfMemory: also beyond the process's limit of open files.
  Status OpenLike(const KernelQueue& of, uint32_t depth);
  Result<krc_query> Query();
  // Gives it, once, the device of that name ("": the first one) and `depth` places for requests, up to KRC_MAX_DEPTH.
  Status Attach(const std::string& device, uint32_t depth);
  // Connects to this host's own device, which has that address. Also repairs a queue that a fault broke, once all its
  // outstanding requests have completed (before that: kBadState).
  Status ConnectDevice(const Gid& peer);
  // Returns the address of the device's software DC, which serves what this host's nodes have published. kUnsupported.
  Result<krc_dc_target> DcTarget();

  // ---- as part of a node. kUnavailable: the metadata server does not answer.
  // Makes it, once, a node of the fabric with the id `node`; kNoNode: an id that nobody had. kExists: the id is taken.
  Status Join(const std::string& fabric, NodeId node);
  NodeId node() const { return node_; }
  uint32_t incarnation() const { return incarnation_; }
  // Uses `key` and `tag` of each region. kNotFound: no such region of this process.
  Status Publish(std::span<const krc_shared_region> regions);
  // Connects to a node of the fabric, as that node has published itself; also repairs. kNotFound: no such node. With a
  // port (not 0) also for messages. kNotFound: nobody is bound to the port; kQueueFull: it has no place for another
  // sender.
  Result<krc_connect> Connect(NodeId node, uint16_t port = 0);
  // kExists: another living node has set it. kNotFound: nobody has.
  Status SetService(std::string_view name, std::span<const std::byte> value);
  Result<std::vector<std::byte>> GetService(std::string_view name);
  Result<bool> IsDead(NodeId node, uint32_t incarnation);

  // ---- requests
  // Returns the key of [addr, addr + length), whose pages stay pinned until Deregister or the queue's end.
  // kOutOfMemory: also beyond RLIMIT_MEMLOCK, or too many regions.
  Result<uint32_t> Register(void* addr, size_t length, uint32_t access);
  // Waits for the requests that use it. kNotFound: not a region of this queue.
  Status Deregister(uint32_t key);
  // All or none. Borrows `requests` for the call, and the memory that they name until they complete. kQueueFull: until
  // more is popped; kPermissionDenied: memory that is not registered for that; kBadState: not connected, or a fault
  // broke the queue: Connect repairs it. `bad_index`, if given: the request at fault.
  Status Push(std::span<const krc_request> requests, uint32_t* bad_index = nullptr);

  // Returns up to out.size() completions in posting order.
  size_t Pop(std::span<krc_completion> out);
  // Sleeps until Pop has something. kUnavailable: the device is gone. kTimeout.
  Status Wait(int timeout_ms) const;

  // ---- messages; see krcore_ioctl.h
  // Makes it receive; returns the port. kExists: the port is taken. kBadState: the node has not published itself.
  // kOutOfMemory: also beyond RLIMIT_MEMLOCK. kInvalidArgument: also more memory than a port may have.
  Result<uint16_t> Bind(const krc_bind& options);
  // All or none. kQueueFull: until more is popped. kPermissionDenied: not this process's memory. kBadState: not bound.
  Status PushRecv(std::span<const krc_receive> receives, uint32_t* bad_index = nullptr);
  // Returns up to out.size() messages that have arrived. kBadState: not bound.
  Result<size_t> PopMessages(std::span<krc_message> out);
  // Sleeps until PopMessages has one. kUnavailable: the device is gone. kTimeout: also if the queue is not bound.
  Status WaitForMessage(int timeout_ms) const;
  // Returns how many messages Push would take now; asks the receiver if they are few. kBadState: connected to no port
  // or to one that is closed, or a fault broke the queue.
  Result<uint32_t> Credits();

  int fd() const { return fd_; }
  const Gid& gid() const { return gid_; }
  uint32_t max_message_bytes() const { return max_message_bytes_; }  // of a request; known after Open
  // Maps the ring if it is not mapped yet; null: it cannot be mapped, and errno says why.
  krc_ring_header* ring();

 private:
  Status WaitFor(short events, int timeout_ms) const;
  Status OpenFile(const std::string& path);
  // If the file does not know our calls, closes it and says why.
  Status CheckVersion(const std::string& path);
  void Keep(const krc_attach& attach);
  void Keep(const krc_join& join);

  int fd_ = -1;
  uint32_t max_message_bytes_ = 0;
  Gid gid_;
  NodeId node_ = kNoNode;
  uint32_t incarnation_ = 0;
  size_t ring_bytes_ = 0;  // 0: not attached
  uint32_t ring_mask_ = 0;
  std::atomic<krc_ring_header*> ring_ = nullptr;  // the first Push maps it
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_QUEUE_H_
