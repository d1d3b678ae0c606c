// What a fork does to open objects.
//
// Nodes, regions, pools, queues, stores and clients belong to the process that opened them. In a child that was forked
// since, every call on them does nothing: it returns kBadState where it returns a Status, else 0 or an empty value.
// Deleting them there frees nothing and tells nobody, so a child may end in any way: by exec, _exit, exit, a return
// from main or a signal. The parent goes on with them as if there had been no fork. A child that wants the store opens
// its own after the fork, and is a process like any other. An operation that the parent had in flight never ends in the
// child: its coroutines are not resumed there. A child that was forked inside a coroutine, and so inside a call of the
// store's, must not return from it.
//
// Memory: a child has a copy of registered memory that is private to the parent; on `sw` it maps the memory that peers
// reach. With provider "verbs" that takes Linux 5.12. Older kernels keep registered pages out of children, with
// whatever else lies on them (ibv_fork_init), so there a registered buffer needs pages of its own.
//
// A child is any process that got a copy of this process's memory: by fork, or by a bare clone or clone3 without
// CLONE_VM and CLONE_FILES. The kernel tells (MADV_WIPEONFORK, Linux 4.14). A process made by vfork or posix_spawn has
// no copy and is not concerned: until it execs or ends it may call nothing here, as it may call little else.
//
// Thread safety: any thread may call all of this. A child of a process of several threads may use the library at once,
// whatever the other threads were doing in it.
#ifndef KRCORE_FORK_H_
#define KRCORE_FORK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "krcore/status.h"

namespace krcore {

namespace internal {

// A page that the kernel clears in every child; `generation` is then 0 until somebody asks for it. Relaxed: the fork
// itself orders.
struct alignas(4096) ForkPage {
  std::atomic<uint32_t> generation;
};
extern constinit ForkPage fork_page;
uint32_t NewForkGeneration();

}  // namespace internal

// Returns a number that differs between a process and its children, and between those. Never 0.
inline uint32_t ForkGeneration() {
  const uint32_t generation = internal::fork_page.generation.load(std::memory_order_relaxed);
  return generation != 0 ? generation : internal::NewForkGeneration();
}

// The base of objects that are of no use in forked children. They live on the heap.
class OfOneProcess {
 public:
  OfOneProcess(const OfOneProcess&) = delete;
  OfOneProcess& operator=(const OfOneProcess&) = delete;
  virtual ~OfOneProcess() = default;
  // What `delete` calls instead of the destructor. In the process that made the object it calls the destructor. In a
  // child it leaves the object as it is and runs no destructor of it or of what it owns: destructors would talk to the
  // network, wait for threads that are not there, and remove what the parent uses.
  static void operator delete(OfOneProcess* object, std::destroying_delete_t, size_t size, std::align_val_t alignment);
  // Whether this is a child that was forked after this object was made.
  bool forked() const { return internal::fork_page.generation.load(std::memory_order_relaxed) != generation_; }
  // kBadState if forked.
  Status NotForked() const { return forked() ? OpenedBeforeFork() : Status(); }
  static Status OpenedBeforeFork();

 protected:
  OfOneProcess() = default;

 private:
  const uint32_t generation_ = ForkGeneration();
};

}  // namespace krcore

#endif  // KRCORE_FORK_H_
