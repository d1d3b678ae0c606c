// Memory of this process from the kernel, in huge pages where that helps.
//
// Thread safety: any thread may call.
#ifndef KRCORE_BASE_PAGES_H_
#define KRCORE_BASE_PAGES_H_

#include <cstddef>
#include <memory>
#include <span>

#include "krcore/status.h"

namespace krcore {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Zeroed anonymous memory. From 2 MiB up it begins at a multiple of a huge page.
class Pages {
 public:
  // kSparse: little of the memory will be touched. The system reserves nothing for it, and is not advised to use huge
  // pages. kOutOfMemory: also beyond what the cgroup allows, if dense.
  enum class Use { kDense, kSparse };
  static Result<std::unique_ptr<Pages>> Map(size_t length, Use use = Use::kDense);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Pages(void* mapping, size_t mapped, std::span<std::byte> bytes) : mapping_(mapping), mapped_(mapped), bytes_(bytes) {}
  void* const mapping_;
  const size_t mapped_;
  const std::span<std::byte> bytes_;
};

// Moves the whole huge pages inside the range to huge pages, while the memory is in use. kInvalidArgument: the range
// lies outside `memory`. kUnsupported: the kernel cannot do it with this memory. kOutOfMemory: no huge page is free.
Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length);

}  // namespace krcore

#endif  // KRCORE_BASE_PAGES_H_
