// A client's queues to the memory nodes, and Batch: some verbs that go out together and are waited for together;
// what a round trip takes, and how long to wait by that.
//
// Thread safety: one thread, as the client.
#ifndef KVS_MEMORY_CONNECTIONS_H_
#define KVS_MEMORY_CONNECTIONS_H_

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/client.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/outbox.h"

namespace kvs {

// How a batch ended. kUnavailable: at least one verb failed, and each WRITE or atomic may or may not have happened.
// kFenced: no verb was posted, or will be, because the client was expelled meanwhile or cannot renew its lease.
enum class Outcome : uint8_t { kOk, kUnavailable, kFenced };

class Connections;

// What a batch takes from Run() to being noticed, smoothed. Samples are few (one batch in kSampleEvery), so
// measuring costs next to nothing.
class RoundTripEstimate {
 public:
  static constexpr uint64_t kSampleEvery = 64;

  void Add(int64_t sample_ns) {
    // One that was taken while the process was stopped must not count for long.
    const int64_t sample = std::clamp(sample_ns, kMinNs, known_ ? std::min(kMaxNs, ns_ * 8) : kMaxNs);
    ns_ = known_ ? ns_ + (sample - ns_) / 8 : sample;
    known_ = true;
  }
  int64_t ns() const { return ns_; }

 private:
  static constexpr int64_t kMinNs = 100;
  static constexpr int64_t kMaxNs = 10'000'000;
  int64_t ns_ = 2'000;
  bool known_ = false;
};

// Verbs that go out together and are waited for together. Each is handed to its memory node's outbox when it is added,
// so what it writes must be there by then; the doorbell rings when an outbox is full, or with the next Poll. Verbs to
// one node execute in the order in which they were added, under the rules of krcore::VirtualQueue; verbs to different
// nodes in any order. Local buffers lie in the client's arena (or in a region whose lkey is given) and stay borrowed
// until the batch was run, which must follow. Reusable after that.
class Batch {
 public:
  Batch() = default;
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
  // Outbox::TakeForHint, until it is renewed.
  void HintEvery(uint32_t verbs) { hint_every_ = verbs; }
  // Verbs that were added since it ran last. There may be any number.
  uint32_t size() const { return size_; }
  // Of the last run, unless it ended kOk: whether a verb to that memory node failed, or was not posted. What went to
  // the others was done.
  bool FailedAt(krcore::NodeId node) const { return std::ranges::find(failed_nodes_, node) != failed_nodes_.end(); }

  // A verb to a memory node that cannot be reached fails.
  void Read(GlobalAddress from, void* to, uint32_t bytes) { Read(from, to, bytes, lkey_); }
  inline void Read(GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey);
  // Several of one memory node, of `bytes` each, `to` one behind the other.
  template <size_t kCount>
  inline void Read(krcore::NodeId node, const std::array<uint64_t, kCount>& offsets, std::byte* to, uint32_t bytes);
  void Write(const void* from, GlobalAddress to, uint32_t bytes) { Write(from, to, bytes, lkey_); }
  inline void Write(const void* from, GlobalAddress to, uint32_t bytes, uint32_t lkey);
  // The old word lands in *old; the swap happened if *old == expected.
  inline void CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old);
  inline void FetchAdd(GlobalAddress at, uint64_t addend, uint64_t* old);

  // co_await batch.Run(): resumes when all has completed, and what else went out with it.
  auto Run() {
    struct Awaiter {
      Batch& batch;
      bool await_ready() { return batch.EndAdding(); }
      void await_suspend(std::coroutine_handle<> handle) { batch.waiter_ = handle; }
      Outcome await_resume() { return batch.TakeOutcome(); }
    };
    return Awaiter{*this};
  }
  // The same for a caller that has no coroutine: calls poll() until all has completed.
  template <typename Poll>
  Outcome RunBlocking(Poll poll) {
    waiter_ = nullptr;
    if (!EndAdding()) {
      do poll();
      while (pending_ != 0);
    }
    return TakeOutcome();
  }

 private:
  friend class Connections;
  template <size_t kCount>
  inline void Add(krcore::NodeId node, const std::array<Verb, kCount>& verbs);
  // What cannot go now: it is refused, or waits for room.
  void AddLater(krcore::NodeId node, const Verb& verb);
  void Fail(krcore::NodeId node, Outcome outcome) {
    if (outcome_ == Outcome::kOk) failed_nodes_.clear();
    if (!FailedAt(node)) failed_nodes_.push_back(node);
    outcome_ = outcome;
  }
  void Discarded(krcore::NodeId node, uint32_t verbs) {
    discarded_ += verbs;
    Fail(node, discarded_ == size_ ? Outcome::kFenced : Outcome::kUnavailable);
  }
  // True: there is nothing to wait for.
  inline bool EndAdding();
  Outcome TakeOutcome() {
    size_ = 0;
    return outcome_;
  }
  // Hands on what waits for room, as far as completions have made some; else it waits on.
  void AddWaiting();

  // A verb for which there was no room.
  struct Late {
    Verb verb;
    krcore::NodeId node;
    uint32_t life;  // of the connection to the node for which it is meant
  };

  Connections* connections_ = nullptr;
  uint32_t lkey_ = 0;
  uint32_t size_ = 0;
  uint32_t pending_ = 0;    // parts that have not ended; one while verbs are added, and one while some wait for room
  uint32_t discarded_ = 0;  // verbs that were not posted
  uint32_t registration_ = 0;
  uint32_t hint_every_ = Outbox::kHintEvery;
  bool of_operation_ = false;
  bool at_once_ = false;  // verbs go to outboxes as they are added: the batch is not stale, and none waits for room
  Outcome outcome_ = Outcome::kOk;
  std::vector<krcore::NodeId> failed_nodes_;  // unless it is kOk
  int64_t sample_from_ns_ = 0;                // when it was run, if its round trip is measured; else 0
  std::coroutine_handle<> waiter_;
  std::vector<Late> late_;  // in order, and so whatever was added after the first of them
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
  // kUnavailable, of the memory node that failed last: `what` was not done.
  Status UnavailableStatus(const char* what) const {
    return {StatusCode::kUnavailable,
            std::string(what) + ": memory node " + std::to_string(last_failed_) + " is dead or unreachable"};
  }
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
  Peer* PeerWithRoom(krcore::NodeId memory_node, size_t verbs) {
    if (!Reach(memory_node)) [[unlikely]]
      return nullptr;
    Peer& peer = peers_[memory_node & 0xff];
    const bool has_room = peer.outbox->HasRoom(verbs) || (HandOn(peer) && peer.outbox->HasRoom(verbs));
    return has_room ? &peer : nullptr;
  }
  // Verbs of the batch.
  template <size_t kCount>
  static void Add(Batch& batch, Peer& peer, const std::array<Verb, kCount>& verbs) {
    batch.pending_ += peer.outbox->Add(verbs, peer.base, peer.rkey, &batch) ? 1 : 0;
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

inline void Batch::Renew() {
  registration_ = connections_->registration();
  hint_every_ = Outbox::kHintEvery;
}
inline bool Batch::Stale() const { return registration_ != connections_->registration(); }

template <size_t kCount>
inline void Batch::Add(krcore::NodeId node, const std::array<Verb, kCount>& verbs) {
  if (size_ == 0) {
    outcome_ = Outcome::kOk;
    discarded_ = 0;
    pending_ = 1;  // its own, so that it does not end before it runs
    sample_from_ns_ = 0;
    at_once_ = !Stale();
  }
  size_ += static_cast<uint32_t>(kCount);
  Connections::Peer* const peer = at_once_ ? connections_->PeerWithRoom(node, kCount) : nullptr;
  if (peer != nullptr) [[likely]]
    return Connections::Add(*this, *peer, verbs);
  for (const Verb& verb : verbs) AddLater(node, verb);
}

inline void Batch::Read(GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey) {
  Add<1>(from.node, {{{krcore::Opcode::kRead, from.offset, {reinterpret_cast<uint64_t>(to), bytes, lkey}}}});
  ++connections_->stats_.reads;
}

template <size_t kCount>
inline void Batch::Read(krcore::NodeId node, const std::array<uint64_t, kCount>& offsets, std::byte* to,
                        uint32_t bytes) {
  std::array<Verb, kCount> verbs;
  for (size_t i = 0; i < kCount; ++i)
    verbs[i] = {krcore::Opcode::kRead, offsets[i], {reinterpret_cast<uint64_t>(to) + i * bytes, bytes, lkey_}};
  Add(node, verbs);
  connections_->stats_.reads += kCount;
}

inline void Batch::Write(const void* from, GlobalAddress to, uint32_t bytes, uint32_t lkey) {
  Add<1>(to.node, {{{krcore::Opcode::kWrite, to.offset, {reinterpret_cast<uint64_t>(from), bytes, lkey}}}});
  ++connections_->stats_.writes;
}

inline void Batch::CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old) {
  const krcore::Sge local{reinterpret_cast<uint64_t>(old), sizeof(*old), lkey_};
  Add<1>(at.node, {{{krcore::Opcode::kCompareSwap, at.offset, local, expected, desired}}});
  ++connections_->stats_.atomics;
}

inline void Batch::FetchAdd(GlobalAddress at, uint64_t addend, uint64_t* old) {
  const krcore::Sge local{reinterpret_cast<uint64_t>(old), sizeof(*old), lkey_};
  Add<1>(at.node, {{{krcore::Opcode::kFetchAdd, at.offset, local, addend, 0}}});
  ++connections_->stats_.atomics;
}

inline bool Batch::EndAdding() {
  if (size_ == 0) {
    outcome_ = Outcome::kOk;
    return true;
  }
  connections_->stats_.operation_round_trips += of_operation_ ? 1 : 0;
  if (connections_->stats_.round_trips++ % RoundTripEstimate::kSampleEvery == 0) [[unlikely]]
    sample_from_ns_ = connections_->clock_.NowNs();
  if (!late_.empty()) [[unlikely]] {
    ++pending_;
    connections_->stalled_.push_back(this);
  }
  return --pending_ == 0;
}

// ---- backing off

// How long to wait before a lost race is run again: about a round trip, twice as long after each further loss, and
// jittered, so that clients that met once do not meet again in step. In time of the injected clock, not in polls: an
// idle client polls a hundred times a round trip and a busy one once in ten.
//
// `losses` in a row before this one. `random`: 31 random bits.
inline int64_t BackOffNs(int64_t round_trip_ns, uint32_t losses, uint32_t random) {
  constexpr uint32_t kMaxDoublings = 6;
  const int64_t mean = round_trip_ns << std::min(losses, kMaxDoublings);
  return mean / 2 + static_cast<int64_t>(static_cast<uint64_t>(mean) * (random & 0xffff) >> 16);
}

}  // namespace kvs

#endif  // KVS_MEMORY_CONNECTIONS_H_
