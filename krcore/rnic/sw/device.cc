#include <algorithm>

#include "krcore/rnic/sw/address_handle.h"
#include "krcore/rnic/sw/cq.h"
#include "krcore/rnic/sw/limits.h"
#include "krcore/rnic/sw/memory.h"
#include "krcore/rnic/sw/pd.h"
#include "krcore/rnic/sw/records.h"
#include "krcore/rnic/sw/sw.h"

namespace krcore::rnic::sw {
namespace {

Caps MakeCaps() {
  Caps caps;
  caps.provider = "sw";
  caps.max_qp_wr = kMaxQpWr;
  caps.max_sge = kMaxSge;
  caps.max_cqe = kMaxCqe;
  caps.max_inline_bytes = kMaxInlineBytes;
  caps.ud_mtu_bytes = kUdMtuBytes;
  caps.max_message_bytes = kMaxMessageBytes;
  caps.dc = true;
  caps.cpu_coherent_atomics = true;
  caps.shared_memory_required = true;
  caps.host_qps = kHostQps;
  caps.executes_at_post = true;
  return caps;
}

class SwDevice final : public Device {
 public:
  explicit SwDevice(std::unique_ptr<Fabric> fabric)
      : caps_(MakeCaps()),
        address_(MakeAddress(fabric->node(), fabric->incarnation(), fabric->index())),
        shared_(std::move(fabric)) {}

  const Caps& caps() const override { return caps_; }
  const DeviceAddress& address() const override { return address_; }

  Result<std::unique_ptr<Pd>> CreatePd() override { return std::unique_ptr<Pd>(std::make_unique<SwPd>(&shared_)); }

  Result<std::unique_ptr<Cq>> CreateCq(uint32_t depth) override {
    if (depth == 0 || depth > kMaxCqe) {
      return Status(StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(kMaxCqe));
    }
    return std::unique_ptr<Cq>(std::make_unique<SwCq>(depth));
  }

  Result<std::unique_ptr<Memory>> AllocMemory(size_t length, const AllocOptions& options) override {
    return SwMemory::Allocate(&shared_.fabric, &shared_.tables, length, options);
  }

  Result<std::vector<FoundMemory>> FindMemory(const std::string& name, size_t bytes) override {
    return sw::FindMemory(shared_.fabric, name, bytes);
  }

  Result<std::unique_ptr<AddressHandle>> CreateAddressHandle(const DeviceAddress& address) override {
    auto peer = shared_.peers.Get(address);
    if (!peer.ok()) return peer.status();
    return std::unique_ptr<AddressHandle>(std::make_unique<SwAddressHandle>(*std::move(peer)));
  }

  PeerState QueryPeer(const DeviceAddress& address, Deadline /*deadline*/) override {
    const uint32_t index = IndexOf(address);
    const bool alive = index < kMaxDevices && shared_.fabric.ConfirmAlive(index, address.incarnation);
    return alive ? PeerState::kAlive : PeerState::kDead;
  }

  PeerState QueryIncarnation(uint32_t incarnation, Deadline /*deadline*/) override {
    const uint32_t index = shared_.fabric.FindIncarnation(incarnation);
    const bool alive = index < kMaxDevices && shared_.fabric.ConfirmAlive(index, incarnation);
    return alive ? PeerState::kAlive : PeerState::kDead;
  }

  Status CheckName() override { return shared_.fabric.backing().CheckName(); }

  std::span<std::byte> HostMemory() override { return shared_.fabric.control().host_memory; }

  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline /*deadline*/) override {
    return sw::PublishRecord(shared_.fabric, name, value);
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline /*deadline*/) override {
    return sw::LookupRecord(shared_.fabric, name);
  }

 private:
  const Caps caps_;
  const DeviceAddress address_;
  SharedDevice shared_;
};

}  // namespace

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options) {
  auto fabric = Fabric::Join(options);
  if (!fabric.ok()) return fabric.status();
  return std::unique_ptr<Device>(std::make_unique<SwDevice>(*std::move(fabric)));
}

}  // namespace krcore::rnic::sw
