#include "krcore/rnic/verbs/software_dci.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "krcore/base/os.h"
#include "krcore/clock.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {
namespace {

constexpr uint32_t kFarewellPolls = 64;  // between two checks of an initiator that only has sessions to close

static_assert(static_cast<int>(SDC_OP_FETCH_ADD) == static_cast<int>(Opcode::kFetchAdd));
static_assert(int{SDC_SIGNALED} == int{kSignaled} && int{SDC_FENCE} == int{kFence} && int{SDC_INLINE} == int{kInline});
static_assert(static_cast<int>(SDC_RNR_RETRY_EXCEEDED) == static_cast<int>(WcStatus::kRnrRetryExceeded));

SoftwareDci* Initiator(void* context) { return static_cast<SoftwareDci*>(context); }

// For the core an address is a word that names a port's handles, which this object holds.
sdc_address AddressOf(PortHandles* handles, uint32_t qpn) {
  sdc_address address{};
  std::memcpy(address.bytes, static_cast<void*>(&handles), sizeof(PortHandles*));
  address.qpn = qpn;
  return address;
}

PortHandles* HandlesOf(const sdc_address& address) {
  PortHandles* handles = nullptr;
  std::memcpy(static_cast<void*>(&handles), address.bytes, sizeof(PortHandles*));
  return handles;
}

}  // namespace

const sdc_initiator_ops SoftwareDci::kOps = {
    .local = [](void* context, uint32_t lkey, uint64_t addr, uint32_t length, bool written) -> void* {
      return Initiator(context)->regions_->FindLocal(lkey, addr, length, written ? uint32_t{kLocalWrite} : 0);
    },
    .buffer = [](void* context) -> uint8_t* {
      SoftwareDci& self = *Initiator(context);
      uint8_t* const buffer = self.port_->Buffer();
      self.starved_ = self.starved_ || buffer == nullptr;
      return buffer;
    },
    .send =
        [](void* context, const sdc_address* to, uint32_t bytes) {
          SoftwareDci& self = *Initiator(context);
          // Made by PostSend, because a thread that waits for the network must not hold the lock of the regions.
          ibv_ah* const ah = HandlesOf(*to)->of_pd[self.pd_index_].load(std::memory_order_acquire);
          self.port_->Send(ah, to->qpn, bytes);
        },
};

SoftwareDci::SoftwareDci(SharedDevice* device, uint32_t pd_index, Regions* regions, const QpAttr& attr)
    : device_(device),
      pd_index_(pd_index),
      regions_(regions),
      attr_(attr),
      send_cq_(static_cast<VerbsCq*>(attr.send_cq)),
      wrs_(std::bit_ceil(attr.sq_depth)),
      peers_(kSdcPeers),
      sent_(std::bit_ceil(attr.sq_depth)) {}

Result<std::unique_ptr<Qp>> SoftwareDci::Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, Regions* regions,
                                                const QpAttr& attr) {
  Context* const context = device->context.get();
  std::unique_ptr<SoftwareDci> dci(new SoftwareDci(device, pd_index, regions, attr));
  dci->recv_cq_ = ibv.create_cq(context->get(), static_cast<int>(kSdcInitiatorReceives), nullptr, nullptr, 0);
  if (dci->recv_cq_ == nullptr) return FailedCall(errno, "create a CQ for a DC initiator");
  const uint32_t mtu_bytes = device->caps.ud_mtu_bytes;
  auto port = UdPort::Open(context, pd, dci->recv_cq_, {mtu_bytes, kSdcInitiatorSends, kSdcInitiatorReceives});
  if (!port.ok()) return port.status();
  dci->port_ = *std::move(port);
  dci->num_ = dci->port_->qpn();
  sdc_initiator_config config{};
  config.ops = &kOps;
  config.context = dci.get();
  const auto life = Random64();
  if (!life.ok()) return life.status();
  config.life = *life;
  config.mtu_bytes = mtu_bytes;
  config.max_message_bytes = device->caps.max_message_bytes;
  config.timing = kSdcTiming;
  config.wrs = dci->wrs_.data();
  config.depth = static_cast<uint32_t>(dci->wrs_.size());
  config.peers = dci->peers_.data();
  config.peer_count = kSdcPeers;
  sdc_initiator_init(&dci->core_, &config);
  dci->send_cq_->AddSource(dci.get());
  return std::unique_ptr<Qp>(std::move(dci));
}

SoftwareDci::~SoftwareDci() {
  if (port_ != nullptr) {
    (void)ToReset();
    send_cq_->RemoveSource(this);
    port_.reset();
  }
  if (recv_cq_ != nullptr) ibv.destroy_cq(recv_cq_);
}

QpState SoftwareDci::state() const {
  return core_.state == SDC_QUEUE_ERROR && state_ != QpState::kReset ? QpState::kErr : state_;
}

Status SoftwareDci::Move(QpState from, QpState to) {
  if (state() != from) return WrongState(state(), to);
  state_ = to;
  return {};
}

Status SoftwareDci::ToInit(uint32_t /*access_rights*/, uint32_t /*qkey*/) {
  return Move(QpState::kReset, QpState::kInit);
}
Status SoftwareDci::ToRtr(const QpPeer& /*peer*/) { return Move(QpState::kInit, QpState::kRtr); }
Status SoftwareDci::ToRts() { return Move(QpState::kRtr, QpState::kRts); }

Status SoftwareDci::ToErr() {
  sdc_initiator_fail(&core_, SdcNowNs());
  send_cq_->WakeSources();
  state_ = QpState::kErr;
  return {};
}

bool SoftwareDci::BeginReset() {
  state_ = QpState::kErr;
  if (core_.state != SDC_QUEUE_RESETTING) {
    sdc_initiator_reset(&core_, SdcNowNs());
    send_cq_->WakeSources();
    next_ns_ = 0;
  }
  Drive();
  return sdc_initiator_is_reset(&core_);
}

Status SoftwareDci::ToReset() {
  for (uint32_t spins = 0; !BeginReset(); ++spins) {
    send_cq_->DriveSources();  // including this one
    RealClock()->Relax(spins);
  }
  ForgetCompletions();
  state_ = QpState::kReset;
  return {};
}

void SoftwareDci::ForgetCompletions() {
  uint64_t signaled = 0;
  for (; taken_ < posted_; ++taken_) signaled += SentAt(taken_).signaled ? 1 : 0;
  send_cq_->RemoveSignaled(signaled);
}

void SoftwareDci::Hold(const std::shared_ptr<PortHandles>& handles) {
  if (handles.get() == held_last_) return;
  held_last_ = handles.get();
  if (!held_.try_emplace(handles.get(), handles).second || held_.size() <= 2 * (wrs_.size() + peers_.size())) return;
  std::unordered_map<const PortHandles*, std::shared_ptr<PortHandles>> named{{handles.get(), handles}};
  const auto keep = [&](const sdc_address& address) {
    if (const auto found = held_.find(HandlesOf(address)); found != held_.end()) named.insert(*found);
  };
  for (const sdc_queued_wr& queued : wrs_) keep(queued.wr.to);
  for (const sdc_peer& peer : peers_) keep(peer.to);
  held_ = std::move(named);
}

void SoftwareDci::Fill(const SendWr& wr, sdc_wr* filled) {
  filled->wr_id = posted_;
  filled->opcode = static_cast<sdc_opcode>(wr.opcode);
  filled->flags = wr.flags & (SDC_SIGNALED | SDC_FENCE | SDC_INLINE);
  filled->sge_count = wr.num_sge;
  for (uint32_t i = 0; i < wr.num_sge; ++i)
    filled->sges[i] = {wr.sg_list[i].addr, wr.sg_list[i].length, wr.sg_list[i].lkey};
  filled->imm = wr.imm;
  filled->remote_addr = wr.remote_addr;
  filled->rkey = wr.rkey;
  filled->compare_add = wr.compare_add;
  filled->swap = wr.swap;
  // A target's number is that of its UD queue.
  const auto& handles = static_cast<const VerbsAddressHandle*>(wr.ah)->handles();
  Hold(handles);
  filled->to = AddressOf(handles.get(), wr.remote_qpn);
  filled->target = wr.remote_qpn;
  filled->key = wr.dc_key;
}

Status SoftwareDci::PostSend(std::span<const SendWr> wrs, size_t* bad_index) {
  const QpState now = state();
  if (now != QpState::kRts && now != QpState::kErr) {
    if (bad_index != nullptr) *bad_index = 0;
    return StatusCode::kBadState;
  }
  const uint64_t now_ns = SdcNowNs();
  Status status;
  size_t at = 0;
  for (; at < wrs.size(); ++at) {
    const SendWr& wr = wrs[at];
    if (posted_ - taken_ >= attr_.sq_depth) {
      status = StatusCode::kQueueFull;
      break;
    }
    sdc_wr filled{};
    if (IsMalformed(wr, QpType::kDci, device_->caps.max_sge, device_->caps.max_inline_bytes)) {
      status = StatusCode::kInvalidArgument;
      break;
    }
    if (static_cast<const VerbsAddressHandle*>(wr.ah)->For(pd_index_) == nullptr) {
      status = StatusCode::kUnavailable;
      break;
    }
    Fill(wr, &filled);
    if (sdc_initiator_post(&core_, &filled, now_ns) != SDC_POSTED) {
      status = StatusCode::kInvalidArgument;
      break;
    }
    Sent& sent = SentAt(posted_);
    sent = {wr.wr_id, (wr.flags & kSignaled) != 0, false};
    if (sent.signaled) sent.lost = !send_cq_->AddSignaled();
    ++posted_;
  }
  if (at > 0) {
    send_cq_->WakeSources();
    Run(true);
  }
  if (!status.ok() && bad_index != nullptr) *bad_index = at;
  return status;
}

Status SoftwareDci::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  if (bad_index != nullptr) *bad_index = 0;
  if (state() == QpState::kReset) return StatusCode::kBadState;
  return wrs.empty() ? StatusCode::kOk : StatusCode::kQueueFull;
}

void SoftwareDci::Drive() {
  if (!idle()) Run(false);
}

void SoftwareDci::Run(bool posted) {
  // The lock keeps the local memory that is found here until the end of this function.
  const Regions::Lock lock = regions_->Use();
  bool any = posted || starved_;
  for (int got = kPolledAtOnce; got == kPolledAtOnce;) {
    ibv_wc wcs[kPolledAtOnce];
    got = ibv_poll_cq(recv_cq_, kPolledAtOnce, wcs);
    for (int i = 0; i < got; ++i) {
      const UdPort::Datagram datagram = port_->Received(wcs[i]);
      if (datagram.payload != nullptr) sdc_initiator_receive(&core_, datagram.payload, datagram.bytes, SdcNowNs());
    }
    any = any || got > 0;
    if (got > 0) port_->Flush();
  }
  const uint64_t now_ns = SdcNowNs();
  if (!any && now_ns < next_ns_) return;
  starved_ = false;
  sdc_initiator_run(&core_, now_ns);
  port_->Flush();
  next_ns_ = sdc_initiator_next(&core_, now_ns);
  device_->dc_counters.Add(core_.stats, &counted_);
}

size_t SoftwareDci::Take(std::span<Completion> out) {
  if (!Awake()) return 0;
  const bool only_closes = core_.done == core_.posted && core_.polled == core_.done;
  if (only_closes && ++quiet_polls_ % kFarewellPolls != 0) return 0;
  Drive();
  size_t count = 0;
  sdc_completion done{};
  while (count < out.size() && sdc_initiator_poll(&core_, &done)) {
    const Sent& sent = SentAt(done.wr_id);
    taken_ = done.wr_id + 1;  // including the unsignaled ones before it
    if (sent.signaled) send_cq_->RemoveSignaled(1);
    if (sent.lost) continue;
    out[count] = {};
    out[count].wr_id = sent.wr_id;
    out[count].status = static_cast<WcStatus>(done.status);
    out[count].opcode = static_cast<Opcode>(done.opcode);
    out[count].qp_num = num_;
    ++count;
  }
  return count;
}

}  // namespace krcore::rnic::verbs
