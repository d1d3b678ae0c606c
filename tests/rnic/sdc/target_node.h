// A machine with a target, its memory, and the device that executes atomics.
#ifndef TESTS_RNIC_SDC_TARGET_NODE_H_
#define TESTS_RNIC_SDC_TARGET_NODE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "krcore/rnic/sdc/target.h"
#include "tests/rnic/sdc/world.h"

namespace sdc_test {

inline constexpr uint32_t kPlaceWords =
    16384 / 8 + 64;  // of an initiator's own place, of the shared one and the doomed
inline constexpr uint32_t kSharedCounters = 2;
inline constexpr uint32_t kDctNumber = 7;

// rkeys.
enum Region : uint32_t { kOwnPlaces = 1, kCounters, kSharedPlace, kDoomedPlace, kRegions };

class TargetNode : public Machine {
 public:
  // Initiators are machines 0, 1, ...
  TargetNode(World* world, uint32_t number);
  void Receive(const sdc_address& from, const std::vector<uint8_t>& packet) override;

  void Restart();
  void Deregister(uint64_t for_ns);
  // Returns whether as many receives are posted as there were; false: some were lost.
  bool ReceivesAreThere() const;
  void Count();

  uint64_t key() const { return 1000 + number(); }
  uint64_t AddressOf(Region region, uint32_t word) const { return reinterpret_cast<uint64_t>(&memory_[region][word]); }

 private:
  struct PostedReceive {
    std::vector<uint64_t> bytes;
    bool posted = false;
  };

  void StartCore();
  void PostReceive(uint32_t index);
  void Received(const sdc_received& received);
  bool Atomic(const sdc_atomic_request& request);
  void Execute(const sdc_atomic_request& request);
  void* Memory(uint32_t rkey, uint64_t addr, uint32_t length);
  uint64_t InitiatorsTime(uint32_t uid);

  std::vector<uint64_t> memory_[kRegions];
  bool doomed_gone_ = false;
  std::vector<sdc_session> sessions_;
  std::vector<sdc_recv> ring_;
  std::vector<PostedReceive> receives_;
  sdc_target target_{};
  uint64_t device_free_ns_ = 0;  // when the last atomic that was handed over will have been executed
  uint64_t reported_ns_ = 0;     // when its result is reported
  uint32_t life_ = 0;
};

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_TARGET_NODE_H_
