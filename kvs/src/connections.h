// A client's queues to the memory nodes, and Batch: some verbs that go out together and are waited for together.
//
// Thread safety: one thread, as the client.
#ifndef KVS_SRC_CONNECTIONS_H_
#define KVS_SRC_CONNECTIONS_H_

#include <algorithm>
#include <array>
#include <cassert>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/client.h"
#include "kvs/layout/address.h"
#include "kvs/src/back_off.h"
#include "kvs/src/outbox.h"

namespace kvs {

// How a batch ended. kUnavailable: at least one verb failed, and each WRITE or atomic may or may not have happened.
// kFenced: no verb was posted, or will be, because the client was expelled meanwhile or cannot renew its lease.
enum class Outcome : uint8_t { kOk, kUnavailable, kFenced };

class Connections;

// Up to `capacity` verbs. Verbs to one node execute in the order they were added, under the rules of
// krcore::VirtualQueue; verbs to different nodes in any order. Local buffers lie in the client's arena (or in a region
// whose lkey is given) and stay borrowed until Run() has returned. Reusable after that.
class Batch {
 public:
  explicit Batch(uint32_t capacity) : capacity_(capacity), verbs_(capacity) { assert(capacity <= Outbox::kMostVerbs); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Attach(Connections* connections, uint32_t lkey) {
    connections_ = connections;
    lkey_ = lkey;
    Renew();
  }
  // What the batch is used for belongs to a registration of the client: later ones are not bound to what it learnt, so
  // that its verbs are refused once another one has begun. Renew() makes it belong to the present one.
  void Renew();
  void Follow(const Batch& other) { registration_ = other.registration_; }
  bool Stale() const;
  // Whether the next round trips are a user's operation's (ClientStats::operation_round_trips).
  void CountForOperation(bool counts) { of_operation_ = counts; }
  uint32_t size() const { return size_; }
  bool full() const { return size_ == capacity_; }
  // Forgets what was added and not run.
  void Clear() { size_ = 0; }
  // Of the last run, unless it ended kOk: whether a verb to that memory node failed, or was not posted. What went to
  // the others was done.
  bool FailedAt(krcore::NodeId node) const { return std::ranges::find(failed_nodes_, node) != failed_nodes_.end(); }

  void Read(GlobalAddress from, void* to, uint32_t bytes) { Read(from, to, bytes, lkey_); }
  inline void Read(GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey);
  void Write(const void* from, GlobalAddress to, uint32_t bytes) { Write(from, to, bytes, lkey_); }
  void Write(const void* from, GlobalAddress to, uint32_t bytes, uint32_t lkey);
  // The old word lands in *old; the swap happened if *old == expected.
  void CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old);
  void FetchAdd(GlobalAddress at, uint64_t addend, uint64_t* old);

  // Verbs that go to outboxes at once, for who asks for many and is through with each at once: Begin, ReadNow and its
  // like for each, co_await End. Nothing else of the batch may be used meanwhile. `hint_every`: Outbox::TakeForHint.
  void Begin(uint32_t hint_every = Outbox::kHintEvery) {
    assert(size_ == 0 && !Stale());
    hint_every_ = hint_every;
    outcome_ = Outcome::kOk;
    discarded_ = 0;
    pending_ = 1;  // its own, so that it does not end before End
    sample_from_ns_ = 0;
  }
  // False: the memory node was not reached, or there is no room now.
  bool ReadNow(GlobalAddress from, void* to, uint32_t bytes) {
    return ReadNow<1>(from.node, {from.offset}, static_cast<std::byte*>(to), bytes);
  }
  // Several of one node, of `bytes` each, `to` one behind the other.
  template <size_t kCount>
  inline bool ReadNow(krcore::NodeId node, const std::array<uint64_t, kCount>& offsets, std::byte* to, uint32_t bytes);
  // As Write and CompareSwap.
  inline bool WriteNow(const void* from, GlobalAddress to, uint32_t bytes);
  inline bool CompareSwapNow(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old);
  auto End() {
    struct Awaiter {
      Batch& batch;
      bool await_ready() { return batch.EndAsking(); }
      void await_suspend(std::coroutine_handle<> handle) { batch.waiter_ = handle; }
      Outcome await_resume() { return batch.TakeOutcome(); }
    };
    return Awaiter{*this};
  }
  // The same for who has no coroutine: calls poll() until all has completed.
  template <typename Poll>
  Outcome EndBlocking(Poll poll) {
    waiter_ = nullptr;
    if (!EndAsking()) {
      do poll();
      while (pending_ != 0);
    }
    return TakeOutcome();
  }

  // co_await batch.Run(): hands everything to outboxes (the doorbell rings when one is full, or with the next Poll),
  // resumes when all has
  // completed, and what else went out with it.
  auto Run() {
    struct Awaiter {
      Batch& batch;
      bool await_ready() { return batch.Stage() == 0; }
      void await_suspend(std::coroutine_handle<> handle) { batch.waiter_ = handle; }
      Outcome await_resume() { return batch.TakeOutcome(); }
    };
    return Awaiter{*this};
  }

 private:
  friend class Connections;
  inline void CountRoundTrip();
  void Fail(krcore::NodeId node, Outcome outcome) {
    if (outcome_ == Outcome::kOk) failed_nodes_.clear();
    if (!FailedAt(node)) failed_nodes_.push_back(node);
    outcome_ = outcome;
  }
  void Discarded(krcore::NodeId node, uint32_t verbs) {
    discarded_ += verbs;
    Fail(node, discarded_ == size_ ? Outcome::kFenced : Outcome::kUnavailable);
  }
  // Of those that ReadNow asked for. True: there is nothing to wait for.
  bool EndAsking() {
    if (size_ != 0) CountRoundTrip();
    return --pending_ == 0;
  }
  Outcome TakeOutcome() {
    size_ = 0;
    return outcome_;
  }
  // Hands the verbs to outboxes. Returns the number of parts to wait for.
  inline uint32_t Stage();
  // Goes on with verb `staged_`; a batch that finds an outbox and its queue full goes on when completions have made
  // room there.
  void StageRest();
  // Verbs [staged_, end), which are one node's, become a part. False: there is no room for it.
  inline bool StageUpTo(uint32_t end);
  inline Verb& Add(krcore::Opcode opcode, GlobalAddress remote, const void* local, uint32_t bytes, uint32_t lkey);

  const uint32_t capacity_;
  Connections* connections_ = nullptr;
  uint32_t lkey_ = 0;
  uint32_t size_ = 0;
  uint32_t staged_ = 0;
  uint32_t pending_ = 0;    // parts that have not ended, and one if it is stalled
  uint32_t discarded_ = 0;  // verbs that were not posted
  uint32_t registration_ = 0;
  uint32_t hint_every_ = 0;  // of its READs
  bool of_operation_ = false;
  bool mixed_ = false;  // not all of its verbs are one node's
  Outcome outcome_ = Outcome::kOk;
  std::vector<krcore::NodeId> failed_nodes_;  // unless it is kOk
  int64_t sample_from_ns_ = 0;                // when it was staged, if its round trip is measured; else 0
  std::coroutine_handle<> waiter_;
  std::vector<Verb> verbs_;
};

class Connections {
 public:
  // Between two tries to connect to a memory node.
  static constexpr int64_t kReconnectIntervalNs = 50'000'000;

  // No try is so short that it could never succeed.
  static constexpr int64_t kMinTryNs = 20'000'000;

  // Whose operations wait while Reach blocks.
  class Waiting {
   public:
    virtual int64_t NextDeadlineNs() = 0;  // of these operations

   protected:
    ~Waiting() = default;
  };

  // `reconnect_budget_ns`: how long Reach may block, though not beyond the next deadline of `waiting` where that leaves
  // kMinTryNs. After a vain try it does not for as long as that took, whatever the memory node, so that at least every
  // other moment is the operations'. Dead memory nodes are told at once.
  Connections(krcore::Node& node, int64_t reconnect_budget_ns, Waiting& waiting, ClientStats& stats)
      : node_(node),
        clock_(node.clock()),
        reconnect_budget_ns_(reconnect_budget_ns),
        waiting_(waiting),
        stats_(stats) {}
  ~Connections();

  // `queue_depth`: verbs that may be in flight to one memory node.
  Status Open(uint32_t queue_depth, const krcore::QueuePoolOptions& options = {});
  // Makes the queue to a memory node, unless there is one: in advance, not connected.
  Status MakeQueue(krcore::NodeId memory_node);
  // Connects to a memory node unless it is. kUnavailable: dead, or tried in vain less than a moment ago.
  Status Ensure(krcore::NodeId memory_node, krcore::Deadline deadline);
  // The same for the data path: nothing but a look at a flag while connected.
  bool Reach(krcore::NodeId memory_node) {
    if (peers_[memory_node & 0xff].connected) [[likely]]
      return true;
    return ReachAgain(memory_node);
  }
  // When Reach tries again, if the memory node is not connected.
  int64_t NextTryNs(krcore::NodeId memory_node) const {
    return std::max(quiet_until_ns_, peers_[memory_node & 0xff].retry_at_ns);
  }
  // The memory node may be stopped and come back as another one: whoever reaches for it connects anew.
  void Forget(krcore::NodeId memory_node) {
    peers_[memory_node & 0xff].connected = false;
    peers_[memory_node & 0xff].retry_at_ns = 0;
  }
  // Of the pool of a memory node that was reached.
  uint64_t PoolBytes(krcore::NodeId memory_node) const { return peers_[memory_node & 0xff].pool_bytes; }
  // The memory node that failed last; kNoNode if none has.
  krcore::NodeId last_failed() const { return last_failed_; }
  // Rings doorbells, collects completions, makes coroutines whose batches are done ready to run. Returns the number of
  // completions.
  size_t Poll();
  // Whether batches wait for room, which only Poll gives them.
  bool any_stalled() const { return !stalled_.empty(); }
  // Nothing is posted, nor about to be.
  bool NothingUnderWay() const;
  // As Poll, without polling the pool: what was done when it was pushed is found.
  size_t PushAndTake() {
    HandOnAll();
    return TakeCompletions();
  }

  krcore::QueuePool& pool() const { return *pool_; }
  // Ends a registration: what is not posted is taken back, and batches that belong to it are refused from now on.
  void Fence();
  // What is not posted is taken back.
  void DiscardUnposted();
  size_t memory_bytes() const;
  uint32_t registration() const { return registration_; }
  int64_t round_trip_ns() const { return round_trip_.ns(); }

 private:
  friend class Batch;
  // A part of the batch has ended. If it was the last one, the coroutine that waits goes on.
  void EndPart(RunQueue& run_queue, Batch& batch);
  struct Peer {
    std::unique_ptr<krcore::VirtualQueue> queue;
    std::unique_ptr<Outbox> outbox;
    uint64_t base = 0;  // of the pool region, in the node's address space
    uint64_t pool_bytes = 0;
    uint32_t rkey = 0;
    bool connected = false;
    uint32_t life = 0;  // how often it was connected
    int64_t retry_at_ns = 0;
  };
  // Of the memory node, if that is reached and its outbox has room for so many verbs; else null.
  Peer* PeerWithRoom(krcore::NodeId memory_node, uint32_t verbs) {
    if (!Reach(memory_node)) [[unlikely]]
      return nullptr;
    Peer& peer = peers_[memory_node & 0xff];
    const bool has_room = peer.outbox->HasRoom(verbs) || (HandOn(peer) && peer.outbox->HasRoom(verbs));
    return has_room ? &peer : nullptr;
  }
  // So many verbs of the batch were added to its outbox.
  static void Added(Batch& batch, Peer& peer, bool is_new_part, uint32_t verbs) {
    batch.pending_ += is_new_part ? 1 : 0;
    batch.size_ += verbs;
    if (const auto soon = peer.outbox->TakeForHint(batch.hint_every_); !soon.empty()) peer.queue->Prefetch(soon);
  }
  bool ReachAgain(krcore::NodeId memory_node);
  void HandOnAll();
  size_t TakeCompletions();
  // Its outbox goes to its queue. What that refuses, but for want of room, ends. False: there is no room.
  bool HandOn(Peer& peer);
  // Of what its outbox holds nothing is posted.
  void Discard(Peer& peer);
  void Failed(Peer& peer, const krcore::Completion& completion);
  void NoteFailure(Peer& peer);
  krcore::NodeId NodeOf(const Peer& peer) const { return static_cast<krcore::NodeId>(&peer - peers_.data()); }

  krcore::Node& node_;
  krcore::Clock& clock_;  // the node's, without the way through it: connecting is all cold misses
  const int64_t reconnect_budget_ns_;
  Waiting& waiting_;
  ClientStats& stats_;
  uint32_t queue_depth_ = 0;
  std::unique_ptr<krcore::QueuePool> pool_;
  std::array<Peer, krcore::kMaxMemoryNode + 1> peers_;
  std::array<uint8_t, krcore::kMaxMemoryNode + 1> connected_;  // node ids of peers with a queue
  uint32_t connected_count_ = 0;
  std::array<krcore::Completion, 64> done_;  // Poll's, which need not initialize it each time
  std::deque<Batch*> stalled_;               // by a full queue, in order
  uint32_t registration_ = 0;
  krcore::NodeId last_failed_ = krcore::kNoNode;
  int64_t quiet_until_ns_ = INT64_MIN;  // ReachAgain does not try before
  RoundTripEstimate round_trip_;
};

inline void Batch::Renew() { registration_ = connections_->registration(); }
inline bool Batch::Stale() const { return registration_ != connections_->registration(); }

inline Verb& Batch::Add(krcore::Opcode opcode, GlobalAddress remote, const void* local, uint32_t bytes, uint32_t lkey) {
  assert(size_ < capacity_);
  const uint32_t i = size_++;
  Verb& verb = verbs_[i];
  verb.offset = remote.offset;
  verb.local = reinterpret_cast<uint64_t>(local);
  verb.bytes = bytes;
  verb.lkey = lkey;
  verb.opcode = opcode;
  verb.node = static_cast<uint8_t>(remote.node);
  verb.life = connections_->peers_[remote.node & 0xff].life;
  mixed_ = i != 0 && (mixed_ || verb.node != verbs_[0].node);
  return verb;
}

inline void Batch::Read(GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey) {
  Add(krcore::Opcode::kRead, from, to, bytes, lkey);
  ++connections_->stats_.reads;
}

inline void Batch::CountRoundTrip() {
  connections_->stats_.operation_round_trips += of_operation_ ? 1 : 0;
  if (connections_->stats_.round_trips++ % RoundTripEstimate::kSampleEvery == 0) [[unlikely]]
    sample_from_ns_ = connections_->clock_.NowNs();
}

inline uint32_t Batch::Stage() {
  outcome_ = Outcome::kOk;
  pending_ = discarded_ = staged_ = 0;
  if (size_ == 0) return 0;
  sample_from_ns_ = 0;
  CountRoundTrip();
  if (mixed_ || Stale() || !StageUpTo(size_)) [[unlikely]]
    StageRest();
  return pending_;
}

template <size_t kCount>
inline bool Batch::ReadNow(krcore::NodeId node, const std::array<uint64_t, kCount>& offsets, std::byte* to,
                           uint32_t bytes) {
  Connections::Peer* const peer = connections_->PeerWithRoom(node, kCount);
  if (peer == nullptr) [[unlikely]]
    return false;
  std::array<uint64_t, kCount> addrs;
  for (size_t i = 0; i < kCount; ++i) addrs[i] = peer->base + offsets[i];
  Connections::Added(*this, *peer, peer->outbox->AddReads(addrs, peer->rkey, to, bytes, lkey_, this), kCount);
  connections_->stats_.reads += kCount;
  return true;
}

inline bool Batch::WriteNow(const void* from, GlobalAddress to, uint32_t bytes) {
  Connections::Peer* const peer = connections_->PeerWithRoom(to.node, 1);
  if (peer == nullptr) [[unlikely]]
    return false;
  Connections::Added(*this, *peer, peer->outbox->AddWrite(peer->base + to.offset, peer->rkey, from, bytes, lkey_, this),
                     1);
  ++connections_->stats_.writes;
  return true;
}

inline bool Batch::CompareSwapNow(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old) {
  Connections::Peer* const peer = connections_->PeerWithRoom(at.node, 1);
  if (peer == nullptr) [[unlikely]]
    return false;
  Outbox& outbox = *peer->outbox;
  Connections::Added(*this, *peer,
                     outbox.AddCompareSwap(peer->base + at.offset, peer->rkey, expected, desired, old, lkey_, this), 1);
  ++connections_->stats_.atomics;
  return true;
}

inline bool Batch::StageUpTo(uint32_t end) {
  Connections::Peer& peer = connections_->peers_[verbs_[staged_].node];
  // What is meant for the memory node of before does not go to its successor.
  if (!peer.connected || verbs_[staged_].life != peer.life) [[unlikely]] {
    connections_->NoteFailure(peer);
    Fail(verbs_[staged_].node, Outcome::kUnavailable);
    staged_ = end;
    return true;
  }
  const uint32_t verbs = end - staged_;
  if (!peer.outbox->HasRoom(verbs) && !(connections_->HandOn(peer) && peer.outbox->HasRoom(verbs))) [[unlikely]]
    return false;
  // Nothing of this very part may be handed on before its coroutine has suspended: it might end at once.
  peer.outbox->Add(std::span(verbs_).subspan(staged_, verbs), this, peer.base, peer.rkey);
  if (const auto soon = peer.outbox->TakeForHint(); !soon.empty()) peer.queue->Prefetch(soon);
  ++pending_;
  staged_ = end;
  return true;
}

}  // namespace kvs

#endif  // KVS_SRC_CONNECTIONS_H_
