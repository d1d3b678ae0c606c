// Maps a shared file with all of its pages, in huge ones if the kernel has some: as memory is after a while of use.
#ifndef BENCH_PEERS_MAP_AT_ONCE_H_
#define BENCH_PEERS_MAP_AT_ONCE_H_

#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <span>

#include "krcore/base/os.h"
#include "krcore/rnic/sw/shm_file.h"

namespace peers {

// `bytes` of `file`, which stays the caller's. Takes some 0.5 s a GiB.
inline krcore::Result<std::shared_ptr<krcore::rnic::sw::Mapping>> MapAtOnce(int file, size_t bytes) {
  auto mapping = krcore::rnic::sw::MapShm(file, bytes);
  if (!mapping.ok()) return mapping.status();
  const std::span<std::byte> memory((*mapping)->addr(), bytes);
  if (madvise(memory.data(), bytes, MADV_POPULATE_WRITE) != 0)
    return krcore::Status::FromErrno(errno, "pages of shared memory");
  // Where the kernel has no huge pages, no peer has any.
  (void)krcore::CollapseToHugePages(memory, 0, bytes);
  return mapping;
}

}  // namespace peers

#endif  // BENCH_PEERS_MAP_AT_ONCE_H_
