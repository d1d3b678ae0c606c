// Batches where pools are mirrored (docs/replication.md, "A batch goes in rounds"): each round posts what can be posted
// now, and when all of that has completed, the next one begins.
#include <algorithm>
#include <bitset>
#include <span>
#include <utility>

#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
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

// Returns what a word names that a CAS puts in place. `table_bytes`: of a subtable.
NamedMemory MemoryOf(Word word, uint64_t value, uint64_t table_bytes) {
  if (IsSlot(word)) {
    const Slot slot(value);
    if (value == kUncopied || !slot.has_block()) return {};
    return {slot.block(), FirstReadBytes(slot), slot.length_units() == kLargeBlock};
  }
  if (word != Word::kOwnEntry) return {};
  const DirectoryEntry entry(value);
  if (entry.merging()) return {entry.merge_record(), sizeof(MergeRecord)};
  return entry.present() ? NamedMemory{entry.subtable(), table_bytes} : NamedMemory{};
}

// Puts the replicas to which the verb goes next into `posted_at`.
void AimAlong(const PoolChain& chain, MirroredVerb* mirrored) {
  const auto at = [mirrored](const Replica& replica) {
    mirrored->posted_at[0] = replica;
    mirrored->posted_count = 1;
  };
  const bool learns = chain.learner.exists();
  switch (mirrored->verb.opcode) {
    case Opcode::kRead: {
      const bool head = mirrored->at == ReadAt::kHead || Mutated(Mutation::kReadHead);
      return at(mirrored->at == ReadAt::kLearner && learns ? chain.learner : head ? chain.replicas[0] : chain.tail());
    }
    case Opcode::kCompareSwap: break;
    default: {
      const uint32_t count = Mutated(Mutation::kWritesToHeadOnly) ? 1 : chain.length;
      std::ranges::copy(chain.all().first(count), mirrored->posted_at.begin());
      mirrored->posted_count = count;
      if (learns && !Mutated(Mutation::kLearnerIgnored)) mirrored->posted_at[mirrored->posted_count++] = chain.learner;
      return;
    }
  }
  switch (mirrored->phase) {
    case MirroredVerb::Phase::kPush:
    case MirroredVerb::Phase::kPushAgain: return at(chain.learner);
    case MirroredVerb::Phase::kReadTail: return at(chain.tail());
    // The head is senior to all.
    case MirroredVerb::Phase::kCopyRead: return at(mirrored->copies_own ? chain.replicas[0] : chain.tail());
    case MirroredVerb::Phase::kCopyWrite:
      mirrored->posted_count = 0;
      for (uint32_t i = 0; mirrored->copies_own && i < chain.length; ++i) {
        if (chain.replica_since[i] > mirrored->began) mirrored->posted_at[mirrored->posted_count++] = chain.replicas[i];
      }
      if (learns) mirrored->posted_at[mirrored->posted_count++] = chain.learner;
      return;
    case MirroredVerb::Phase::kHop: break;
  }
  uint32_t place = mirrored->hop;
  if (Mutated(Mutation::kTailFirst)) place = chain.length - 1 - place;
  if (Mutated(Mutation::kTailBeforeMiddle) && chain.length == 3 && place > 0) place = 3 - place;
  at(chain.replicas[place]);
}

}  // namespace

// ---- one batch

// What a round may still post.
struct Batch::Round {
  std::bitset<krcore::kMaxMemoryNode + 1> held;    // pools to which nothing more is posted in this round
  std::bitset<krcore::kMaxMemoryNode + 1> before;  // pools with a CAS that READs behind it have to wait for
  bool left = false;                               // something is left to post
};

bool Batch::Outlived() const { return connections_->mirrored() && began_ < connections_->views_->heads_since(); }

void Batch::AddMirrored(NodeId pool, const Verb& verb, Word whose, uint64_t* numbers, ReadAt at) {
  if (size_ == 0) Begin();
  ++size_;
  in_rounds_ = true;
  MirroredVerb& mirrored = mirrored_.emplace_back();
  mirrored.verb = verb;
  mirrored.pool = pool;
  mirrored.whose = whose;
  mirrored.numbers = numbers;
  mirrored.at = at;
  mirrored.began = began_;
  if (mirrored.is_cas()) ++connections_->stats_.atomics;
}

// Returns the verb that goes out next.
Verb Batch::NextVerb(const MirroredVerb& mirrored) const {
  using Phase = MirroredVerb::Phase;
  Verb verb = mirrored.verb;
  if (!mirrored.is_cas()) return verb;
  switch (mirrored.phase) {
    case Phase::kHop:
    case Phase::kPush:
    case Phase::kPushAgain:
      if (mirrored.phase == Phase::kPushAgain) verb.expected = mirrored.learnt;
      verb.desired = mirrored.NextWord();
      return verb;
    case Phase::kReadTail: verb.opcode = Opcode::kRead; return verb;
    case Phase::kCopyRead:
    case Phase::kCopyWrite: break;
  }
  const uint64_t piece = std::min(mirrored.copy.bytes - mirrored.copied_bytes, Connections::kCopyBytes);
  return {mirrored.phase == Phase::kCopyRead ? Opcode::kRead : Opcode::kWrite,
          mirrored.copy.address.offset + mirrored.copied_bytes, connections_->CopyBuffer(mirrored.copy_buffer, piece)};
}

// Makes a CAS that would put a word in place whose memory a learner may lack copy that first, and one with a word of
// its own also to replicas that were learners since it began. False: it waits, because others are copying; or it is
// lost.
bool Batch::BeginCopy(MirroredVerb& mirrored) {
  using Phase = MirroredVerb::Phase;
  if (mirrored.phase == Phase::kReadTail || Mutated(Mutation::kPushWithoutBlock)) return true;
  if (mirrored.phase == Phase::kCopyRead || mirrored.phase == Phase::kCopyWrite) {
    const PoolChain* const chain = connections_->views_->Find(mirrored.copy.address.node);
    if (chain->since == mirrored.copy_since) return true;
    connections_->ReleaseCopyBuffer(mirrored);  // the learner is gone, or is none any more
    mirrored.phase = mirrored.behind_copy;
  }
  const uint64_t word = mirrored.NextWord();
  const bool own = IsOwn(mirrored.whose) && word == mirrored.verb.desired;
  if (!own && mirrored.whose == Word::kOwnEntry) return true;
  const NamedMemory named = MemoryOf(mirrored.whose, word, connections_->views_->table_bytes());
  if (named.bytes == 0) return true;
  const PoolChain* const chain = connections_->views_->Find(named.address.node);
  if (chain == nullptr || (word == mirrored.copied_word && mirrored.copy_since == chain->since)) return true;
  if (own) {
    const auto is_newer = [&mirrored](uint64_t since) { return since > mirrored.began; };
    const bool lacks = is_newer(chain->replica_since[chain->length - 1]) ||
                       (chain->learner.exists() && is_newer(chain->learner_since));
    if (!lacks || Mutated(Mutation::kOwnBlockNotCopied)) return true;
    if (is_newer(chain->replica_since[0])) {  // all that had it have left
      EndVerb(mirrored, MirroredVerb::State::kLost);
      return false;
    }
  } else if (!chain->learner.exists()) {
    return true;
  }
  mirrored.copy_buffer = connections_->TakeCopyBuffer();
  if (mirrored.copy_buffer < 0) return false;
  mirrored.copy = named;
  mirrored.copied_bytes = 0;
  mirrored.copies_own = own;
  mirrored.copy_since = chain->since;
  mirrored.behind_copy = mirrored.phase;
  mirrored.phase = Phase::kCopyRead;
  return true;
}

// A piece has been read, or written to the learner.
void Batch::Copied(MirroredVerb& mirrored) {
  using Phase = MirroredVerb::Phase;
  if (mirrored.phase == Phase::kCopyRead) {
    if (std::exchange(mirrored.copy.is_large, false)) {
      const BlockView block(reinterpret_cast<const std::byte*>(connections_->CopyBuffer(mirrored.copy_buffer, 0).addr));
      mirrored.copy.bytes = std::min(block.bytes(), BlockBytes(kMaxKeyBytes, kMaxValueBytes, true));
      return;  // a large block is longer than what has been read: read it anew
    }
    mirrored.phase = Phase::kCopyWrite;
    return;
  }
  mirrored.copied_bytes += std::min(mirrored.copy.bytes - mirrored.copied_bytes, Connections::kCopyBytes);
  mirrored.phase = Phase::kCopyRead;
  if (mirrored.copied_bytes < mirrored.copy.bytes) return;
  mirrored.phase = mirrored.behind_copy;
  mirrored.copied_word = mirrored.NextWord();
  connections_->stats_.bytes_copied += mirrored.copy.bytes;
  connections_->ReleaseCopyBuffer(mirrored);
}

// Asks for the verb where it is aimed at. False: there is no room.
bool Batch::PostHop(MirroredVerb& mirrored) {
  const std::span<const Replica> targets(mirrored.posted_at.data(), mirrored.posted_count);
  const bool checks = mirrored.numbers != nullptr && mirrored.phase == MirroredVerb::Phase::kHop;
  for (const Replica& replica : targets) {
    if (!connections_->HasRoom(connections_->peers_[replica.node], this, checks ? 2 : 1)) return false;
  }
  const Verb verb = NextVerb(mirrored);
  for (const Replica& replica : targets) {
    Connections::Peer& peer = connections_->peers_[replica.node];
    if (checks) {
      const krcore::Sge number{reinterpret_cast<uint64_t>(mirrored.numbers + mirrored.hop), sizeof(uint64_t), lkey_};
      Connections::Add<2>(*this, peer, {verb, Verb{Opcode::kRead, kConfigurationOffset, number}});
    } else {
      Connections::Add<1>(*this, peer, {verb});
    }
  }
  mirrored.state = MirroredVerb::State::kPosted;
  if (mirrored.phase == MirroredVerb::Phase::kHop) {
    mirrored.posted_once = true;
    if (mirrored.is_cas() && !std::exchange(mirrored.under_way, true)) ++connections_->under_way_;
  }
  return true;
}

// The verb is done, or its outcome will not be known.
void Batch::EndVerb(MirroredVerb& mirrored, MirroredVerb::State state) {
  mirrored.state = state;
  if (std::exchange(mirrored.under_way, false)) --connections_->under_way_;
  connections_->ReleaseCopyBuffer(mirrored);
}

// Brings a CAS to where its next verb can be posted, or ends it. False: it has to wait.
bool Batch::MakeReady(MirroredVerb& mirrored, const PoolChain& chain) {
  mirrored.EndHops(chain);
  if (mirrored.state != MirroredVerb::State::kOpen) return false;
  if (!connections_->views_->closed_to_new() || mirrored.under_way) return BeginCopy(mirrored);
  // Those that are under way may have to copy before they can end.
  if (mirrored.copy_buffer >= 0) {
    connections_->ReleaseCopyBuffer(mirrored);
    mirrored.phase = mirrored.behind_copy;
  }
  return false;
}

// Posts the next verb of this one if it can be posted now.
void Batch::PostNext(MirroredVerb& mirrored, Round* round) {
  using State = MirroredVerb::State;
  using Phase = MirroredVerb::Phase;
  const bool is_cas = mirrored.is_cas(), may_post_to_closed = Mutated(Mutation::kPostsToClosed);
  const PoolChain* const chain = connections_->views_->Find(mirrored.pool);
  if (chain == nullptr) {
    if (waits_since_ns_ == 0) connections_->views_->NoteNewer();
    round->left = true;
    return;
  }
  bool ready = !chain->closed || may_post_to_closed;
  if (ready && mirrored.since != chain->since) {
    connections_->ReleaseCopyBuffer(mirrored);
    mirrored.GoOnAlong(*chain);
  }
  ready = ready && (!is_cas || MakeReady(mirrored, *chain));
  if (mirrored.state != State::kOpen) return EndVerb(mirrored, mirrored.state);
  const bool copies = mirrored.phase == Phase::kCopyRead || mirrored.phase == Phase::kCopyWrite;
  const NodeId pool = (copies ? mirrored.copy.address.node : mirrored.pool) & 0xff;
  const PoolChain* const to = copies ? connections_->views_->Find(pool) : chain;
  ready = ready && !round->held[pool] && (is_cas || mirrored.verb.opcode != Opcode::kRead || !round->before[pool]);
  if (ready && to != nullptr && (!to->closed || may_post_to_closed)) {
    AimAlong(*to, &mirrored);
    Connections::Reached reached = Connections::Reached::kYes;
    for (const Replica& replica : std::span(mirrored.posted_at).first(mirrored.posted_count)) {
      if (reached == Connections::Reached::kYes) reached = connections_->ReachReplica(pool, replica);
    }
    if (reached == Connections::Reached::kNever) return EndVerb(mirrored, State::kLost);
    if (reached == Connections::Reached::kYes && PostHop(mirrored)) {
      const bool more_hops = mirrored.phase == Phase::kHop && mirrored.hop + 1 < chain->length;
      if (is_cas && (copies || more_hops)) round->before[mirrored.pool & 0xff] = true;
      return;
    }
    round->held[pool] = true;
  }
  round->left = true;
  if (is_cas) round->before[mirrored.pool & 0xff] = true;
}

bool Batch::PostRound() {
  Round round;
  const bool gives_up = Stale() || WaitsTooLong();
  for (MirroredVerb& mirrored : mirrored_) {
    if (mirrored.state != MirroredVerb::State::kOpen) continue;
    if (gives_up) {
      EndVerb(mirrored, MirroredVerb::State::kLost);
    } else {
      PostNext(mirrored, &round);
    }
  }
  if (--pending_ > 0) {
    ++connections_->stats_.round_trips;
    connections_->stats_.operation_round_trips += of_operation_ ? 1 : 0;
    return true;
  }
  if (round.left) {
    pending_ = 1;
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
  using State = MirroredVerb::State;
  using Phase = MirroredVerb::Phase;
  bool asked_lease = false, holds_lease = true, any_done = false, any_failed = false;
  // READs that were lost with their tail are asked again, all of them, so that they come in order.
  for (const Noted& noted : noted_) {
    if (outcome_ == Outcome::kOk || !FailedAt(noted.node)) continue;
    AddMirrored(noted.pool, {Opcode::kRead, noted.offset, noted.local}, Word::kAnyones, nullptr);
    --size_;
  }
  noted_.clear();
  for (MirroredVerb& mirrored : mirrored_) {
    if (mirrored.state != State::kPosted) continue;
    const auto failed_at = [this](const Replica& replica) { return FailedAt(replica.node); };
    const bool failed = outcome_ != Outcome::kOk &&
                        std::ranges::any_of(std::span(mirrored.posted_at).first(mirrored.posted_count), failed_at);
    (failed ? any_failed : any_done) = true;
    if (!mirrored.is_cas()) {
      mirrored.state = failed ? State::kOpen : State::kDone;
      continue;
    }
    mirrored.state = State::kOpen;
    const bool hops = mirrored.phase == Phase::kHop;
    if (failed) {
      if (hops) mirrored.HopFailed();
      continue;
    }
    if (mirrored.numbers == nullptr) {
      if (!asked_lease) holds_lease = connections_->lease_ == nullptr || connections_->lease_->MayPost();
      asked_lease = true;
      if (!holds_lease && !Mutated(Mutation::kHopsWithoutLease)) {
        if (hops) mirrored.HopFailed();
        continue;
      }
    } else if (hops && mirrored.numbers[mirrored.hop] != connections_->views_->number() &&
               !Mutated(Mutation::kNumberUnchecked)) {
      connections_->views_->NoteNewer();
      EndVerb(mirrored, State::kLost);
      continue;
    }
    switch (mirrored.phase) {
      case Phase::kHop:
        mirrored.Hopped(mirrored.posted_at[0], connections_->views_->Find(mirrored.pool)->length);
        break;
      case Phase::kPush:
      case Phase::kPushAgain: mirrored.Pushed(); break;
      case Phase::kReadTail: mirrored.ReadTail(); break;
      case Phase::kCopyRead:
      case Phase::kCopyWrite: Copied(mirrored); break;
    }
    if (mirrored.state != State::kOpen) EndVerb(mirrored, mirrored.state);
  }
  // Rounds that only fail, or are discarded, count as waiting: without a lease no round does anything else.
  outcome_ = Outcome::kOk;
  if (any_done) waits_since_ns_ = 0;
  if (any_failed && waits_since_ns_ == 0) waits_since_ns_ = connections_->clock_.NowNs();
}

bool Batch::GoOn() {
  TakeRound();
  return PostRound();
}

bool Batch::awaits_round() const {
  const auto is_posted = [](const MirroredVerb& mirrored) { return mirrored.state == MirroredVerb::State::kPosted; };
  return std::ranges::any_of(mirrored_, is_posted);
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
  noted_.clear();
  in_rounds_ = false;
  waits_since_ns_ = 0;
  pending_ = 0;
}

// ---- all batches

void Connections::SetViews(Views& views, krcore::PostGate* lease) {
  views_ = &views;
  chains_ = &views.chains();
  view_number_ = views.number();
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

int Connections::TakeCopyBuffer() {
  if (copy_region_ == nullptr) {
    auto region = node_.CreateRegion({.length = kCopyBuffers * kCopyBytes});
    if (!region.ok()) return -1;
    copy_region_ = *std::move(region);
  }
  for (uint32_t i = 0; i < kCopyBuffers; ++i) {
    if (copying_[i]) continue;
    copying_[i] = true;
    return static_cast<int>(i);
  }
  return -1;
}

void Connections::ReleaseCopyBuffer(MirroredVerb& mirrored) {
  if (mirrored.copy_buffer >= 0) copying_[static_cast<uint32_t>(std::exchange(mirrored.copy_buffer, -1))] = false;
}

krcore::Sge Connections::CopyBuffer(int buffer, uint64_t bytes) const {
  const auto at = reinterpret_cast<uint64_t>(copy_region_->bytes().data()) + static_cast<uint64_t>(buffer) * kCopyBytes;
  return {at, static_cast<uint32_t>(bytes), copy_region_->lkey()};
}

bool Connections::IdleForViews(const Views& views) {
  // What is not posted now must not wait for a lease that is renewed only in another view.
  if (lease_ != nullptr && !lease_->MayPost()) DiscardUnposted();
  // Rounds that have ended count in this view. Not to take them now would post them again first, for ever without a
  // lease.
  for (Batch* const batch : going_on_) {
    if (batch->awaits_round()) batch->TakeRound();
  }
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
  const bool dead = IsDead(node_, replica);
  const PoolChain* const chain = views_->Find(pool);
  const bool is_last = chain == nullptr || (chain->length < 2 && replica != chain->learner);
  const bool silent = !is_last && peer.silences == kSilencesToSuspect && now_ns - peer.silent_ns < views_->lease_ns();
  if (!dead && !silent) {
    if (now_ns < peer.retry_at_ns) return Reached::kLater;
    const Status ensured = EnsureNode(replica.node, {now_ns + kMinTryNs});
    if (ensured.ok() && IsStill(replica)) return Reached::kYes;
    if (ensured == StatusCode::kQueueFull) return Reached::kLater;  // it was not tried: verbs are under way
  }
  // The last replica is waited for while it lives: the death of another may have broken the queue to it. If none lives,
  // the batch waits until the record has been looked at.
  return views_->Suspect(pool, replica) || !dead ? Reached::kLater : Reached::kNever;
}

bool Connections::HasPool(NodeId pool) {
  if (!mirrored() || views_->Find(pool) != nullptr) return true;
  views_->NoteNewer();
  return false;
}

Status Connections::EnsurePool(NodeId pool, krcore::Deadline deadline) {
  const PoolChain* const chain = views_->Find(pool);
  if (chain == nullptr) return {StatusCode::kCorrupt, "the store has no pool " + std::to_string(pool)};
  for (const Replica& replica : chain->all()) {
    if (EnsureNode(replica.node, deadline).ok()) (void)IsStill(replica);
  }
  return Status::Ok();
}

// Its successor can only have been connected if it is dead by now.
bool Connections::IsStill(const Replica& replica) {
  if (!IsDead(node_, replica)) return true;
  peers_[replica.node].connected = false;
  return false;
}

}  // namespace kvs
