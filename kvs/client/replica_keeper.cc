#include "kvs/replica_keeper.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kvs/client/client_core.h"
#include "kvs/client/store_core.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/remote_pool.h"

namespace kvs {
namespace {

constexpr int64_t kBetweenLooksNs = 100'000'000;  // at the configuration
constexpr int64_t kReplicaLookPatienceNs = 100'000'000;
constexpr int64_t kReplicaPollNs = 20'000;  // how soon to poll again if nothing has come
constexpr int64_t kBringMs = 86'400'000;    // after which bringing begins anew

class ReplicaKeeperCore final : public ReplicaKeeper {
 public:
  ReplicaKeeperCore(StoreCore& store, krcore::Node& memory_node, krcore::Region& region,
                    const ReplicaKeeperOptions& options)
      : store_(store),
        region_(region),
        options_(options),
        self_{memory_node.id(), memory_node.incarnation()},
        told_{.replica = self_, .bytes = region.bytes().size(), .domain = Hasher({})(options.domain).h1} {
    report_.joined = IsFormatted(region.bytes());
  }

  int64_t Step() override {
    const int64_t next_ns = client_ ? GoOnWithTask() : LookIfDue();
    stats_.is_client = client_ != nullptr;
    return next_ns;
  }
  const ReplicaKeeperStats& stats() const override { return stats_; }

 private:
  krcore::Deadline Soon() const { return krcore::Deadline::After(store_.clock(), kReplicaLookPatienceNs); }
  int64_t LookIfDue() {
    const int64_t now_ns = store_.clock().NowNs();
    if (now_ns < look_at_ns_) return look_at_ns_ - now_ns;
    look_at_ns_ = now_ns + kBetweenLooksNs;
    Look();
    return client_ ? 0 : std::max<int64_t>(look_at_ns_ - store_.clock().NowNs(), kReplicaPollNs);
  }
  void Look();
  void NotePlace(const Configuration& configuration, const PoolView* view);
  const PoolView* FindLacking(const Configuration& configuration) const;
  void LookAfterPool(Configuration configuration, uint64_t version, const PoolView& view);
  void MakePool(Configuration configuration, uint64_t version);
  bool Set(const Configuration& configuration, uint64_t version);
  bool Prepare(const PoolView& view);
  bool MakeClient();
  void Begin(const Configuration& configuration, const PoolView& view);
  void Enter(krcore::NodeId pool);
  int64_t GoOnWithTask();
  void BecomeSpare() {
    stats_.state = ReplicaState::kSpare;
    stats_.pool = stats_.replicas = 0;
  }

  StoreCore& store_;
  krcore::Region& region_;
  const ReplicaKeeperOptions options_;
  const Replica self_;
  const MemoryNode told_;  // of this node, to the others
  int64_t look_at_ns_ = 0;
  ReplicaKeeperStats stats_;

  bool was_used_ = false;  // others may have used the memory
  bool entered_ = false;   // its pool is in the member list
  uint64_t pending_ = 0;   // the view that was pending at the last look

  // While it brings its memory up to date, or enters its pool. The client comes last: it ends the task.
  ReplicatorReport report_;
  std::optional<Task<Status>> task_;
  std::unique_ptr<ClientCore> client_;
};

void ReplicaKeeperCore::Look() {
  uint64_t version = 0;
  const Result<Configuration> read = ReadConfiguration(store_.node(), Soon(), &version);
  if (!read.ok()) return;
  // A change of views of which no client knows, because who began it is dead or has no client, goes on with one.
  const bool stays = !read->active && std::exchange(pending_, read->number) == read->number;
  if (stays && MakeClient()) client_.reset();
  if (stays) return;
  const PoolView* const view = read->PoolOf(self_);
  NotePlace(*read, view);
  if (stats_.state == ReplicaState::kRemoved) return;
  // What is dead and not used is noticed by nobody else, nor is what is not needed any more.
  const auto is_dead = [this](const Replica& replica) { return IsDead(store_.node(), replica); };
  Configuration next = *read;
  if (read->active && (next.Enter(told_) || next.RemoveDead(is_dead) || next.RemoveExcess())) {
    (void)Set(next, version);
    return;
  }
  if (view != nullptr && view->learner == self_) return Begin(*read, *view);  // an attempt has timed out
  if (!read->active || stats_.state == ReplicaState::kDrained) return;
  if (view != nullptr) {
    if (view->chain.front() == self_) LookAfterPool(*read, version, *view);
  } else if (const PoolView* const lacking = FindLacking(*read)) {
    if (Prepare(*lacking)) Begin(*read, *lacking);
  } else {
    MakePool(*read, version);
  }
}

// `view`: of this replica or learner; null: it is none.
void ReplicaKeeperCore::NotePlace(const Configuration& configuration, const PoolView* view) {
  was_used_ |= report_.joined;
  stats_.is_home = false;
  stats_.wanted = configuration.replicas;
  if (view == nullptr) {
    BecomeSpare();
    if (configuration.IsLeaving(self_)) {
      stats_.state = ReplicaState::kDrained;
    } else if (was_used_) {
      stats_.state = ReplicaState::kRemoved;
    }
    return;
  }
  was_used_ |= view->in_use || view->chain.size() > 1;
  stats_.state = view->learner == self_ ? ReplicaState::kLearner : ReplicaState::kMember;
  stats_.pool = view->pool;
  stats_.replicas = static_cast<uint32_t>(configuration.Staying(*view));
  stats_.is_home = view->pool == configuration.home && view->chain.front() == self_;
}

// Returns a pool that lacks a replica for which there is room here. Those with keys come first, then those with too few
// replicas, then those that are in other failure domains only.
const PoolView* ReplicaKeeperCore::FindLacking(const Configuration& configuration) const {
  const auto in_domain = [&](const Replica& replica) {
    const MemoryNode* const has = configuration.Find(replica);
    return has != nullptr && has->domain == told_.domain;
  };
  const PoolView* best = nullptr;
  int best_merit = -1;
  for (const PoolView& view : configuration.pools) {
    if (view.learner.exists() || view.bytes > told_.bytes || !configuration.Lacks(view, self_)) continue;
    const bool short_of = configuration.Staying(view) < configuration.replicas;
    const int merit = (view.in_use ? 4 : 0) + (short_of ? 2 : 0) + (std::ranges::any_of(view.chain, in_domain) ? 0 : 1);
    if (merit > best_merit) {
      best_merit = merit;
      best = &view;
    }
  }
  return best;
}

// At its pool's head. A pool that has got all its replicas comes into use. One that has not had them yet is given up if
// another one, which has keys, lacks a replica.
void ReplicaKeeperCore::LookAfterPool(Configuration configuration, uint64_t version, const PoolView& view) {
  const krcore::NodeId pool = view.pool;
  if (view.in_use) {
    if (!entered_) Enter(pool);
    return;
  }
  if (configuration.Staying(view) >= configuration.replicas) {
    configuration.Find(pool)->in_use = true;
    (void)Set(configuration, version);
    return;
  }
  const PoolView* const lacking = FindLacking(configuration);
  if (lacking == nullptr || !lacking->in_use) return;
  if (configuration.RemovePool(pool) && Set(configuration, version)) BecomeSpare();
}

// Makes a pool of this memory. It comes into use when others have joined it.
void ReplicaKeeperCore::MakePool(Configuration configuration, uint64_t version) {
  if (!configuration.AddPool(region_.bytes().size(), self_)) return;
  std::memset(region_.bytes().data(), 0, region_.bytes().size());
  const Status formatted = FormatPool(region_.bytes(), self_.node, store_.shape().chunk_bytes,
                                      configuration.pools.back().pool, self_.incarnation);
  if (formatted.ok()) (void)Set(configuration, version);
}

bool ReplicaKeeperCore::Set(const Configuration& configuration, uint64_t version) {
  look_at_ns_ = 0;
  return store_.node().CompareAndSetRecord(kConfigurationRecord, version, Encode(configuration), Soon()).ok();
}

// Fills the memory, so that none of it is taken for a copy. Any replica tells what its pool looks like: one of them may
// be cut off, which nobody notices who does not use the pool.
bool ReplicaKeeperCore::Prepare(const PoolView& view) {
  const auto pool = RemotePool::Create(store_.node(), sizeof(Superblock));
  Superblock super;
  const auto tells = [&](const Replica& replica) { return (*pool)->Connect(replica, Soon(), &super).ok(); };
  if (!pool.ok() || std::ranges::none_of(view.chain, tells)) return false;
  FormatLearner(region_.bytes(), super, self_.node, self_.incarnation);
  return true;
}

bool ReplicaKeeperCore::MakeClient() {
  auto client = store_.NewPolledClient({.max_in_flight = 4, .address_cache_entries = 0});
  if (!client.ok()) return false;
  client_ = *std::move(client);
  return true;
}

void ReplicaKeeperCore::Enter(krcore::NodeId pool) {
  if (!MakeClient()) return;
  task_ = client_->EnterPool(pool);
  task_->Start();
}

void ReplicaKeeperCore::Begin(const Configuration& configuration, const PoolView& view) {
  if (!MakeClient()) return;
  stats_.state = ReplicaState::kLearner;
  stats_.pool = view.pool;
  stats_.replicas = static_cast<uint32_t>(configuration.Staying(view));
  task_ = client_->BringReplica(view.pool, self_, kBringMs, options_.copy_bytes_per_s, &report_);
  task_->Start();
}

int64_t ReplicaKeeperCore::GoOnWithTask() {
  const size_t completions = client_->Poll();
  stats_.passes = report_.passes;
  stats_.words_pushed = report_.words_pushed;
  stats_.tables = report_.tables;
  stats_.all_tables = report_.all_tables;
  if (!task_->done()) return completions > 0 ? 0 : kReplicaPollNs;
  if (!client_->MayEnd()) return kReplicaPollNs;
  const Status done = task_->Take();
  task_.reset();
  client_.reset();
  if (stats_.state == ReplicaState::kMember) {
    entered_ = done.ok();
  } else if (done.ok()) {
    stats_.state = ReplicaState::kMember;
  } else {
    BecomeSpare();
  }
  look_at_ns_ = 0;
  return 0;
}

}  // namespace

std::string_view ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kSpare: return "spare";
    case ReplicaState::kLearner: return "learner";
    case ReplicaState::kMember: return "member";
    case ReplicaState::kRemoved: return "removed";
    case ReplicaState::kDrained: return "drained";
  }
  return "";
}

Result<std::unique_ptr<ReplicaKeeper>> ReplicaKeeper::Create(Store& store, krcore::Node& memory_node,
                                                             krcore::Region& region,
                                                             const ReplicaKeeperOptions& options) {
  auto& core = static_cast<StoreCore&>(store);
  if (!core.shape().mirrored) return Status(StatusCode::kBadState, "the store's pools are not mirrored");
  return std::unique_ptr<ReplicaKeeper>(std::make_unique<ReplicaKeeperCore>(core, memory_node, region, options));
}

}  // namespace kvs
