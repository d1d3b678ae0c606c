#include <memory>
#include <string>

#include "krcore/rnic/sim/address_handle.h"
#include "krcore/rnic/sim/cq.h"
#include "krcore/rnic/sim/fabric.h"
#include "krcore/rnic/sim/limits.h"
#include "krcore/rnic/sim/memory.h"
#include "krcore/rnic/sim/pd.h"
#include "krcore/rnic/sim/sim.h"

namespace krcore::rnic::sim {
namespace {

Caps MakeCaps() {
  Caps caps;
  caps.provider = "sim";
  caps.max_qp_wr = kMaxQpWr;
  caps.max_sge = kMaxSge;
  caps.max_cqe = kMaxCqe;
  caps.max_inline_bytes = kMaxInlineBytes;
  caps.ud_mtu_bytes = kUdMtuBytes;
  caps.max_message_bytes = kMaxMessageBytes;
  caps.dc = true;
  return caps;
}

class SimDevice final : public Device {
 public:
  SimDevice(Fabric* fabric, DeviceState* state)
      : fabric_(fabric), state_(state), caps_(MakeCaps()), address_(fabric->AddressOf(*state)) {}
  ~SimDevice() override { fabric_->Leave(*state_); }

  const Caps& caps() const override { return caps_; }
  const DeviceAddress& address() const override { return address_; }

  Result<std::unique_ptr<Pd>> CreatePd() override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    return std::unique_ptr<Pd>(std::make_unique<SimPd>(fabric_, state_));
  }

  Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    if (depth == 0 || depth > kMaxCqe) {
      return Status(StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(kMaxCqe));
    }
    state_->control_ns += fabric_->engine().cost().create_cq_ns;
    return std::unique_ptr<Cq>(std::make_unique<SimCq>(&fabric_->engine(), state_, depth));
  }

  Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) override {
    return SimMemory::Allocate(fabric_, state_, length, options);
  }

  Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    DeviceState* const peer = fabric_->FindAlive(address);
    if (peer == nullptr) return fabric_->Gone(address);
    return std::unique_ptr<AddressHandle>(std::make_unique<SimAddressHandle>(peer));
  }

  PeerState QueryPeer(const DeviceAddress& address, Deadline deadline) override {
    // The dead learn nothing.
    if (!fabric_->CheckAlive(*state_).ok() || !fabric_->Answers(deadline)) return PeerState::kUnreachable;
    return fabric_->Query(address);
  }

  PeerState QueryIncarnation(uint32_t incarnation, Deadline deadline) override {
    if (!fabric_->CheckAlive(*state_).ok() || !fabric_->Answers(deadline)) return PeerState::kUnreachable;
    return fabric_->Query(incarnation);
  }

  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline) override {
    return fabric_->PublishRecord(*state_, name, value, deadline);
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline) override {
    KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*state_));
    if (!fabric_->Answers(deadline)) return Status(StatusCode::kTimeout, "the fabric does not answer");
    return fabric_->LookupRecord(name);
  }

 private:
  Fabric* const fabric_;
  DeviceState* const state_;
  const Caps caps_;
  const DeviceAddress address_;
};

}  // namespace

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options) {
  Fabric* const fabric = Fabric::Find(options.fabric);
  if (fabric == nullptr) {
    return Status(StatusCode::kNotFound, "no simulated World '" + options.fabric +
                                             "' in this process; the provider sim is for programs that make one");
  }
  auto state = fabric->Join(options.node);
  if (!state.ok()) return state.status();
  return std::unique_ptr<Device>(std::make_unique<SimDevice>(fabric, *state));
}

Result<CleanReport> CleanStale(const std::string&, bool) { return CleanReport{}; }

}  // namespace krcore::rnic::sim
