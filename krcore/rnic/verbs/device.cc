#include "krcore/rnic/verbs/device.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "krcore/rnic/providers.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/qp.h"
#include "krcore/rnic/verbs/software_dci.h"
#include "krcore/rnic/verbs/software_dct.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {
namespace {

constexpr size_t kMaxTries = 64;  // to get a key that was not used recently

struct MrDeleter {
  void operator()(ibv_mr* mr) const { ibv.dereg_mr(mr); }
};
using MrPtr = std::unique_ptr<ibv_mr, MrDeleter>;

// An MR without remote rights may have no rkey; then it is 0.
uint32_t KeyOf(const ibv_mr& mr) { return mr.rkey != 0 ? mr.rkey : mr.lkey; }

class VerbsMr final : public Mr {
 public:
  VerbsMr(SharedDevice* device, Regions* regions, MrPtr mr, uint32_t access_rights)
      : device_(device), regions_(regions), mr_(std::move(mr)) {
    addr_ = mr_->addr;
    length_ = mr_->length;
    lkey_ = mr_->lkey;
    rkey_ = mr_->rkey;
    if (device_->caps.software_dc) regions_->Add(*this, access_rights);
  }
  ~VerbsMr() override {
    // Afterwards neither software that found the MR uses it, nor the device for the atomics handed to it.
    if (device_->caps.software_dc) {
      regions_->Remove(*this);
      if (Agent* const agent = device_->agent.made(); agent != nullptr) agent->AwaitAtomics(regions_);
    }
    device_->recent_keys.Add(KeyOf(*mr_));
  }

 private:
  SharedDevice* const device_;
  Regions* const regions_;
  MrPtr mr_;
};

}  // namespace

Result<std::unique_ptr<Pd>> VerbsPd::Create(SharedDevice* device) {
  ibv_pd* const pd = ibv.alloc_pd(device->context->get());
  if (pd == nullptr) return FailedCall(errno, "allocate a PD");
  const auto index = device->address_handles.AddPd(pd);
  if (!index.ok()) {
    ibv.dealloc_pd(pd);
    return index.status();
  }
  return std::unique_ptr<Pd>(new VerbsPd(device, pd, *index));
}

VerbsPd::~VerbsPd() {
  device_->address_handles.RemovePd(index_);
  ibv.dealloc_pd(pd_);
}

Result<std::unique_ptr<Mr>> VerbsPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  KRCORE_RETURN_IF_ERROR(CheckRegistration(addr, length, access_rights));
  std::vector<MrPtr> refused;  // held, so that their keys are not given out again
  while (refused.size() < kMaxTries) {
    MrPtr mr(ibv.reg_mr(pd_, addr, length, static_cast<int>(ToAccessFlags(access_rights))));
    if (mr == nullptr) {
      return FailedCall(errno, "register " + std::to_string(length) + " bytes");
    }
    if (!device_->recent_keys.Has(KeyOf(*mr)))
      return std::unique_ptr<Mr>(std::make_unique<VerbsMr>(device_, &regions_, std::move(mr), access_rights));
    refused.push_back(std::move(mr));
  }
  return Status(StatusCode::kUnavailable, "the device has no key that was not in use lately");
}

Result<std::unique_ptr<Qp>> VerbsPd::CreateQp(const QpAttr& attr) {
  if (attr.host_qp != kPrivateQp) return Status(StatusCode::kUnsupported, "processes share no queues of this provider");
  KRCORE_RETURN_IF_ERROR(CheckQp(attr, device_->caps.max_qp_wr));
  if (attr.type != QpType::kDci) return VerbsQp::Create(device_, pd_, index_, attr);
  if (device_->dc == DcKind::kSoftware) return SoftwareDci::Create(device_, pd_, index_, &regions_, attr);
  return CreateMlx5Dci(device_, pd_, index_, attr);
}

Result<std::unique_ptr<Dct>> VerbsPd::CreateDct(const DctAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.recv_cq, device_->caps.max_qp_wr));
  if (device_->dc == DcKind::kSoftware) return SoftwareDct::Create(device_, pd_, &regions_, attr);
  return CreateMlx5Dct(device_, pd_, attr);
}

namespace {

constexpr int64_t kCreateNs = 10'000'000'000;  // if two processes create one fabric, one of them must come up
constexpr uint32_t kMaxQpWr = 16384;
constexpr uint32_t kMaxSge = 16;
constexpr uint32_t kMaxInlineBytes = 64;  // every driver takes that much

Caps CapsOf(const Port& port) {
  Caps caps;
  caps.provider = "verbs";
  caps.max_qp_wr = std::min(kMaxQpWr, static_cast<uint32_t>(port.device.max_qp_wr));
  caps.max_sge = std::min(kMaxSge, static_cast<uint32_t>(port.device.max_sge));
  caps.max_cqe = static_cast<uint32_t>(port.device.max_cqe);
  caps.max_inline_bytes = kMaxInlineBytes;
  caps.ud_mtu_bytes = 128U << port.attr.active_mtu;  // IBV_MTU_256 is 1
  caps.max_message_bytes = port.attr.max_msg_sz;
  caps.dc = true;
  caps.max_retransmission_ns = kMaxRetransmissionNs;
  caps.finds_missing_peers = false;
  caps.asks_over_network = true;
  return caps;
}

void LimitToSoftwareDc(Caps* caps) {
  caps->software_dc = true;
  caps->max_sge = std::min(caps->max_sge, uint32_t{SDC_MAX_SGE});
  caps->max_retransmission_ns = std::max(caps->max_retransmission_ns, kSdcMaxRetransmissionNs);
}

std::string MtuName(uint8_t mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? std::to_string(128U << mtu) + " bytes" : "a size not known here";
}

PortAddress AddressOf(const SharedDevice& shared) {
  PortAddress address = shared.context->address();
  address.dc = shared.dc;
  return address;
}

Deadline OnRealClock(Clock& clock, Deadline deadline) {
  if (&clock == RealClock() || deadline.at_ns == Deadline{}.at_ns) return deadline;
  return Deadline::After(*RealClock(), deadline.at_ns - clock.NowNs());
}

class VerbsDevice final : public Device {
 public:
  VerbsDevice(std::unique_ptr<SharedDevice> shared, Clock& clock) : shared_(std::move(shared)), clock_(clock) {
    address_.node = shared_->member->node();
    address_.incarnation = shared_->member->incarnation();
    const PortAddress port = AddressOf(*shared_);
    std::memcpy(address_.bytes, &port, sizeof(port));
  }
  ~VerbsDevice() override { shared_->member->Leave(); }

  const Caps& caps() const override { return shared_->caps; }
  const DeviceAddress& address() const override { return address_; }

  Result<std::unique_ptr<Pd>> CreatePd() override { return VerbsPd::Create(shared_.get()); }
  Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) override {
    return VerbsCq::Create(shared_->context.get(), depth, shared_->caps.max_cqe);
  }
  Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) override {
    return VerbsMemory::Allocate(length, options);
  }
  Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) override {
    if (shared_->member->KnownDead(address.incarnation))
      return Status(StatusCode::kNotFound, "node " + std::to_string(address.node) + " is gone");
    const PortAddress port = PortOf(address);
    if (port.dc != shared_->dc)
      return Status(StatusCode::kUnsupported, "node " + std::to_string(address.node) + " has " + DcKindName(port.dc) +
                                                  ", and this device " + DcKindName(shared_->dc) +
                                                  ": a fabric's devices must have the same");
    // The other port would silently drop packets of the larger MTU.
    if (const PortAddress own = PortOf(address_); port.mtu != own.mtu)
      return Status(StatusCode::kUnsupported, "node " + std::to_string(address.node) + "'s port has an MTU of " +
                                                  MtuName(port.mtu) + ", and this device's " + MtuName(own.mtu) +
                                                  ": a fabric's ports must have the same");
    auto handles = shared_->address_handles.Get(*shared_->context, port);
    if (!handles.ok()) return handles.status();
    return std::unique_ptr<AddressHandle>(
        std::make_unique<VerbsAddressHandle>(&shared_->address_handles, *std::move(handles)));
  }

  PeerState QueryPeer(const DeviceAddress& address, Deadline deadline) override {
    return QueryIncarnation(address.incarnation, deadline);
  }
  PeerState QueryIncarnation(uint32_t incarnation, Deadline deadline) override {
    const PeerState state = shared_->member->Query(incarnation, OnRealClock(clock_, deadline));
    const bool reachable = incarnation == address_.incarnation || shared_->context->port_active();
    return state == PeerState::kAlive && !reachable ? PeerState::kUnreachable : state;
  }

  SoftwareDcStats DcStats() const override {
    const Agent* const agent = shared_->agent.made();
    return shared_->dc_counters.Read(agent == nullptr ? 0 : agent->CpuNs());
  }

  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline) override {
    return shared_->member->Publish(name, value, OnRealClock(clock_, deadline));
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline) override {
    return shared_->member->Lookup(name, OnRealClock(clock_, deadline));
  }

 private:
  const std::unique_ptr<SharedDevice> shared_;
  Clock& clock_;  // for the user's deadlines
  DeviceAddress address_;
};

// The first of the processes that create the fabric becomes its membership service.
Status FindService(const DeviceOptions& options, const HostPort& address, Deadline deadline, SharedDevice* shared) {
  deadline.at_ns = std::min(deadline.at_ns, Deadline::After(*RealClock(), kCreateNs).at_ns);
  for (uint32_t spins = 0;; ++spins) {
    if (options.create_fabric) {
      auto service = Service::Start(address, options.fabric);
      if (service.ok()) {
        shared->service = *std::move(service);
      } else if (service.status() != StatusCode::kExists && service.status() != StatusCode::kNotFound) {
        return service.status();
      }
    }
    auto member = Member::Connect(address, options.fabric, deadline);
    if (member.ok()) {
      shared->member = *std::move(member);
      return {};
    }
    if (!options.create_fabric || member.status() != StatusCode::kNotFound || deadline.Passed(*RealClock())) {
      return {member.status().code(),
              "no membership service of fabric " + options.fabric + ": " + std::string(member.status().message())};
    }
    RealClock()->Relax(spins);
  }
}

}  // namespace

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options) {
  if (options.fabric.empty() || options.fabric.size() > kFabricBytes)
    return Status(StatusCode::kInvalidArgument,
                  "fabric name '" + options.fabric + "' is not 1 to " + std::to_string(kFabricBytes) + " bytes");
  if (options.address.empty())
    return Status(StatusCode::kInvalidArgument,
                  "provider verbs needs the address of the fabric's membership service (fabric_address), host[:port]");
  const auto address = ParseHostPort(options.address);
  if (!address.ok()) return address.status();
  const auto choice = ParsePortChoice(options.port);
  if (!choice.ok()) return choice.status();
  KRCORE_RETURN_IF_ERROR(LoadLibibverbs());
  Clock& clock = options.clock != nullptr ? *options.clock : *RealClock();
  const Deadline deadline = OnRealClock(clock, options.deadline);
  auto shared = std::make_unique<SharedDevice>();
  KRCORE_RETURN_IF_ERROR(FindService(options, *address, deadline, shared.get()));
  auto context = Context::Open(*choice, shared->member->low_descriptor());
  if (!context.ok()) return context.status();
  shared->context = *std::move(context);
  shared->caps = CapsOf(shared->context->port());
  const auto dc = FindMlx5Dc(shared.get());
  if (!dc.ok()) return dc.status();
  shared->dc = *dc;
  if (*dc == DcKind::kSoftware) LimitToSoftwareDc(&shared->caps);
  std::array<uint8_t, sizeof(PortAddress)> bytes{};
  const PortAddress port = AddressOf(*shared);
  std::memcpy(bytes.data(), &port, sizeof(port));
  KRCORE_RETURN_IF_ERROR(shared->member->Join(options.node, bytes, shared->context->highest_descriptor(), deadline));
  return std::unique_ptr<Device>(std::make_unique<VerbsDevice>(std::move(shared), clock));
}

Status TryNic(const DeviceOptions& options) {
  const auto choice = ParsePortChoice(options.port);
  if (!choice.ok()) return choice.status();
  KRCORE_RETURN_IF_ERROR(LoadLibibverbs());
  return OpenPort(*choice).status();
}

Result<CleanReport> CleanStale(const std::string& /*fabric*/, bool /*also_kept*/) { return CleanReport{}; }

}  // namespace krcore::rnic::verbs
