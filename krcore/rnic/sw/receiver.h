// The receive side of a Qp or Dct: posted receives, matched with its inbox when the Cq is polled.
#ifndef KRCORE_RNIC_SW_RECEIVER_H_
#define KRCORE_RNIC_SW_RECEIVER_H_

#include <memory>
#include <span>
#include <vector>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/cq.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/limits.h"
#include "krcore/rnic/sw/shared_device.h"

namespace krcore::rnic::sw {

// Whether [sge.addr, + length) lies in an MR of this device and Pd, with local write right if `written`.
bool LocalRange(const DeviceSegment& own, uint32_t pd, const Sge& sge, bool written);

class Receiver {
 public:
  struct Options {
    EntryType type = EntryType::kRc;
    uint32_t number = 0;
    uint32_t pd = 0;
    SwCq* cq = nullptr;
    uint32_t depth = 0;
    uint32_t max_bytes = 0;
  };
  // Told when a receive failed; the Qp goes to ERR.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void ReceiveFailed() = 0;
  };

  static Result<std::unique_ptr<Receiver>> Create(SharedDevice* device, const Options& options, Owner* owner);
  ~Receiver();

  // kQueueFull, kInvalidArgument.
  Status Post(std::span<const RecvWr> wrs, size_t* bad_index);
  // Completes what has arrived.
  void Drain();
  // Completes what has arrived, and every other receive as flushed.
  void Flush();
  // Drops all, arrived or not, and starts with a new inbox: late senders write to the old one.
  Status Reset();

 private:
  struct Posted {
    uint64_t wr_id = 0;
    uint8_t num_sge = 0;
    Sge sges[kMaxSge];
  };

  Receiver(SharedDevice* device, const Options& options, Owner* owner);
  Status MakeInbox();
  void DropInbox();
  uint32_t CapacityOf(const Posted& recv) const;
  void Announce();
  bool ClaimerDead(uint64_t word);
  void Deliver(InboxSlot& slot, const Posted& recv);
  void Scatter(const Posted& recv, const std::byte* from, uint32_t length);
  void Complete(const Posted& recv, WcStatus status, const InboxSlot* slot);
  void PassOver();

  SharedDevice* const device_;
  const Options options_;
  Owner* const owner_;
  std::shared_ptr<Mapping> mapping_;
  SegmentRef segment_;
  InboxHeader* inbox_ = nullptr;
  std::vector<Posted> recvs_;  // of ticket t: recvs_[t % depth]
  uint64_t head_ = 0;          // the next ticket to complete
  uint64_t posted_ = 0;        // what inbox_->posted says
  uint32_t stalled_polls_ = 0;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_RECEIVER_H_
