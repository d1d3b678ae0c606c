// Files in /dev/shm: made, opened and mapped with the checks that keep them private to their user.
#ifndef KRCORE_RNIC_SW_SHM_FILE_H_
#define KRCORE_RNIC_SW_SHM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// "surgekv-<uid>-", what every file of this user begins with, and the same with "<fabric>.".
std::string UserPrefix();
std::string FabricPrefix(const std::string& fabric);

// Prefixes of the files of named memory: kept only after a crash, or after a clean close too. Both are followed
// by "<node>-<name>".
inline constexpr char kNamedPrefix = 'm';
inline constexpr char kKeptPrefix = 'k';

// Opens a file of kShmDirectory by name: regular, owned by this user, not accessible to others, no link.
Result<FileDescriptor> OpenShmFile(const std::string& name, int extra_flags);
// Sets the length and reserves every page of it, so that no later access can fail.
Status ReserveShm(int fd, size_t length, const std::string& what);
Result<size_t> ShmLength(int fd);
// 2 MiB-aligned from 2 MiB up, so that huge pages can back it.
Result<std::shared_ptr<Mapping>> MapShm(int fd, size_t length);
// Private zeroed memory, aligned likewise.
Result<std::shared_ptr<Mapping>> MapAnonymous(size_t length);
// Names of kShmDirectory that begin with `prefix`. An error is not the same as none: a descriptor may be lacking.
Result<std::vector<std::string>> ListShm(const std::string& prefix);
// Whether `name` is that of the file that is open as `fd`.
bool IsNameOf(const std::string& name, int fd);

// Among all who give names in kShmDirectory and take them away by this lock, a name stays what it is while one holds
// it. It is on the directory itself, which nobody can remove. Others may still remove files meanwhile, and make none.
class NamesLock {
 public:
  NamesLock();
  ~NamesLock();
  NamesLock(const NamesLock&) = delete;
  NamesLock& operator=(const NamesLock&) = delete;
  const Status& status() const { return status_; }

 private:
  const uint32_t generation_ = ForkGeneration();
  int directory_;  // closed in children that are forked meanwhile, or they would keep the lock of one that dies
  Status status_;
};
// With the lock held. kExists: there is a file of the name `to`.
Status RenameShm(const std::string& from, const std::string& to);
void RemoveShm(const std::string& name);

// Processes of this user that have a device on a fabric whose control file was removed, in ascending order, as far as
// /proc tells.
std::vector<int32_t> ProcessesOfRemoved(const std::string& control_name);

size_t RoundUpToPage(size_t length);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_SHM_FILE_H_
