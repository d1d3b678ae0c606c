// What the tests of /dev/krcore share: memory, an attached queue, requests, the module's counters, child processes.
#ifndef TESTS_KMOD_FIXTURE_H_
#define TESTS_KMOD_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/kernel/kernel_queue.h"

namespace kmod_test {

// A KernelQueue whose calls return 0 or the module's errno, because the tests must tell all errnos apart.
class Queue : public krcore::kernel::KernelQueue {
 public:
  int Open() { return ErrnoOf(KernelQueue::Open()); }
  int Query(krc_query* query) { return Take(KernelQueue::Query(), query); }
  int Attach(const std::string& device, uint32_t depth) { return ErrnoOf(KernelQueue::Attach(device, depth)); }
  int ConnectDevice(const krcore::kernel::Gid& peer) { return ErrnoOf(KernelQueue::ConnectDevice(peer)); }
  int Join(const std::string& fabric, krcore::NodeId node = krcore::kNoNode) {
    return ErrnoOf(KernelQueue::Join(fabric, node));
  }
  int Start(const std::string& fabric, krcore::NodeId node, krcore::NodeId peer, krc_connect* connect,
            krc_start_step* done, uint32_t depth = 64) {
    return Take(KernelQueue::Start("", depth, fabric, node, peer, done), connect);
  }
  int OpenLike(const Queue& of, uint32_t depth) { return ErrnoOf(KernelQueue::OpenLike(of, depth)); }
  int Publish(std::span<const krc_shared_region> regions) { return ErrnoOf(KernelQueue::Publish(regions)); }
  int Connect(krcore::NodeId node, krc_connect* connect, uint16_t port = 0) {
    return Take(KernelQueue::Connect(node, port), connect);
  }
  int SetService(const std::string& name, uint64_t value) {
    return ErrnoOf(KernelQueue::SetService(name, std::as_bytes(std::span(&value, 1))));
  }
  int GetService(const std::string& name, uint64_t* value) {
    const auto got = KernelQueue::GetService(name);
    *value = 0;
    if (got.ok()) std::memcpy(value, got->data(), std::min(got->size(), sizeof(*value)));
    return ErrnoOf(got.status());
  }
  int DcTarget(krc_dc_target* target) { return Take(KernelQueue::DcTarget(), target); }
  int IsDead(krcore::NodeId node, uint32_t incarnation, bool* dead) {
    return Take(KernelQueue::IsDead(node, incarnation), dead);
  }
  int Register(void* addr, size_t length, uint32_t access, uint32_t* key) {
    return Take(KernelQueue::Register(addr, length, access), key);
  }
  int Deregister(uint32_t key) { return ErrnoOf(KernelQueue::Deregister(key)); }
  int Push(std::span<const krc_request> requests, uint32_t* bad_index = nullptr) {
    return ErrnoOf(KernelQueue::Push(requests, bad_index));
  }
  int Bind(const krc_bind& options, uint16_t* port) { return Take(KernelQueue::Bind(options), port); }
  int PushRecv(std::span<const krc_receive> receives, uint32_t* bad_index = nullptr) {
    return ErrnoOf(KernelQueue::PushRecv(receives, bad_index));
  }
  int PopMessages(std::span<krc_message> out, size_t* count) { return Take(KernelQueue::PopMessages(out), count); }
  int Credits(uint32_t* credits) { return Take(KernelQueue::Credits(), credits); }
  int WaitForMessage(int timeout_ms) const { return ErrnoOf(KernelQueue::WaitForMessage(timeout_ms)); }
  int Wait(int timeout_ms) const { return ErrnoOf(KernelQueue::Wait(timeout_ms)); }

 private:
  static int ErrnoOf(const krcore::Status& status) { return status.ok() ? 0 : errno; }
  template <typename T>
  static int Take(const krcore::Result<T>& result, T* value) {
    *value = result.ok() ? *result : T{};
    return ErrnoOf(result.status());
  }
};

inline constexpr uint32_t kAllRights = KRC_LOCAL_WRITE | KRC_REMOTE_READ | KRC_REMOTE_WRITE | KRC_REMOTE_ATOMIC;
inline constexpr size_t kPage = 4096;
inline constexpr int kPatienceMs = 20'000;

// Anonymous shared pages: forked children see them too.
class Pages {
 public:
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint8_t* bytes() const { return bytes_; }
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(bytes_); }
  size_t size() const { return size_; }
  void Unmap();

 private:
  uint8_t* bytes_;
  size_t size_;
};

// A queue to the host's own device, with all of `memory` registered.
struct Side {
  explicit Side(uint32_t depth = 64, size_t bytes = 4 * kPage, uint32_t access = kAllRights);

  // A request in the opcode's usual form: 8 bytes between the words `local` and `remote`.
  krc_request Request(uint8_t opcode, size_t local, size_t remote, uint64_t wr_id = 0) const;
  // The same between other places.
  static krc_request Between(uint8_t opcode, uint32_t lkey, const void* local, uint32_t rkey, uint64_t remote,
                             uint32_t length = 8);
  int Push(const krc_request& request) { return queue.Push({&request, 1}); }
  std::vector<krc_completion> Await(size_t count);
  // Pushes `request` and returns its completion status.
  int StatusOf(const krc_request& request);

  Pages memory;  // outlives its registration
  Queue queue;
  uint32_t key = 0;
};

// Returns a counter of the module, for the device that the tests use; `file`: which of its files has it.
int64_t Counter(const std::string& name, const std::string& file = "stats");
// Breaks all connections, as a fault would. What is in flight may be done before the module takes the QPs down.
void BreakConnections();
// Breaks their QPs without the module hearing of it: what is posted next is flushed.
void BreakConnectionsUnheard();

// Call it between two looks at something that wakes nobody when it changes: what another process says in memory, what a
// NIC has written, a counter, a file of the other host, the network. Without it, the party that is waited for would
// lack the CPU.
void Pause();
// Waits until the device, which went away, is there again and has its address.
void AwaitDevice();

// Some tests run in two guests of tools/vm (tests/vm/guest/kmod_*). KMOD_OTHER_HOST names each guest's part: serve, or
// use. By files in the folder /common, which both have, they tell each other how far they are.
bool IsPart(std::string_view part);
void AwaitFile(const char* path);

// Runs `body` in a forked child. Returns its exit status, or -1 - the signal that killed it.
int InChild(const std::function<int()>& body);

}  // namespace kmod_test

#endif  // TESTS_KMOD_FIXTURE_H_
