#include "krcore/rnic/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace krcore {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::vector<void (*)()> hooks;
  uint32_t generation = 1;  // of the process that had it last
};

// With the mutex held.
void BeginChild(Registry& registry) {
  for (void (*const hook)() : registry.hooks) hook();
  for (const int fd : registry.descriptors) close(fd);
  registry.descriptors.clear();
  internal::fork_page.generation.store(++registry.generation, std::memory_order_relaxed);
}

Registry& TheRegistry();

void BeforeFork() {
  (void)ForkGeneration();
  TheRegistry().mutex.lock();
}
void AfterForkInParent() { TheRegistry().mutex.unlock(); }
void AfterForkInChild() {
  BeginChild(TheRegistry());
  TheRegistry().mutex.unlock();
}

Registry& TheRegistry() {
  // Never destroyed: devices of static storage duration may close after any destructor of ours would have run.
  static Registry& registry = []() -> Registry& {
    // Where the kernel cannot, the handlers notice what fork makes, and nothing notices a bare clone.
    madvise(&internal::fork_page, sizeof(internal::fork_page), MADV_WIPEONFORK);
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    auto& made = *new Registry;
    internal::fork_page.generation.store(made.generation, std::memory_order_relaxed);
    return made;
  }();
  return registry;
}

// Before main, so that nobody forks while it is made, and that its handlers in the child run before a user's.
[[maybe_unused]] const Registry& made_early = TheRegistry();

// As its users take it: not as a former process left it.
Registry& OwnRegistry() {
  (void)ForkGeneration();
  return TheRegistry();
}

// Objects that a child did not delete. Reachable for ever, or leak checkers would complain of them.
struct LeftAlone {
  const OfOneProcess* object;
  const LeftAlone* next;
};
std::atomic<const LeftAlone*> left_alone{nullptr};

}  // namespace

namespace internal {

constinit ForkPage fork_page = {};

// The first time in this process: or in a child that no handler of fork's has seen, which a bare clone has made. It has
// one thread; others of its parent's may have had the registry in their hands.
uint32_t NewForkGeneration() {
  Registry& registry = TheRegistry();
  const uint32_t generation = fork_page.generation.load(std::memory_order_relaxed);
  if (generation != 0) return generation;
  if (registry.mutex.try_lock()) {
    BeginChild(registry);
    registry.mutex.unlock();
  } else {
    // Nobody will ever unlock it, and its lists are in disorder. Its descriptors stay open until this process ends.
    const uint32_t former = registry.generation;
    new (&registry) Registry;
    registry.generation = former;
    BeginChild(registry);
  }
  return registry.generation;
}

}  // namespace internal

void OfOneProcess::operator delete(OfOneProcess* object, std::destroying_delete_t, size_t /*size*/,
                                   std::align_val_t alignment) {
  if (object->forked()) {
    auto* const left = new (std::nothrow) LeftAlone{object, left_alone.load(std::memory_order_relaxed)};
    while (left != nullptr && !left_alone.compare_exchange_weak(left->next, left, std::memory_order_relaxed)) {
    }
    return;
  }
  void* const memory = dynamic_cast<void*>(object);
  object->~OfOneProcess();
  if (static_cast<size_t>(alignment) > __STDCPP_DEFAULT_NEW_ALIGNMENT__)
    ::operator delete(memory, alignment);
  else
    ::operator delete(memory);
}

Status OfOneProcess::OpenedBeforeFork() {
  return {StatusCode::kBadState,
          "it was opened before fork and belongs to the parent process: a child must open its own after fork"};
}

namespace rnic {

void GuardDescriptor(int fd) { ForksHeld().Guard(fd); }

void UnguardAndClose(int fd, uint32_t opened_in_generation) {
  if (ForkGeneration() != opened_in_generation) return;
  ForksHeld forks;
  forks.Unguard(fd);
  close(fd);
}

ForksHeld::ForksHeld() : lock_(OwnRegistry().mutex) {}
void ForksHeld::Guard(int fd) { TheRegistry().descriptors.push_back(fd); }
void ForksHeld::Unguard(int fd) { std::erase(TheRegistry().descriptors, fd); }

void RunInForkedChildren(void (*hook)()) {
  Registry& registry = OwnRegistry();
  const std::lock_guard lock(registry.mutex);
  if (std::find(registry.hooks.begin(), registry.hooks.end(), hook) == registry.hooks.end())
    registry.hooks.push_back(hook);
}

}  // namespace rnic
}  // namespace krcore
