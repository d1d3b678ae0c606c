// Memory of the software DC's own that the NIC reads and writes: pages of their own, since with kernels before 5.12
// forked children do not get registered ones.
#ifndef KRCORE_RNIC_VERBS_REGISTERED_PAGES_H_
#define KRCORE_RNIC_VERBS_REGISTERED_PAGES_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

#include "krcore/status.h"

namespace krcore::rnic::verbs {

class RegisteredPages {
 public:
  // Zeroed. `what` they are for is said by errors.
  static Result<std::unique_ptr<RegisteredPages>> Allocate(ibv_pd* pd, size_t length, const char* what);
  // When queues that use them are gone.
  ~RegisteredPages();
  RegisteredPages(const RegisteredPages&) = delete;
  RegisteredPages& operator=(const RegisteredPages&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(memory_); }
  uint32_t lkey() const { return mr_->lkey; }

 private:
  RegisteredPages(void* memory, size_t mapped) : memory_(memory), mapped_(mapped) {}

  void* const memory_;
  const size_t mapped_;
  ibv_mr* mr_ = nullptr;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_REGISTERED_PAGES_H_
