// A client's queues to the memory nodes, and Batch: verbs that go out together and are waited for together. Also how
// long a round trip takes, and how long to back off accordingly.
//
// Thread safety: the client's thread.
#ifndef KVS_MEMORY_CONNECTIONS_H_
#define KVS_MEMORY_CONNECTIONS_H_

#include <algorithm>
#include <array>
#include <bitset>
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
#include "kvs/memory/mirror.h"
#include "kvs/memory/mutation.h"
#include "kvs/memory/outbox.h"
#include "kvs/memory/store_identity.h"

namespace kvs {

// How a batch ended. kUnavailable: at least one verb failed, and each WRITE or atomic may or may not have happened.
// kFenced: no verb was posted, or will be, because the client was expelled meanwhile or cannot renew its lease.
enum class Outcome : uint8_t { kOk, kUnavailable, kFenced };

class Connections;
class Views;

// The time from a batch's Run() until its end is noticed, smoothed. Only one batch in kSampleEvery is measured, so this
// costs next to nothing.
class RoundTripEstimate {
 public:
  static constexpr uint64_t kSampleEvery = 64;

  void Add(int64_t sample_ns) {
    // A sample that was taken while the process was stopped must not count for long.
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
// nodes execute in any order.
//
// Where pools are mirrored, an address names a pool, and what is said of a memory node holds of a pool. READs go out as
// they are added; what comes behind the first WRITE or CAS, when the batch is run. A CAS takes as many round trips as
// the pool has replicas, and READs behind it go out with the last of them. If a replica fails, the batch goes on in the
// next view: it ends with kUnavailable only if none is left, if the client goes without a lease for long, or if nobody
// can tell what became of a CAS.
//
// Local buffers lie in the client's arena (or in a region whose lkey is given) and stay borrowed until the batch was
// run, which must follow. A batch can be used again after that.
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
  // A batch belongs to a registration of the client. Later registrations do not protect what was learnt under it, so
  // its verbs are refused once another one has begun. Renew() makes it belong to the present one.
  void Renew();
  void Follow(const Batch& other) {
    registration_ = other.registration_;
    began_ = other.began_;
  }
  bool Stale() const;
  // Whether all replicas of some pool have come since it was renewed: what was written there before may be nowhere.
  bool Outlived() const;
  // Goes on with the present view, where nothing that was written in an earlier one is needed any more.
  void RenewView();
  // Whether the next round trips are a user's operation's (ClientStats::operation_round_trips).
  void CountForOperation(bool counts) { of_operation_ = counts; }
  // Sets `worth` of Outbox::TakeForHint, until the batch is renewed.
  void HintEvery(uint32_t verbs) { hint_every_ = verbs; }
  // Returns how many verbs were added since the last run. There may be any number.
  uint32_t size() const { return size_; }
  // Returns whether, in the last run, a verb to that memory node failed or was not posted. What went to the others was
  // done. Call it only if the run did not end with kOk.
  bool FailedAt(krcore::NodeId node) const { return std::ranges::find(failed_nodes_, node) != failed_nodes_.end(); }

  // These add verbs. A verb to a memory node that cannot be reached fails.
  void Read(GlobalAddress from, void* to, uint32_t bytes) { Read(from, to, bytes, lkey_); }
  inline void Read(GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey);
  // Adds several READs from one memory node, of `bytes` each, which go to `to` one after the other.
  template <size_t kCount>
  inline void Read(krcore::NodeId node, const std::array<uint64_t, kCount>& offsets, std::byte* to, uint32_t bytes);
  void Write(const void* from, GlobalAddress to, uint32_t bytes) { Write(from, to, bytes, lkey_); }
  inline void Write(const void* from, GlobalAddress to, uint32_t bytes, uint32_t lkey);
  // The old word lands in *old; the swap happened if *old == expected. Where pools are mirrored, `expected` has been
  // read there in this operation (docs/replication.md, "No word comes back"), and *old is the next word to expect.
  inline void CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old,
                          Word whose = Word::kAnyones);
  // The same, for what a client may do without a lease: it fails unless each replica of the home, asked behind the CAS,
  // shows the configuration that the client uses. `numbers`: kMaxChain words of the arena.
  inline void CompareSwapChecked(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old, Word whose,
                                 uint64_t* numbers);

  // Adds a READ from the head or the learner of a mirrored pool, for comparison. If there is no learner, the tail is
  // read.
  void ReadReplica(ReadAt at, GlobalAddress from, void* to, uint32_t bytes) { ReadReplica(at, from, to, bytes, lkey_); }
  void ReadReplica(ReadAt at, GlobalAddress from, void* to, uint32_t bytes, uint32_t lkey) {
    AddMirrored(from.node, {krcore::Opcode::kRead, from.offset, {reinterpret_cast<uint64_t>(to), bytes, lkey}},
                Word::kAnyones, nullptr, at);
  }

  // co_await batch.Run(): resumes when all verbs have completed, and what else went out with them.
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
  // ---- mirrored pools (mirrored_batch.cc)
  void AddMirrored(krcore::NodeId pool, const Verb& verb, Word whose, uint64_t* numbers, ReadAt at = ReadAt::kTail);
  // Posts what can be posted now. False: nothing, because all is done or lost.
  bool PostRound();
  // Takes what a round has brought, and goes on. False: all is done or lost.
  bool GoOn();
  void TakeRound();
  Verb NextVerb(const MirroredVerb& mirrored) const;
  struct Round;
  bool MakeReady(MirroredVerb& mirrored, const PoolChain& chain);
  void PostNext(MirroredVerb& mirrored, Round* round);
  bool BeginCopy(MirroredVerb& mirrored);
  void Copied(MirroredVerb& mirrored);
  bool PostHop(MirroredVerb& mirrored);
  void EndVerb(MirroredVerb& mirrored, MirroredVerb::State state);
  void EndMirrored();
  bool WaitsTooLong() const;
  bool awaits_round() const;
  inline void Begin();
  template <size_t kCount>
  inline void Add(krcore::NodeId node, const std::array<Verb, kCount>& verbs);
  // Adds a verb that cannot go now: it is refused, or waits for room. (By value, so that callers can keep a verb in
  // registers.)
  void AddLater(krcore::NodeId node, Verb verb);
  void Fail(krcore::NodeId node, Outcome outcome) {
    if (outcome_ == Outcome::kOk) failed_nodes_.clear();
    if (!FailedAt(node)) failed_nodes_.push_back(node);
    outcome_ = outcome;
    in_rounds_ = at_once_ == AtOnce::kNoted || !mirrored_.empty();
  }
  void Discarded(krcore::NodeId node, uint32_t verbs) {
    discarded_ += verbs;
    Fail(node, discarded_ == size_ ? Outcome::kFenced : Outcome::kUnavailable);
  }
  // Ends the adding of verbs. True: there is nothing to wait for.
  inline bool EndAdding();
  Outcome TakeOutcome() {
    size_ = 0;
    if (at_once_ == AtOnce::kNoted) noted_.clear();
    return outcome_;
  }
  // Hands on what waits for room, as far as completions have made some. The rest goes on waiting.
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
  uint32_t pending_ =
      0;  // parts that have not ended, plus one while verbs are added, plus one while some wait for room
  uint32_t discarded_ = 0;  // verbs that were not posted
  uint32_t registration_ = 0;
  uint64_t began_ = 0;  // the number of the configuration in use when it was renewed
  uint32_t hint_every_ = Outbox::kHintEvery;
  bool of_operation_ = false;
  // Whether verbs go to outboxes as they are added. They do as long as the batch is not stale and none waits for room.
  // Where pools are mirrored, READs do as long as there was nothing else, and are noted.
  enum class AtOnce : uint8_t { kNo, kYes, kNoted } at_once_ = AtOnce::kNo;
  bool in_rounds_ = false;  // it has something in mirrored_, or will have
  Outcome outcome_ = Outcome::kOk;
  std::vector<krcore::NodeId> failed_nodes_;  // meaningful unless outcome_ is kOk
  int64_t sample_from_ns_ = 0;                // when it was run, if its round trip is measured; else 0
  std::coroutine_handle<> waiter_;
  std::vector<Late> late_;  // in order: all that was added after the first of them waits too
  // Where pools are mirrored: READs that went to the tails when they were added; and all that is not done then, in
  // order.
  struct Noted {
    uint64_t offset;
    krcore::Sge local;
    krcore::NodeId pool, node;
  };
  std::vector<Noted> noted_;
  std::vector<MirroredVerb> mirrored_;
  int64_t waits_since_ns_ = 0;  // since when nothing can be posted; 0: it is not so
};

class Connections {
 public:
  // The time between two tries to connect to a memory node.
  static constexpr int64_t kReconnectIntervalNs = 50'000'000;
  // How many lives of a connection in a row must end with a verb that nobody answered, so that a replica is suspected.
  static constexpr uint8_t kSilencesToSuspect = 2;

  // The shortest try: a shorter one could never succeed.
  static constexpr int64_t kMinTryNs = 20'000'000;

  // The owner of the operations that wait while Reach blocks.
  class Waiting {
   public:
    virtual int64_t NextDeadlineNs() = 0;  // of these operations

   protected:
    ~Waiting() = default;
  };

  // `reconnect_budget_ns`: how long Reach may block. It does not block beyond the next deadline of what waits, if that
  // leaves kMinTryNs. After a vain try it does not block for as long as that try took, for any memory node, so that
  // operations have at least half of the time. A dead memory node is recognized at once.
  // A memory node that is connected for the first time belongs to the store of `identity`. Its successors are checked.
  Connections(krcore::Node& node, StoreIdentity& identity, int64_t reconnect_budget_ns, ClientStats& stats)
      : node_(node),
        identity_(identity),
        clock_(node.clock()),
        reconnect_budget_ns_(reconnect_budget_ns),
        stats_(stats) {}
  ~Connections();
  // Before it is called, no operation waits.
  void SetWaiting(Waiting& waiting) { waiting_ = &waiting; }
  // The pools are mirrored. `lease`: completions count only while it lets verbs be posted; null: always.
  void SetViews(Views& views, krcore::PostGate* lease);
  bool mirrored() const { return views_ != nullptr; }
  // How many CASes of mirrored pools have left the head and have not ended.
  uint32_t under_way() const { return under_way_; }
  Views* views() const { return views_; }                // null: the pools are not mirrored
  uint64_t view_number() const { return view_number_; }  // 0: the pools are not mirrored
  // Another configuration is in use.
  void SetViewNumber(uint64_t number) {
    view_number_ = number;
    for (Peer& peer : peers_) peer.silences = 0;  // another incarnation may be there
  }
  // Whether no verb is under way to a pool that gets another chain.
  bool IdleForViews(const Views& views);

  // `queue_depth`: verbs that may be in flight to one memory node.
  Status Open(uint32_t queue_depth, const krcore::QueuePoolOptions& options = {});
  // Makes the queue to a memory node in advance, not connected, unless there is one.
  Status MakeQueue(krcore::NodeId memory_node);
  // Connects to a memory node, unless it is connected. kUnavailable: it is dead, or a try has just failed.
  Status Ensure(krcore::NodeId memory_node, krcore::Deadline deadline);
  // The same for the data path: while connected, it only looks at a flag. A mirrored pool counts as reached: batches
  // wait for its replicas, and for a view that has the pool. Such a view is there: somebody has named the pool.
  bool Reach(krcore::NodeId memory_node) {
    if (peers_[memory_node & 0xff].connected) [[likely]]
      return true;
    return mirrored() || ReachAgain(memory_node);
  }
  // Before the first connection to a memory node: it must be the one that `others` reach, or is checked.
  void ExpectSame(const Connections& others, krcore::NodeId memory_node) {
    peers_[memory_node & 0xff].incarnation = others.peers_[memory_node & 0xff].incarnation;
    peers_[memory_node & 0xff].life = 1;
  }
  // Returns when Reach tries again, if the memory node is not connected.
  int64_t NextTryNs(krcore::NodeId memory_node) const {
    return std::max(quiet_until_ns_, peers_[memory_node & 0xff].retry_at_ns);
  }
  // Forgets the connection: the memory node may be stopped and come back as another one. The next Reach connects anew.
  void Forget(krcore::NodeId memory_node) {
    if (mirrored()) return;
    peers_[memory_node & 0xff].connected = false;
    peers_[memory_node & 0xff].retry_at_ns = 0;
  }
  // Whether the view in use has that mirrored pool. If it does not, a newer one does, which is looked for.
  bool HasPool(krcore::NodeId pool);
  // The size of the pool of a memory node that was reached.
  uint64_t PoolBytes(krcore::NodeId memory_node) const {
    return mirrored() ? (*chains_)[memory_node & 0xff].bytes : peers_[memory_node & 0xff].pool_bytes;
  }
  // Returns kUnavailable and names the memory node that failed last, or StoreIdentity::Gone(). `what` was not done.
  Status UnavailableStatus(const char* what) const {
    if (identity_.gone()) return StoreIdentity::Gone();
    return {StatusCode::kUnavailable,
            std::string(what) + ": memory node " + std::to_string(last_failed_) + " is dead or unreachable"};
  }
  // Rings doorbells, collects completions, and readies coroutines whose batches are done. Returns the number of
  // completions.
  size_t Poll();
  // Whether batches wait for what only Poll gives them: room, the next round, another view.
  bool any_stalled() const { return !stalled_.empty() || !going_on_.empty(); }
  // Returns whether nothing is posted or about to be.
  bool NothingUnderWay() const;
  // Like Poll, but does not poll the pool: it finds only what was done as soon as it was pushed.
  size_t PushAndTake() {
    HandOnAll();
    return TakeCompletions();
  }

  krcore::QueuePool& pool() const { return *pool_; }
  // Ends a registration: takes back what is not posted, and refuses batches that belong to it from now on.
  void Fence();
  // Takes back what is not posted.
  void DiscardUnposted();
  size_t memory_bytes() const;
  uint32_t registration() const { return registration_; }
  int64_t round_trip_ns() const { return round_trip_.ns(); }

 private:
  friend class Batch;
  // Ends a part of the batch. If it was the last one, the coroutine that waits goes on.
  void EndPart(RunQueue& run_queue, Batch& batch);
  struct alignas(64) Peer {  // so that an index becomes an address by a shift
    std::unique_ptr<krcore::VirtualQueue> queue;
    std::unique_ptr<Outbox> outbox;
    uint64_t base = 0;  // of the pool region, in the node's address space
    uint64_t pool_bytes = 0;
    uint32_t rkey = 0;
    bool connected = false;
    uint8_t silences = 0;  // lives in a row that ended with a verb that nobody answered
    uint32_t life = 0;     // how often it was connected
    uint32_t incarnation = 0;
    int64_t retry_at_ns = 0;
    int64_t silent_ns = 0;  // when it was last not answered
  };
  // Returns the peer of the memory node, if that is reached and its outbox has room for this many verbs of the batch;
  // else null.
  Peer* PeerWithRoom(krcore::NodeId memory_node, const Batch* batch, size_t verbs) {
    if (!Reach(memory_node)) [[unlikely]]
      return nullptr;
    Peer& peer = peers_[memory_node & 0xff];
    return HasRoom(peer, batch, verbs) ? &peer : nullptr;
  }
  // The same for the tail of a mirrored pool, if READs can go there now.
  Peer* TailWithRoom(krcore::NodeId pool, const Batch* batch, size_t verbs) {
    const PoolChain& chain = (*chains_)[pool & 0xff];
    if (chain.length == 0 || (chain.closed && !Mutated(Mutation::kPostsToClosed))) return nullptr;
    Peer& peer = peers_[chain.tail().node];
    const bool can = peer.connected && !Mutated(Mutation::kReadHead);
    return can && HasRoom(peer, batch, verbs) ? &peer : nullptr;
  }
  bool HasRoom(Peer& peer, const Batch* batch, size_t verbs) {
    if (peer.outbox->HasRoomInPart(batch, verbs)) return true;
    return peer.outbox->HasRoom(verbs) || (HandOn(peer) && peer.outbox->HasRoom(verbs));
  }
  // Connects to a replica of a mirrored pool, unless it is connected. If it cannot be reached, it is suspected. kNever:
  // it was the last one. To connect may take no verb to the node. So one that has not answered twice in a row, on a new
  // connection the second time, is suspected, too.
  enum class Reached : uint8_t { kYes, kLater, kNever };
  Reached ReachReplica(krcore::NodeId pool, const Replica& replica);
  // Call it when the replica's node has been connected. False: that was another incarnation, which is left again.
  bool IsStill(const Replica& replica);
  Status EnsureNode(krcore::NodeId memory_node, krcore::Deadline deadline);
  Status EnsurePool(krcore::NodeId pool, krcore::Deadline deadline);
  // What words name is copied through buffers of their own. -1: all are taken, or there is no memory.
  static constexpr uint64_t kCopyBytes = uint64_t{8} << 10;
  static constexpr uint32_t kCopyBuffers = 32;
  int TakeCopyBuffer();
  // Call it when the CAS has no use for it any more, if it has one.
  void ReleaseCopyBuffer(MirroredVerb& mirrored);
  krcore::Sge CopyBuffer(int buffer, uint64_t bytes) const;
  // Lets the batches go on that have ended a round or wait.
  void GoOnWithBatches();
  // Adds verbs of the batch to the peer's outbox.
  template <size_t kCount>
  static void Add(Batch& batch, Peer& peer, const std::array<Verb, kCount>& verbs) {
    batch.pending_ += peer.outbox->Add(verbs, peer.base, peer.rkey, &batch) ? 1 : 0;
    if (const auto soon = peer.outbox->TakeForHint(batch.hint_every_); !soon.empty()) peer.queue->Prefetch(soon);
  }
  bool ReachAgain(krcore::NodeId memory_node);
  void HandOnAll();
  size_t TakeCompletions();
  // Hands the peer's outbox on to its queue. What the queue refuses, except for lack of room, ends. False: no room.
  bool HandOn(Peer& peer);
  // Discards what the peer's outbox holds.
  void Discard(Peer& peer);
  void Failed(Peer& peer, const krcore::Completion& completion);
  void NoteFailure(Peer& peer);
  krcore::NodeId NodeOf(const Peer& peer) const { return static_cast<krcore::NodeId>(&peer - peers_.data()); }

  krcore::Node& node_;
  StoreIdentity& identity_;
  krcore::Clock& clock_;  // the node's, without a detour through the node: connecting is all cold misses
  const int64_t reconnect_budget_ns_;
  Waiting* waiting_ = nullptr;
  ClientStats& stats_;
  uint32_t queue_depth_ = 0;
  std::unique_ptr<krcore::QueuePool> pool_;
  std::array<Peer, krcore::kMaxMemoryNode + 1> peers_;
  std::array<uint8_t, krcore::kMaxMemoryNode + 1> connected_;  // node ids of peers with a queue
  uint32_t connected_count_ = 0;
  std::array<krcore::Completion, 64> done_;  // Poll's; here, so that it is not initialized each time
  std::deque<Batch*> stalled_;               // batches that wait for room, in order
  std::deque<Batch*> going_on_;              // where pools are mirrored: batches that have ended a round, or wait
  Views* views_ = nullptr;
  const std::array<PoolChain, krcore::kMaxMemoryNode + 1>* chains_ = nullptr;  // the views'
  uint64_t view_number_ = 0;  // views_->number(), or 0; here, so that renewing a batch needs no branch
  uint32_t under_way_ = 0;
  std::unique_ptr<krcore::Region> copy_region_;  // of all buffers, made when first needed
  std::bitset<kCopyBuffers> copying_;            // those that are taken
  krcore::PostGate* lease_ = nullptr;
  uint32_t registration_ = 0;
  krcore::NodeId last_failed_ = krcore::kNoNode;
  int64_t quiet_until_ns_ = INT64_MIN;  // ReachAgain does not try before this time
  RoundTripEstimate round_trip_;
};

inline void Batch::Renew() {
  registration_ = connections_->registration();
  began_ = connections_->view_number_;
  hint_every_ = Outbox::kHintEvery;
}
inline void Batch::RenewView() {
  if (!Stale()) began_ = connections_->view_number_;
}
inline bool Batch::Stale() const { return registration_ != connections_->registration(); }

inline void Batch::Begin() {
  outcome_ = Outcome::kOk;
  discarded_ = 0;
  pending_ = 1;  // the batch's own part, so that it does not end before it runs
  sample_from_ns_ = 0;
  at_once_ = Stale() ? AtOnce::kNo : connections_->mirrored() ? AtOnce::kNoted : AtOnce::kYes;
}

template <size_t kCount>
inline void Batch::Add(krcore::NodeId node, const std::array<Verb, kCount>& verbs) {
  if (size_ == 0) Begin();
  size_ += static_cast<uint32_t>(kCount);
  if (at_once_ == AtOnce::kYes) [[likely]] {
    Connections::Peer* const peer = connections_->PeerWithRoom(node, this, kCount);
    if (peer != nullptr) [[likely]]
      return Connections::Add(*this, *peer, verbs);
  } else if (at_once_ == AtOnce::kNoted && !in_rounds_ && verbs[0].opcode == krcore::Opcode::kRead) {
    if (Connections::Peer* const tail = connections_->TailWithRoom(node, this, kCount)) {
      for (const Verb& verb : verbs) noted_.push_back({verb.offset, verb.local, node, connections_->NodeOf(*tail)});
      return Connections::Add(*this, *tail, verbs);
    }
  }
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

inline void Batch::CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old, Word whose) {
  const krcore::Sge local{reinterpret_cast<uint64_t>(old), sizeof(*old), lkey_};
  if (connections_->mirrored()) [[unlikely]]
    return AddMirrored(at.node, {krcore::Opcode::kCompareSwap, at.offset, local, expected, desired}, whose, nullptr);
  Add<1>(at.node, {{{krcore::Opcode::kCompareSwap, at.offset, local, expected, desired}}});
  ++connections_->stats_.atomics;
}

inline void Batch::CompareSwapChecked(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old, Word whose,
                                      uint64_t* numbers) {
  if (!connections_->mirrored()) return CompareSwap(at, expected, desired, old);
  const krcore::Sge local{reinterpret_cast<uint64_t>(old), sizeof(*old), lkey_};
  AddMirrored(at.node, {krcore::Opcode::kCompareSwap, at.offset, local, expected, desired}, whose, numbers);
}

inline bool Batch::EndAdding() {
  if (size_ == 0) {
    outcome_ = Outcome::kOk;
    return true;
  }
  if (in_rounds_) [[unlikely]]
    return !PostRound();
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

// Returns how long to wait after a lost race: about a round trip, and twice as long after each further loss. It is
// jittered, so that clients that met once do not meet again in step. It is in time of the injected clock, not in polls:
// an idle client polls a hundred times in a round trip, and a busy one once in ten.
//
// `losses`: the losses in a row before this one. `random`: 31 random bits.
inline int64_t BackOffNs(int64_t round_trip_ns, uint32_t losses, uint32_t random) {
  constexpr uint32_t kMaxDoublings = 6;
  const int64_t mean = round_trip_ns << std::min(losses, kMaxDoublings);
  return mean / 2 + static_cast<int64_t>(static_cast<uint64_t>(mean) * (random & 0xffff) >> 16);
}

}  // namespace kvs

#endif  // KVS_MEMORY_CONNECTIONS_H_
