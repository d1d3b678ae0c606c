// Channel: the sending half of messages: a queue's place at a port, its credits, and the settling of messages whose
// outcome is unknown.
//
// A message is one WRITE into a slot of the place (wire.h). Credits are pulled: when they run short, or a zero-copy
// message waits to be read, the channel READs the receiver's count of released messages, which also releases the oldest
// held completions. A pull that fails is also how a dead receiver is noticed.
//
// A message that failed may be in its slot or not. Once the physical queue has been reset, nothing posted before
// executes any more (rnic.h). The channel then overwrites the slots in doubt with voids: what the receiver has not
// taken by then it never will. Until the voids have completed, no further message is accepted, and the completion of a
// failed zero-copy message is held back: after it the receiver never READs the buffer again.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_MESSAGES_CHANNEL_H_
#define KRCORE_MESSAGES_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "krcore/clock.h"
#include "krcore/messages/wire.h"
#include "krcore/peers/peer.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/queue/queue_state.h"

namespace krcore::messages {

class Channel final : public queue::OwnWrSink, public queue::Pollable {
 public:
  // Claims a place at the port. `owner` has its peer and no outstanding WRs. `reply`: the mailbox of the sending queue,
  // or null. Blocks up to the deadline. kQueueFull: no place is free.
  static Result<std::unique_ptr<Channel>> Open(queue::QueuePoolImpl& pool, queue::QueueState& owner, Port port,
                                               const PortInfo& info, Port reply_port, const PortInfo* reply,
                                               Deadline deadline);
  // Gives the place back: messages that have completed will be delivered, zero-copy ones that have not are voided.
  // Waits for that within a bound.
  ~Channel() override;

  bool Reaches(const peers::Peer& peer, Port port) const {
    return !dead_ && port == port_ && peer.target.address.node == peer_->target.address.node &&
           peer.target.address.incarnation == peer_->target.address.incarnation;
  }
  // Waits until every message in doubt is settled. kUnavailable: the receiver has gone.
  Status Settle(Deadline deadline);
  // Whether messages are accepted: every message's outcome is settled, and the receiver has not gone.
  bool Accepts() const { return !dead_ && !HasDoubt() && owner_.flushed_in_recovery == seen_flush_; }
  uint32_t credits() const { return Accepts() ? static_cast<uint32_t>(info_.slots - (next_ - released_)) : 0; }

  // Whether `wr` (kSend, kSendImm) is well formed, and whether it goes by zero-copy.
  StatusCode Check(const WorkRequest& wr, const queue::RequestLimits& limits, const peers::RegionView& local,
                   bool* zero_copy) const;
  // Whether a WR that passed Check goes by zero-copy.
  bool IsZeroCopy(const WorkRequest& wr, const queue::RequestLimits& limits, const peers::RegionView& local) const;
  // Stages a message that passed Check, or the message of a kWriteImm of `length` bytes. Needs a credit and room in the
  // physical queue.
  void StageMessage(queue::PhysicalQueue& physical, const WorkRequest& wr, bool zero_copy, uint32_t length,
                    const peers::RegionView& local);
  // Accepts a message as one that failed.
  void StageFailed(queue::PhysicalQueue& physical, const WorkRequest& wr, bool zero_copy, WcStatus status);

  void OnDone(const queue::OwnWrDone& done) override;
  size_t Work() override;

 private:
  enum class Op : uint8_t { kNone, kControl, kPull, kVoid, kClose };
  struct Held {  // a completed zero-copy message whose buffer is still in use
    uint64_t number;
    uint32_t position;  // in the QueueState
    WcStatus status;
  };
  struct OneSided {
    Opcode opcode;
    uint64_t remote;
    std::span<const std::byte> data{};  // kWrite: copied, at most kOwnBytes
    Sge into{};                         // kRead; length 0: 8 bytes of own memory
    uint64_t expected = 0, desired = 0;
  };

  Channel(queue::QueuePoolImpl& pool, queue::QueueState& owner, Port port, const PortInfo& info)
      : pool_(pool), owner_(owner), peer_(owner.peer), port_(port), info_(info), layout_(info) {}

  // Stages an internal WR; false: no room now.
  bool Post(Op op, const OneSided& verb);
  // Runs one verb, with its result; tries again where a fault of others broke it. The queue may be in any standing.
  Status Run(const OneSided& verb, uint64_t* result, Deadline deadline);
  bool WaitFor(const std::function<bool()>& done, Deadline deadline);
  Status Claim(Deadline deadline);
  Status TakeOverFromDead(std::span<const uint64_t> owners, Deadline deadline);
  Status TryClaim(uint32_t place, uint64_t expected, Deadline deadline);
  // READs where the place's messages begin and writes the card: from then on only the receiver frees the place.
  Status Introduce(Port reply_port, const PortInfo* reply, Deadline deadline);
  Status ReadCard(uint32_t place, Card* card, Deadline deadline);
  bool ReceiverIsDead() const;

  bool HasDoubt() const { return doubt_from_ != kNone || !to_void_.empty(); }
  void MessageDone(const queue::OwnWrDone& done);
  void Release(const Held& held, WcStatus status);
  // Releases the held completions that the receiver has released, or that are voided or dead.
  void ReleaseHeld();
  void Voided(uint64_t number);
  void Die(WcStatus status);
  void Hold(const queue::OwnWrDone& done, uint64_t number);

  static constexpr uint64_t kNone = UINT64_MAX;

  queue::QueuePoolImpl& pool_;
  queue::QueueState& owner_;
  const std::shared_ptr<const peers::Peer> peer_;
  const Port port_;
  const PortInfo info_;
  const Layout layout_;
  uint64_t owner_word_ = 0;
  uint32_t place_ = 0;
  bool in_doubt_ = false;  // a claim of place_ was not answered
  bool claimed_ = false, introduced_ = false;

  uint64_t next_ = 0;                          // number of the next message
  uint64_t released_ = 0;                      // as last pulled
  uint64_t in_flight_ = 0;                     // messages staged or posted
  WcStatus data_status_ = WcStatus::kSuccess;  // of the WRITE of the next kWriteImm to complete

  uint64_t seen_flush_ = 0;       // QueueState::flushed_in_recovery when nothing accepted before it was in flight
  uint64_t doubt_from_ = kNone;   // messages from here to next_ are in doubt
  std::deque<uint64_t> to_void_;  // numbers of slots to overwrite
  std::deque<Held> held_;

  Op op_ = Op::kNone;  // the internal WR in flight
  WcStatus op_status_ = WcStatus::kSuccess;
  uint64_t op_result_ = 0;
  bool closing_ = false, closed_ = false;
  bool dead_ = false;
  bool suspect_ = false;  // an internal WR failed: check whether the receiver lives
  queue::BackOff back_off_;
};

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_CHANNEL_H_
