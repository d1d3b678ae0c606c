// The Backing of named fabrics: files in /dev/shm, life by open-file-description locks on the control file
// (byte 0: admin; byte 1 + i: device slot i), which the kernel drops when their process ends, however it ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "krcore/rnic/fork_guard.h"
#include "krcore/rnic/sw/backing.h"
#include "krcore/rnic/sw/shm_file.h"

namespace krcore::rnic::sw {
namespace {

constexpr const char* kControlSuffix = "ctl";
constexpr off_t kAdminByte = 0;
constexpr int kAdminLockTries = 10'000;  // of a millisecond: a holder needs microseconds unless it is stopped

struct flock LockOf(short type, off_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

off_t ByteOf(uint32_t index) { return off_t{1} + index; }

class ShmBacking final : public Backing {
 public:
  ShmBacking(std::string fabric, int fd)
      : fabric_(std::move(fabric)), prefix_(FabricPrefix(fabric_)), fd_(fd), generation_(ForkGeneration()) {
    GuardDescriptor(fd_);
  }
  ~ShmBacking() override { UnguardAndClose(fd_, generation_); }

  void SetControl(std::shared_ptr<Mapping> mapping) { control_ = std::move(mapping); }
  int fd() const { return fd_; }

  Control& control() override { return *reinterpret_cast<Control*>(control_->addr()); }

  Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length) override {
    length = RoundUpToPage(length);
    auto fd = OpenShmFile(prefix_ + suffix, O_CREAT | O_EXCL);
    if (!fd.ok()) return fd.status();
    Status reserved = ReserveShm(fd->get(), length, "a segment of fabric " + fabric_);
    Result<std::shared_ptr<Mapping>> mapping = reserved.ok() ? MapShm(fd->get(), length) : std::move(reserved);
    if (!mapping.ok()) Remove(suffix);
    return mapping;
  }

  Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) override {
    auto fd = OpenShmFile(prefix_ + suffix, 0);
    if (!fd.ok()) return fd.status();
    auto length = ShmLength(fd->get());
    if (!length.ok()) return length.status();
    if (*length == 0) return Status(StatusCode::kNotFound, "segment " + suffix + " is empty");
    return MapShm(fd->get(), *length);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    const std::string directory = std::string(kShmDirectory) + "/";
    if (rename((directory + prefix_ + from).c_str(), (directory + prefix_ + to).c_str()) == 0) return {};
    return Status::FromErrno(errno, "cannot rename segment " + from + " to " + to);
  }

  void Remove(const std::string& suffix) override { RemoveShm(prefix_ + suffix); }

  std::vector<std::string> List() override {
    std::vector<std::string> suffixes;
    for (const std::string& name : ListShm(prefix_)) {
      if (name.substr(prefix_.size()) != kControlSuffix) suffixes.push_back(name.substr(prefix_.size()));
    }
    return suffixes;
  }

  void RemoveControl() override { Remove(kControlSuffix); }

  Status LockAdmin() override {
    threads_.lock();
    struct flock lock = LockOf(F_WRLCK, kAdminByte);
    for (int tries = 0; tries < kAdminLockTries; ++tries) {
      if (fcntl(fd_, F_OFD_SETLK, &lock) == 0) return {};
      if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
        const int error = errno;
        threads_.unlock();
        return Status::FromErrno(error, "cannot lock fabric " + fabric_);
      }
      const timespec pause{0, tries < 100 ? 20'000 : 1'000'000};
      nanosleep(&pause, nullptr);
    }
    threads_.unlock();
    return {StatusCode::kTimeout, "fabric " + fabric_ + " is locked by a process that does not go on; is one stopped?"};
  }

  void UnlockAdmin() override {
    struct flock lock = LockOf(F_UNLCK, kAdminByte);
    fcntl(fd_, F_OFD_SETLK, &lock);
    threads_.unlock();
  }

  Status Hold(uint32_t index) override {
    struct flock lock = LockOf(F_WRLCK, ByteOf(index));
    if (fcntl(fd_, F_OFD_SETLK, &lock) == 0) return {};
    return Status::FromErrno(errno, "cannot lock a device slot of fabric " + fabric_);
  }

  void Release(uint32_t index) override {
    struct flock lock = LockOf(F_UNLCK, ByteOf(index));
    fcntl(fd_, F_OFD_SETLK, &lock);
  }

  bool HeldByOther(uint32_t index) override {
    struct flock lock = LockOf(F_WRLCK, ByteOf(index));
    // Where the kernel does not answer, say "alive": a false death would be worse than a late one.
    return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

  bool inert() const override { return ForkGeneration() != generation_; }

 private:
  const std::string fabric_, prefix_;
  const int fd_;
  const uint32_t generation_;
  std::mutex threads_;  // OFD locks do not exclude threads that share the descriptor
  std::shared_ptr<Mapping> control_;
};

Status NoSuchFabric(const std::string& fabric) {
  return {StatusCode::kNotFound, "no fabric named " + fabric + "; start a memory node on it"};
}

Status IncompatibleFabric(const std::string& fabric) {
  return {
      StatusCode::kBadState,
      "fabric " + fabric +
          " was made by an incompatible build; stop its processes, then clean it with that build, or remove /dev/shm/" +
          FabricPrefix(fabric) + "*"};
}

// Maps the control segment; makes it where it is new or its maker died before it was complete. Admin lock held.
Status AttachControl(ShmBacking& backing, const std::string& fabric, bool create) {
  auto length = ShmLength(backing.fd());
  if (!length.ok()) return length.status();
  if (*length != 0 && *length != RoundUpToPage(sizeof(Control))) {
    return IncompatibleFabric(fabric);
  }
  if (*length == 0 && !create) {
    backing.RemoveControl();
    return NoSuchFabric(fabric);
  }
  KRCORE_RETURN_IF_ERROR(ReserveShm(backing.fd(), RoundUpToPage(sizeof(Control)), "the control segment of " + fabric));
  // Through a description of its own: a mapping holds the description it was made from, and with it that one's
  // locks, and forked children inherit mappings. The admin lock keeps the name from changing meanwhile.
  auto again = OpenShmFile(FabricPrefix(fabric) + kControlSuffix, 0);
  if (!again.ok()) return again.status();
  auto mapping = MapShm(again->get(), RoundUpToPage(sizeof(Control)));
  if (!mapping.ok()) return mapping.status();
  backing.SetControl(*std::move(mapping));
  Control& control = backing.control();
  if (control.magic == 0) {
    if (!create) {
      backing.RemoveControl();
      return NoSuchFabric(fabric);
    }
    InitControl(control);
  }
  if (control.magic == kControlMagic) return {};
  return IncompatibleFabric(fabric);
}

}  // namespace

Result<std::unique_ptr<Backing>> OpenShmBacking(const std::string& fabric, bool create) {
  // Again and again, because the last device of the fabric may remove the file between our open and our lock.
  for (;;) {
    auto opened = OpenShmFile(FabricPrefix(fabric) + kControlSuffix, create ? O_CREAT : 0);
    if (!opened.ok()) return opened.status() == StatusCode::kNotFound ? NoSuchFabric(fabric) : opened.status();
    auto backing = std::make_unique<ShmBacking>(fabric, opened->Forget());
    KRCORE_RETURN_IF_ERROR(backing->LockAdmin());
    struct stat info {};
    if (fstat(backing->fd(), &info) == 0 && info.st_nlink == 0) {
      backing->UnlockAdmin();
      continue;
    }
    if (Status attached = AttachControl(*backing, fabric, create); !attached.ok()) {
      backing->UnlockAdmin();
      return attached;
    }
    return std::unique_ptr<Backing>(std::move(backing));
  }
}

}  // namespace krcore::rnic::sw
