// The file of `surge backup`: keys and values, in blocks that are compressed and have checksums. All numbers are
// little-endian. docs/operating.md says what a user sees of it.
//
//   header    magic "SURGEBAK", version, flags, id, checksum                     32 bytes
//   block     kind 1, records, raw bytes, stored bytes, checksum of what is stored, checksum    32 bytes
//             stored bytes: raw bytes, compressed by zstd
//   ...
//   trailer   kind 2, 0, number of blocks, number of records, checksum           32 bytes
//
// Raw bytes are records: length of key (4 bytes), length of value (4 bytes), when it expires (8 bytes, in milliseconds
// since 1970, UTC; 0: never), key, value. The last checksum of each 32
// bytes is over the others. Its seed is the file's id and the place of these bytes in the file, so that no block is
// taken for another one, of the same file or of another. Checksums are XXH3-64. A file without its trailer was cut.
//
// Thread safety: none.
#ifndef TOOLS_SURGE_BACKUP_FILE_H_
#define TOOLS_SURGE_BACKUP_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"

namespace surge {

using krcore::Result;
using krcore::Status;

// An open file descriptor.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Writes a file under a temporary name next to its own, and gives it its name when it is complete.
class BackupWriter {
 public:
  // kExists: there is a file of that name, and it is not to be overwritten. kInvalidArgument: it cannot be made, or
  // what is there is no regular file. A new file has the mode of the one that it replaces.
  static Result<std::unique_ptr<BackupWriter>> Create(std::string path, bool overwrite);
  // Removes the temporary file, unless Finish has returned kOk.
  ~BackupWriter();

  Status Add(std::string_view key, std::string_view value, uint64_t expires_at_ms);
  // Writes what is left, and the trailer; waits until all is on the disk; gives the file its name.
  Status Finish();

  uint64_t records() const { return records_; }
  uint64_t raw_bytes() const { return raw_bytes_; }    // of keys and values
  uint64_t file_bytes() const { return file_bytes_; }  // written so far

 private:
  BackupWriter(std::string path, bool overwrite, uint64_t id);
  Status WriteBlock();
  Status Write(const void* data, size_t bytes);
  Status CheckPlace(std::optional<mode_t>* mode) const;

  const std::string path_, temporary_;
  const bool overwrite_;
  File file_;
  bool finished_ = false;
  const uint64_t id_;
  std::vector<char> block_, stored_;
  uint32_t block_records_ = 0;
  uint64_t blocks_ = 0, records_ = 0, raw_bytes_ = 0, file_bytes_ = 0;
};

// Reads such a file, front to back. Nothing that it returns is from a block whose checksums do not match.
class BackupReader {
 public:
  struct Record {
    std::string_view key, value;
    uint64_t expires_at_ms = 0;
  };

  // kInvalidArgument: it cannot be opened, or is no backup. kUnsupported: it has another version.
  static Result<std::unique_ptr<BackupReader>> Open(std::string path);

  // Reads the next block. *records stay until the next call; none: this was the end of a complete file. kCorrupt: the
  // file is damaged or cut; the message says where.
  Status Next(std::vector<Record>* records);

  uint64_t offset() const { return offset_; }  // of what comes next
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  explicit BackupReader(std::string path);
  Status Read(void* to, size_t bytes);
  Status Damaged(uint64_t at, const std::string& what) const;
  Status ReadTrailer(uint64_t at, uint64_t blocks, uint64_t records);

  const std::string path_;
  File file_;
  uint64_t id_ = 0, offset_ = 0, file_bytes_ = 0;
  uint64_t blocks_ = 0, records_ = 0;
  std::vector<char> stored_, block_;
};

}  // namespace surge

#endif  // TOOLS_SURGE_BACKUP_FILE_H_
