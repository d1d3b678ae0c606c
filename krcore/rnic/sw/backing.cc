#include "krcore/rnic/sw/backing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/rnic/sw/shm_file.h"

namespace krcore::rnic::sw {

// The Backing of named fabrics: files in /dev/shm. Life is shown by open-file-description locks on the control file
// (byte 0: admin; byte 1 + i: device slot i), which the kernel drops when their process ends, however it ends.

namespace {

constexpr const char* kControlSuffix = "ctl";
constexpr off_t kAdminByte = 0;
constexpr off_t kClaimByte = 0;          // of a segment's own file
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
  ~ShmBacking() override {
    for (const auto& [suffix, fd] : claims_) UnguardAndClose(fd, generation_);
    UnguardAndClose(fd_, generation_);
  }

  void SetControl(std::shared_ptr<Mapping> mapping) { control_ = std::move(mapping); }
  int fd() const { return fd_; }

  Control& control() override { return *reinterpret_cast<Control*>(control_->addr()); }

  Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length, bool claimed) override {
    length = RoundUpToPage(length);
    auto fd = OpenShmFile(prefix_ + suffix, O_CREAT | O_EXCL);
    if (!fd.ok()) return fd.status();
    Status ready = ReserveShm(fd->get(), length, "a segment of fabric " + fabric_);
    if (ready.ok() && claimed) ready = Claim(suffix, fd->get());
    Result<std::shared_ptr<Mapping>> mapping = ready.ok() ? MapShm(fd->get(), length) : std::move(ready);
    if (!mapping.ok()) Remove(suffix);
    return mapping;
  }

  Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) override {
    auto fd = OpenShmFile(prefix_ + suffix, 0);
    if (!fd.ok()) return fd.status();
    // The file is already open: while the fabric has its name, nobody else creates one whose memory has the same names.
    if (!HasIncarnation(suffix) && !NamesAreOurs())
      return Status(StatusCode::kNotFound, "segment " + suffix + " is of another fabric");
    return MapWhole(suffix, fd->get());
  }

  Result<std::shared_ptr<Mapping>> Adopt(const std::string& suffix) override {
    auto fd = OpenShmFile(prefix_ + suffix, 0);
    if (!fd.ok()) return fd.status();
    KRCORE_RETURN_IF_ERROR(Claim(suffix, fd->get()));
    Result<std::shared_ptr<Mapping>> mapping = NamesAreOurs() ? MapWhole(suffix, fd->get()) : NameGone();
    if (!mapping.ok()) Disown(suffix);
    return mapping;
  }

  void Disown(const std::string& suffix) override {
    const std::lock_guard lock(claims_mutex_);
    const auto found = claims_.find(suffix);
    if (found == claims_.end()) return;
    UnguardAndClose(found->second, generation_);
    claims_.erase(found);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    const NamesLock names;
    KRCORE_RETURN_IF_ERROR(names.status());
    const std::lock_guard lock(claims_mutex_);
    if (!NamesAreOurs() || !IsNameOf(prefix_ + from, claims_.at(from))) return NameGone();
    KRCORE_RETURN_IF_ERROR(RenameShm(prefix_ + from, prefix_ + to));
    auto claim = claims_.extract(from);
    claim.key() = to;
    claims_.insert(std::move(claim));
    return {};
  }

  Status Replace(const std::string& from, const std::string& to, Deadline deadline, Clock& clock) override {
    const NamesLock names(deadline, clock);
    KRCORE_RETURN_IF_ERROR(names.status());
    return NamesAreOurs() ? ReplaceShm(prefix_ + from, prefix_ + to) : NameGone();
  }

  void Remove(const std::string& suffix) override {
    if (HasIncarnation(suffix)) {  // no other device, of this fabric or another one, has such a name
      RemoveShm(prefix_ + suffix);
    } else {
      const NamesLock names;
      const std::lock_guard lock(claims_mutex_);
      const auto claim = claims_.find(suffix);
      if (names.status().ok() && claim != claims_.end() && IsNameOf(prefix_ + suffix, claim->second))
        RemoveShm(prefix_ + suffix);
    }
    Disown(suffix);
  }

  Status RemoveLeft(const std::string& suffix) override {
    const NamesLock names;
    KRCORE_RETURN_IF_ERROR(names.status());
    if (!NamesAreOurs()) return NameGone();
    // The claim on a device's first segment covers all its unnamed ones.
    const auto fd =
        OpenShmFile(prefix_ + (HasIncarnation(suffix) ? suffix.substr(0, suffix.find('.')) + ".0" : suffix), 0);
    struct flock lock = LockOf(F_WRLCK, kClaimByte);
    if (!fd.ok() && !(fd.status() == StatusCode::kNotFound)) return fd.status();
    if (fd.ok() && fcntl(fd->get(), F_OFD_GETLK, &lock) != 0)
      return Status::FromErrno(errno, "cannot tell whether " + prefix_ + suffix + " is in use");
    if (fd.ok() && lock.l_type != F_UNLCK) return {StatusCode::kExists, prefix_ + suffix + " is in use"};
    RemoveShm(prefix_ + suffix);
    return {};
  }

  Result<std::vector<std::string>> List() override {
    const auto names = ListShm(prefix_);
    if (!names.ok()) return names.status();
    std::vector<std::string> suffixes;
    for (const std::string& name : *names) {
      if (name.substr(prefix_.size()) != kControlSuffix) suffixes.push_back(name.substr(prefix_.size()));
    }
    return suffixes;
  }

  void RemoveControl() override {
    const NamesLock names;
    if (names.status().ok() && NamesAreOurs()) RemoveShm(prefix_ + kControlSuffix);
  }

  Status NameIsOurs() override { return NamesAreOurs() ? Status() : NameGone(); }

  Status CheckName() override {
    KRCORE_RETURN_IF_ERROR(NameIsOurs());
    const std::lock_guard lock(claims_mutex_);
    for (const auto& [suffix, fd] : claims_) {
      if (IsNameOf(prefix_ + suffix, fd)) continue;
      return {StatusCode::kUnavailable,
              "a file of fabric " + fabric_ + " is gone: " + kShmDirectory + "/" + prefix_ + suffix};
    }
    return {};
  }

  Status LockAdmin(Deadline deadline, Clock& clock) override {
    threads_.lock();
    struct flock lock = LockOf(F_WRLCK, kAdminByte);
    for (int tries = 0; tries < kAdminLockTries; ++tries) {
      if (fcntl(fd_, F_OFD_SETLK, &lock) == 0) return {};
      if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
        const int error = errno;
        threads_.unlock();
        return Status::FromErrno(error, "cannot lock fabric " + fabric_);
      }
      if (deadline.Passed(clock)) break;
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
    // If the kernel does not answer, say "alive": a false death would be worse than a late one.
    return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

  // Whether the fabric's names mean this fabric, that is, whether the file of that name is its control file.
  bool NamesAreOurs() const { return IsNameOf(prefix_ + kControlSuffix, fd_); }

 private:
  // "d<index>-<incarnation>.<serial>"; the control file and named memory have other names.
  static bool HasIncarnation(const std::string& suffix) { return suffix.find('.') != std::string::npos; }

  Status NameGone() const {
    struct stat info {};
    const bool taken = stat((std::string(kShmDirectory) + "/" + prefix_ + kControlSuffix).c_str(), &info) == 0;
    return {StatusCode::kUnavailable, "the name of fabric " + fabric_ +
                                          (taken ? " belongs to another fabric now" : " is gone") +
                                          ": its files were removed from " + kShmDirectory};
  }

  Result<std::shared_ptr<Mapping>> MapWhole(const std::string& suffix, int fd) {
    auto length = ShmLength(fd);
    if (!length.ok()) return length.status();
    if (*length == 0) return Status(StatusCode::kNotFound, "segment " + suffix + " is empty");
    return MapShm(fd, *length);
  }

  // `fd` is the file. The claim has a description of its own: a mapping would keep a lock of the one it was made from.
  Status Claim(const std::string& suffix, int fd) {
    int own = -1;
    {
      ForksHeld forks;  // a child that is forked meanwhile would keep the claim
      auto opened = OpenShmFile(prefix_ + suffix, 0);
      if (!opened.ok()) return opened.status();
      own = opened->Forget();
      forks.Guard(own);
    }
    struct flock lock = LockOf(F_WRLCK, kClaimByte);
    const bool locked = fcntl(own, F_OFD_SETLK, &lock) == 0;
    if (!locked || !IsNameOf(prefix_ + suffix, fd) || !IsNameOf(prefix_ + suffix, own)) {
      UnguardAndClose(own, generation_);
      return {StatusCode::kExists, std::string(kShmDirectory) + "/" + prefix_ + suffix +
                                       " is in use by a process that lives; where the fabric's other files were "
                                       "removed, it is still of the fabric that there was: stop its programs"};
    }
    const std::lock_guard claims_lock(claims_mutex_);
    claims_[suffix] = own;
    return {};
  }

  const std::string fabric_, prefix_;
  const int fd_;
  const uint32_t generation_;
  std::mutex claims_mutex_;
  std::map<std::string, int> claims_;  // by suffix: the descriptor that holds the lock
  std::mutex threads_;                 // OFD locks do not exclude threads that share the descriptor
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

Result<FileDescriptor> OpenControl(const std::string& fabric, bool create) {
  auto opened = OpenShmFile(FabricPrefix(fabric) + kControlSuffix, 0);
  if (!create || !(opened.status() == StatusCode::kNotFound)) return opened;
  const NamesLock names;
  if (!names.status().ok()) return names.status();
  return OpenShmFile(FabricPrefix(fabric) + kControlSuffix, O_CREAT);
}

// Maps the control segment; initializes it if it is new or its maker died before it was complete. Admin lock held.
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
  // Uses a description of its own: a mapping holds the description that it was made from, and with it its locks, and
  // forked children inherit mappings.
  auto again = OpenShmFile(FabricPrefix(fabric) + kControlSuffix, 0);
  if (!again.ok()) return again.status();
  if (!backing.NamesAreOurs() || !IsNameOf(FabricPrefix(fabric) + kControlSuffix, again->get()))
    return {StatusCode::kUnavailable, "the files of fabric " + fabric + " are being removed; try again"};
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
  // Repeats, because the last device of the fabric may remove the file between our open and our lock.
  for (;;) {
    auto opened = OpenControl(fabric, create);
    if (!opened.ok()) return opened.status() == StatusCode::kNotFound ? NoSuchFabric(fabric) : opened.status();
    auto backing = std::make_unique<ShmBacking>(fabric, opened->Forget());
    KRCORE_RETURN_IF_ERROR(backing->LockAdmin({}, *RealClock()));
    if (!backing->NamesAreOurs()) {
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

// The Backing of "inproc:" fabrics: memory of this process, found by name in a process-wide table.

namespace {

struct InprocFabric {
  std::map<std::string, std::shared_ptr<Mapping>> segments;
  std::set<uint32_t> held;
  std::shared_ptr<Mapping> control;  // null: removed with its last device
};

struct Table {
  std::recursive_mutex mutex;  // guards the fabrics, and is the admin lock of all of them
  std::map<std::string, std::shared_ptr<InprocFabric>> fabrics;
  const uint32_t generation = ForkGeneration();
  const Table* former = nullptr;  // the parent process's, whose mutex may be held for ever
};

// Returns this process's table. Never destroyed: devices of static storage duration may outlive it.
Table& TheTable() {
  static std::atomic<Table*> table{nullptr};
  Table* current = table.load(std::memory_order_acquire);  // pairs with the release of the maker
  while (current == nullptr || current->generation != ForkGeneration()) {
    auto fresh = std::make_unique<Table>();
    fresh->former = current;
    if (table.compare_exchange_strong(current, fresh.get(), std::memory_order_acq_rel)) current = fresh.release();
  }
  return *current;
}

class InprocBacking final : public Backing {
 public:
  InprocBacking(std::string name, std::shared_ptr<InprocFabric> fabric)
      : name_(std::move(name)), fabric_(std::move(fabric)), control_(fabric_->control) {}

  Control& control() override { return *reinterpret_cast<Control*>(control_->addr()); }

  Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length, bool /*claimed*/) override {
    auto mapping = MapAnonymous(RoundUpToPage(length));
    if (!mapping.ok()) return mapping;
    const std::lock_guard lock(TheTable().mutex);
    if (!fabric_->segments.emplace(suffix, *mapping).second) {
      return Status(StatusCode::kExists, "segment " + suffix + " exists");
    }
    return mapping;
  }

  Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) override {
    const std::lock_guard lock(TheTable().mutex);
    const auto found = fabric_->segments.find(suffix);
    if (found == fabric_->segments.end()) return Status(StatusCode::kNotFound, "no segment " + suffix);
    return found->second;
  }

  // Only the fabric's devices reach this memory, so their agreement is enough.
  Result<std::shared_ptr<Mapping>> Adopt(const std::string& suffix) override { return Open(suffix); }
  void Disown(const std::string& /*suffix*/) override {}

  Status Rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(TheTable().mutex);
    auto node = fabric_->segments.extract(from);
    if (node.empty()) return {StatusCode::kNotFound, "no segment " + from};
    fabric_->segments[to] = node.mapped();
    return {};
  }
  Status Replace(const std::string& from, const std::string& to, Deadline /*deadline*/, Clock& /*clock*/) override {
    return Rename(from, to);
  }

  void Remove(const std::string& suffix) override {
    const std::lock_guard lock(TheTable().mutex);
    fabric_->segments.erase(suffix);
  }

  Status RemoveLeft(const std::string& suffix) override {
    Remove(suffix);
    return {};
  }

  Result<std::vector<std::string>> List() override {
    const std::lock_guard lock(TheTable().mutex);
    std::vector<std::string> suffixes;
    for (const auto& [suffix, mapping] : fabric_->segments) suffixes.push_back(suffix);
    return suffixes;
  }

  void RemoveControl() override {
    Table& table = TheTable();
    const std::lock_guard lock(table.mutex);
    fabric_->control.reset();
    if (!fabric_->segments.empty()) return;  // memory that is kept for a successor
    const auto found = table.fabrics.find(name_);
    if (found != table.fabrics.end() && found->second == fabric_) table.fabrics.erase(found);
  }

  Status NameIsOurs() override { return {}; }
  Status CheckName() override { return {}; }

  Status LockAdmin(Deadline /*deadline*/, Clock& /*clock*/) override {
    TheTable().mutex.lock();
    return {};
  }
  void UnlockAdmin() override { TheTable().mutex.unlock(); }

  Status Hold(uint32_t index) override {
    const std::lock_guard lock(TheTable().mutex);
    fabric_->held.insert(index);
    return {};
  }
  void Release(uint32_t index) override {
    const std::lock_guard lock(TheTable().mutex);
    fabric_->held.erase(index);
  }
  bool HeldByOther(uint32_t index) override {
    const std::lock_guard lock(TheTable().mutex);
    return fabric_->held.contains(index);
  }

 private:
  const std::string name_;
  const std::shared_ptr<InprocFabric> fabric_;
  const std::shared_ptr<Mapping> control_;
};

}  // namespace

Result<std::unique_ptr<Backing>> OpenInprocBacking(const std::string& name, bool create) {
  Table& table = TheTable();
  std::unique_lock lock(table.mutex);
  const auto found = table.fabrics.find(name);
  auto fabric = found != table.fabrics.end() ? found->second : std::make_shared<InprocFabric>();
  if (fabric->control == nullptr) {
    if (!create) return Status(StatusCode::kNotFound, "no fabric named " + name + " in this process; create it");
    auto mapping = MapAnonymous(RoundUpToPage(sizeof(Control)));
    if (!mapping.ok()) return mapping.status();
    InitControl(*reinterpret_cast<Control*>((*mapping)->addr()));
    fabric->control = *std::move(mapping);
    table.fabrics[name] = fabric;
  }
  auto backing = std::make_unique<InprocBacking>(name, fabric);
  lock.release();  // it is the admin lock
  return std::unique_ptr<Backing>(std::move(backing));
}

}  // namespace krcore::rnic::sw
