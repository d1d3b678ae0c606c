#include "krcore/base/os.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "krcore/resources.h"

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25  // Linux 6.1; Debian 12's libc headers are older
#endif

namespace krcore {

int AboveStandard(int fd) {
  if (fd < 0 || fd >= kFirstDescriptor) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, kFirstDescriptor);
  const int error = errno;
  close(fd);
  errno = error;
  return above;
}

void HoldStandard() {
  // Open returns the lowest free descriptor. An O_PATH descriptor can be neither read nor written.
  int fd = -1;
  do {
    fd = open("/", O_PATH | O_CLOEXEC);
  } while (fd >= 0 && fd < kFirstDescriptor);
  if (fd >= 0) close(fd);
}

// ---- forked children

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::vector<void (*)()> hooks;
  uint32_t generation = 1;  // of the process that had it last
};

// The mutex is held.
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
    // If the kernel cannot do this, the handlers notice forks, and nothing notices a bare clone.
    madvise(&internal::fork_page, sizeof(internal::fork_page), MADV_WIPEONFORK);
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    auto& made = *new Registry;
    internal::fork_page.generation.store(made.generation, std::memory_order_relaxed);
    return made;
  }();
  return registry;
}

// Made before main, so that nobody forks meanwhile, and so that its handlers in the child run before a user's.
[[maybe_unused]] const Registry& made_early = TheRegistry();

// Returns the registry for its users, never as a former process left it.
Registry& OwnRegistry() {
  (void)ForkGeneration();
  return TheRegistry();
}

// Objects that a child did not delete. They stay reachable for ever, or leak checkers would report them.
struct LeftAlone {
  const OfOneProcess* object;
  const LeftAlone* next;
};
std::atomic<const LeftAlone*> left_alone{nullptr};

}  // namespace

namespace internal {

constinit ForkPage fork_page = {};

// The first call in this process, or in a child made by a bare clone, which no handler of fork's has seen. The child
// has one thread; other threads of its parent may have held the registry.
uint32_t NewForkGeneration() {
  Registry& registry = TheRegistry();
  const uint32_t generation = fork_page.generation.load(std::memory_order_relaxed);
  if (generation != 0) return generation;
  if (registry.mutex.try_lock()) {
    BeginChild(registry);
    registry.mutex.unlock();
  } else {
    // Nobody will ever unlock it, and its lists may be inconsistent. Its descriptors stay open until this process ends.
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

// ---- random numbers
Result<uint64_t> Random64() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value))
    return Status::FromErrno(errno, "cannot get random numbers");
  return value;
}

// ---- limits

namespace {

constexpr size_t kLookedAtBytes = size_t{16} << 20;

struct Limit {
  decltype(RLIMIT_AS) resource;
  const char* name;
  rlim_t unit;  // of ulimit
};
constexpr Limit kAddressSpace{RLIMIT_AS, "ulimit -v", 1024}, kData{RLIMIT_DATA, "ulimit -d", 1024};
constexpr Limit kLocked{RLIMIT_MEMLOCK, "ulimit -l", 1024}, kFiles{RLIMIT_NOFILE, "ulimit -n", 1};
constexpr Limit kProcesses{RLIMIT_NPROC, "ulimit -u", 1};

// Adds "ulimit -n is 8"; nothing if it is unlimited.
void AddLimit(const Limit& limit, std::vector<std::string>* notes) {
  rlimit current{};
  if (getrlimit(limit.resource, &current) != 0 || current.rlim_cur == RLIM_INFINITY) return;
  notes->push_back(std::string(limit.name) + " is " + std::to_string(current.rlim_cur / limit.unit));
}

std::string Joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += (text.empty() ? " (" : ", ") + note;
  return text.empty() ? text : text + ")";
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" means no limit
}

// Returns the folders of this process's group and of the groups around it, which limit it too. A container may see its
// own group as the mount's root, whatever name /proc gives it, so the root is always included.
std::vector<std::string> CgroupFolders(std::string_view controller, const CgroupPlaces& places) {
  std::ifstream file(places.own);
  std::string base = places.mount, path;
  for (std::string line; std::getline(file, line);) {  // "4:memory:/path" of v1, "0::/path" of v2
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() && base == places.mount) path = line.substr(second + 1);
    if (controllers != controller) continue;
    base = places.mount + "/" + controllers;
    path = line.substr(second + 1);
  }
  std::vector<std::string> folders;
  for (; path.size() > 1; path.resize(path.rfind('/'))) folders.push_back(base + path);
  folders.push_back(base);
  return folders;
}

// Returns the file cache's size, which the kernel gives back before it refuses.
uint64_t CachedBytes(const std::string& folder, std::string_view prefix) {
  std::ifstream file(folder + "/memory.stat");
  uint64_t bytes = 0, sum = 0;
  for (std::string key; file >> key >> bytes;) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (name == "inactive_file" || name == "active_file") sum += bytes;
  }
  return sum;
}

}  // namespace

std::string LimitsOf(int errnum) {
  std::vector<std::string> notes;
  if (errnum == EMFILE) AddLimit(kFiles, &notes);
  if (errnum == ENFILE) notes.emplace_back("fs.file-max of the whole system");
  if (errnum == ENOMEM) {
    AddLimit(kAddressSpace, &notes);
    AddLimit(kData, &notes);
  }
  return Joined(notes);
}

std::string LimitsOfProcesses(const CgroupPlaces& places) {
  std::vector<std::string> notes;
  AddLimit(kProcesses, &notes);
  AddLimit(kAddressSpace, &notes);  // a thread's stack takes from it
  for (const std::string& folder : CgroupFolders("pids", places)) {
    const auto max = ReadNumber(folder + "/pids.max");
    if (max) notes.push_back("pids.max of " + folder + " is " + std::to_string(*max));
  }
  return Joined(notes);
}

std::string LimitOfLockedMemory() {
  std::vector<std::string> notes;
  AddLimit(kLocked, &notes);
  return Joined(notes);
}

Status CheckCgroupMemory(size_t bytes, const CgroupPlaces& places) {
  if (bytes < kLookedAtBytes) return {};
  for (const std::string& folder : CgroupFolders("memory", places)) {
    const char* name = "memory.max";
    auto limit = ReadNumber(folder + "/" + name);
    auto used = ReadNumber(folder + "/memory.current");
    uint64_t cached = CachedBytes(folder, "");
    if (!limit) {
      name = "memory.limit_in_bytes";
      limit = ReadNumber(folder + "/" + name);
      used = ReadNumber(folder + "/memory.usage_in_bytes");
      cached = CachedBytes(folder, "total_");
    }
    if (!limit || !used) continue;
    const uint64_t taken = *used - std::min(*used, cached);
    const uint64_t room = *limit - std::min(*limit, taken);
    if (bytes <= room) continue;
    return {StatusCode::kOutOfMemory, std::to_string(bytes) +
                                          " bytes are more than this process's control group has left: " + name +
                                          " of " + folder + " is " + std::to_string(*limit) + ", of which " +
                                          std::to_string(room) + " are free; ask for less, or raise it"};
  }
  return {};
}

Result<std::thread> StartThread(const std::string& name, std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return StartRefused(error.code().value(), "thread '" + name + "'");
  } catch (const std::bad_alloc&) {
    return StartRefused(ENOMEM, "thread '" + name + "'");
  }
}

Result<std::thread> StartServiceThread(const std::string& name, std::function<void()> run) {
  return StartThread(name, [name = name.substr(0, 15), run = std::move(run)] {
    sigset_t signals;
    sigfillset(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    pthread_setname_np(pthread_self(), name.c_str());
    run();
  });
}

int64_t ThreadCpuNs(pthread_t thread) {
  clockid_t clock{};
  timespec used{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
}

Status StartRefused(int errnum, const std::string& what) {
  return {StatusCode::kUnavailable, "cannot start " + what + ": " + std::generic_category().message(errnum) +
                                        LimitsOfProcesses() + "; raise the limit, or end other processes of this user"};
}

Status MemoryRefused(const std::string& what) { return Status::FromErrno(ENOMEM, what); }

Result<std::unique_ptr<Pages>> Pages::Map(size_t length, Use use) {
  if (use == Use::kDense) KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  if (length > kMaxMemoryBytes) return Status::FromErrno(ENOMEM, "mmap of " + std::to_string(length) + " bytes");
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = huge ? length + kHugePageBytes : length;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (use == Use::kSparse ? MAP_NORESERVE : 0);
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapping == MAP_FAILED) return Status::FromErrno(errno, "mmap of " + std::to_string(mapped) + " bytes");
  auto start = reinterpret_cast<uintptr_t>(mapping);
  if (huge) {
    start = (start + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    // Advice only: without huge pages everything works, but slower.
    if (use == Use::kDense) (void)madvise(reinterpret_cast<void*>(start), length, MADV_HUGEPAGE);
  }
  return std::unique_ptr<Pages>(new Pages(mapping, mapped, {reinterpret_cast<std::byte*>(start), length}));
}

Pages::~Pages() { munmap(mapping_, mapped_); }

namespace {

constexpr int kCollapseTries = 4;  // the kernel answers EAGAIN while it cannot isolate a page

}  // namespace

Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length) {
  if (offset > memory.size() || length > memory.size() - offset) {
    return {StatusCode::kInvalidArgument, "range to collapse lies outside the memory"};
  }
  const uintptr_t from = reinterpret_cast<uintptr_t>(memory.data()) + offset;
  const uintptr_t begin = (from + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (from + length) / kHugePageBytes * kHugePageBytes;
  // Goes page by page, so that a page that the kernel cannot take now does not keep the others back.
  for (uintptr_t at = begin; at < end; at += kHugePageBytes) {
    int error = 0;
    for (int tries = 0; tries < kCollapseTries; ++tries) {
      error = madvise(reinterpret_cast<void*>(at), kHugePageBytes, MADV_COLLAPSE) == 0 ? 0 : errno;
      if (error != EAGAIN) break;
    }
    if (error == EINVAL) return {StatusCode::kUnsupported, "this kernel cannot collapse this memory to huge pages"};
    if (error == ENOMEM) return {StatusCode::kOutOfMemory, "no huge page is free"};
    if (error != 0 && error != EAGAIN && error != EBUSY)
      return Status::FromErrno(error, "cannot collapse to huge pages");
  }
  return {};
}

}  // namespace krcore
