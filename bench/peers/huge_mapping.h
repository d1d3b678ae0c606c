// A shared file, mapped where huge pages can be, and moved into them at once if the kernel has some.
#ifndef BENCH_PEERS_HUGE_MAPPING_H_
#define BENCH_PEERS_HUGE_MAPPING_H_

#include <cstddef>
#include <memory>
#include <span>

#include "krcore/status.h"

namespace peers {

class HugeMapping {
 public:
  // `bytes` of `file`, which stays the caller's. All pages are there when it returns: some 0.5 s a GiB.
  static krcore::Result<std::unique_ptr<HugeMapping>> Of(int file, size_t bytes);
  ~HugeMapping();
  HugeMapping(const HugeMapping&) = delete;
  HugeMapping& operator=(const HugeMapping&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit HugeMapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  const std::span<std::byte> bytes_;
};

}  // namespace peers

#endif  // BENCH_PEERS_HUGE_MAPPING_H_
