// Anonymous memory for a NIC, in huge pages where there are any.
#ifndef KRCORE_RNIC_VERBS_MEMORY_H_
#define KRCORE_RNIC_VERBS_MEMORY_H_

#include <memory>

#include "krcore/rnic/rnic.h"

namespace krcore::rnic::verbs {

class VerbsMemory final : public Memory {
 public:
  static Result<std::unique_ptr<Memory>> Allocate(size_t length, const AllocOptions& options);
  ~VerbsMemory() override;
  Status CollapseToHugePages(size_t offset, size_t length) override;

 private:
  VerbsMemory(void* addr, size_t length, size_t mapped, bool reserved);
  const size_t mapped_;
  const bool reserved_;  // in huge pages that were set aside
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MEMORY_H_
