#include "kvs/memory/views.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kvs/layout/pool.h"
#include "kvs/memory/connections.h"
#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

// The time between two looks at a change of views that is under way.
constexpr int64_t kViewLookNs = 100'000;
// How long a replica of the home, or the fabric, has to answer.
constexpr int64_t kPatienceNs = 100'000'000;
// How often to look whether a replica of a pool of which none lives has returned.
constexpr int64_t kReturnLookNs = 10'000'000;

}  // namespace

Views::Views(krcore::Node& node, int64_t lease_ns, uint64_t table_bytes)
    : node_(node), clock_(node.clock()), lease_ns_(lease_ns), table_bytes_(table_bytes) {}

void Views::Detach(Connections& connections) { std::erase(connections_, &connections); }

Deadline Views::Soon() const { return {clock_.NowNs() + kPatienceNs}; }

Status Views::Open(Deadline deadline) {
  looks_ = true;
  for (;;) {
    next_ns_ = INT64_MIN;
    GoOn();
    if (!changing()) return Status::Ok();
    if (deadline.Passed(clock_)) return {StatusCode::kTimeout, "the store's configuration does not become active"};
    const int64_t until_ns = clock_.NowNs() + kViewLookNs;
    for (uint32_t spins = 0; clock_.NowNs() < until_ns; ++spins) clock_.Relax(spins);
  }
}

bool Views::ChainChangesAt(krcore::NodeId node) const {
  return std::ranges::any_of(used_.pools, [&](const PoolView& view) {
    const PoolChain& chain = chains_[view.pool];
    const auto is_there = [node](const Replica& replica) { return replica.node == node; };
    return chain.changes && (is_there(chain.learner) || std::ranges::any_of(chain.all(), is_there));
  });
}

bool Views::Suspect(krcore::NodeId pool, const Replica& replica) {
  PoolChain& chain = chains_[pool & 0xff];
  const auto is_dead = [this](const Replica& each) { return IsDead(node_, each); };
  if (replica != chain.learner && (chain.length < 2 || std::ranges::all_of(chain.all(), is_dead))) {
    if (clock_.NowNs() < looked_ns_ + kReturnLookNs) return false;
    NoteNewer();
    return true;
  }
  chain.closed = true;
  if (std::ranges::find(suspects_, replica) == suspects_.end()) suspects_.push_back(replica);
  next_ns_ = INT64_MIN;
  return true;
}

bool Views::Look() {
  looked_ns_ = clock_.NowNs();
  for (;;) {
    Result<Configuration> read = ReadConfiguration(node_, Soon(), &version_);
    if (!read.ok()) return false;
    latest_ = *std::move(read);
    if (suspects_.empty()) return true;
    Configuration next = latest_;
    // The dead first: the last replica does not leave, and must not be a dead one if another only seems to be.
    const auto is_dead = [this](const Replica& replica) { return IsDead(node_, replica); };
    bool any = next.RemoveDead(is_dead);
    for (const Replica& suspect : suspects_) any |= !is_dead(suspect) && next.Remove(suspect);
    if (!any) break;
    const Status set = node_.CompareAndSetRecord(kConfigurationRecord, version_, Encode(next), Soon());
    if (set == StatusCode::kExists) continue;
    if (!set.ok()) return false;
  }
  suspects_.clear();
  return true;
}

Status Views::Change(const std::function<bool(Configuration&)>& change) {
  Result<Configuration> read = ReadConfiguration(node_, Soon(), &version_);
  if (!read.ok()) return read.status();
  if (!read->active) {
    NoteNewer();  // perhaps nobody else knows of it
    return {StatusCode::kExists, "another change of the store's replicas is under way"};
  }
  if (!change(*read)) return StatusCode::kBadState;
  const Status set = node_.CompareAndSetRecord(kConfigurationRecord, version_, Encode(*read), Soon());
  if (set.ok()) NoteNewer();
  return set;
}

// [View 1 to 4]
void Views::GoOn() {
  if (clock_.NowNs() < next_ns_) return;
  looks_ = true;
  next_ns_ = clock_.NowNs() + kViewLookNs;
  if (!Look()) return;
  CloseChanging();
  next_ns_ = clock_.NowNs() + kViewLookNs;
  if (latest_.active) {
    if (Idle()) Use();
    return;
  }
  if (written_ != latest_.number) {
    if (!WriteNumber()) return;
    written_ = latest_.number;
    written_ns_ = clock_.NowNs();
  }
  const bool waits = !Idle() && !Mutated(Mutation::kAcknowledgedEarly);
  if (client_ && acknowledged_ != latest_.number && !waits) {
    if (!Acknowledge()) return;
    acknowledged_ = latest_.number;
  }
  const bool lapsed = clock_.NowNs() - written_ns_ > lease_ns_ + lease_ns_ / 2;
  Configuration next = latest_;
  next.active = true;
  next.promoted = krcore::kNoNode;
  if (latest_.promoted == krcore::kNoNode) {
    if (lapsed || AllHaveAcknowledged()) Set(next);
    return;
  }
  const Replica& promoted = latest_.Find(latest_.promoted)->chain.back();
  if (promoted != brought_) {
    if (IsDead(node_, promoted)) suspects_.push_back(promoted);
    return;
  }
  if (!lapsed && !AllHaveAcknowledged()) return;
  if (lapsed || !(valid_(entries_) || Mutated(Mutation::kPromotionUnchecked))) {
    next = latest_;
    (void)next.Demote(latest_.promoted);
  }
  Set(next);
}

void Views::Set(const Configuration& next) {
  const Status set = node_.CompareAndSetRecord(kConfigurationRecord, version_, Encode(next), Soon());
  if (set.ok() || set == StatusCode::kExists) next_ns_ = INT64_MIN;  // look at it
}

// A pool that loses a replica is closed at once. Where one joins, no CAS begins, and those under way go on; when all of
// these have ended, the pool is closed, too. If more has changed than one replica that joins, because this client has
// missed a view, the pool is closed at once, and yet no CAS begins: what that names might lack in the new replica. Nor
// does a CAS begin where a learner joins a pool that this client does not have, or is promoted in it.
void Views::CloseChanging() {
  closed_to_new_ = false;
  bool shrinks = false;
  for (const PoolView& view : latest_.pools) {
    PoolChain& chain = chains_[view.pool];
    std::vector<Replica> grown(chain.replicas.begin(), chain.replicas.begin() + chain.length);
    const bool same = grown == view.chain;
    if (chain.learner.exists()) grown.push_back(chain.learner);
    chain.changes = !same || view.learner != chain.learner;
    const bool joins = chain.length > 0 && chain.changes &&
                       ((same && !chain.learner.exists()) || (grown == view.chain && grown.size() > chain.length));
    chain.closed = chain.changes && !joins;
    const auto is_new = [&grown](const Replica& replica) {
      return replica.exists() && std::ranges::find(grown, replica) == grown.end();
    };
    const bool missed = chain.length == 0 ? view.learner.exists() || latest_.promoted == view.pool
                                          : is_new(view.learner) || std::ranges::any_of(view.chain, is_new);
    closed_to_new_ |= joins || missed;
    shrinks |= chain.length > 0 && chain.closed;
  }
  // One that was given up before it came into use. What is under way there has to end first.
  for (const PoolView& view : used_.pools) {
    PoolChain& chain = chains_[view.pool];
    if (latest_.Find(view.pool) == nullptr) chain.closed = chain.changes = shrinks = true;
  }
  const auto has_none = [](const Connections* connections) { return connections->under_way() == 0; };
  // A CAS that waits for a pool that shrinks cannot end before the view. If the others use the view already, the lease
  // has ended: then no CAS can end before this client uses it, too. Such a CAS may go on where a pool has a learner: it
  // copies what its word names.
  const bool waits = !latest_.active && (!shrinks || latest_.promoted != krcore::kNoNode);
  if (closed_to_new_ && (!waits || std::ranges::all_of(connections_, has_none))) closed_ = latest_.number;
  for (PoolChain& chain : chains_) chain.closed |= chain.changes && closed_ == latest_.number;
}

bool Views::Idle() const {
  if (closed_to_new_ && closed_ != latest_.number) return false;
  return std::ranges::all_of(connections_,
                             [this](Connections* connections) { return connections->IdleForViews(*this); });
}

void Views::Use() {
  for (const PoolView& view : used_.pools) {
    if (latest_.Find(view.pool) == nullptr) chains_[view.pool] = {};
  }
  for (const PoolView& view : latest_.pools) {
    PoolChain& chain = chains_[view.pool];
    if (!chain.changes) continue;
    // A replica of which this client has not known gets what its operations wrote before.
    std::array<uint64_t, kMaxChain> replica_since{};
    for (size_t i = 0; i < view.chain.size(); ++i) {
      const auto known = std::ranges::find(chain.all(), view.chain[i]);
      replica_since[i] = known != chain.all().end()       ? chain.replica_since[known - chain.all().begin()]
                         : chain.learner == view.chain[i] ? chain.learner_since
                                                          : latest_.number;
    }
    chain.replica_since = replica_since;
    std::ranges::copy(view.chain, chain.replicas.begin());
    chain.length = static_cast<uint32_t>(view.chain.size());
    chain.bytes = view.bytes;
    chain.since = latest_.number;
    if (chain.learner != view.learner) chain.learner_since = latest_.number;
    chain.learner = view.learner;
    chain.closed = chain.changes = false;
  }
  heads_since_ = 0;
  for (const PoolChain& chain : chains_) heads_since_ = std::max(heads_since_, chain.replica_since[0]);
  closed_to_new_ = false;
  used_ = latest_;
  looks_ = false;
  for (Connections* connections : connections_) connections->SetViewNumber(used_.number);
  home_.reset();
}

// Visits a replica of the home by verbs of its own, which need no lease. A replica that does not answer twice is
// suspected, unless it is the last one.
bool Views::AtHome(const Replica& replica, const std::function<Status(RemotePool&)>& visit) {
  if (home_ == nullptr) {
    auto home = RemotePool::Create(node_, kMaxClients * sizeof(ClientEntry));
    if (!home.ok()) return false;
    home_ = *std::move(home);
  }
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = home_->Connect(replica, Soon());
    if (status.ok()) status = visit(*home_);
    if (status.ok()) return true;
  }
  const PoolView& view = *latest_.Find(latest_.home);
  if (view.chain.size() > 1 || replica == view.learner) suspects_.push_back(replica);
  return false;
}

std::vector<Replica> Views::HomeReplicas() const {
  const PoolView& view = *latest_.Find(latest_.home);
  std::vector<Replica> replicas = view.chain;
  if (view.learner.exists()) replicas.push_back(view.learner);
  return replicas;
}

// [View 2] The number only grows.
bool Views::WriteNumber() {
  if (Mutated(Mutation::kNumberNotWritten)) return true;
  return std::ranges::all_of(HomeReplicas(), [&](const Replica& replica) {
    return AtHome(replica, [&](RemotePool& home) {
      for (uint64_t expected = 0; expected < latest_.number;) {
        KRCORE_RETURN_IF_ERROR(home.CompareSwap(kConfigurationOffset, expected, latest_.number, Soon()));
        const uint64_t found = home.words()[0];
        if (found == expected) break;
        expected = found;
      }
      return Status::Ok();
    });
  });
}

// [View 3] The word is the client's own, so it is WRITTEN.
bool Views::Acknowledge() {
  return std::ranges::all_of(HomeReplicas(), [&](const Replica& replica) {
    return AtHome(replica,
                  [&](RemotePool& home) { return home.Write(AcknowledgedOffset(*client_), latest_.number, Soon()); });
  });
}

// [View 4] Any replica that stays will do, and the head does, because the number was written there before: a client
// that is not in the table there gets no lease without this number.
bool Views::AllHaveAcknowledged() {
  if (Mutated(Mutation::kViewActiveAtOnce)) return true;
  uint32_t used = 0;
  std::vector<uint64_t> acknowledged;
  const bool read = AtHome(latest_.Find(latest_.home)->chain.front(), [&](RemotePool& home) {
    KRCORE_RETURN_IF_ERROR(home.Read(kClientsUsedOffset, sizeof(uint64_t), Soon()));
    used = static_cast<uint32_t>(std::min<uint64_t>(home.words()[0], kMaxClients));
    entries_.resize(used);
    if (used == 0) return Status::Ok();
    KRCORE_RETURN_IF_ERROR(home.Read(AcknowledgedOffset(0), used * sizeof(uint64_t), Soon()));
    acknowledged.assign(home.words().begin(), home.words().begin() + used);
    KRCORE_RETURN_IF_ERROR(home.Read(EntryOffset(0), used * sizeof(ClientEntry), Soon()));
    std::memcpy(entries_.data(), home.words().data(), used * sizeof(ClientEntry));
    return Status::Ok();
  });
  for (uint32_t i = 0; read && i < used; ++i) {
    const OwnerWord owner(entries_[i].owner);
    const bool expelled = ClientWord(entries_[i].word).state() == ClientState::kExpelled;
    if (!owner.held() || expelled || acknowledged[i] >= latest_.number) continue;
    if (is_abandoned_ && is_abandoned_(i, owner)) continue;
    if (!node_.IsConfirmedDead(owner.node(), owner.incarnation())) return false;
  }
  return read;
}

}  // namespace kvs
