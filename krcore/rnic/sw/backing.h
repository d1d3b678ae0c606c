// Where a fabric's segments live, and how its devices know whether others live. There are two kinds: files in /dev/shm
// with kernel locks, shared by processes; and plain memory of this process ("inproc:").
//
// Thread safety: a Backing belongs to one device and may be used from several threads, except for the admin lock, which
// is held through AdminLock, once at a time.
#ifndef KRCORE_RNIC_SW_BACKING_H_
#define KRCORE_RNIC_SW_BACKING_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/status.h"

namespace krcore::rnic::sw {

inline constexpr std::string_view kInprocPrefix = "inproc:";

// A range of address space, unmapped on destruction.
class Mapping {
 public:
  Mapping(void* addr, size_t length) : addr_(addr), length_(length) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* addr() const { return static_cast<std::byte*>(addr_); }
  size_t length() const { return length_; }

 private:
  void* addr_;
  size_t length_;
};

class Backing {
 public:
  virtual ~Backing() = default;

  virtual Control& control() = 0;

  // Makes a new zeroed segment with its memory reserved, and claimed if `claimed`. kExists, kOutOfMemory.
  virtual Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length, bool claimed) = 0;
  // Maps an existing segment as a whole. kNotFound.
  virtual Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) = 0;
  // Opens and claims a segment that somebody left. kNotFound. kExists: a living process has claimed it.
  virtual Result<std::shared_ptr<Mapping>> Adopt(const std::string& suffix) = 0;
  // A claim ends with Remove, Disown or this process. Until then nobody else adopts or removes the segment, whatever
  // happens to the fabric's files.
  virtual void Disown(const std::string& suffix) = 0;
  // Gives a claimed segment an unused name. kUnavailable: the fabric's names no longer mean this fabric.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Gives an unclaimed segment of this device another name, in one step with the end of a segment that has that name.
  // Waits while other fabrics change names, until the deadline and for some ten seconds at most: kTimeout. Otherwise
  // statuses as Rename.
  virtual Status Replace(const std::string& from, const std::string& to, Deadline deadline, Clock& clock) = 0;
  // Removes a segment of this device: one that it has claimed, or whose name has the device's incarnation.
  virtual void Remove(const std::string& suffix) = 0;
  // Removes a segment that a dead device left. kExists: a living process has it. Other errors: that cannot be told, or
  // the fabric's names no longer mean this fabric. The admin lock is held.
  virtual Status RemoveLeft(const std::string& suffix) = 0;
  // Returns the suffixes of all segments except the control segment.
  virtual Result<std::vector<std::string>> List() = 0;
  // Removes the control segment itself. The admin lock is held.
  virtual void RemoveControl() = 0;
  // kUnavailable: the fabric's names no longer mean this fabric.
  virtual Status NameIsOurs() = 0;
  // As Device::CheckName.
  virtual Status CheckName() = 0;

  // Excludes everybody else who joins, leaves, reclaims or publishes. The kernel releases it if the holder dies.
  // kTimeout: the deadline has passed, or the holder has not let go for some ten seconds.
  virtual Status LockAdmin(Deadline deadline, Clock& clock) = 0;
  virtual void UnlockAdmin() = 0;

  // Declares this process to be the living owner of a device slot until Release or its death.
  virtual Status Hold(uint32_t index) = 0;
  virtual void Release(uint32_t index) = 0;
  // Whether anybody other than this Backing holds the slot, as the kernel knows it.
  virtual bool HeldByOther(uint32_t index) = 0;
};

class AdminLock {
 public:
  explicit AdminLock(Backing& backing, Deadline deadline = {}, Clock& clock = *RealClock())
      : backing_(&backing), status_(backing.LockAdmin(deadline, clock)) {}
  ~AdminLock() {
    if (status_.ok()) backing_->UnlockAdmin();
  }
  AdminLock(const AdminLock&) = delete;
  AdminLock& operator=(const AdminLock&) = delete;
  const Status& status() const { return status_; }

 private:
  Backing* backing_;
  Status status_;
};

// Both return with the admin lock held and the control segment initialized (magic set). kNotFound: there is no fabric,
// and no `create`.
Result<std::unique_ptr<Backing>> OpenShmBacking(const std::string& fabric, bool create);
Result<std::unique_ptr<Backing>> OpenInprocBacking(const std::string& fabric, bool create);

// Writes a fresh control segment into zeroed memory.
void InitControl(Control& control);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_BACKING_H_
