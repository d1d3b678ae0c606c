#include "krcore/rnic/verbs/address_handle.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace krcore::rnic::verbs {
namespace {

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

// Under the mutex. What is made for it is in the list, whatever becomes of the rest.
Result<std::shared_ptr<PortHandles>> AddressHandles::Enter(const Context& context, const PortAddress& address) {
  std::array<uint8_t, 18> key{};
  std::copy(std::begin(address.gid), std::end(address.gid), key.begin());
  std::memcpy(key.data() + sizeof(address.gid), &address.lid, sizeof(address.lid));
  auto found = ports_.find(key);
  if (found == ports_.end()) {
    if (ports_.size() >= kMaxPorts && !DropUnused())
      return Status(StatusCode::kOutOfMemory, "more than " + std::to_string(kMaxPorts) + " peers' ports are in use");
    auto handles = std::make_shared<PortHandles>();
    handles->attr = PathTo(context, address);
    found = ports_.emplace(key, std::move(handles)).first;
  }
  found->second->asked = ++asked_;
  return found->second;
}

bool AddressHandles::DropUnused() {
  auto oldest = ports_.end();
  for (auto port = ports_.begin(); port != ports_.end(); ++port) {
    // Nobody gets another reference but under the mutex, or from one that there is.
    if (port->second.use_count() > 1) continue;
    if (oldest == ports_.end() || port->second->asked < oldest->second->asked) oldest = port;
  }
  if (oldest == ports_.end()) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // with the release of the last reference
  for (auto& of_pd : oldest->second->of_pd) {
    if (ibv_ah* const made = of_pd.load(std::memory_order_relaxed); made != nullptr) ibv_destroy_ah(made);
  }
  ports_.erase(oldest);
  return true;
}

Result<std::shared_ptr<PortHandles>> AddressHandles::Get(const Context& context, const PortAddress& address) {
  std::unique_lock lock(mutex_);
  auto entered = Enter(context, address);
  if (!entered.ok()) return entered;
  for (uint32_t index = 0; index < kMaxPds; ++index) {
    if (pds_[index].pd == nullptr || Make(lock, **entered, index) != nullptr) continue;
    return Status(StatusCode::kUnavailable,
                  std::string(Status::FromErrno(errno, "cannot make an address handle for the peer").message()));
  }
  return entered;
}

ibv_ah* AddressHandles::Make(PortHandles& handles, uint32_t pd_index) {
  std::unique_lock lock(mutex_);
  return Make(lock, handles, pd_index);
}

ibv_ah* AddressHandles::Make(std::unique_lock<std::mutex>& lock, PortHandles& handles, uint32_t pd_index) {
  std::atomic<ibv_ah*>& of_pd = handles.of_pd[pd_index];
  if (ibv_ah* const made = of_pd.load(std::memory_order_relaxed); made != nullptr) return made;
  Slot& slot = pds_[pd_index];
  ++slot.makers;
  lock.unlock();
  ibv_ah_attr attr = handles.attr;
  ibv_ah* made = ibv_create_ah(slot.pd, &attr);
  const int error = errno;
  lock.lock();
  if (ibv_ah* const others = of_pd.load(std::memory_order_relaxed); others != nullptr) {
    if (made != nullptr) ibv_destroy_ah(made);
    made = others;
  }
  of_pd.store(made, std::memory_order_release);
  if (--slot.makers == 0) made_.notify_all();
  errno = error;
  return made;
}

Result<uint32_t> AddressHandles::AddPd(ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  const auto free = std::find_if(pds_.begin(), pds_.end(), [](const Slot& slot) { return slot.pd == nullptr; });
  if (free == pds_.end())
    return Status(StatusCode::kOutOfMemory, "a device has at most " + std::to_string(kMaxPds) + " PDs");
  free->pd = pd;
  return static_cast<uint32_t>(free - pds_.begin());
}

void AddressHandles::RemovePd(uint32_t index) {
  std::unique_lock lock(mutex_);
  // As long as the kernel waits for the network, some seconds.
  made_.wait(lock, [&] { return pds_[index].makers == 0; });
  for (const auto& [key, handles] : ports_) {
    ibv_ah* const made = handles->of_pd[index].exchange(nullptr, std::memory_order_relaxed);
    if (made != nullptr) ibv_destroy_ah(made);
  }
  pds_[index].pd = nullptr;
}

}  // namespace krcore::rnic::verbs
