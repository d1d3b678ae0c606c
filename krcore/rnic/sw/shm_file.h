// Files in /dev/shm: creating, opening and mapping them with the checks that keep them private to their user.
#ifndef KRCORE_RNIC_SW_SHM_FILE_H_
#define KRCORE_RNIC_SW_SHM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/rnic/sw/backing.h"
#include "krcore/status.h"

namespace krcore::rnic::sw {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Forget()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  int Forget() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

inline constexpr const char* kShmDirectory = "/dev/shm";

// "surgekv-<uid>-", with which every file of this user begins, and the same followed by "<fabric>.".
std::string UserPrefix();
std::string FabricPrefix(const std::string& fabric);

// Prefixes of the files of named memory: kept only after a crash, or also after a clean close. Both are followed by
// "<node>-<name>".
inline constexpr char kNamedPrefix = 'm';
inline constexpr char kKeptPrefix = 'k';

// Prefix of the files of the fabric's own records. It sorts after "ctl" and after the prefixes of memory. So whoever
// removes a fabric's files in the order of their names removes the records last: nobody takes one of them for never
// set.
inline constexpr const char* kRecordPrefix = "r-";

// Whether a segment of that suffix is named memory.
inline bool IsNamedMemory(const std::string& suffix) {
  return suffix.starts_with(kNamedPrefix) || suffix.starts_with(kKeptPrefix);
}

// Opens a file of kShmDirectory by name: regular, owned by this user, not accessible to others, not a link.
Result<FileDescriptor> OpenShmFile(const std::string& name, int extra_flags);
// Sets the length and reserves every page of it, so that no later access can fail.
Status ReserveShm(int fd, size_t length, const std::string& what);
Result<size_t> ShmLength(int fd);
// Maps it, 2 MiB-aligned from 2 MiB up, so that huge pages can back it; `fd` -1: private zeroed memory.
Result<std::shared_ptr<Mapping>> MapShm(int fd, size_t length);
// Maps private zeroed memory, aligned likewise.
Result<std::shared_ptr<Mapping>> MapAnonymous(size_t length);
// Returns the names in kShmDirectory that begin with `prefix`. An error does not mean that there are none.
Result<std::vector<std::string>> ListShm(const std::string& prefix);
// Whether `name` is the name of the file that is open as `fd`.
bool IsNameOf(const std::string& name, int fd);

// While it is held, a name in kShmDirectory keeps its meaning among all that add and remove names under this lock. The
// lock is on the directory itself, which nobody can remove. Others may still remove files meanwhile, but create none.
class NamesLock {
 public:
  // Waits for it until the deadline, and for some ten seconds at most.
  explicit NamesLock(Deadline deadline = {}, Clock& clock = *RealClock());
  ~NamesLock();
  NamesLock(const NamesLock&) = delete;
  NamesLock& operator=(const NamesLock&) = delete;
  const Status& status() const { return status_; }

 private:
  const uint32_t generation_ = ForkGeneration();
  int directory_;  // closed in children that are forked meanwhile, which would otherwise keep the lock of a dead parent
  Status status_;
};
// Needs the lock. kExists: there is a file named `to`.
Status RenameShm(const std::string& from, const std::string& to);
// Needs the lock. A file named `to` goes; at no moment is there none.
Status ReplaceShm(const std::string& from, const std::string& to);
void RemoveShm(const std::string& name);

// Returns, in ascending order, the processes of this user that have a device on a fabric whose control file was
// removed, as far as /proc tells.
std::vector<int32_t> ProcessesOfRemoved(const std::string& control_name);

size_t RoundUpToPage(size_t length);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_SHM_FILE_H_
