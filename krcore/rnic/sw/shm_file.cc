#include "krcore/rnic/sw/shm_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace krcore::rnic::sw {
namespace {

constexpr size_t kPageBytes = 4096;

std::string Path(const std::string& name) { return std::string(kShmDirectory) + "/" + name; }

// Reserves address space so that the result is aligned, then gives back what sticks out.
Result<std::shared_ptr<Mapping>> MapAligned(int fd, size_t length) {
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
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | extra_flags, 0600));
  if (fd.get() < 0) return Status::FromErrno(errno, "cannot open " + path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "cannot inspect " + path);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return Status(StatusCode::kPermissionDenied,
                  path + " is not a private file of this user (want a regular file of mode 0600); remove it");
  }
  return fd;
}

Status ReserveShm(int fd, size_t length, const std::string& what) {
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

Result<std::shared_ptr<Mapping>> MapShm(int fd, size_t length) { return MapAligned(fd, length); }

Result<std::shared_ptr<Mapping>> MapAnonymous(size_t length) {
  auto mapping = MapAligned(-1, length);
  // Advice only: without huge pages the memory works as well.
  if (mapping.ok() && length >= kHugePageBytes) madvise((*mapping)->addr(), length, MADV_HUGEPAGE);
  return mapping;
}

std::vector<std::string> ListShm(const std::string& prefix) {
  std::vector<std::string> names;
  DIR* directory = opendir(kShmDirectory);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(prefix)) names.emplace_back(name);
  }
  closedir(directory);
  return names;
}

void RemoveShm(const std::string& name) { unlink(Path(name).c_str()); }

}  // namespace krcore::rnic::sw
