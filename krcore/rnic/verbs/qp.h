// An RC or UD queue pair.
#ifndef KRCORE_RNIC_VERBS_QP_H_
#define KRCORE_RNIC_VERBS_QP_H_

#include <infiniband/verbs.h>

#include <memory>

#include "krcore/rnic/verbs/queue.h"

namespace krcore::rnic::verbs {

class VerbsQp final : public Queue {
 public:
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);

  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;

 private:
  using Queue::Queue;
  int Post(std::span<const SendWr> wrs, size_t* took) override;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_QP_H_
