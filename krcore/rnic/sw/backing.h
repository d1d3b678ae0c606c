// Where a fabric's segments live and how its devices know of each other's life. Two kinds: files in /dev/shm
// with kernel locks, shared by processes; and plain memory of this process ("inproc:").
//
// Thread safety: a Backing belongs to one device and may be used from several threads, but for the admin lock,
// which is not recursive and is held through AdminLock.
#ifndef KRCORE_RNIC_SW_BACKING_H_
#define KRCORE_RNIC_SW_BACKING_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

  // A new zeroed segment with its memory reserved, and claimed if so asked. kExists, kOutOfMemory.
  virtual Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length, bool claimed) = 0;
  // An existing one, whole. kNotFound.
  virtual Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) = 0;
  // Opens and claims a segment that somebody left. kNotFound. kExists: a living process has claimed it.
  virtual Result<std::shared_ptr<Mapping>> Adopt(const std::string& suffix) = 0;
  // A claim ends with Remove, Disown or this process. Until then nobody else adopts the segment or removes it, whatever
  // has become of the fabric's files.
  virtual void Disown(const std::string& suffix) = 0;
  // Gives a claimed segment a name that nothing has. kUnavailable: the fabric's names no longer mean this one.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Removes a segment of this device: one that it has claimed, or one whose name has the device's incarnation.
  virtual void Remove(const std::string& suffix) = 0;
  // Removes a segment that a dead device left. kExists: a living process has it. Else it cannot be told, or the
  // fabric's names are not this one's any more. The admin lock is held.
  virtual Status RemoveLeft(const std::string& suffix) = 0;
  // Suffixes of all segments but the control segment.
  virtual Result<std::vector<std::string>> List() = 0;
  // Removes the control segment itself. The admin lock is held.
  virtual void RemoveControl() = 0;
  // As Device::CheckName.
  virtual Status CheckName() = 0;

  // Excludes all others who join, leave, reclaim or publish. Released by the kernel if the holder dies.
  virtual Status LockAdmin() = 0;
  virtual void UnlockAdmin() = 0;

  // Declares this process to be the living owner of a device slot until Release or its death.
  virtual Status Hold(uint32_t index) = 0;
  virtual void Release(uint32_t index) = 0;
  // Whether anybody but this Backing holds the slot, as the kernel knows it.
  virtual bool HeldByOther(uint32_t index) = 0;
};

class AdminLock {
 public:
  explicit AdminLock(Backing& backing) : backing_(&backing), status_(backing.LockAdmin()) {}
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

// Both return with the admin lock held and the control segment initialized (magic set). kNotFound without
// `create` where there is none.
Result<std::unique_ptr<Backing>> OpenShmBacking(const std::string& fabric, bool create);
Result<std::unique_ptr<Backing>> OpenInprocBacking(const std::string& fabric, bool create);

// Writes a fresh control segment into zeroed memory.
void InitControl(Control& control);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_BACKING_H_
