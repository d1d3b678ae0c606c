#include "krcore/rnic/verbs/atomics.h"

#include <cerrno>

#include "krcore/base/random.h"
#include "krcore/rnic/verbs/address_handle.h"
#include "krcore/rnic/verbs/sdc_limits.h"

namespace krcore::rnic::verbs {
namespace {

// Within the grace that the protocol gives an atomic: a NIC may wait up to four times its timer before each retry.
constexpr uint8_t kTimeout = 13;  // 4.096 us x 2^13 = 34 ms
constexpr uint8_t kRetries = 6;
static_assert(4 * (kRetries + 1) * (uint64_t{4096} << kTimeout) < kSdcTiming.grace_ns);

constexpr uint64_t kPositionMask = 0xffff'ffff, kRepairsMask = 0xff'ffff;

// The responder refused it: it was not executed. Of a local failure that is not known: it may be that of the answer.
bool IsRefusal(ibv_wc_status status) { return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR; }

}  // namespace

Result<std::unique_ptr<Atomics>> Atomics::Create(Context* context, ibv_pd* pd, ibv_cq* cq, uint32_t depth) {
  std::unique_ptr<Atomics> atomics(new Atomics(context, pd, cq, depth));
  auto pages = RegisteredPages::Allocate(pd, depth * sizeof(uint64_t), "room for the results of atomics");
  if (!pages.ok()) return pages.status();
  atomics->pages_ = *std::move(pages);
  KRCORE_RETURN_IF_ERROR(atomics->MakeQueue());
  return atomics;
}

Atomics::~Atomics() {
  if (qp_ != nullptr) ibv_destroy_qp(qp_);
}

Status Atomics::MakeQueue() {
  ibv_qp_init_attr init{};
  init.qp_context = &events_;
  init.send_cq = init.recv_cq = cq_;
  init.cap = {depth_, 0, 1, 0, 0};
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  qp_ = ibv_create_qp(pd_, &init);
  if (qp_ == nullptr) return FailedCall(errno, "create a QP for atomics");
  if (Status connected = Connect(); !connected.ok()) {
    ibv_destroy_qp(qp_);
    qp_ = nullptr;
    return connected;
  }
  return {};
}

Status Atomics::Connect() {
  const auto psn = Random64();
  if (!psn.ok()) return psn.status();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = context_->port().number;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC;
  int error = ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  const PortAddress self = context_->address();
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = context_->port().attr.active_mtu;
  attr.dest_qp_num = qp_->qp_num;
  // Another in each life, as of other queues (QpPeer::psn): what a queue before it sent may be on its way.
  attr.rq_psn = attr.sq_psn = *psn & kPsnMask;
  attr.max_dest_rd_atomic = attr.max_rd_atomic = self.read_depth;
  attr.min_rnr_timer = 1;
  attr.ah_attr = PathTo(*context_, self);
  if (error == 0)
    error = ibv_modify_qp(qp_, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = kTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = 0;
  if (error == 0)
    error = ibv_modify_qp(
        qp_, &attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? Status{} : FailedCall(error, "connect a QP for atomics to itself");
}

bool Atomics::Post(const sdc_atomic_request& request) {
  if (broken() || qp_ == nullptr) return false;
  const uint64_t position = posted_.load(std::memory_order_relaxed);
  if (position - done_.load(std::memory_order_relaxed) >= depth_) return false;
  const size_t place = position % depth_;
  ibv_sge sge{reinterpret_cast<uint64_t>(words() + place), sizeof(uint64_t), pages_->lkey()};
  ibv_send_wr post{};
  // The number of repairs tells completions of this queue from those of one before it.
  post.wr_id = kAtomic | (repairs_ & kRepairsMask) << 32 | (position & kPositionMask);
  post.sg_list = &sge;
  post.num_sge = 1;
  post.opcode = request.opcode == SDC_OP_FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
  post.wr.atomic = {request.addr, request.compare_add, request.swap, request.rkey};
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp_, &post, &bad) != 0) {
    broken_ = true;
    return false;
  }
  tokens_[place] = request.token;
  posted_.store(position + 1, std::memory_order_release);
  return true;
}

std::optional<Atomics::Result> Atomics::Completed(const ibv_wc& wc) {
  if ((wc.wr_id >> 32 & kRepairsMask) != (repairs_ & kRepairsMask) || broken_) return {};
  if (wc.status != IBV_WC_SUCCESS) {
    broken_ = true;
    refused_ = IsRefusal(wc.status);
    return {};
  }
  const uint64_t position = done_.load(std::memory_order_relaxed);
  const size_t place = position % depth_;
  const Result result{tokens_[place], SDC_SUCCESS, words()[place]};
  done_.store(position + 1, std::memory_order_release);
  return result;
}

std::vector<Atomics::Result> Atomics::Repair() {
  std::vector<Result> results;
  if (!broken() && qp_ != nullptr) return results;
  if (qp_ != nullptr && ibv_destroy_qp(qp_) != 0) return results;  // until it is gone, nothing is said of its requests
  qp_ = nullptr;
  const uint64_t posted = posted_.load(std::memory_order_relaxed);
  for (uint64_t position = done_.load(std::memory_order_relaxed); position != posted; ++position)
    results.push_back({tokens_[position % depth_], refused_ ? SDC_REMOTE_OPERATION_ERROR : SDC_RETRY_EXCEEDED, 0});
  done_.store(posted, std::memory_order_release);
  ++repairs_;
  events_.fatal.store(false, std::memory_order_relaxed);
  refused_ = false;
  broken_ = !MakeQueue().ok();
  return results;
}

}  // namespace krcore::rnic::verbs
