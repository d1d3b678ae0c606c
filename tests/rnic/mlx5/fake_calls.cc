// The functions of libibverbs and libmlx5 that the provider calls by name.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "krcore/rnic/verbs/library.h"
#include "tests/rnic/mlx5/fake_nic.h"
#include "tests/rnic/mlx5/fake_posts.h"

namespace krcore::rnic::verbs::testing {
namespace {

ibv_device the_device{};

FakeNic& Nic() { return FakeNic::Get(); }

bool Refuse(const char* call) {
  errno = Nic().Enter(call);
  return errno != 0;
}

int Busy(bool busy, const char* what) {
  if (!busy) return 0;
  Nic().Misuse(std::string("destroyed while in use: ") + what);
  return EBUSY;
}

bool Within(int mask, int required, int optional) {
  return (mask & required) == required && (mask & ~(required | optional)) == 0;
}

// The driver's rules: which transitions an initiator knows, and which attributes each needs and may have.
bool DciAllows(ibv_qp_state from, ibv_qp_state to, int mask) {
  if (to == IBV_QPS_RESET) return mask == IBV_QP_STATE;
  if (to == IBV_QPS_ERR) return from != IBV_QPS_RESET && mask == IBV_QP_STATE;
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
    return Within(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, 0);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    return Within(mask, IBV_QP_STATE | IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX | IBV_QP_AV);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
    return Within(
        mask,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN,
        IBV_QP_MIN_RNR_TIMER);
  return false;
}

bool DctAllows(ibv_qp_state from, ibv_qp_state to, int mask) {
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
    return Within(mask, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT, 0);
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    return Within(mask, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU, 0);
  return false;
}

// For RC and UD queues only the order of their states is checked.
bool PlainAllows(ibv_qp_state from, ibv_qp_state to) {
  return to == IBV_QPS_RESET || to == IBV_QPS_ERR || (to <= IBV_QPS_RTS && to == from + 1);
}

bool AddressValid(const ibv_ah_attr& attr) {
  return attr.is_global == 1 && attr.port_num == kPort && attr.grh.sgid_index == kGidIndex && attr.grh.hop_limit > 1;
}

const char* NameOf(const FakeQp& qp) { return qp.is_plain() ? "plain" : qp.is_dci() ? "DCI" : "DCT"; }

FakeQp& Of(ibv_qp* qp) { return *reinterpret_cast<FakeQp*>(qp); }

}  // namespace
}  // namespace krcore::rnic::verbs::testing

using namespace krcore::rnic::verbs::testing;  // NOLINT: the functions below are libibverbs' and are in no namespace

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

extern "C" {

int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

ibv_device** ibv_get_device_list(int* count) {
  *count = 1;
  auto** const list = new ibv_device*[2];
  list[0] = &the_device;
  list[1] = nullptr;
  return list;
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* /*device*/) { return "fake_mlx5"; }
bool mlx5dv_is_supported(ibv_device* /*device*/) { return Nic().is_mlx5; }

ibv_context* ibv_open_device(ibv_device* device) {
  if (Refuse("ibv_open_device")) return nullptr;
  auto* const context = new ibv_context{};
  context->device = device;
  context->cmd_fd = eventfd(0, EFD_CLOEXEC);
  context->async_fd = Nic().events_fd = eventfd(0, EFD_CLOEXEC);
  FillOps(context);
  ++Nic().contexts;
  return context;
}

int ibv_close_device(ibv_context* context) {
  Busy(!Nic().pds.empty() || !Nic().cqs.empty(), "a context");
  close(context->cmd_fd);
  close(context->async_fd);
  delete context;
  --Nic().contexts;
  return 0;
}

int ibv_query_device(ibv_context* /*context*/, ibv_device_attr* attr) {
  if (Refuse("ibv_query_device")) return errno;
  *attr = {};
  attr->vendor_part_id = Nic().part_id;
  attr->max_qp_wr = 32768;
  attr->max_sge = 30;
  attr->max_cqe = 1 << 20;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = kReadDepth;
  attr->max_srq_wr = 32767;
  attr->max_srq_sge = 4;
  attr->phys_port_cnt = 1;
  return 0;
}

int ibv_query_port(ibv_context* /*context*/, uint8_t /*port*/, _compat_ibv_port_attr* compat) {
  auto* const attr = reinterpret_cast<ibv_port_attr*>(compat);
  if (Refuse("ibv_query_port")) return errno;
  attr->state = IBV_PORT_ACTIVE;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = kMtu;
  attr->gid_tbl_len = 4;
  attr->max_msg_sz = 1U << 30;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* /*context*/, uint32_t /*port*/, uint32_t index, ibv_gid_entry* entry,
                      uint32_t /*flags*/, size_t /*size*/) {
  *entry = {};
  entry->gid_index = index;
  entry->gid_type = index % 2 == 1 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  if (index < 2) {
    entry->gid.raw[0] = 0xfe;
    entry->gid.raw[1] = 0x80;
  } else {
    entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
    entry->gid.raw[12] = 10;
  }
  entry->gid.raw[15] = 1;
  return 0;
}

const char* ibv_port_state_str(ibv_port_state /*state*/) { return "a state"; }

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  uint64_t count = 0;
  const std::lock_guard lock(Nic().events_mutex);
  if (Nic().events.empty()) {
    (void)!read(context->async_fd, &count, sizeof(count));
    errno = EAGAIN;
    return -1;
  }
  *event = Nic().events.front();
  Nic().events.pop_front();
  return 0;
}

void ibv_ack_async_event(ibv_async_event* /*event*/) {}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (Refuse("ibv_alloc_pd")) return nullptr;
  auto* const pd = new ibv_pd{};
  pd->context = context;
  Nic().pds[pd] = 0;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  if (const int error = Busy(Nic().pds.at(pd) != 0, "a PD"); error != 0) return error;
  Nic().pds.erase(pd);
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t /*iova*/, unsigned int /*access*/) {
  if (Refuse("ibv_reg_mr")) return nullptr;
  auto* const mr = new ibv_mr{};
  mr->addr = addr;
  mr->length = length;
  mr->lkey = mr->rkey = Nic().next_key++;
  ++Nic().pds.at(pd);
  Nic().mrs[mr] = pd;
  return mr;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, 0, static_cast<unsigned int>(access));
}

int ibv_dereg_mr(ibv_mr* mr) {
  --Nic().pds.at(Nic().mrs.at(mr));
  Nic().mrs.erase(mr);
  delete mr;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int depth, void* /*cq_context*/, ibv_comp_channel* /*channel*/,
                      int /*vector*/) {
  if (Refuse("ibv_create_cq")) return nullptr;
  auto fake = std::make_unique<FakeCq>();
  ibv_cq* const cq = &fake->cq;
  cq->context = context;
  cq->cqe = depth;
  Nic().cqs[cq] = std::move(fake);
  return cq;
}

int ibv_resize_cq(ibv_cq* cq, int depth) {
  if (Refuse("ibv_resize_cq")) return errno;
  cq->cqe = depth;
  return 0;
}

int ibv_destroy_cq(ibv_cq* cq) {
  if (const int error = Busy(Nic().cqs.at(cq)->users != 0, "a CQ"); error != 0) return error;
  Nic().cqs.erase(cq);
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  Nic().BlockIfWanted();
  if (Refuse("ibv_create_ah")) return nullptr;
  if (!AddressValid(*attr)) {
    Nic().Misuse("an address handle of wrong attributes");
    errno = EINVAL;
    return nullptr;
  }
  auto* const ah = new ibv_ah{};
  ah->pd = pd;
  ++Nic().pds.at(pd);
  Nic().ahs[ah] = *attr;
  return ah;
}

int ibv_destroy_ah(ibv_ah* ah) {
  --Nic().pds.at(ah->pd);
  Nic().ahs.erase(ah);
  delete ah;
  return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  if (Refuse("ibv_create_srq")) return nullptr;
  if (attr->attr.max_wr == 0 || attr->attr.max_sge > 4) {
    Nic().Misuse("an SRQ beyond the device's limits");
    errno = EINVAL;
    return nullptr;
  }
  auto fake = std::make_unique<FakeSrq>();
  fake->srq.context = pd->context;
  fake->srq.pd = pd;
  fake->init = *attr;
  ibv_srq* const srq = &fake->srq;
  ++Nic().pds.at(pd);
  Nic().srqs[srq] = std::move(fake);
  return srq;
}

int ibv_destroy_srq(ibv_srq* srq) {
  if (const int error = Busy(Nic().srqs.at(srq)->users != 0, "an SRQ"); error != 0) return error;
  --Nic().pds.at(srq->pd);
  Nic().srqs.erase(srq);
  return 0;
}

// RC and UD queues.
ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (Refuse("ibv_create_qp")) return nullptr;
  if (!Nic().has_plain) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  auto fake = std::make_unique<FakeQp>();
  ibv_qp* const qp = &fake->ex.qp_base;
  qp->context = pd->context;
  qp->qp_context = attr->qp_context;
  qp->pd = pd;
  qp->qp_type = attr->qp_type;
  qp->qp_num = Nic().next_qp_num++;
  fake->init.send_cq = attr->send_cq;
  fake->init.recv_cq = attr->recv_cq;
  fake->init.cap = attr->cap;
  fake->init.qp_type = attr->qp_type;
  fake->init.sq_sig_all = attr->sq_sig_all;
  fake->init.pd = pd;
  ++Nic().pds.at(pd);
  ++Nic().cqs.at(attr->send_cq)->users;
  ++Nic().cqs.at(attr->recv_cq)->users;
  Nic().qps[qp] = std::move(fake);
  return qp;
}

// What the agent of the software DC sleeps on.
ibv_comp_channel* ibv_create_comp_channel(ibv_context* /*context*/) {
  Nic().calls.emplace_back("ibv_create_comp_channel");
  errno = EOPNOTSUPP;
  return nullptr;
}
// There is none, so nobody calls these.
int ibv_destroy_comp_channel(ibv_comp_channel* /*channel*/) { return EINVAL; }
int ibv_get_cq_event(ibv_comp_channel* /*channel*/, ibv_cq** /*cq*/, void** /*cq_context*/) { return -1; }
void ibv_ack_cq_events(ibv_cq* /*cq*/, unsigned int /*count*/) {}

ibv_qp* mlx5dv_create_qp(ibv_context* context, ibv_qp_init_attr_ex* init, mlx5dv_qp_init_attr* dc) {
  const bool dci = dc->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCI;
  if (Refuse(dci ? "mlx5dv_create_qp(DCI)" : "mlx5dv_create_qp(DCT)")) return nullptr;
  const bool common = init->qp_type == IBV_QPT_DRIVER && dc->comp_mask == MLX5DV_QP_INIT_ATTR_MASK_DC &&
                      init->send_cq != nullptr && init->recv_cq != nullptr && init->pd != nullptr;
  const bool fits = dci ? init->comp_mask == (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
                              init->srq == nullptr && init->cap.max_send_wr > 0 && init->cap.max_recv_wr == 0 &&
                              init->cap.max_recv_sge == 0
                        : init->comp_mask == IBV_QP_INIT_ATTR_PD && init->srq != nullptr;
  if (!common || !fits) {
    Nic().Misuse("a DC queue of wrong attributes");
    errno = EINVAL;
    return nullptr;
  }
  auto fake = std::make_unique<FakeQp>();
  ibv_qp* const qp = &fake->ex.qp_base;
  qp->context = context;
  qp->qp_context = init->qp_context;
  qp->pd = init->pd;
  qp->qp_type = IBV_QPT_DRIVER;
  qp->qp_num = dci ? Nic().next_qp_num++ : 0;  // a target has none yet
  fake->init = *init;
  fake->dc = *dc;
  if (dci) FillPosting(*fake);
  ++Nic().pds.at(init->pd);
  ++Nic().cqs.at(init->send_cq)->users;
  ++Nic().cqs.at(init->recv_cq)->users;
  if (!dci) ++Nic().srqs.at(init->srq)->users;
  Nic().qps[qp] = std::move(fake);
  return qp;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return Nic().dci_is_extended ? &Of(qp).ex : nullptr; }
mlx5dv_qp_ex* mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_ex* qp) { return &Of(&qp->qp_base).dv; }

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  FakeQp& fake = Of(qp);
  static const char* const kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  const std::string name = std::string("ibv_modify_qp(") + NameOf(fake) + " " + kNames[attr->qp_state] + ")";
  if (const int error = Nic().Enter(name.c_str()); error != 0) return error;
  const bool allowed = fake.is_plain() ? PlainAllows(fake.state, attr->qp_state)
                       : fake.is_dci() ? DciAllows(fake.state, attr->qp_state, mask)
                                       : DctAllows(fake.state, attr->qp_state, mask);
  const bool valid = ((mask & IBV_QP_PORT) == 0 || attr->port_num == kPort) &&
                     ((mask & IBV_QP_AV) == 0 || AddressValid(attr->ah_attr)) &&
                     ((mask & IBV_QP_PATH_MTU) == 0 || attr->path_mtu <= kMtu);
  if (!allowed || !valid) {
    Nic().Misuse(name + (allowed ? " with wrong attributes" : " is no such transition or has not those attributes"));
    return EINVAL;
  }
  fake.modifies.push_back({fake.state, attr->qp_state, mask, *attr});
  Nic().SetState(fake, attr->qp_state);
  if (fake.is_dct() && attr->qp_state == IBV_QPS_RTR) qp->qp_num = Nic().next_qp_num++;
  return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int /*mask*/, ibv_qp_init_attr* /*init*/) {
  attr->qp_state = Of(qp).state;
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  const FakeQp& fake = Of(qp);
  const std::string name = std::string("ibv_destroy_qp(") + NameOf(fake) + ")";
  if (const auto failing = Nic().fail_named.find(name); failing != Nic().fail_named.end()) return failing->second;
  Nic().calls.push_back(name);
  --Nic().pds.at(fake.init.pd);
  --Nic().cqs.at(fake.init.send_cq)->users;
  --Nic().cqs.at(fake.init.recv_cq)->users;
  if (fake.is_dct()) --Nic().srqs.at(fake.init.srq)->users;
  Nic().qps.erase(qp);
  return 0;
}

}  // extern "C"

// In place of library.cc.
namespace krcore::rnic::verbs {

#define SET(name) ibv.name = &::ibv_##name;
Status LoadLibibverbs() {
  KRCORE_IBV_FUNCTIONS(SET)
  ibv.query_gid_ex = &::_ibv_query_gid_ex;
  return {};
}
#undef SET

#define SET(name) mlx5dv.name = &::mlx5dv_##name;
bool LoadLibmlx5() {
  KRCORE_MLX5DV_FUNCTIONS(SET)
  return Nic().has_libmlx5;
}
#undef SET

}  // namespace krcore::rnic::verbs
