#include "kvs/memory/views.h"

#include <algorithm>
#include <span>
#include <string>
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
constexpr int64_t kLookNs = 100'000;
// How long a replica of the home, or the fabric, has to answer.
constexpr int64_t kPatienceNs = 100'000'000;

}  // namespace

Result<Configuration> ReadConfiguration(krcore::Node& node, Deadline deadline, uint64_t* version) {
  const auto record = node.ReadRecord(kConfigurationRecord, deadline);
  if (!record.ok()) return record.status();
  if (version != nullptr) *version = record->version;
  if (record->version == 0) return Status(StatusCode::kNotFound, "the store's pools are not mirrored");
  return DecodeConfiguration(record->value);
}

Views::Views(krcore::Node& node, int64_t lease_ns) : node_(node), clock_(node.clock()), lease_ns_(lease_ns) {}

void Views::Detach(Connections& connections) { std::erase(connections_, &connections); }

Deadline Views::Soon() const { return {clock_.NowNs() + kPatienceNs}; }

Status Views::Open(Deadline deadline) {
  looks_ = true;
  for (;;) {
    next_ns_ = INT64_MIN;
    GoOn();
    if (!changing()) return Status::Ok();
    if (deadline.Passed(clock_)) return {StatusCode::kTimeout, "the store's configuration does not become active"};
    const int64_t until_ns = clock_.NowNs() + kLookNs;
    for (uint32_t spins = 0; clock_.NowNs() < until_ns; ++spins) clock_.Relax(spins);
  }
}

bool Views::ChainChangesAt(krcore::NodeId node) const {
  return std::ranges::any_of(used_.pools, [&](const PoolView& view) {
    const PoolChain& chain = chains_[view.pool];
    const auto is_there = [node](const Replica& replica) { return replica.node == node; };
    return chain.changes && std::ranges::any_of(chain.all(), is_there);
  });
}

bool Views::Suspect(krcore::NodeId pool, const Replica& replica) {
  PoolChain& chain = chains_[pool & 0xff];
  if (chain.length < 2) return false;
  chain.closed = true;
  const auto is_known = [&](const Suspicion& known) { return known.replica == replica; };
  if (std::ranges::none_of(suspects_, is_known)) suspects_.push_back({pool, replica});
  next_ns_ = INT64_MIN;
  return true;
}

bool Views::Look() {
  for (;;) {
    Result<Configuration> read = ReadConfiguration(node_, Soon(), &version_);
    if (!read.ok()) return false;
    latest_ = *std::move(read);
    Configuration next = latest_;
    bool any = false;
    // The dead first: the last replica does not leave, and must not be a dead one if another only seems to be.
    for (const Suspicion& suspicion : suspects_) {
      const PoolView* const view = latest_.Find(suspicion.pool);
      for (const Replica& replica : view == nullptr ? std::vector<Replica>() : view->chain) {
        any |= node_.IsConfirmedDead(replica.node, replica.incarnation) && next.Remove(replica);
      }
    }
    for (const Suspicion& suspicion : suspects_) any |= next.Remove(suspicion.replica);
    if (!any) break;
    next.number = latest_.number + 1;
    const Status set = node_.CompareAndSetRecord(kConfigurationRecord, version_, Encode(next), Soon());
    if (set == StatusCode::kExists) continue;
    if (!set.ok()) return false;
    ++removals_;
  }
  suspects_.clear();
  return true;
}

// [View 1 to 4]
void Views::GoOn() {
  if (clock_.NowNs() < next_ns_) return;
  looks_ = true;
  next_ns_ = clock_.NowNs() + kLookNs;
  if (!Look()) return;
  CloseChanging();
  next_ns_ = clock_.NowNs() + kLookNs;
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
  if (!lapsed && !AllHaveAcknowledged()) return;
  Configuration active = latest_;
  active.active = true;
  const Status set = node_.CompareAndSetRecord(kConfigurationRecord, version_, Encode(active), Soon());
  if (set.ok() || set == StatusCode::kExists) next_ns_ = INT64_MIN;  // look at it
}

void Views::CloseChanging() {
  for (const PoolView& view : latest_.pools) {
    PoolChain& chain = chains_[view.pool];
    chain.changes = !std::ranges::equal(chain.all(), view.chain);
    chain.closed = chain.changes;
  }
}

bool Views::Idle() const {
  return std::ranges::all_of(connections_, [this](Connections* connections) { return connections->IdleForViews(*this); });
}

void Views::Use() {
  for (const PoolView& view : latest_.pools) {
    PoolChain& chain = chains_[view.pool];
    if (!chain.changes) continue;
    std::ranges::copy(view.chain, chain.replicas.begin());
    chain.length = static_cast<uint32_t>(view.chain.size());
    chain.bytes = view.bytes;
    chain.since = latest_.number;
    chain.closed = chain.changes = false;
  }
  if (used_.number != latest_.number) ++changes_;
  used_ = latest_;
  looks_ = false;
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
    status = home_->Connect(replica.node, Soon());
    if (status.ok()) status = visit(*home_);
    if (status.ok()) return true;
  }
  if (latest_.Find(latest_.home)->chain.size() > 1) suspects_.push_back({latest_.home, replica});
  return false;
}

// [View 2] The number only grows.
bool Views::WriteNumber() {
  if (Mutated(Mutation::kNumberNotWritten)) return true;
  const std::vector<Replica>& chain = latest_.Find(latest_.home)->chain;
  return std::ranges::all_of(chain, [&](const Replica& replica) {
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
  const std::vector<Replica>& chain = latest_.Find(latest_.home)->chain;
  return std::ranges::all_of(chain, [&](const Replica& replica) {
    return AtHome(replica, [&](RemotePool& home) {
      return home.Write(AcknowledgedOffset(*client_), latest_.number, Soon());
    });
  });
}

// [View 4] Any replica that stays will do, because the number was written there before: a client that is not in the
// table there gets no lease without this number.
bool Views::AllHaveAcknowledged() {
  if (Mutated(Mutation::kViewActiveAtOnce)) return true;
  uint32_t used = 0;
  std::vector<uint64_t> acknowledged, entries;
  const bool read = AtHome(latest_.Find(latest_.home)->chain.back(), [&](RemotePool& home) {
    const auto table = [&](uint64_t offset, uint64_t words, std::vector<uint64_t>* to) {
      KRCORE_RETURN_IF_ERROR(home.Read(offset, words * sizeof(uint64_t), Soon()));
      to->assign(home.words().begin(), home.words().begin() + static_cast<std::ptrdiff_t>(words));
      return Status::Ok();
    };
    KRCORE_RETURN_IF_ERROR(home.Read(kClientsUsedOffset, sizeof(uint64_t), Soon()));
    used = static_cast<uint32_t>(std::min<uint64_t>(home.words()[0], kMaxClients));
    if (used == 0) return Status::Ok();
    KRCORE_RETURN_IF_ERROR(table(EntryOffset(0), 2 * used, &entries));
    return table(AcknowledgedOffset(0), used, &acknowledged);
  });
  for (uint32_t i = 0; read && i < used; ++i) {
    const OwnerWord owner(entries[2 * i]);
    const bool expelled = ClientWord(entries[2 * i + 1]).state() == ClientState::kExpelled;
    if (!owner.held() || expelled || acknowledged[i] >= latest_.number) continue;
    if (!node_.IsConfirmedDead(owner.node(), owner.incarnation())) return false;
  }
  return read;
}

}  // namespace kvs
