#include "krcore/rnic/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace krcore::rnic {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::vector<void (*)()> hooks;
  std::atomic<uint32_t> generation{0};  // relaxed: read by threads that the fork itself orders
};

Registry& TheRegistry();

void BeforeFork() { TheRegistry().mutex.lock(); }
void AfterForkInParent() { TheRegistry().mutex.unlock(); }
void AfterForkInChild() {
  Registry& registry = TheRegistry();
  for (void (*const hook)() : registry.hooks) hook();
  for (const int fd : registry.descriptors) close(fd);
  registry.descriptors.clear();
  registry.generation.fetch_add(1, std::memory_order_relaxed);
  registry.mutex.unlock();
}

Registry& TheRegistry() {
  // Never destroyed: devices of static storage duration may close after any destructor of ours would have run.
  static Registry& registry = [&]() -> Registry& {
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    return *new Registry;
  }();
  return registry;
}

}  // namespace

uint32_t ForkGeneration() { return TheRegistry().generation.load(std::memory_order_relaxed); }

void GuardDescriptor(int fd) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  registry.descriptors.push_back(fd);
}

void UnguardAndClose(int fd, uint32_t opened_in_generation) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  if (registry.generation.load(std::memory_order_relaxed) != opened_in_generation) return;
  std::erase(registry.descriptors, fd);
  close(fd);
}

void Forget(std::thread&& thread) { (void)std::make_unique<std::thread>(std::move(thread)).release(); }

ForksHeld::ForksHeld() : lock_(TheRegistry().mutex) {}
void ForksHeld::Guard(int fd) { TheRegistry().descriptors.push_back(fd); }
void ForksHeld::Unguard(int fd) { std::erase(TheRegistry().descriptors, fd); }

void RunInForkedChildren(void (*hook)()) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  if (std::find(registry.hooks.begin(), registry.hooks.end(), hook) == registry.hooks.end())
    registry.hooks.push_back(hook);
}

}  // namespace krcore::rnic
