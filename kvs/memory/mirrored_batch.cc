// Batches where pools are mirrored (docs/replication.md, "A batch goes in rounds"): each round posts what can be posted
// now, and when all of that has completed, the next one begins.
#include <algorithm>
#include <bitset>
#include <span>

#include "kvs/layout/pool.h"
#include "kvs/memory/connections.h"
#include "kvs/memory/mutation.h"
#include "kvs/memory/views.h"

namespace kvs {

using krcore::NodeId;
using krcore::Opcode;
using krcore::Status;
using krcore::StatusCode;

namespace {

// How long a batch waits for another view, in leases: longer than a view that somebody does not acknowledge.
constexpr int64_t kMostLeases = 4;

// The part of the chain to which the verb goes next.
std::span<const Replica> Targets(const MirroredVerb& mirrored, const PoolChain& chain) {
  if (mirrored.verb.opcode == Opcode::kRead) {
    return chain.all().subspan(Mutated(Mutation::kReadHead) ? 0 : chain.length - 1, 1);
  }
  if (mirrored.is_cas()) {
    uint32_t place = mirrored.hop;
    if (Mutated(Mutation::kTailFirst)) place = chain.length - 1 - place;
    if (Mutated(Mutation::kTailBeforeMiddle) && chain.length == 3 && place > 0) place = 3 - place;
    return chain.all().subspan(place, 1);
  }
  return chain.all().first(Mutated(Mutation::kWritesToHeadOnly) ? 1 : chain.length);
}

}  // namespace

// ---- one batch

void Batch::AddMirrored(NodeId pool, const Verb& verb, Word whose, uint64_t* numbers) {
  if (mirrored_.empty()) {
    size_ = 0;
    outcome_ = Outcome::kOk;
    discarded_ = 0;
    pending_ = 1;
    sample_from_ns_ = 0;
    waits_since_ns_ = 0;
  }
  size_ = static_cast<uint32_t>(mirrored_.size()) + 1;
  MirroredVerb& mirrored = mirrored_.emplace_back();
  mirrored.verb = verb;
  mirrored.pool = pool;
  mirrored.whose = whose;
  mirrored.numbers = numbers;
  if (mirrored.is_cas()) ++connections_->stats_.atomics;
}

// Asks for the verb at its next replicas. False: one of them has no room.
bool Batch::PostHop(MirroredVerb& mirrored, const PoolChain& chain) {
  const std::span<const Replica> targets = Targets(mirrored, chain);
  const size_t verbs = mirrored.numbers != nullptr ? 2 : 1;
  for (const Replica& replica : targets) {
    if (!connections_->HasRoom(connections_->peers_[replica.node], this, verbs)) return false;
  }
  Verb verb = mirrored.verb;
  if (mirrored.hop > 0) verb.desired = mirrored.target;
  for (const Replica& replica : targets) {
    Connections::Peer& peer = connections_->peers_[replica.node];
    if (mirrored.numbers != nullptr) {
      const krcore::Sge number{reinterpret_cast<uint64_t>(mirrored.numbers + mirrored.hop), sizeof(uint64_t), lkey_};
      Connections::Add<2>(*this, peer, {verb, Verb{Opcode::kRead, kConfigurationOffset, number}});
    } else {
      Connections::Add<1>(*this, peer, {verb});
    }
  }
  mirrored.state = MirroredVerb::State::kPosted;
  mirrored.posted_once = true;
  return true;
}

bool Batch::PostRound() {
  outcome_ = Outcome::kOk;
  pending_ = 1;
  bool left = false, posted = false;
  std::bitset<krcore::kMaxMemoryNode + 1> held;    // pools to which nothing more is posted in this round
  std::bitset<krcore::kMaxMemoryNode + 1> before;  // pools with a CAS that READs behind it have to wait for
  const bool gives_up = Stale() || WaitsTooLong();
  for (MirroredVerb& mirrored : mirrored_) {
    if (mirrored.state != MirroredVerb::State::kOpen) continue;
    const PoolChain* const chain = connections_->views_->Find(mirrored.pool);
    if (chain == nullptr || gives_up) {
      mirrored.state = MirroredVerb::State::kLost;
      continue;
    }
    const bool closed = chain->closed && !Mutated(Mutation::kPostsToClosed);
    if (!closed && mirrored.since != chain->since) {
      mirrored.GoOnAlong(*chain);
      if (mirrored.state != MirroredVerb::State::kOpen) continue;
    }
    const NodeId pool = mirrored.pool & 0xff;
    const bool waits = closed || held[pool] || (mirrored.verb.opcode == Opcode::kRead && before[pool]);
    if (!waits) {
      Connections::Reached reached = Connections::Reached::kYes;
      for (const Replica& replica : Targets(mirrored, *chain)) {
        if (reached == Connections::Reached::kYes) reached = connections_->ReachReplica(pool, replica);
      }
      if (reached == Connections::Reached::kNever) {
        mirrored.state = MirroredVerb::State::kLost;
        continue;
      }
      if (reached == Connections::Reached::kYes && PostHop(mirrored, *chain)) {
        posted = true;
        before[pool] = before[pool] || (mirrored.is_cas() && mirrored.hop + 1 < chain->length);
        continue;
      }
      held[pool] = true;
    }
    left = true;
    if (mirrored.is_cas()) before[pool] = true;
  }
  if (posted) {
    ++connections_->stats_.round_trips;
    connections_->stats_.operation_round_trips += of_operation_ ? 1 : 0;
    --pending_;
    return true;
  }
  if (left) {
    if (waits_since_ns_ == 0) waits_since_ns_ = connections_->clock_.NowNs();
    connections_->going_on_.push_back(this);
    return true;
  }
  EndMirrored();
  return false;
}

bool Batch::WaitsTooLong() const {
  if (waits_since_ns_ == 0) return false;
  return connections_->clock_.NowNs() - waits_since_ns_ > kMostLeases * connections_->views_->lease_ns();
}

void Batch::TakeRound() {
  bool asked_lease = false, holds_lease = true, any_done = false, any_failed = false;
  for (MirroredVerb& mirrored : mirrored_) {
    if (mirrored.state != MirroredVerb::State::kPosted) continue;
    const PoolChain& chain = *connections_->views_->Find(mirrored.pool);
    const std::span<const Replica> targets = Targets(mirrored, chain);
    const bool failed = outcome_ != Outcome::kOk &&
                        std::ranges::any_of(targets, [this](const Replica& replica) { return FailedAt(replica.node); });
    (failed ? any_failed : any_done) = true;
    if (!mirrored.is_cas()) {
      mirrored.state = failed ? MirroredVerb::State::kOpen : MirroredVerb::State::kDone;
      continue;
    }
    mirrored.state = MirroredVerb::State::kOpen;
    if (failed) {
      mirrored.HopFailed();
    } else if (mirrored.numbers != nullptr) {
      if (mirrored.numbers[mirrored.hop] != connections_->views_->number() && !Mutated(Mutation::kNumberUnchecked)) {
        connections_->views_->NoteNewer();
        mirrored.state = MirroredVerb::State::kLost;
      } else {
        mirrored.Hopped(targets[0], chain.length);
      }
    } else {
      if (!asked_lease) holds_lease = connections_->lease_ == nullptr || connections_->lease_->MayPost();
      asked_lease = true;
      if (holds_lease || Mutated(Mutation::kHopsWithoutLease)) {
        mirrored.Hopped(targets[0], chain.length);
      } else {
        mirrored.HopFailed();
      }
    }
  }
  // Rounds that only fail, or are discarded, count as waiting: without a lease no round does anything else.
  if (any_done) waits_since_ns_ = 0;
  if (any_failed && waits_since_ns_ == 0) waits_since_ns_ = connections_->clock_.NowNs();
}

bool Batch::GoOn() {
  TakeRound();
  return PostRound();
}

bool Batch::awaits_round() const {
  return std::ranges::any_of(mirrored_, [](const MirroredVerb& mirrored) {
    return mirrored.state == MirroredVerb::State::kPosted;
  });
}

// What FailedAt answers from now on is about pools.
void Batch::EndMirrored() {
  outcome_ = Outcome::kOk;
  bool changed_nothing = true;
  for (const MirroredVerb& mirrored : mirrored_) {
    if (mirrored.verb.opcode != Opcode::kRead) changed_nothing = changed_nothing && !mirrored.posted_once;
    if (mirrored.state == MirroredVerb::State::kLost) Fail(mirrored.pool, Outcome::kUnavailable);
  }
  if (outcome_ != Outcome::kOk && changed_nothing && Stale()) outcome_ = Outcome::kFenced;
  mirrored_.clear();
  pending_ = 0;
}

// ---- all batches

void Connections::SetViews(Views& views, krcore::PostGate* lease) {
  views_ = &views;
  lease_ = lease;
  views.Attach(*this);
}

void Connections::GoOnWithBatches() {
  RunQueue& run_queue = RunQueue::OfThisThread();
  for (size_t left = going_on_.size(); left > 0; --left) {
    Batch& batch = *going_on_.front();
    going_on_.pop_front();
    if (!batch.GoOn() && batch.waiter_ != nullptr) run_queue.Push(batch.waiter_);
  }
}

bool Connections::IdleForViews(const Views& views) {
  // What is not posted now must not wait for a lease that is renewed only in another view.
  if (lease_ != nullptr && !lease_->MayPost()) DiscardUnposted();
  if (std::ranges::any_of(going_on_, [](const Batch* batch) { return batch->awaits_round(); })) return false;
  for (uint32_t i = 0; i < connected_count_; ++i) {
    if (!peers_[connected_[i]].outbox->idle() && views.ChainChangesAt(connected_[i])) return false;
  }
  return true;
}

Connections::Reached Connections::ReachReplica(NodeId pool, const Replica& replica) {
  Peer& peer = peers_[replica.node];
  if (peer.connected) return Reached::kYes;
  last_failed_ = replica.node;
  const int64_t now_ns = clock_.NowNs();
  const bool dead = node_.IsConfirmedDead(replica.node, replica.incarnation);
  if (!dead) {
    if (now_ns < peer.retry_at_ns) return Reached::kLater;
    const Status ensured = EnsureNode(replica.node, {now_ns + kMinTryNs});
    if (ensured.ok()) return Reached::kYes;
    if (ensured == StatusCode::kQueueFull) return Reached::kLater;  // it was not tried: verbs are under way
  }
  // The last replica is waited for while it lives: the death of another may have broken the queue to it.
  return views_->Suspect(pool, replica) || !dead ? Reached::kLater : Reached::kNever;
}

uint64_t Connections::MirroredPoolBytes(NodeId pool) const {
  const PoolChain* const chain = views_->Find(pool);
  return chain == nullptr ? 0 : chain->bytes;
}

Status Connections::EnsurePool(NodeId pool, krcore::Deadline deadline) {
  const PoolChain* const chain = views_->Find(pool);
  if (chain == nullptr) return {StatusCode::kCorrupt, "the store has no pool " + std::to_string(pool)};
  for (const Replica& replica : chain->all()) (void)EnsureNode(replica.node, deadline);
  return Status::Ok();
}

}  // namespace kvs
