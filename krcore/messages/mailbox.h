// Mailbox: the receiving half of messages: the memory of a bound port (wire.h), its posted receives, and the messages
// that have arrived in them.
//
// A message leaves its slot only for a posted receive, in the order of its sender. Copied messages are taken at once.
// For a zero-copy message a READ is started; later messages of the same sender are taken too, but delivered after it.
// When the oldest taken message is delivered its slot is released. That is both its sender's credit and, for zero-copy,
// the acknowledgment that the buffer is free.
//
// A place becomes free when its sender has closed it and all its messages have gone, or when its sender is confirmed
// dead. A dead sender's complete messages are still delivered; its torn one, and zero-copy ones that were not READ in
// time, are dropped.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_MESSAGES_MAILBOX_H_
#define KRCORE_MESSAGES_MAILBOX_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "krcore/clock.h"
#include "krcore/message.h"
#include "krcore/messages/ports.h"
#include "krcore/messages/wire.h"
#include "krcore/peers/peer.h"
#include "krcore/queue/one_sided_queue.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/rnic.h"

namespace krcore::messages {

class Mailbox final : public queue::Pollable {
 public:
  // kExists: the port is bound on this node. kInvalidArgument: options.
  static Result<std::unique_ptr<Mailbox>> Open(queue::QueuePoolImpl& pool, Ports& ports, Port port,
                                               const BindOptions& options, Deadline deadline);
  ~Mailbox() override;

  Port port() const { return port_; }
  const PortInfo& info() const { return info_; }
  Status PushRecv(std::span<const Receive> receives, size_t* bad_index);
  size_t Pop(std::span<Message> out);
  size_t memory_bytes() const { return memory_->bytes().size(); }

  size_t Work() override;

 private:
  enum class Taken : uint8_t { kReading, kDone, kFailed, kVoid };
  struct TakenMessage {
    Taken state = Taken::kDone;
    uint64_t header_checksum = 0;
    Receive receive;
    Message message;
  };
  struct Place {
    uint64_t owner = 0;  // 0: not open
    Card card;
    Sender sender;
    uint64_t next = 0;                  // number of the next message to take
    std::deque<TakenMessage> taken;     // [next - taken.size(), next)
    std::shared_ptr<peers::Peer> peer;  // zero-copy: how its memory is READ
    std::unique_ptr<queue::OneSidedQueue> reader;
    uint64_t put_back_from = UINT64_MAX;  // number of the first message to put back once no READ is in flight
    queue::BackOff back_off;              // for READs that failed
    bool sender_is_dead = false;
  };

  Mailbox(queue::QueuePoolImpl& pool, Ports& ports, Port port, const PortInfo& info, uint32_t receive_depth)
      : pool_(pool),
        ports_(ports),
        port_(port),
        info_(info),
        layout_(info),
        receive_depth_(receive_depth),
        places_(info.senders) {}

  std::byte* at(size_t offset) const { return memory_->bytes().data() + offset; }
  uint64_t Load(size_t offset) const;
  void Store(size_t offset, uint64_t value);
  // Copies word by word: the sender's WRITE may be in progress.
  void Copy(void* to, size_t offset, size_t bytes) const;

  void LookForSenders();
  void LookForDeadSenders();
  void OpenPlace(uint32_t index, const Card& card);
  void FreePlace(uint32_t index);
  bool IsFree(uint32_t index) const;
  size_t Advance(uint32_t index);
  void TakeArrived(uint32_t index);
  // Returns false if the message stays where it is.
  bool Take(uint32_t index, const Header& header);
  // Returns false if not all of it is there.
  bool CopyPayload(uint32_t index, const Header& header, const Receive& receive);
  bool StartRead(Place& place, const Header& header, const Receive& receive);
  void FinishReads(uint32_t index);
  // Gives up what was taken from place.put_back_from on; it will be taken again. False: a READ is in flight, so later.
  bool PutBack(Place& place);
  size_t Deliver(uint32_t index);

  queue::QueuePoolImpl& pool_;
  Ports& ports_;
  const Port port_;
  PortInfo info_;
  const Layout layout_;
  const uint32_t receive_depth_;
  std::unique_ptr<rnic::Memory> memory_;
  std::unique_ptr<rnic::Mr> mr_;
  bool published_ = false;

  std::deque<Receive> receives_;  // posted and free
  std::deque<Message> ready_;     // arrived and not popped
  size_t taken_receives_ = 0;     // taken and not yet in ready_
  std::vector<Place> places_;
  std::vector<uint32_t> open_;  // indices of open places
  uint32_t polls_ = 0;
  uint32_t turn_ = 0;  // in open_: which place goes first
  int64_t last_look_ns_ = 0;
};

// Returns the metadata and reply port that came with a message. kInvalidArgument: none, or not made by krcore.
Result<Card> CardOf(const Sender& sender);

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_MAILBOX_H_
