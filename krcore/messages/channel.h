// Channel: the sending half of messages: a queue's credits at its place of a port (place_claim.h), and the settling of
// messages whose outcome is unknown.
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
#include <memory>
#include <span>

#include "krcore/clock.h"
#include "krcore/messages/place_claim.h"
#include "krcore/messages/wire.h"
#include "krcore/peers/peer.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/queue/queue_state.h"

namespace krcore::messages {

// HeldMessages: zero-copy messages that have completed, oldest first, and whose completions are held back because the
// receiver may still READ their buffers.
class HeldMessages {
 public:
  explicit HeldMessages(queue::QueueState& owner) : owner_(owner) {}

  bool empty() const { return held_.empty(); }
  void Hold(const queue::OwnWrDone& done, uint64_t number);
  // Releases those that the receiver has released.
  void ReleaseBefore(uint64_t released);
  // Message `number` has been voided. Voids go from old to new.
  void Voided(uint64_t number, uint64_t released);
  // Those that had succeeded complete with `status`.
  void ReleaseAll(WcStatus status);
  void AppendNumbersTo(std::deque<uint64_t>* numbers) const {
    for (const Held& held : held_) numbers->push_back(held.number);
  }

 private:
  struct Held {
    uint64_t number;
    uint32_t position;  // in the QueueState
    WcStatus status;
  };
  void ReleaseFirst(WcStatus status);

  queue::QueueState& owner_;
  std::deque<Held> held_;
};

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
    return !dead_ && port == to_.port && peer.target.address.node == to_.peer->target.address.node &&
           peer.target.address.incarnation == to_.peer->target.address.incarnation;
  }
  // Waits until every message in doubt is settled. kUnavailable: the receiver has gone.
  Status Settle(Deadline deadline);
  // Whether messages are accepted: every message's outcome is settled, and the receiver has not gone.
  bool Accepts() const { return !dead_ && !HasDoubt() && owner_.flushed_in_recovery == seen_flush_; }
  uint32_t credits() const { return Accepts() ? static_cast<uint32_t>(to_.info.slots - (next_ - released_)) : 0; }

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
  using Op = PortVerbs::Op;

  Channel(queue::QueuePoolImpl& pool, queue::QueueState& owner, Port port, const PortInfo& info, uint64_t owner_word)
      : pool_(pool), owner_(owner), to_(owner.peer, port, info), place_(verbs_, owner_word), held_(owner) {}

  bool HasDoubt() const { return doubt_from_ != kNone || !to_void_.empty(); }
  void MessageDone(const queue::OwnWrDone& done);
  void Die(WcStatus status);

  static constexpr uint64_t kNone = UINT64_MAX;

  queue::QueuePoolImpl& pool_;
  queue::QueueState& owner_;
  const RemotePort to_;
  PortVerbs verbs_{pool_, owner_, to_};
  PlaceClaim place_;
  HeldMessages held_;

  uint64_t next_ = 0;                          // number of the next message
  uint64_t released_ = 0;                      // as last pulled
  uint64_t in_flight_ = 0;                     // messages staged or posted
  WcStatus data_status_ = WcStatus::kSuccess;  // of the WRITE of the next kWriteImm to complete

  uint64_t seen_flush_ = 0;       // QueueState::flushed_in_recovery when nothing accepted before it was in flight
  uint64_t doubt_from_ = kNone;   // messages from here to next_ are in doubt
  std::deque<uint64_t> to_void_;  // numbers of slots to overwrite

  bool closing_ = false, closed_ = false;
  bool dead_ = false;
  bool suspect_ = false;  // an internal WR failed: check whether the receiver lives
  queue::BackOff back_off_;
};

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_CHANNEL_H_
