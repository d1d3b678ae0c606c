#include "krcore/rnic/verbs/registered_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "krcore/rnic/verbs/convert.h"

namespace krcore::rnic::verbs {

Result<std::unique_ptr<RegisteredPages>> RegisteredPages::Allocate(ibv_pd* pd, size_t length, const char* what) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (length + page - 1) / page * page;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::FromErrno(errno, std::string("cannot allocate ") + what);
  std::unique_ptr<RegisteredPages> pages(new RegisteredPages(memory, mapped));
  pages->mr_ = ibv_reg_mr(pd, memory, mapped, int{IBV_ACCESS_LOCAL_WRITE});
  if (pages->mr_ == nullptr) return FailedCall(errno, std::string("register ") + what);
  return pages;
}

RegisteredPages::~RegisteredPages() {
  if (mr_ != nullptr) ibv_dereg_mr(mr_);
  munmap(memory_, mapped_);
}

}  // namespace krcore::rnic::verbs
