#include "krcore/rnic/verbs/software_dct.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "krcore/base/os.h"
#include "krcore/clock.h"
#include "krcore/resources.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/device.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {
namespace {

static_assert(uint32_t{SDC_ACCESS_READ} == kRemoteRead && uint32_t{SDC_ACCESS_WRITE} == kRemoteWrite &&
              uint32_t{SDC_ACCESS_ATOMIC} == kRemoteAtomic);
static_assert(static_cast<int>(SDC_RNR_RETRY_EXCEEDED) == static_cast<int>(WcStatus::kRnrRetryExceeded));

SoftwareDct* Target(void* context) { return static_cast<SoftwareDct*>(context); }

}  // namespace

const sdc_target_ops SoftwareDct::kOps = {
    .memory = [](void* context, uint32_t rkey, uint64_t addr, uint32_t length, uint32_t access) -> void* {
      return Target(context)->regions_->FindRemote(rkey, addr, length, access);
    },
    .local = [](void* context, uint32_t lkey, uint64_t addr, uint32_t length) -> void* {
      return Target(context)->regions_->FindLocal(lkey, addr, length, kLocalWrite);
    },
    .atomic = [](void* context,
                 const sdc_atomic_request* request) { return Target(context)->atomics_->Post(*request); },
    .buffer = [](void* context) { return Target(context)->port_->Buffer(); },
    .send =
        [](void* context, const sdc_address* to, uint32_t bytes) {
          SoftwareDct& self = *Target(context);
          // Serve has made it before taking the lock, if it can be made. Otherwise the peer asks again.
          ibv_ah* const ah = self.handles_->Find(*to, *self.port_);
          if (ah != nullptr) self.port_->Send(ah, to->qpn, bytes);
        },
    .received = [](void* context, const sdc_received* received) { Target(context)->Received(*received); },
};

SoftwareDct::SoftwareDct(SharedDevice* device, Regions* regions, const DctAttr& attr)
    : device_(device),
      regions_(regions),
      attr_(attr),
      recv_cq_(attr.rq_depth > 0 ? static_cast<VerbsCq*>(attr.recv_cq) : nullptr),
      sessions_(kSdcSessions),
      receives_(attr.rq_depth) {}

Result<std::unique_ptr<Dct>> SoftwareDct::Create(SharedDevice* device, ibv_pd* pd, Regions* regions,
                                                 const DctAttr& attr) {
  auto agent = device->agent.Get(device->context.get());
  if (!agent.ok()) return agent.status();
  Context* const context = device->context.get();
  std::unique_ptr<SoftwareDct> dct(new SoftwareDct(device, regions, attr));
  dct->cq_ = ibv.create_cq(context->get(), static_cast<int>(kSdcTargetReceives + kSdcAtomics), nullptr,
                           (*agent)->channel(), 0);
  if (dct->cq_ == nullptr) return FailedCall(errno, "create a CQ for a DC target");
  const uint32_t mtu_bytes = device->caps.ud_mtu_bytes;
  auto port = UdPort::Open(context, pd, dct->cq_, {mtu_bytes, kSdcTargetSends, kSdcTargetReceives});
  if (!port.ok()) return port.status();
  dct->port_ = *std::move(port);
  auto atomics = Atomics::Create(context, pd, dct->cq_, kSdcAtomics);
  if (!atomics.ok()) return atomics.status();
  dct->atomics_ = *std::move(atomics);
  dct->handles_ = std::make_unique<ReplyHandles>(context, pd, kSdcReplyHandles, RealClock());
  dct->num_ = dct->port_->qpn();
  dct->dc_key_ = attr.dc_key;
  sdc_target_config config{};
  config.ops = &kOps;
  config.context = dct.get();
  config.number = dct->num_;
  config.key = attr.dc_key;
  const auto seed = Random64();
  if (!seed.ok()) return seed.status();
  config.seed = *seed;
  config.mtu_bytes = mtu_bytes;
  config.access = attr.access_rights;
  config.hold_ns = kSdcHoldNs;
  config.sessions = dct->sessions_.data();
  config.session_count = kSdcSessions;
  config.receives = dct->receives_.data();
  config.receive_count = attr.rq_depth;
  sdc_target_init(&dct->target_, &config);
  if (dct->recv_cq_ != nullptr) {
    dct->recv_cq_->AddSource(dct.get());
    dct->attached_ = true;
  }
  (*agent)->Add(dct.get());
  dct->served_ = true;
  return std::unique_ptr<Dct>(std::move(dct));
}

SoftwareDct::~SoftwareDct() {
  if (attached_) recv_cq_->RemoveSource(this);
  if (served_) device_->agent.made()->Remove(this);
  // The queue of the atomics goes first, and with it the atomics that the device had.
  atomics_.reset();
  handles_.reset();
  port_.reset();
  if (cq_ != nullptr) ibv.destroy_cq(cq_);
}

Status SoftwareDct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    Status status;
    if (outstanding_ >= attr_.rq_depth) {
      status = StatusCode::kQueueFull;
    } else if (HasBadSges(wrs[i], SDC_MAX_SGE)) {
      status = StatusCode::kInvalidArgument;
    }
    if (!status.ok()) {
      if (bad_index != nullptr) *bad_index = i;
      return status;
    }
    sdc_recv receive{};
    receive.wr_id = wrs[i].wr_id;
    receive.sge_count = wrs[i].num_sge;
    for (uint32_t k = 0; k < wrs[i].num_sge; ++k)
      receive.sges[k] = {wrs[i].sg_list[k].addr, wrs[i].sg_list[k].length, wrs[i].sg_list[k].lkey};
    ++outstanding_;
    const std::lock_guard lock(mutex_);
    staged_.push_back(receive);
    any_staged_.store(true, std::memory_order_relaxed);
  }
  return {};
}

void SoftwareDct::TakeStaged() {
  if (!any_staged_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  while (!staged_.empty() && sdc_target_post_receive(&target_, &staged_.front())) staged_.pop_front();
  any_staged_.store(!staged_.empty(), std::memory_order_relaxed);
}

size_t SoftwareDct::Take(std::span<Completion> out) {
  if (out.empty() || !any_completions_.load(std::memory_order_relaxed)) return 0;
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(out.size(), completions_.size());
  std::copy_n(completions_.begin(), count, out.begin());
  completions_.erase(completions_.begin(), completions_.begin() + static_cast<ptrdiff_t>(count));
  any_completions_.store(!completions_.empty(), std::memory_order_relaxed);
  outstanding_ -= count;
  return count;
}

void SoftwareDct::Received(const sdc_received& received) {
  Completion completion{};
  completion.wr_id = received.wr_id;
  completion.status = static_cast<WcStatus>(received.status);
  completion.opcode = received.is_write ? Opcode::kRecvWithImm : Opcode::kRecv;
  completion.qp_num = num_;
  if (received.status == SDC_SUCCESS) {
    completion.byte_len = received.length;
    if (received.has_imm) {
      completion.flags = kWithImm;
      completion.imm = received.imm;
    }
  }
  const std::lock_guard lock(mutex_);
  completions_.push_back(completion);
  any_completions_.store(true, std::memory_order_relaxed);
}

SoftwareDct::Incoming SoftwareDct::Taken(const ibv_wc& wc) {
  Incoming incoming{port_->Received(wc), {}};
  if (incoming.datagram.payload == nullptr) return {};
  const Port& own = device_->context->port();
  const auto gid = SenderGid(own.gid, std::span<const uint8_t, kGrhBytes>(incoming.datagram.grh, kGrhBytes));
  if (!gid) return {};
  PortAddress address;
  std::memcpy(address.gid, gid->raw, sizeof(address.gid));
  if (own.attr.link_layer == IBV_LINK_LAYER_INFINIBAND) address.lid = wc.slid;
  std::memcpy(incoming.from.bytes, &address, sizeof(address));
  incoming.from.qpn = wc.src_qp;
  return incoming;
}

void SoftwareDct::Report(const Atomics::Result& result) {
  sdc_target_atomic_done(&target_, &result.token, result.status, result.before, SdcNowNs());
}

bool SoftwareDct::Serve() {
  ibv_wc wcs[kPolledAtOnce];
  Incoming incoming[kPolledAtOnce];
  const int got = ibv_poll_cq(cq_, kPolledAtOnce, wcs);
  for (int i = 0; i < got; ++i) {
    if ((wcs[i].wr_id & UdPort::kReceive) == 0) continue;
    incoming[i] = Taken(wcs[i]);
    // Before taking the lock: this may have to ask the network for the sender.
    if (incoming[i].datagram.payload != nullptr) (void)handles_->Get(incoming[i].from, *port_);
  }
  // The lock keeps the regions that are found here until the end of this function.
  const Regions::Lock lock = regions_->Use();
  for (int i = 0; i < got; ++i) {
    const UdPort::Datagram& datagram = incoming[i].datagram;
    if (datagram.payload != nullptr) {
      TakeStaged();
      sdc_target_receive(&target_, &incoming[i].from, datagram.payload, datagram.bytes, SdcNowNs());
    } else if ((wcs[i].wr_id & UdPort::kReceive) == 0) {
      if (const auto result = atomics_->Completed(wcs[i])) Report(*result);
    }
  }
  const bool repairs = atomics_->broken();
  if (repairs) {
    for (const Atomics::Result& result : atomics_->Repair()) Report(result);
    if (!atomics_->broken()) device_->dc_counters.AddAtomicRepair();
  }
  if (got > 0 || repairs || port_->broken()) {
    port_->Flush();
    device_->dc_counters.Add(target_.stats, &counted_);
  }
  return got > 0;
}

void SoftwareDct::Arm() { (void)ibv_req_notify_cq(cq_, 0); }

// ---- atomics

namespace {

// Less than the grace that the protocol gives an atomic: a NIC may wait up to four times its timer before each retry.
constexpr uint8_t kAtomicTimeout = 13;  // 4.096 us x 2^13 = 34 ms
constexpr uint8_t kAtomicRetries = 6;
static_assert(4 * (kAtomicRetries + 1) * (uint64_t{4096} << kAtomicTimeout) < kSdcTiming.grace_ns);

constexpr uint64_t kPositionMask = 0xffff'ffff, kRepairsMask = 0xff'ffff;

// The responder refused it, so it was not executed. A local failure does not tell: it may concern the answer.
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
  if (qp_ != nullptr) ibv.destroy_qp(qp_);
}

Status Atomics::MakeQueue() {
  ibv_qp_init_attr init{};
  init.qp_context = &events_;
  init.send_cq = init.recv_cq = cq_;
  init.cap = {depth_, 0, 1, 0, 0};
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = 1;
  qp_ = ibv.create_qp(pd_, &init);
  if (qp_ == nullptr) return FailedCall(errno, "create a QP for atomics");
  if (Status connected = Connect(); !connected.ok()) {
    ibv.destroy_qp(qp_);
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
  int error = ibv.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  const PortAddress self = context_->address();
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = context_->port().attr.active_mtu;
  attr.dest_qp_num = qp_->qp_num;
  // Another number in each life, as for other queues (QpPeer::psn): an earlier queue's packets may be on their way.
  attr.rq_psn = attr.sq_psn = *psn & kPsnMask;
  attr.max_dest_rd_atomic = attr.max_rd_atomic = self.read_depth;
  attr.min_rnr_timer = 1;
  attr.ah_attr = PathTo(*context_, self);
  if (error == 0)
    error = ibv.modify_qp(qp_, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = kAtomicTimeout;
  attr.retry_cnt = kAtomicRetries;
  attr.rnr_retry = 0;
  if (error == 0)
    error = ibv.modify_qp(
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
  // The number of repairs tells completions of this queue from those of an earlier one.
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
  if (qp_ != nullptr && ibv.destroy_qp(qp_) != 0) return results;  // until it is gone, nothing is known of its requests
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

// ---- agent

namespace {

constexpr int kRepairMs = 100;

}  // namespace

Result<std::unique_ptr<Agent>> Agent::Start(Context* context) {
  auto stop = NewEvent();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<Agent> agent;
  {
    // A child that is forked between open and guard would keep the NIC's events.
    ForksHeld forks;
    HoldStandard();
    ibv_comp_channel* const channel = ibv.create_comp_channel(context->get());
    if (channel == nullptr) return FailedCall(errno, "create a completion channel");
    forks.Guard(channel->fd);
    agent.reset(new Agent(channel, *std::move(stop)));
  }
  auto thread = StartThread("agent of DC in software", [self = agent.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  agent->thread_ = *std::move(thread);
  return agent;
}

Agent::Agent(ibv_comp_channel* channel, Socket stop) : channel_(channel), stop_(std::move(stop)) {
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
}

Agent::~Agent() {
  SetEvent(stop_);
  if (thread_.joinable()) thread_.join();
  ForksHeld forks;
  forks.Unguard(channel_->fd);
  ibv.destroy_comp_channel(channel_);
}

void Agent::Add(SoftwareDct* dct) {
  const std::lock_guard lock(mutex_);
  dcts_.push_back(dct);
  dct->Arm();  // the agent may be asleep, and an event tells it
}

void Agent::Remove(SoftwareDct* dct) {
  const std::lock_guard lock(mutex_);
  std::erase(dcts_, dct);
}

bool Agent::ServeAll() {
  const std::shared_lock lock(mutex_);
  bool any = false;
  broken_ = false;
  for (SoftwareDct* const dct : dcts_) {
    any = dct->Serve() || any;
    broken_ = broken_ || dct->broken();
  }
  return any;
}

void Agent::ArmAll() {
  const std::shared_lock lock(mutex_);
  for (SoftwareDct* const dct : dcts_) dct->Arm();
}

// An event only says that something may have arrived.
void Agent::Sleep() {
  pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {channel_->fd, POLLIN, 0}};
  poll(polled, std::size(polled), broken_ ? kRepairMs : -1);
  // The device was removed from the system: no event will come, so do not wait for one.
  if ((polled[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) poll(polled, 1, -1);
  stopped_ = polled[0].revents != 0;
  // A CQ can be destroyed only after each event taken from it was acknowledged.
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  while (ibv.get_cq_event(channel_, &cq, &unused) == 0) ibv.ack_cq_events(cq, 1);
}

void Agent::Run() {
  while (!stopped_) {
    if (ServeAll()) continue;
    ArmAll();
    if (!ServeAll()) Sleep();  // no event tells what arrived before it was armed
  }
}

void Agent::AwaitAtomics(const Regions* regions) {
  std::vector<std::pair<const SoftwareDct*, uint64_t>> awaited;
  {
    const std::shared_lock lock(mutex_);
    for (const SoftwareDct* const dct : dcts_)
      if (dct->regions() == regions) awaited.emplace_back(dct, dct->atomics().posted());
  }
  const Deadline deadline = Deadline::After(*RealClock(), static_cast<int64_t>(kSdcTiming.grace_ns));
  for (uint32_t spins = 0; !awaited.empty() && !deadline.Passed(*RealClock()); ++spins) {
    {
      // Not held while waiting: otherwise the agent could not go on when another thread wants the list exclusively.
      const std::shared_lock lock(mutex_);
      std::erase_if(awaited, [&](const auto& entry) {
        const bool present = std::find(dcts_.begin(), dcts_.end(), entry.first) != dcts_.end();
        return !present || entry.first->atomics().done() >= entry.second;
      });
    }
    if (!awaited.empty()) RealClock()->Relax(spins);
  }
}

int64_t Agent::CpuNs() const {
  clockid_t clock{};
  timespec used{};
  // pthread_getcpuclockid takes the handle by value, and the thread lives as long as the agent.
  if (pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock) != 0) return 0;
  clock_gettime(clock, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

Result<Agent*> AgentSlot::Get(Context* context) {
  const std::lock_guard lock(mutex_);
  if (agent_ == nullptr) {
    auto started = Agent::Start(context);
    if (!started.ok()) return started.status();
    agent_ = *std::move(started);
  }
  return agent_.get();
}

}  // namespace krcore::rnic::verbs
