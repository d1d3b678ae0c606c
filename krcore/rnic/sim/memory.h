// Memory from AllocMemory. Named memory belongs to the World and outlives the device that made it.
#ifndef KRCORE_RNIC_SIM_MEMORY_H_
#define KRCORE_RNIC_SIM_MEMORY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/device_state.h"

namespace krcore::rnic::sim {

class Fabric;

// Zeroed pages of their own; 2 MiB-aligned from 2 MiB up.
class Pages {
 public:
  static Result<std::shared_ptr<Pages>> Map(size_t length);
  ~Pages();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Pages(void* mapping, size_t mapped, std::span<std::byte> bytes) : mapping_(mapping), mapped_(mapped), bytes_(bytes) {}
  void* const mapping_;
  const size_t mapped_;
  const std::span<std::byte> bytes_;
};

class SimMemory final : public Memory {
 public:
  static Result<std::unique_ptr<Memory>> Allocate(Fabric* fabric, DeviceState* device, size_t length,
                                                  const AllocOptions& options);
  ~SimMemory() override;
  void DoNotKeep() override { options_.keep_on_close = false; }
  Status CollapseToHugePages(size_t, size_t) override {
    return {StatusCode::kUnsupported, "the simulated RNIC leaves its memory's pages alone"};
  }

 private:
  SimMemory(Fabric* fabric, DeviceState* device, std::shared_ptr<Pages> pages, size_t length,
            const AllocOptions& options, bool adopted);
  Fabric* const fabric_;
  DeviceState* const device_;
  const std::shared_ptr<Pages> pages_;
  AllocOptions options_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_MEMORY_H_
