// The data path's tax: READs through /dev/krcore compared with those of user-space verbs, on the same device and in the
// same run. It needs a machine with the module and an RDMA device, such as a guest of `tools/vm run`; emulation makes
// everything slow there, so ratios count and absolute times do not. The peer is the same device. bench_connect measures
// connecting.
//
//   bench_kmod [--quick]
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/common/timed_worker.h"
#include "krcore/kernel/kernel_queue.h"

namespace {

using krcore::kernel::KernelQueue;
using timed::Must;
using timed::Percentile;
using timed::Samples;
using timed::Time;

#define MUST(condition)                                                                      \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "bench_kmod: %s failed: %s\n", #condition, std::strerror(errno)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

constexpr size_t kBytes = 1 << 20;
constexpr uint32_t kDepth = 64, kBatch = 16, kReadBytes = 64;

// `base`: what the ratio compares with; null: no ratio.
void Row(const std::string& what, Samples& samples, Samples* base = nullptr) {
  const auto median = static_cast<double>(Percentile(samples, 50));
  std::printf("%-44s %10.1f %10.1f", what.c_str(), median / 1e3, static_cast<double>(Percentile(samples, 99)) / 1e3);
  if (base != nullptr) std::printf("   %.1fx", static_cast<double>(Percentile(*base, 50)) / median);
  std::printf("\n");
}

struct VerbsSide {
  ibv_context* context;
  ibv_pd* pd;
  ibv_cq* cq;
  ibv_qp* qp;
  int gid_index = 0;

  void Open() {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    MUST(list != nullptr && count > 0);
    context = ibv_open_device(list[0]);
    MUST(context != nullptr);
    ibv_free_device_list(list);
  }
  void Create() {
    pd = ibv_alloc_pd(context);
    MUST(pd != nullptr);
    cq = ibv_create_cq(context, kDepth, nullptr, nullptr, 0);
    MUST(cq != nullptr);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {kDepth, 1, 1, 1, 0};
    qp = ibv_create_qp(pd, &init);
    MUST(qp != nullptr);
  }
  void Connect() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    ibv_port_attr port;
    MUST(ibv_query_port(context, 1, &port) == 0);
    ibv_gid gid;
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = qp->qp_num;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = port.lid;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.hop_limit = 64;
    // An address that was removed and added again may have another index than before.
    int index = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
    while (ibv_query_gid(context, 1, index, &gid) != 0 || gid.global.interface_id == 0)
      MUST(++index < port.gid_tbl_len);
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(index);
    attr.ah_attr.grh.dgid = gid;
    MUST(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 6;
    attr.rnr_retry = 6;
    attr.max_rd_atomic = 16;
    MUST(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
  void Close() {
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
  }
};

// READs of 64 bytes, `batch` of them with one doorbell. Only the last is signaled.
void VerbsReads(VerbsSide& side, uint8_t* memory, const ibv_mr* mr, uint32_t batch) {
  std::vector<ibv_sge> sges(batch);
  std::vector<ibv_send_wr> wrs(batch);
  for (uint32_t i = 0; i < batch; ++i) {
    sges[i] = {reinterpret_cast<uint64_t>(memory + i * kReadBytes), kReadBytes, mr->lkey};
    wrs[i] = {};
    wrs[i].next = i + 1 < batch ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = IBV_WR_RDMA_READ;
    wrs[i].send_flags = i + 1 < batch ? 0 : IBV_SEND_SIGNALED;
    wrs[i].wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory + kBytes / 2);
    wrs[i].wr.rdma.rkey = mr->rkey;
  }
  ibv_send_wr* bad;
  MUST(ibv_post_send(side.qp, wrs.data(), &bad) == 0);
  ibv_wc wc;
  while (ibv_poll_cq(side.cq, 1, &wc) == 0) {
  }
  MUST(wc.status == IBV_WC_SUCCESS);
}

void KernelReads(KernelQueue& queue, uint8_t* memory, uint32_t key, uint32_t batch) {
  std::vector<krc_request> requests(batch);
  for (uint32_t i = 0; i < batch; ++i) {
    requests[i] = {};
    requests[i].opcode = KRC_OP_READ;
    requests[i].flags = i + 1 < batch ? 0 : KRC_SIGNALED;
    requests[i].num_sge = 1;
    requests[i].sges[0] = {reinterpret_cast<uint64_t>(memory + i * kReadBytes), kReadBytes, key};
    requests[i].rkey = key;
    requests[i].remote_addr = reinterpret_cast<uint64_t>(memory + kBytes / 2);
  }
  Must(queue.Push(requests));
  krc_completion done;
  while (queue.Pop({&done, 1}) == 0) {
  }
  MUST(done.status == KRC_SUCCESS);
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: bench_kmod [--quick]\n");
    return 2;
  }
  const int reads = quick ? 50 : 2000;
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(4096, kBytes));
  std::memset(memory, 1, kBytes);

  std::printf("%-44s %10s %10s   %s\n", "us", "median", "p99", "verbs take");
  VerbsSide side;
  side.Open();
  side.Create();
  side.Connect();
  ibv_mr* const mr = ibv_reg_mr(side.pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  MUST(mr != nullptr);
  KernelQueue queue;
  Must(queue.Open());
  Must(queue.Attach("", kDepth));
  Must(queue.ConnectDevice(queue.gid()));
  const uint32_t key = Must(queue.Register(memory, kBytes, KRC_LOCAL_WRITE | KRC_REMOTE_READ));
  for (const uint32_t batch : {1u, kBatch}) {
    Samples by_verbs, by_kernel;
    for (int i = 0; i < reads; ++i) {
      Time(by_verbs, [&] { VerbsReads(side, memory, mr, batch); });
      Time(by_kernel, [&] { KernelReads(queue, memory, key, batch); });
    }
    const std::string what = ", " + std::to_string(batch) + " READs of 64 B";
    Row("verbs" + what, by_verbs);
    Row("krcore.ko" + what, by_kernel, &by_verbs);
  }
  ibv_dereg_mr(mr);
  side.Close();
  return 0;
}
