// How WRs are built and handed over: the operations of ibv_qp_ex and mlx5dv_qp_ex, CQs and SRQs.
#include "tests/rnic/mlx5/fake_posts.h"

#include <cerrno>

namespace krcore::rnic::verbs::testing {
namespace {

FakeQp& Of(ibv_qp_ex* qp) { return *reinterpret_cast<FakeQp*>(qp); }

void CheckLast(FakeQp& qp) {
  if (!qp.doorbell.empty() && qp.doorbell.back().setters != 3)
    FakeNic::Get().Misuse("a WR without its DC address or its data");
}

FakePost& Begin(ibv_qp_ex* ex, const char* op, uint64_t needs) {
  FakeQp& qp = Of(ex);
  if (!qp.building) FakeNic::Get().Misuse("a WR outside of wr_start and wr_complete");
  if ((qp.init.send_ops_flags & needs) == 0) FakeNic::Get().Misuse(std::string(op) + " was not asked for");
  CheckLast(qp);
  FakePost post;
  post.op = op;
  post.wr_id = ex->wr_id;
  post.flags = ex->wr_flags;
  qp.doorbell.push_back(post);
  return qp.doorbell.back();
}

void Remote(FakePost& post, uint32_t rkey, uint64_t addr) {
  post.rkey = rkey;
  post.remote_addr = addr;
}

void SetOnce(FakePost& post, int setter) {
  if ((post.setters & setter) != 0) FakeNic::Get().Misuse("a part of a WR was set twice");
  post.setters |= setter;
}

void Start(ibv_qp_ex* ex) {
  FakeQp& qp = Of(ex);
  if (qp.building) FakeNic::Get().Misuse("wr_start within wr_start");
  qp.building = true;
  qp.doorbell.clear();
}

int Complete(ibv_qp_ex* ex) {
  FakeQp& qp = Of(ex);
  CheckLast(qp);
  if (!qp.building) FakeNic::Get().Misuse("wr_complete without wr_start");
  qp.building = false;
  if (const int error = FakeNic::Get().Enter("wr_complete"); error != 0) return error;
  if (qp.outstanding.size() + qp.doorbell.size() > qp.init.cap.max_send_wr) {
    FakeNic::Get().Misuse("more WRs than the queue has room for");
    return ENOMEM;
  }
  if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_ERR) {
    FakeNic::Get().Misuse("WRs to a queue that is not in RTS");
    return EINVAL;
  }
  qp.posts.push_back(qp.doorbell);
  qp.outstanding.insert(qp.outstanding.end(), qp.doorbell.begin(), qp.doorbell.end());
  if (qp.state == IBV_QPS_ERR) FakeNic::Get().Flush(qp);
  return 0;
}

void SetDcAddress(mlx5dv_qp_ex* dv, ibv_ah* ah, uint32_t dctn, uint64_t dc_key) {
  FakeQp& qp = *reinterpret_cast<FakeQp*>(reinterpret_cast<char*>(dv) - offsetof(FakeQp, dv));
  FakePost& post = qp.doorbell.back();
  SetOnce(post, 1);
  const auto known = FakeNic::Get().ahs.find(ah);
  if (known == FakeNic::Get().ahs.end() || ah->pd != qp.init.pd)
    FakeNic::Get().Misuse("a WR with an address handle of another PD, or none");
  post.ah = ah;
  post.dctn = dctn;
  post.dc_key = dc_key;
}

void SetSges(ibv_qp_ex* ex, size_t count, const ibv_sge* sges) {
  FakePost& post = Of(ex).doorbell.back();
  SetOnce(post, 2);
  if (count > Of(ex).init.cap.max_send_sge) FakeNic::Get().Misuse("more SGEs than the queue takes");
  post.sges.assign(sges, sges + count);
}

void SetInline(ibv_qp_ex* ex, size_t count, const ibv_data_buf* buffers) {
  FakePost& post = Of(ex).doorbell.back();
  SetOnce(post, 2);
  post.is_inline = true;
  for (size_t i = 0; i < count; ++i)
    post.inline_data.append(static_cast<const char*>(buffers[i].addr), buffers[i].length);
  if (post.inline_data.size() > Of(ex).init.cap.max_inline_data) FakeNic::Get().Misuse("too much inline");
}

int PollCq(ibv_cq* cq, int count, ibv_wc* wcs) {
  FakeCq& fake = *FakeNic::Get().cqs.at(cq);
  int got = 0;
  for (; got < count && !fake.completions.empty(); ++got) {
    wcs[got] = fake.completions.front();
    fake.completions.pop_front();
  }
  return got;
}

int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  FakeSrq& fake = *FakeNic::Get().srqs.at(srq);
  int error = FakeNic::Get().Enter("ibv_post_srq_recv");
  if (error == 0 && (fake.posted.size() >= fake.init.attr.max_wr || wr->next != nullptr)) error = ENOMEM;
  if (error != 0) {
    *bad = wr;
    return error;
  }
  fake.posted.push_back(*wr);
  return 0;
}

// A list of WRs to an RC or UD queue.
int PostPlain(ibv_qp* plain, ibv_send_wr* wr, ibv_send_wr** bad) {
  FakeQp& qp = *reinterpret_cast<FakeQp*>(plain);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = FakeNic::Get().Enter("ibv_post_send"); error != 0) {
      *bad = wr;
      return error;
    }
    if (qp.outstanding.size() >= qp.init.cap.max_send_wr) FakeNic::Get().Misuse("more WRs than the queue has room for");
    FakePost post;
    post.wr_id = wr->wr_id;
    post.flags = wr->send_flags | (qp.init.sq_sig_all != 0 ? unsigned{IBV_SEND_SIGNALED} : 0);
    if (plain->qp_type == IBV_QPT_UD) {
      post.ah = wr->wr.ud.ah;
      if (!FakeNic::Get().ahs.contains(post.ah)) FakeNic::Get().Misuse("a datagram without an address handle");
    }
    qp.outstanding.push_back(post);
  }
  if (qp.state == IBV_QPS_ERR) FakeNic::Get().Flush(qp);
  return 0;
}

int PostPlainRecv(ibv_qp* /*qp*/, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  *bad = wr;
  return FakeNic::Get().Enter("ibv_post_recv");
}

}  // namespace

void FillPosting(FakeQp& qp) {
  qp.ex.wr_start = Start;
  qp.ex.wr_complete = Complete;
  qp.ex.wr_rdma_read = [](ibv_qp_ex* ex, uint32_t rkey, uint64_t addr) {
    Remote(Begin(ex, "read", IBV_QP_EX_WITH_RDMA_READ), rkey, addr);
  };
  qp.ex.wr_rdma_write = [](ibv_qp_ex* ex, uint32_t rkey, uint64_t addr) {
    Remote(Begin(ex, "write", IBV_QP_EX_WITH_RDMA_WRITE), rkey, addr);
  };
  qp.ex.wr_rdma_write_imm = [](ibv_qp_ex* ex, uint32_t rkey, uint64_t addr, __be32 imm) {
    FakePost& post = Begin(ex, "write_imm", IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    Remote(post, rkey, addr);
    post.imm = imm;
  };
  qp.ex.wr_send = [](ibv_qp_ex* ex) { Begin(ex, "send", IBV_QP_EX_WITH_SEND); };
  qp.ex.wr_send_imm = [](ibv_qp_ex* ex, __be32 imm) { Begin(ex, "send_imm", IBV_QP_EX_WITH_SEND_WITH_IMM).imm = imm; };
  qp.ex.wr_atomic_cmp_swp = [](ibv_qp_ex* ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap) {
    FakePost& post = Begin(ex, "cas", IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
    Remote(post, rkey, addr);
    post.compare_add = compare;
    post.swap = swap;
  };
  qp.ex.wr_atomic_fetch_add = [](ibv_qp_ex* ex, uint32_t rkey, uint64_t addr, uint64_t add) {
    FakePost& post = Begin(ex, "add", IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
    Remote(post, rkey, addr);
    post.compare_add = add;
  };
  qp.ex.wr_set_sge_list = SetSges;
  qp.ex.wr_set_inline_data_list = SetInline;
  qp.dv.wr_set_dc_addr = SetDcAddress;
}

void FillOps(ibv_context* context) {
  context->ops.poll_cq = PollCq;
  context->ops.post_srq_recv = PostSrqRecv;
  context->ops.post_send = PostPlain;
  context->ops.post_recv = PostPlainRecv;
}

}  // namespace krcore::rnic::verbs::testing
