#include "krcore/rnic/sw/shm_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/rnic/providers.h"
#include "krcore/rnic/sw/fabric.h"

namespace krcore::rnic::sw {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kNamesLockTries = 10'000;  // of a millisecond each: a holder needs microseconds unless it is stopped

std::string Path(const std::string& name) { return std::string(kShmDirectory) + "/" + name; }

Status NoShm() {
  return {StatusCode::kUnavailable,
          std::string("there is no ") + kShmDirectory +
              ", where --rnic=sw keeps its memory: mount a tmpfs on it (mount -t tmpfs tmpfs " + kShmDirectory +
              "; for a container see its --shm-size or --ipc)"};
}

}  // namespace

Mapping::~Mapping() { munmap(addr_, length_); }

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = other.Forget();
  return *this;
}
FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

size_t RoundUpToPage(size_t length) { return (length + kPageBytes - 1) & ~(kPageBytes - 1); }

std::string UserPrefix() { return "surgekv-" + std::to_string(geteuid()) + "-"; }
std::string FabricPrefix(const std::string& fabric) { return UserPrefix() + fabric + "."; }

Result<FileDescriptor> OpenShmFile(const std::string& name, int extra_flags) {
  const std::string path = Path(name);
  FileDescriptor fd(AboveStandard(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | extra_flags, 0600)));
  if (fd.get() < 0) {
    const int error = errno;
    if (error == ENOENT && (extra_flags & O_CREAT) != 0) return NoShm();
    return Status::FromErrno(error, "cannot open " + path);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "cannot inspect " + path);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return Status(StatusCode::kPermissionDenied,
                  path + " is not a private file of this user (want a regular file of mode 0600); remove it");
  }
  return fd;
}

Status ReserveShm(int fd, size_t length, const std::string& what) {
  KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(length));
  } while (error == EINTR);
  if (error == 0) return {};
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {
    return {StatusCode::kOutOfMemory, what + " needs " + std::to_string(length) + " bytes, which " + kShmDirectory +
                                          " does not have; ask for less or make it larger (df " + kShmDirectory + ")"};
  }
  return Status::FromErrno(error, "cannot reserve " + std::to_string(length) + " bytes for " + what);
}

Result<size_t> ShmLength(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status::FromErrno(errno, "cannot inspect a segment");
  return static_cast<size_t>(info.st_size);
}

// Reserves address space so that the result is aligned, then unmaps the excess.
Result<std::shared_ptr<Mapping>> MapShm(int fd, size_t length) {
  const size_t alignment = length >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const size_t reserved = length + alignment;
  void* space = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return Status::FromErrno(errno, "no address space for " + std::to_string(length) + " bytes");
  const uintptr_t begin = reinterpret_cast<uintptr_t>(space);
  const uintptr_t aligned = (begin + alignment - 1) & ~(alignment - 1);
  if (aligned > begin) munmap(space, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + length), begin + reserved - aligned - length);
  const int flags = (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED;
  void* addr = mmap(reinterpret_cast<void*>(aligned), length, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (addr == MAP_FAILED) {
    const int error = errno;
    munmap(reinterpret_cast<void*>(aligned), length);
    return Status::FromErrno(error, "cannot map " + std::to_string(length) + " bytes");
  }
  return std::make_shared<Mapping>(addr, length);
}

Result<std::shared_ptr<Mapping>> MapAnonymous(size_t length) {
  KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  auto mapping = MapShm(-1, length);
  // Advice only: the memory works without huge pages as well.
  if (mapping.ok() && length >= kHugePageBytes) madvise((*mapping)->addr(), length, MADV_HUGEPAGE);
  return mapping;
}

Result<std::vector<std::string>> ListShm(const std::string& prefix) {
  std::vector<std::string> names;
  FileDescriptor fd(AboveStandard(open(kShmDirectory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  DIR* directory = fd.get() < 0 ? nullptr : fdopendir(fd.get());
  if (directory == nullptr) {
    if (errno == ENOENT) return names;
    return Status::FromErrno(errno, std::string("cannot list ") + kShmDirectory);
  }
  (void)fd.Forget();  // closedir closes it
  while (const dirent* entry = readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(prefix)) names.emplace_back(name);
  }
  closedir(directory);
  return names;
}

bool IsNameOf(const std::string& name, int fd) {
  struct stat named {
  }, open{};
  return fstat(fd, &open) == 0 && stat(Path(name).c_str(), &named) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

NamesLock::NamesLock(Deadline deadline, Clock& clock) {
  {
    ForksHeld forks;
    directory_ = AboveStandard(open(kShmDirectory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory_ >= 0) forks.Guard(directory_);
  }
  if (directory_ < 0) {
    status_ = errno == ENOENT ? NoShm() : Status::FromErrno(errno, std::string("cannot open ") + kShmDirectory);
    return;
  }
  for (int tries = 0; flock(directory_, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      status_ = Status::FromErrno(errno, std::string("cannot lock ") + kShmDirectory);
      return;
    }
    if (tries == kNamesLockTries || deadline.Passed(clock)) {
      status_ = {StatusCode::kTimeout,
                 std::string(kShmDirectory) + " is locked by a process that does not go on; is one stopped?"};
      return;
    }
    const timespec pause{0, tries < 100 ? 20'000 : 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

NamesLock::~NamesLock() {
  // Unlocked explicitly: a child that a bare clone made meanwhile has the descriptor, too.
  if (status_.ok()) flock(directory_, LOCK_UN);
  if (directory_ >= 0) UnguardAndClose(directory_, generation_);
}

namespace {

Status RenameWith(unsigned flags, const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, Path(from).c_str(), AT_FDCWD, Path(to).c_str(), flags) == 0) return {};
  return Status::FromErrno(errno, "cannot rename " + Path(from) + " to " + to);
}

}  // namespace

Status RenameShm(const std::string& from, const std::string& to) { return RenameWith(RENAME_NOREPLACE, from, to); }
Status ReplaceShm(const std::string& from, const std::string& to) { return RenameWith(0, from, to); }

void RemoveShm(const std::string& name) { unlink(Path(name).c_str()); }

std::vector<int32_t> ProcessesOfRemoved(const std::string& control_name) {
  std::vector<int32_t> found;
  const std::string removed = Path(control_name) + " (deleted)";
  std::error_code ignored;  // of a process that ends meanwhile or belongs to another user
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    const int32_t pid = std::atoi(process.path().filename().c_str());
    if (pid <= 0) continue;
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", ignored)) {
      if (std::filesystem::read_symlink(fd.path(), ignored) != removed) continue;
      // A process that is just leaving has no device on the fabric any more.
      std::ifstream info(process.path() / "fdinfo" / fd.path().filename());
      long first = 0;
      bool has_device = false;
      for (std::string line; std::getline(info, line);) {
        has_device |= std::sscanf(line.c_str(), "lock: %*d: OFDLCK %*s WRITE %*d %*s %ld", &first) == 1 && first > 0;
      }
      if (has_device && std::ranges::find(found, pid) == found.end()) found.push_back(pid);
    }
  }
  std::ranges::sort(found);
  return found;
}

// Finds and removes what fabrics without a living device left in /dev/shm.

namespace {

// Names of the fabrics of this user that have any file.
Result<std::set<std::string>> Fabrics() {
  std::set<std::string> names;
  const std::string prefix = UserPrefix();
  const auto files = ListShm(prefix);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    const size_t dot = file.find('.', prefix.size());
    if (dot != std::string::npos) names.insert(file.substr(prefix.size(), dot - prefix.size()));
  }
  return names;
}

bool AnybodyHolds(Backing& backing) {
  for (uint32_t index = 0; index < kMaxDevices; ++index) {
    if (backing.HeldByOther(index)) return true;
  }
  return false;
}

bool HasKept(const std::vector<std::string>& suffixes) {
  for (const std::string& suffix : suffixes) {
    if (!suffix.empty() && suffix[0] == kKeptPrefix) return true;
  }
  return false;
}

// Returns true if it removed anything. Holds the admin lock, so that nobody joins meanwhile.
Result<bool> CleanOne(const std::string& fabric, bool also_kept) {
  // Creates the fabric if it is missing: its lock keeps others out while leftover memory is removed. A fabric of
  // another build stays: this build cannot use it, but a process of the other may.
  auto backing = OpenShmBacking(fabric, true);
  if (!backing.ok()) return backing.status();
  bool removed = false;
  if (!AnybodyHolds(**backing)) {
    auto suffixes = (*backing)->List();
    if (!suffixes.ok()) {
      (*backing)->UnlockAdmin();
      return suffixes.status();
    }
    if (also_kept || !HasKept(*suffixes)) {
      Status left;
      std::ranges::sort(*suffixes);  // records come last: they stay as long as memory whose state they tell
      for (const std::string& suffix : *suffixes) {
        if (suffix.starts_with(kRecordPrefix) && !left.ok()) continue;
        if (Status one = (*backing)->RemoveLeft(suffix); !one.ok()) left = one;
      }
      (*backing)->RemoveControl();
      removed = true;
      if (!left.ok()) {
        (*backing)->UnlockAdmin();
        if (!(left == StatusCode::kExists))
          return Status(left.code(),
                        "not all files of fabric " + fabric + " were removed: " + std::string(left.message()));
        return Status(StatusCode::kExists, "files of fabric " + fabric +
                                               " are in use by a living process, and stay: somebody has removed its "
                                               "control file. Stop the fabric's programs first");
      }
    }
  }
  (*backing)->UnlockAdmin();
  return removed;
}

}  // namespace

std::vector<int32_t> ProcessesOfRemovedFabric(const std::string& fabric) {
  return ProcessesOfRemoved(FabricPrefix(fabric) + "ctl");
}

std::vector<std::string> ListFabrics() {
  const auto names = Fabrics();
  return names.ok() ? std::vector<std::string>(names->begin(), names->end()) : std::vector<std::string>();
}

Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept) {
  if (!fabric.empty()) KRCORE_RETURN_IF_ERROR(CheckFabricName(fabric));
  CleanReport report;
  const auto names = Fabrics();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!fabric.empty() && name != fabric) continue;
    auto removed = CleanOne(name, also_kept);
    if (!removed.ok()) return removed.status();
    if (*removed) report.removed.push_back(name);
  }
  return report;
}

}  // namespace krcore::rnic::sw
