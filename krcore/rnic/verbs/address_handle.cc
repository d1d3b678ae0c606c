#include "krcore/rnic/verbs/address_handle.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace krcore::rnic::verbs {
namespace {

constexpr size_t kMaxPorts = 4096;
constexpr uint8_t kHopLimit = 64;

}  // namespace

ibv_ah_attr PathTo(const Context& context, const PortAddress& address) {
  ibv_ah_attr attr{};
  attr.is_global = 1;
  std::memcpy(attr.grh.dgid.raw, address.gid, sizeof(attr.grh.dgid.raw));
  attr.grh.sgid_index = context.port().gid_index;
  attr.grh.hop_limit = kHopLimit;
  attr.dlid = address.lid;
  attr.port_num = context.port().number;
  return attr;
}

Result<std::shared_ptr<PortHandles>> AddressHandles::Get(const Context& context, const PortAddress& address) {
  std::array<uint8_t, 18> key{};
  std::copy(std::begin(address.gid), std::end(address.gid), key.begin());
  std::memcpy(key.data() + sizeof(address.gid), &address.lid, sizeof(address.lid));
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PortHandles> handles;
  if (const auto found = ports_.find(key); found != ports_.end()) {
    handles = found->second;
  } else {
    if (ports_.size() >= kMaxPorts)
      return Status(StatusCode::kOutOfMemory, "more than " + std::to_string(kMaxPorts) + " peers' ports are in use");
    handles = std::make_shared<PortHandles>();
    handles->attr = PathTo(context, address);
  }
  for (uint32_t index = 0; index < kMaxPds; ++index) {
    if (pds_[index] == nullptr || MakeLocked(*handles, index) != nullptr) continue;
    return Status(StatusCode::kUnavailable,
                  std::string(Status::FromErrno(errno, "cannot make an address handle for the peer").message()));
  }
  ports_.emplace(key, handles);
  return handles;
}

ibv_ah* AddressHandles::Make(PortHandles& handles, uint32_t pd_index) {
  const std::lock_guard lock(mutex_);
  return MakeLocked(handles, pd_index);
}

ibv_ah* AddressHandles::MakeLocked(PortHandles& handles, uint32_t pd_index) {
  ibv_ah* made = handles.of_pd[pd_index].load(std::memory_order_relaxed);
  if (made != nullptr) return made;
  ibv_ah_attr attr = handles.attr;
  made = ibv_create_ah(pds_[pd_index], &attr);
  handles.of_pd[pd_index].store(made, std::memory_order_release);
  return made;
}

Result<uint32_t> AddressHandles::AddPd(ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  const auto free = std::find(pds_.begin(), pds_.end(), nullptr);
  if (free == pds_.end())
    return Status(StatusCode::kOutOfMemory, "a device has at most " + std::to_string(kMaxPds) + " PDs");
  *free = pd;
  return static_cast<uint32_t>(free - pds_.begin());
}

void AddressHandles::RemovePd(uint32_t index) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, handles] : ports_) {
    ibv_ah* const made = handles->of_pd[index].exchange(nullptr, std::memory_order_relaxed);
    if (made != nullptr) ibv_destroy_ah(made);
  }
  pds_[index] = nullptr;
}

}  // namespace krcore::rnic::verbs
