#include "tests/krcore/kill_each_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <string_view>

#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/rnic/sw/shm_file.h"
#include "tests/support/kill_process.h"

// NOLINTBEGIN(readability-identifier-naming): the linker's names
extern "C" {
extern char __executable_start;

void* __real_mmap(void* addr, size_t length, int prot, int flags, int fd, off_t offset);
int __real_munmap(void* addr, size_t length);
int __real_open(const char* path, int flags, ...);
int __real_close(int fd);
int __real_fcntl(int fd, int command, ...);
int __real_renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags);
int __real_unlink(const char* path);
int __real_posix_fallocate(int fd, off_t offset, off_t length);
}
// NOLINTEND(readability-identifier-naming)

namespace krcore::test {
namespace {

constexpr size_t kMaxRanges = 4096;
constexpr size_t kMaxFd = 1024;
constexpr size_t kMaxEvents = size_t{1} << 20;
constexpr size_t kPageBytes = 4096;
constexpr unsigned kSurvivorSeconds = 60;
constexpr time_t kVictimSeconds = 60;
constexpr uint64_t kNever = UINT64_MAX;
constexpr greg_t kTrapFlag = 0x100;
constexpr greg_t kWriteFault = 2;  // bit of the page fault's error code

constexpr uint64_t kLockCall = 1;

struct Event {
  uint64_t pc = 0;
  uint64_t addr = 0;  // 0: a system call; then pc is kLockCall or 0
};

// What the victim tells its parent. It lies in memory that both share; stores there do not count.
struct Board {
  uint64_t count;
  uint64_t stores;
  bool ended;   // victim() returned
  bool failed;  // with failed expectations
  char where[256];
  Event events[kMaxEvents];  // in the counting run
};

// ---- in the victim

struct Range {
  uintptr_t begin, end;
  char name[64];
};
Range ranges[kMaxRanges];
size_t range_count = 0;
char names[kMaxFd][64];  // of the open files of /dev/shm, by descriptor
bool in_victim = false;
bool enumerating = false;
bool recording = false;
uint64_t kill_before = kNever;  // the event
Board* board = nullptr;
// Pages that the instruction being executed may write: some stores cross a page boundary.
std::array<uintptr_t, 8> open_pages;
size_t open_count = 0;

// `what` and `addr` are for the report. Does not return at the point where this run is to be killed.
void Count(const char* what, uintptr_t pc, uintptr_t addr, const char* file, size_t offset) {
  if (board->count == kill_before) {
    if (addr != 0) {
      std::snprintf(board->where, sizeof(board->where), "%s at 0x%zx (addr2line -ipfCe) to %s + 0x%zx", what,
                    pc - reinterpret_cast<uintptr_t>(&__executable_start), file, offset);
    } else {
      std::snprintf(board->where, sizeof(board->where), "%s of %s", what, file);
    }
    kill(getpid(), SIGKILL);
  }
  if (recording && board->count < kMaxEvents) board->events[board->count] = {pc, addr};
  ++board->count;
  board->stores += addr != 0;
}

void CountCall(const char* what, const char* file) {
  if (enumerating) Count(what, 0, 0, file, 0);
}
void CountLock(const char* what, const char* file) {
  if (enumerating) Count(what, kLockCall, 0, file, 0);
}

const Range* Find(uintptr_t addr) {
  for (const Range& range : std::span(ranges, range_count)) {
    if (addr >= range.begin && addr < range.end) return &range;
  }
  return nullptr;
}

void OnFault(int, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto addr = reinterpret_cast<uintptr_t>(info->si_addr);
  const Range* const range = Find(addr);
  if (range == nullptr || (registers[REG_ERR] & kWriteFault) == 0 || open_count == open_pages.size()) {
    signal(SIGSEGV, SIG_DFL);  // a real one: it happens again
    return;
  }
  if (open_count == 0)
    Count("store", static_cast<uintptr_t>(registers[REG_RIP]), addr, range->name, addr - range->begin);
  const uintptr_t page = addr & ~(kPageBytes - 1);
  mprotect(reinterpret_cast<void*>(page), kPageBytes, PROT_READ | PROT_WRITE);
  open_pages[open_count++] = page;
  registers[REG_EFL] |= kTrapFlag;
}

void OnStep(int, siginfo_t*, void* context) {
  while (open_count != 0) mprotect(reinterpret_cast<void*>(open_pages[--open_count]), kPageBytes, PROT_READ);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
}

void Catch(int number, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(number, &action, nullptr);
}

bool IsShm(const char* path) { return std::string_view(path).starts_with("/dev/shm/"); }
const char* NameOf(int fd) {
  return fd >= 0 && static_cast<size_t>(fd) < kMaxFd && names[fd][0] != '\0' ? names[fd] : nullptr;
}

void AddRange(void* addr, size_t length, const char* name) {
  if (range_count == kMaxRanges) abort();
  const auto begin = reinterpret_cast<uintptr_t>(addr);
  Range& range = ranges[range_count++];
  range.begin = begin;
  range.end = begin + length;
  std::snprintf(range.name, sizeof(range.name), "%s", name);
}

void RemoveRange(uintptr_t begin, uintptr_t end) {
  Range* const last = std::remove_if(ranges, ranges + range_count,
                                     [&](const Range& range) { return range.begin >= begin && range.end <= end; });
  range_count = static_cast<size_t>(last - ranges);
}

// ---- in the parent

void OnAlarm(int) {
  static constexpr char kText[] = "\nthe survivors hang after: ";
  // Best effort: the test fails anyway.
  (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  (void)!write(STDERR_FILENO, board->where, std::strlen(board->where));
  (void)!write(STDERR_FILENO, "\n", 1);
  _exit(1);
}

time_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

std::string PointName(uint64_t event) { return event == kNever ? "the end" : "event " + std::to_string(event); }

// Runs the victim, which is killed before `event` or at its end. Returns false if it failed or hangs.
bool RunVictim(const KillScript& script, uint64_t event, bool record) {
  board->count = board->stores = 0;
  board->ended = board->failed = false;
  std::snprintf(board->where, sizeof(board->where), "the end");
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    in_victim = true;
    recording = record;
    kill_before = event;
    script.victim();
    enumerating = false;
    board->ended = true;
    board->failed = ::testing::Test::HasFailure();
    std::fflush(nullptr);
    kill(getpid(), SIGKILL);
  }
  const time_t give_up = Now() + kVictimSeconds;
  // Reports the victim's end. Other processes get a turn between the partner's steps.
  pollfd ended{.fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0)), .events = POLLIN};
  while (poll(&ended, 1, script.meanwhile ? 0 : 1000) <= 0 && Now() <= give_up) {
    if (script.meanwhile) script.meanwhile();
    sched_yield();
  }
  close(ended.fd);
  const bool hangs = ended.revents == 0;
  if (hangs) (void)testing_support::KillProcess(child);
  int status = 0;
  waitpid(child, &status, 0);
  if (hangs) {
    ADD_FAILURE() << "the victim hangs, after event " << board->count << " of the run that was to be killed before "
                  << PointName(event);
    return false;
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !board->failed) return true;
  ADD_FAILURE() << "the victim failed by itself, status " << status << ", after event " << board->count
                << " of the run that was to be killed before " << PointName(event);
  return false;
}

// Returns the events to be killed at: all but the middle of long runs.
std::vector<uint64_t> Points(uint64_t count) {
  const auto is_lock = [](const Event& event) { return event.addr == 0 && event.pc == kLockCall; };
  const auto goes_on = [&](const Event& a, const Event& b) {
    if (a.addr == 0 || b.addr == 0) return is_lock(a) && is_lock(b);
    return a.pc == b.pc || (b.addr > a.addr && b.addr - a.addr <= 64);
  };
  std::vector<uint64_t> points;
  for (uint64_t begin = 0; begin < count;) {
    uint64_t end = begin + 1;
    while (end < count && goes_on(board->events[end - 1], board->events[end])) ++end;
    const uint64_t length = end - begin;
    const bool locks = is_lock(board->events[begin]);
    const uint64_t at_ends = locks ? kKilledInLockRun / 2 : kKilledInLongRun / 3;
    const uint64_t step = length <= kLongRun ? 1 : (length + kKilledInLongRun / 3 - 1) / (kKilledInLongRun / 3);
    for (uint64_t i = 0; i < length; ++i) {
      if (i < at_ends || length - i <= at_ends || (!locks && i % step == 0)) points.push_back(begin + i);
    }
    begin = end;
  }
  points.push_back(count);  // the end
  return points;
}

bool Survive(const KillScript& script, const std::string& point) {
  SCOPED_TRACE(point + ": " + board->where);
  std::string copy = point + ": " + board->where;
  std::snprintf(board->where, sizeof(board->where), "%s", copy.c_str());
  signal(SIGALRM, OnAlarm);
  alarm(kSurvivorSeconds);
  script.survivors();
  alarm(0);
  if (::testing::Test::HasFailure()) std::fprintf(stderr, "failed after a kill before %s\n", copy.c_str());
  return !::testing::Test::HasFailure();
}

}  // namespace

bool InVictim() { return in_victim; }

void EnumerateFromHere() {
  if (!in_victim) return;
  Catch(SIGSEGV, OnFault);
  Catch(SIGTRAP, OnStep);
  for (const Range& range : std::span(ranges, range_count))
    mprotect(reinterpret_cast<void*>(range.begin), range.end - range.begin, PROT_READ);
  enumerating = true;
}

void KillAtEachStore(const KillScript& script) {
  if (board == nullptr) {
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    board = static_cast<Board*>(memory);
  }
  if (!RunVictim(script, kNever, true)) return;
  ASSERT_TRUE(board->ended);
  const uint64_t count = board->count, stores = board->stores;
  ASSERT_GT(count, 0u) << "the victim does nothing that is shared; was the executable linked by surgekv_kill_test?";
  ASSERT_LT(count, kMaxEvents);
  std::vector<uint64_t> points = Points(count);
  if (!Survive(script, "the end")) return;
  if (const char* only = std::getenv("KILL_POINT"); only != nullptr) points = {std::strtoull(only, nullptr, 10)};
  size_t killed = 0;
  for (const uint64_t point : points) {
    if (!RunVictim(script, point, false)) return;
    killed += board->ended ? 0 : 1;
    if (!Survive(script, "event " + std::to_string(point) + " of " + std::to_string(count))) return;
  }
  std::printf("[  KILLS   ] %llu stores and %llu calls; killed before %zu of them\n",
              static_cast<unsigned long long>(stores), static_cast<unsigned long long>(count - stores), killed);
  // Runs differ where the victim waits for others.
  EXPECT_GE(killed * 2, points.size() - 1) << "the victim rarely comes as far as when its stores were counted";
}

namespace {

// Maps a segment of the fabric, to look at it.
std::shared_ptr<rnic::sw::Mapping> MapFile(const std::string& name, size_t at_least) {
  namespace sw = rnic::sw;
  auto fd = sw::OpenShmFile(name, 0);
  if (!fd.ok()) return nullptr;
  const size_t length = sw::ShmLength(fd->get()).value();
  return length < at_least ? nullptr : sw::MapShm(fd->get(), length).value();
}

std::string TablesOf(const rnic::sw::DeviceSegment& segment) {
  const auto in_use = [](const auto& table, auto key_of) {
    return std::to_string(std::count_if(std::begin(table), std::end(table),
                                        [&](const auto& entry) { return key_of(entry).load() != 0; }));
  };
  return in_use(
             segment.mrs, [](auto& mr) -> auto& { return mr.key; }) +
         " MRs, " +
         in_use(
             segment.qps, [](auto& qp) -> auto& { return qp.word; }) +
         " queues, " +
         in_use(
             segment.segments, [](auto& memory) -> auto& { return memory.serial; }) +
         " segments";
}

}  // namespace

FabricState FabricState::Of(const std::string& fabric) {
  namespace sw = rnic::sw;
  FabricState state;
  const std::string prefix = sw::FabricPrefix(fabric);
  const std::vector<std::string> files = sw::ListShm(prefix).value();
  for (const std::string& file : files) state.files.push_back(file.substr(prefix.size()));
  std::sort(state.files.begin(), state.files.end());
  const auto mapping = MapFile(prefix + "ctl", sizeof(sw::Control));
  if (mapping == nullptr) return state;
  const auto& control = *reinterpret_cast<const sw::Control*>(mapping->addr());
  for (uint32_t i = 0; i < sw::kMaxDevices; ++i) {
    const uint64_t word = control.devices[i].life.load(std::memory_order_acquire);
    if (word == 0) continue;
    const uint32_t incarnation = sw::IncarnationOf(word);
    state.devices.push_back(std::to_string(i) + (sw::LifeOf(word) == sw::Life::kAlive ? " alive " : " dead ") +
                            std::to_string(incarnation));
    const auto segment = MapFile(prefix + sw::Fabric::SegmentSuffix(i, incarnation, 0), sizeof(sw::DeviceSegment));
    state.tables.push_back(segment == nullptr ? "none"
                                              : TablesOf(*reinterpret_cast<const sw::DeviceSegment*>(segment->addr())));
  }
  for (const sw::RecordSlot& record : control.records) {
    if (record.version != 0) state.records.push_back(std::string(record.name) + " of " + std::to_string(record.owner));
  }
  std::sort(state.records.begin(), state.records.end());
  return state;
}

void PrintTo(const FabricState& state, std::ostream* os) {
  const auto print = [os](const char* what, const std::vector<std::string>& all) {
    *os << what;
    for (const std::string& one : all) *os << " [" << one << "]";
  };
  print("files", state.files);
  print("; devices", state.devices);
  print("; records", state.records);
  print("; tables", state.tables);
}

}  // namespace krcore::test

// ---- the functions to which the linker redirects the product's calls

using krcore::test::CountCall;
using krcore::test::in_victim;
using krcore::test::IsShm;
using krcore::test::kMaxFd;
using krcore::test::NameOf;

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

void* __wrap_mmap(void* addr, size_t length, int prot, int flags, int fd, off_t offset) {
  const char* const name = in_victim && (flags & MAP_SHARED) != 0 ? NameOf(fd) : nullptr;
  if (name == nullptr) return __real_mmap(addr, length, prot, flags, fd, offset);
  void* const mapped =
      __real_mmap(addr, length, krcore::test::enumerating ? prot & ~PROT_WRITE : prot, flags, fd, offset);
  if (mapped != MAP_FAILED) krcore::test::AddRange(mapped, length, name);
  return mapped;
}

int __wrap_munmap(void* addr, size_t length) {
  const auto begin = reinterpret_cast<uintptr_t>(addr);
  if (in_victim) krcore::test::RemoveRange(begin, begin + length);
  return __real_munmap(addr, length);
}

int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (in_victim && IsShm(path) && (flags & O_CREAT) != 0) CountCall("open", path);
  const int fd = __real_open(path, flags, mode);
  if (in_victim && fd >= 0 && static_cast<size_t>(fd) < kMaxFd) {
    auto& name = krcore::test::names[fd];
    std::snprintf(name, sizeof(name), "%s", IsShm(path) ? path + std::strlen("/dev/shm/") : "");
  }
  return fd;
}

int __wrap_close(int fd) {
  if (in_victim && NameOf(fd) != nullptr) {
    CountCall("close", NameOf(fd));
    krcore::test::names[fd][0] = '\0';
  }
  return __real_close(fd);
}

// All callers pass a pointer or nothing.
int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (command == F_OFD_SETLK && NameOf(fd) != nullptr) {
    krcore::test::CountLock(static_cast<const struct flock*>(argument)->l_type == F_UNLCK ? "unlock" : "lock",
                            NameOf(fd));
  }
  return __real_fcntl(fd, command, argument);
}

int __wrap_renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (IsShm(from)) CountCall("rename", from);
  return __real_renameat2(from_folder, from, to_folder, to, flags);
}

int __wrap_unlink(const char* path) {
  if (IsShm(path)) CountCall("unlink", path);
  return __real_unlink(path);
}

int __wrap_posix_fallocate(int fd, off_t offset, off_t length) {
  if (NameOf(fd) != nullptr) CountCall("posix_fallocate", NameOf(fd));
  return __real_posix_fallocate(fd, offset, length);
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
