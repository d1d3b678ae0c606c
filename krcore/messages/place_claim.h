// How a sender comes to its place at a port: PortVerbs, and PlaceClaim over them.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_MESSAGES_PLACE_CLAIM_H_
#define KRCORE_MESSAGES_PLACE_CLAIM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "krcore/clock.h"
#include "krcore/messages/wire.h"
#include "krcore/peers/peer.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/queue/queue_state.h"

namespace krcore::messages {

// How long the end of a channel waits for what is under way: longer than a NIC's transport retries.
inline constexpr int64_t kCloseNs = 1'000'000'000;

// A port of a peer.
struct RemotePort {
  RemotePort(std::shared_ptr<const peers::Peer> at, Port number, const PortInfo& record)
      : peer(std::move(at)), port(number), info(record), layout(record) {}
  // For the user: "port 5 of node 3".
  std::string Name() const;

  const std::shared_ptr<const peers::Peer> peer;
  const Port port;
  const PortInfo info;
  const Layout layout;
};

// PortVerbs: the one-sided verbs that a sender makes for itself in a port's memory, one at a time.
class PortVerbs {
 public:
  // What a verb is for. kControl: Run.
  enum class Op : uint8_t { kNone, kControl, kPull, kVoid, kClose };
  struct Verb {
    Opcode opcode;
    size_t at;                          // offset in the port's memory
    std::span<const std::byte> data{};  // kWrite: copied, at most kOwnBytes
    Sge into{};                         // kRead; length 0: 8 bytes of own memory
    uint64_t expected = 0, desired = 0;
  };

  PortVerbs(queue::QueuePoolImpl& pool, queue::QueueState& owner, const RemotePort& to)
      : pool_(pool), owner_(owner), to_(to) {}

  // Stages the verb; false: no room now.
  bool Post(Op op, const Verb& verb);
  // Runs one verb, with its result; tries again where a fault of others broke it. The queue may be in any standing.
  Status Run(const Verb& verb, uint64_t* result, Deadline deadline);
  bool WaitFor(const std::function<bool()>& done, Deadline deadline);
  // ... until no verb is under way, whatever the caller's deadline, because its memory is in use. A NIC completes or
  // fails it within a second.
  void WaitForEnd();
  bool under_way() const { return op_ != Op::kNone; }
  // The verb has completed. Returns what it was for.
  Op Done(const queue::OwnWrDone& done);
  uint64_t result() const { return result_; }  // of the last one
  bool ReceiverIsDead() const;

  queue::QueuePoolImpl& pool() { return pool_; }
  const RemotePort& to() const { return to_; }

 private:
  queue::QueuePoolImpl& pool_;
  queue::QueueState& owner_;
  const RemotePort& to_;
  Op op_ = Op::kNone;  // under way
  WcStatus status_ = WcStatus::kSuccess;
  uint64_t result_ = 0;
};

// PlaceClaim: one sender's claim to a place of a port (wire.h).
class PlaceClaim {
 public:
  PlaceClaim(PortVerbs& verbs, uint64_t owner_word) : verbs_(verbs), owner_word_(owner_word) {}

  // kQueueFull: no place is free.
  Status Claim(Deadline deadline);
  // READs where the place's messages begin and writes the card: from then on only the receiver frees the place.
  Status Introduce(Port reply_port, const PortInfo* reply, Deadline deadline);
  // Ends a claim whose sender was not introduced: frees the place, or introduces the sender after all, for then the
  // receiver frees it once it is told that nothing will come.
  void EndUnintroduced(Deadline deadline);

  bool made() const { return claimed_ || in_doubt_; }
  bool introduced() const { return introduced_; }
  uint64_t owner_word() const { return owner_word_; }
  uint32_t place() const { return place_; }
  uint64_t first_number() const { return first_number_; }  // of its messages; once introduced

 private:
  Status TryClaim(uint32_t place, uint64_t expected, Deadline deadline);
  Status TakeOverFromDead(std::span<const uint64_t> owners, Deadline deadline);
  Status ReadCard(uint32_t place, Card* card, Deadline deadline);

  PortVerbs& verbs_;
  const uint64_t owner_word_;
  uint32_t place_ = 0;
  bool in_doubt_ = false;  // a claim of place_ was not answered
  bool claimed_ = false, introduced_ = false;
  uint64_t first_number_ = 0;
};

}  // namespace krcore::messages

#endif  // KRCORE_MESSAGES_PLACE_CLAIM_H_
