#include "tests/rnic/mlx5/fake_nic.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace krcore::rnic::verbs::testing {
namespace {

std::unique_ptr<FakeNic> the_nic;

ibv_wc CompletionOf(const FakeQp& qp, const FakePost& post, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = post.wr_id;
  wc.status = status;
  wc.qp_num = qp.ex.qp_base.qp_num;
  return wc;
}

}  // namespace

FakeNic& FakeNic::Get() { return *the_nic; }
void FakeNic::Reset() { the_nic = std::make_unique<FakeNic>(); }

bool FakeNic::Empty() const {
  return qps.empty() && cqs.empty() && srqs.empty() && ahs.empty() && pds.empty() && mrs.empty() && contexts == 0;
}

FakeQp& FakeNic::Dci() {
  for (auto& [key, qp] : qps)
    if (qp->is_dci()) return *qp;
  std::abort();
}

FakeQp& FakeNic::Dct() {
  for (auto& [key, qp] : qps)
    if (qp->is_dct()) return *qp;
  std::abort();
}

FakeQp& FakeNic::Plain() {
  for (auto& [key, qp] : qps)
    if (qp->is_plain()) return *qp;
  std::abort();
}

void FakeNic::BlockIfWanted() {
  if (!create_ah_blocks.exchange(false)) return;
  std::unique_lock lock(block_mutex);
  blocked = true;
  block_changed.notify_all();
  block_changed.wait(lock, [this] { return !blocked; });
}

void FakeNic::AwaitBlocked() {
  std::unique_lock lock(block_mutex);
  block_changed.wait(lock, [this] { return blocked; });
}

void FakeNic::Unblock() {
  const std::lock_guard lock(block_mutex);
  blocked = false;
  block_changed.notify_all();
}

int FakeNic::Enter(const char* call) {
  const int number = static_cast<int>(calls.size());
  calls.emplace_back(call);
  if (number == fail_call) return fail_error;
  const auto named = fail_named.find(call);
  return named != fail_named.end() ? named->second : 0;
}

void FakeNic::Succeed(FakeQp& dci) {
  const FakePost post = dci.outstanding.front();
  dci.outstanding.pop_front();
  if ((post.flags & IBV_SEND_SIGNALED) != 0)
    cqs.at(dci.init.send_cq)->completions.push_back(CompletionOf(dci, post, IBV_WC_SUCCESS));
}

void FakeNic::Fail(FakeQp& dci, ibv_wc_status status) {
  const FakePost post = dci.outstanding.front();
  dci.outstanding.pop_front();
  cqs.at(dci.init.send_cq)->completions.push_back(CompletionOf(dci, post, status));
  SetState(dci, IBV_QPS_ERR);
}

void FakeNic::Flush(FakeQp& dci) {
  for (const FakePost& post : dci.outstanding)
    cqs.at(dci.init.send_cq)->completions.push_back(CompletionOf(dci, post, IBV_WC_WR_FLUSH_ERR));
  dci.outstanding.clear();
}

void FakeNic::SetState(FakeQp& qp, ibv_qp_state state) {
  qp.state = state;
  if (state == IBV_QPS_ERR) Flush(qp);
  // Completions that are in the CQ stay there, as a NIC may leave them.
  if (state == IBV_QPS_RESET) qp.outstanding.clear();
}

void FakeNic::Receive(FakeQp& dct, size_t index, ibv_wc wc) {
  std::vector<ibv_recv_wr>& posted = srqs.at(dct.init.srq)->posted;
  wc.wr_id = posted.at(index).wr_id;
  wc.qp_num = dct.ex.qp_base.qp_num;
  posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(index));
  cqs.at(dct.init.recv_cq)->completions.push_back(wc);
}

void FakeNic::Break(FakeQp& qp) {
  SetState(qp, IBV_QPS_ERR);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = &qp.ex.qp_base;
  Report(event);
}

void FakeNic::ReportPort(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = kPort;
  Report(event);
}

void FakeNic::Report(const ibv_async_event& event) {
  const std::lock_guard lock(events_mutex);
  events.push_back(event);
  const uint64_t one = 1;
  (void)!write(events_fd, &one, sizeof(one));
}

}  // namespace krcore::rnic::verbs::testing
