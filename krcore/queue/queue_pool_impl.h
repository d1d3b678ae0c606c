// QueuePoolImpl: the virtual queues of one thread, and the physical ones that carry their requests.
//
// Where the host's processes share DC initiators, the pool's are parts of those (rnic::QpAttr::host_qp).
#ifndef KRCORE_QUEUE_QUEUE_POOL_IMPL_H_
#define KRCORE_QUEUE_QUEUE_POOL_IMPL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/clock.h"
#include "krcore/peers/meta_client.h"
#include "krcore/peers/peer_directory.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/physical_queues.h"
#include "krcore/queue/rc_queues.h"
#include "krcore/queue/request_check.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::queue {

class OneSidedQueue;
class QueuePoolImpl;

// Makes the virtual queues of pools. This folder has one-sided queues only; it makes no messages itself, but carries
// the WRs that others make for them (OwnWr). Thread safety: any thread may call.
class QueueMaker {
 public:
  virtual ~QueueMaker() = default;
  virtual std::unique_ptr<OneSidedQueue> MakeQueue(QueuePoolImpl& pool, uint32_t depth) = 0;
};

// What a pool takes from its Node; outlives the pool.
struct PoolContext {
  Node* node = nullptr;
  rnic::Device* device = nullptr;
  rnic::Pd* pd = nullptr;
  const peers::RegionTable* regions = nullptr;
  peers::PeerDirectory* peers = nullptr;
  peers::MetaClient* meta = nullptr;        // pools make its RC connection; null: there is none to make
  peers::Target self;                       // how peers reach this node
  std::atomic<uint32_t>* owners = nullptr;  // counts the node's owner words of places (peers::PlaceOwner)
  std::atomic<uint32_t>* pools = nullptr;   // ... and its pools
  QueueMaker* maker = nullptr;
  uint32_t host_qps = 0;  // DC initiators of the host that pools are to share
};

// While an RC queue is being made, one push in so many is left to Poll.
inline constexpr uint32_t kPolledOneIn = 16;

// Pollable: further work for each poll.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Returns how much was found. May stage WRs where there is room; must not poll.
  virtual size_t Work() = 0;
};

// BackOff: how many polls a Pollable leaves out after a failure: 1, then 3, and so on up to 64.
class BackOff {
 public:
  // Whether this poll is left out.
  bool Skips() {
    if (left_ == 0) return false;
    --left_;
    return true;
  }
  void Failed() { left_ = last_ = std::min(2 * last_ + 1, 64u); }
  void Succeeded() { last_ = 0; }
  // Leaves out no more until the next failure.
  void Resume() { left_ = 0; }

 private:
  uint32_t left_ = 0, last_ = 0;
};

class QueuePoolImpl final : public QueuePool {
 public:
  static Result<std::unique_ptr<QueuePool>> Create(const PoolContext& context, const QueuePoolOptions& options);
  ~QueuePoolImpl() override;

  Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) override;
  void Flush() override;
  size_t Poll() override;
  void SetGate(PostGate* gate) override { gate_ = gate; }
  void DiscardStaged() override;
  bool NothingPosted() const override;
  Node& node() const override { return *context_.node; }
  const QueuePoolStats& stats() const override { return physical_.stats(); }
  size_t memory_bytes() const override;

  // ---- for OneSidedQueue
  Clock& clock() { return clock_; }
  peers::PeerDirectory& peers() { return *context_.peers; }
  peers::RegionView& regions() { return regions_; }
  const RequestLimits& limits() const { return limits_; }
  QueuePoolStats& mutable_stats() { return physical_.stats(); }
  // Returns the queue through which `target` is reached. It is the same for all callers, so that requests to one peer
  // stay in order. It changes in Poll alone.
  PhysicalQueue* QueueFor(const peers::Target& target) {
    // With no live RC queue, skip the lookup: each cache line counts while caches are cold.
    PhysicalQueue* const rc = physical_.any_rc() ? rc_->Find(target) : nullptr;
    return rc != nullptr ? rc : physical_.DcQueueFor(target);
  }
  const PoolContext& context() const { return context_; }
  uint32_t copy_bytes() const { return copy_bytes_; }

  // ---- for RcQueues, and tests
  RcQueues* rc() { return rc_.get(); }  // null: no RC queues are wanted
  std::span<OneSidedQueue* const> virtual_queues() const { return virtual_queues_; }
  PhysicalQueues& physical() { return physical_; }
  bool has_own_memory() const { return own_memory_ != nullptr; }

  // ---- for messages
  void AddWork(Pollable* work) { work_.push_back(work); }
  void RemoveWork(Pollable* work);
  // Makes, when first needed, registered memory for WRs that krcore makes itself: each PhysicalQueue's own_memory, and
  // kScratchBytes for connecting.
  Status NeedOwnMemory();
  static constexpr size_t kScratchBytes = 4096;
  std::byte* scratch() { return own_memory_->bytes().data(); }
  uint32_t scratch_lkey() const { return own_memory_->lkey(); }
  // Polls once in a wait inside a user's call; `spins` as Clock::Relax.
  void PollWaiting(uint32_t spins);
  // Publishes the node once, so that others can find out whether it lives.
  Status NeedPublished(Deadline deadline);
  // ---- for OneSidedQueue: leases
  // Renews expiring leases on remote regions, and counts how hot peers are; only reads the time if nothing is due.
  // Called before every doorbell, so that no request goes out whose region was looked up longer ago than the lease.
  void CheckLeases() {
    if (const int64_t now_ns = clock_.CoarseNowNs(); now_ns >= check_ns_) [[unlikely]]
      DoWhatIsDue(now_ns);
  }
  // As PeerDirectory::Renew; null: the peer has gone.
  std::shared_ptr<const peers::Peer> RenewLease(const std::shared_ptr<const peers::Peer>& peer, int64_t now_ns);
  // A queue was connected to `peer`.
  void NoteLease(const peers::Peer& peer) {
    lease_check_ns_ = std::min(lease_check_ns_, peer.renew_ns());
    check_ns_ = std::min(check_ns_, lease_check_ns_);
  }
  // ---- for requests that are executed when they are pushed
  // Whether `queue` allows that: what is staged, here or elsewhere, must go out first. While an RC queue is being made,
  // one in kPolledOneIn may not: Poll makes the queue, and a caller that misses no completion does not poll.
  bool MayExecute(const PhysicalQueue& queue) {
    return executes_at_post_ && !physical_.any_staged() && !queue.blocked() && !queue.broken() &&
           (rc_ == nullptr || !rc_->has_work() || ++executed_meanwhile_ % kPolledOneIn != 0);
  }
  bool MayPost() { return gate_ == nullptr || gate_->MayPost(); }
  // Counted by the next Poll.
  void NoteExecuted(size_t count) { completed_by_flush_ += count; }

  // Flush right after CheckLeases.
  void FlushChecked() {
    if (gate_ != nullptr || any_blocked() || !physical_.FlushUsual()) [[unlikely]]
      completed_by_flush_ += Doorbells();
  }
  // Polls until `queue` can accept a WR with `inline_bytes`. Breaks a queue that makes no progress; if the gate is
  // shut, discards what is staged.
  void MakeRoom(PhysicalQueue& queue, size_t inline_bytes);
  // The same for `count` WRs, no more than the queue's depth. False: the gate is shut.
  bool MakeRoomForAll(PhysicalQueue& queue, uint32_t count, size_t inline_bytes);
  void Attach(OneSidedQueue* queue) { virtual_queues_.push_back(queue); }
  // Returns once no buffer of `state`'s WRs is in use and no completion will be delivered to it.
  void Detach(OneSidedQueue* queue, QueueState* state);

 private:
  explicit QueuePoolImpl(const PoolContext& context)
      : context_(context), clock_(context.node->clock()), regions_(*context.regions), physical_(*context.pd) {}
  void DoWhatIsDue(int64_t now_ns);
  void RenewLeases(int64_t now_ns);
  size_t Doorbells();
  bool any_blocked() const { return rc_ != nullptr && rc_->any_blocked(); }
  size_t FlushAll() { return physical_.any_staged() || any_blocked() ? CheckAndFlush() : 0; }
  size_t CheckAndFlush();
  // The gate is not asked if nothing is staged.
  bool GateIsShut() const { return physical_.any_staged() && !gate_->MayPost(); }
  // Stops the queues with something staged that other processes have broken. Returns how many WRs it found completed.
  size_t StopWhatOthersBroke();
  // Stops the queues to peers that are known to be dead by now, because they would break the host's queues once more.
  // Asks the kernel about each peer.
  void QuarantineTheDead();
  // After a repair, which stages READs again that were posted when a lease was renewed: refuses those that name regions
  // which that renewal found withdrawn.
  void RefuseWithdrawn();
  size_t PollOnce();
  size_t PollHere();  // ... inlined
  size_t Repair();
  size_t RunWork();
  void MarkBroken(const PhysicalQueue& queue);

  const PoolContext context_;
  Clock& clock_;
  int64_t lease_check_ns_ = INT64_MAX;  // when the first lease of a connected queue must be renewed
  int64_t check_ns_ = INT64_MAX;        // ... or something else is due
  peers::RegionView regions_;
  RequestLimits limits_;
  PostGate* gate_ = nullptr;
  size_t completed_by_flush_ = 0;    // found outside Poll, for the next one to count
  uint32_t executed_meanwhile_ = 0;  // pushes while an RC queue was being made
  bool executes_at_post_ = false;
  std::vector<OneSidedQueue*> virtual_queues_;

  // Messages.
  uint32_t copy_bytes_ = 0;
  bool published_ = false;
  bool working_ = false;
  std::vector<Pollable*> work_;
  std::unique_ptr<Region> own_memory_;

  std::unique_ptr<RcQueues> rc_;
  PhysicalQueues physical_;  // last, because it is large
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_QUEUE_POOL_IMPL_H_
