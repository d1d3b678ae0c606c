// Address handles. One of libibverbs belongs to a PD, and making it may have to ask the network for the peer's MAC; one
// of ours serves all PDs of the device. So those of libibverbs are made once for each (peer's port, PD), and kept.
#ifndef KRCORE_RNIC_VERBS_ADDRESS_HANDLE_H_
#define KRCORE_RNIC_VERBS_ADDRESS_HANDLE_H_

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "krcore/rnic/verbs/context.h"

namespace krcore::rnic::verbs {

inline constexpr uint32_t kMaxPds = 64;    // of a device
inline constexpr size_t kMaxPorts = 4096;  // of peers

// One peer's port.
struct PortHandles {
  ibv_ah_attr attr{};
  // By the PD's index. Release and acquire: who finds one posts with it.
  std::array<std::atomic<ibv_ah*>, kMaxPds> of_pd{};
  uint64_t asked = 0;  // of AddressHandles: when somebody last asked for it
};

// Ports that nobody uses are kept while there is room, and who was asked for least recently gives way.
// Thread safety: all methods may be called from any thread. Who waits for the network keeps nobody else waiting, but
// who removes a PD that it makes one for.
class AddressHandles {
 public:
  // Has one for each PD there is. kUnavailable: the network does not know the peer's address. kOutOfMemory: so many
  // ports are in use.
  Result<std::shared_ptr<PortHandles>> Get(const Context& context, const PortAddress& address);
  // For a PD that is younger than the handle; null if it cannot be made.
  ibv_ah* Make(PortHandles& handles, uint32_t pd_index);

  Result<uint32_t> AddPd(ibv_pd* pd);
  void RemovePd(uint32_t index);

 private:
  struct Slot {
    ibv_pd* pd = nullptr;
    uint32_t makers = 0;  // who make one in it, without the mutex
  };
  using Ports = std::map<std::array<uint8_t, 18>, std::shared_ptr<PortHandles>>;
  Result<std::shared_ptr<PortHandles>> Enter(const Context& context, const PortAddress& address);
  bool DropUnused();
  // Without the mutex while libibverbs makes it.
  ibv_ah* Make(std::unique_lock<std::mutex>& lock, PortHandles& handles, uint32_t pd_index);

  std::mutex mutex_;
  std::condition_variable made_;
  std::array<Slot, kMaxPds> pds_{};
  uint64_t asked_ = 0;
  Ports ports_;  // by GID and LID
};

class VerbsAddressHandle final : public AddressHandle {
 public:
  VerbsAddressHandle(AddressHandles* all, std::shared_ptr<PortHandles> handles)
      : all_(all), handles_(std::move(handles)) {}
  const std::shared_ptr<PortHandles>& handles() const { return handles_; }
  // May wait for the network where the PD is younger than the handle. Null: the network does not know the peer's
  // address.
  ibv_ah* For(uint32_t pd_index) const {
    ibv_ah* const made = handles_->of_pd[pd_index].load(std::memory_order_acquire);
    return made != nullptr ? made : all_->Make(*handles_, pd_index);
  }

 private:
  AddressHandles* const all_;
  const std::shared_ptr<PortHandles> handles_;
};

// How `context`'s port reaches another.
ibv_ah_attr PathTo(const Context& context, const PortAddress& address);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_ADDRESS_HANDLE_H_
