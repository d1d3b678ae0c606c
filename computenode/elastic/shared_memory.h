// SharedMemory: anonymous memory that processes share by a descriptor.
#ifndef COMPUTENODE_ELASTIC_SHARED_MEMORY_H_
#define COMPUTENODE_ELASTIC_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "krcore/status.h"

namespace computenode {

class SharedMemory {
 public:
  // Returns zeroed memory without a name. kOutOfMemory.
  static krcore::Result<SharedMemory> Create(const char* what, uint64_t bytes);
  // Attaches to the memory that `fd` names; `fd` stays the caller's. kInvalidArgument: it is no such memory.
  static krcore::Result<SharedMemory> Attach(const char* what, int fd);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int fd() const { return fd_; }
  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  SharedMemory(int fd, std::byte* data, uint64_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}
  // Takes over ownership of `fd`.
  static krcore::Result<SharedMemory> Map(const char* what, int fd, uint64_t bytes);

  int fd_;
  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_SHARED_MEMORY_H_
