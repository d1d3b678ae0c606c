#include "krcore/rnic/verbs/software_dct.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "krcore/base/random.h"
#include "krcore/clock.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/agent.h"
#include "krcore/rnic/verbs/sdc_limits.h"

namespace krcore::rnic::verbs {
namespace {

constexpr int kBatch = 32;

static_assert(uint32_t{SDC_ACCESS_READ} == kRemoteRead && uint32_t{SDC_ACCESS_WRITE} == kRemoteWrite &&
              uint32_t{SDC_ACCESS_ATOMIC} == kRemoteAtomic);
static_assert(static_cast<int>(SDC_RNR_RETRY_EXCEEDED) == static_cast<int>(WcStatus::kRnrRetryExceeded));

SoftwareDct* Self(void* context) { return static_cast<SoftwareDct*>(context); }

}  // namespace

const sdc_target_ops SoftwareDct::kOps = {
    .memory = [](void* context, uint32_t rkey, uint64_t addr, uint32_t length, uint32_t access) -> void* {
      return Self(context)->regions_->FindRemote(rkey, addr, length, access);
    },
    .local = [](void* context, uint32_t lkey, uint64_t addr, uint32_t length) -> void* {
      return Self(context)->regions_->FindLocal(lkey, addr, length, kLocalWrite);
    },
    .atomic = [](void* context, const sdc_atomic_request* request) { return Self(context)->atomics_->Post(*request); },
    .buffer = [](void* context) { return Self(context)->port_->Buffer(); },
    .send =
        [](void* context, const sdc_address* to, uint32_t bytes) {
          SoftwareDct& self = *Self(context);
          // Serve has made it before it took the lock, if it can be made. If not, the peer asks again.
          ibv_ah* const ah = self.handles_->Find(*to, *self.port_);
          if (ah != nullptr) self.port_->Send(ah, to->qpn, bytes);
        },
    .has_room = [](void*) { return true; },  // the CQ's thread has got all but rq_depth of them
    .received = [](void* context, const sdc_received* received) { Self(context)->Received(*received); },
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
  dct->cq_ = ibv_create_cq(context->get(), static_cast<int>(kSdcTargetReceives + kSdcAtomics), nullptr,
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
  // The queue of the atomics goes first, and with it whatever the device had of them.
  atomics_.reset();
  handles_.reset();
  port_.reset();
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
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
  ibv_wc wcs[kBatch];
  Incoming incoming[kBatch];
  const int got = ibv_poll_cq(cq_, kBatch, wcs);
  for (int i = 0; i < got; ++i) {
    if ((wcs[i].wr_id & UdPort::kReceive) == 0) continue;
    incoming[i] = Taken(wcs[i]);
    // Before the lock: the network may have to be asked for the sender.
    if (incoming[i].datagram.payload != nullptr) (void)handles_->Get(incoming[i].from, *port_);
  }
  // Regions that are found stay until the end of this.
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

}  // namespace krcore::rnic::verbs
