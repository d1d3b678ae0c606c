// Receiver: the receive queue of a Qp or Dct. A message that executes goes straight into the next posted receive.
#ifndef KRCORE_RNIC_SIM_RECEIVER_H_
#define KRCORE_RNIC_SIM_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/cq.h"
#include "krcore/rnic/sim/device_state.h"

namespace krcore::rnic::sim {

// [sge.addr, sge.addr + length) lies in an MR of `pd`, which may be written if `written`.
bool LocalRange(const DeviceState& device, uint32_t pd, const Sge& sge, bool written);

struct Message {
  Opcode opcode = Opcode::kSend;
  std::span<const std::byte> bytes;  // kWriteImm: none
  uint32_t length = 0;
  uint32_t imm = 0;
  uint32_t src_qp = 0;
  NodeId src_node = kNoNode;
};

class Receiver {
 public:
  struct Options {
    EntryType type = EntryType::kRc;
    uint32_t number = 0;
    uint32_t pd = 0;
    SimCq* cq = nullptr;
    uint32_t depth = 0;
    uint32_t max_bytes = 0;
  };
  Receiver(DeviceState* device, const Options& options) : device_(device), options_(options) {}
  ~Receiver() { options_.cq->Forget(options_.number, nullptr); }

  // kQueueFull, kInvalidArgument.
  Status Post(std::span<const RecvWr> wrs, size_t* bad_index);
  bool empty() const { return posted_.empty(); }
  // kSuccess, or what the sender is told. `*broken`: the receive itself failed, which breaks an RC queue.
  WcStatus Deliver(const Message& message, bool* broken);
  // Completes every receive as flushed.
  void Flush();
  // Drops all.
  void Reset();

 private:
  struct Posted {
    uint64_t wr_id = 0;
    std::vector<Sge> sges;
  };
  void Scatter(const Posted& recv, std::span<const std::byte> bytes);
  void Complete(const Posted& recv, WcStatus status, const Message* message);

  DeviceState* const device_;
  const Options options_;
  std::deque<Posted> posted_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_RECEIVER_H_
