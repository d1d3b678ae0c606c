#include "computenode/elastic/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "krcore/base/os.h"

namespace computenode {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Status Failed(StatusCode code, const char* what) {
  return {code, std::string(Status::FromErrno(errno, what).message())};
}

}  // namespace

Result<SharedMemory> SharedMemory::Map(const char* what, int fd, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) return SharedMemory(fd, static_cast<std::byte*>(memory), bytes);
  const Status status = Failed(StatusCode::kOutOfMemory, what);
  close(fd);
  return status;
}

Result<SharedMemory> SharedMemory::Create(const char* what, uint64_t bytes) {
  const int fd = krcore::AboveStandard(memfd_create(what, MFD_CLOEXEC));
  if (fd < 0) return Failed(StatusCode::kOutOfMemory, what);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const Status status = Failed(StatusCode::kOutOfMemory, what);
    close(fd);
    return status;
  }
  return Map(what, fd, bytes);
}

Result<SharedMemory> SharedMemory::Attach(const char* what, int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return Failed(StatusCode::kInvalidArgument, what);
  if (file.st_size == 0) return Status(StatusCode::kInvalidArgument, std::string(what) + ": the file is empty");
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, krcore::kFirstDescriptor);
  if (own < 0) return Failed(StatusCode::kInvalidArgument, what);
  return Map(what, own, static_cast<uint64_t>(file.st_size));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), data_(other.data_), bytes_(other.bytes_) {}

SharedMemory::~SharedMemory() {
  if (fd_ < 0) return;
  munmap(data_, bytes_);
  close(fd_);
}

}  // namespace computenode
