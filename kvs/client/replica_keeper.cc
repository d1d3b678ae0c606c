#include "kvs/replica_keeper.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvs/client/client_core.h"
#include "kvs/client/store_core.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/remote_pool.h"

namespace kvs {
namespace {

constexpr int64_t kLookNs = 100'000'000;      // the time between two looks at the configuration
constexpr int64_t kPatienceNs = 100'000'000;  // for one look
constexpr int64_t kPollNs = 20'000;           // how soon to poll again if nothing has come
constexpr int64_t kBringMs = 600'000;         // after which bringing begins anew

class ReplicaKeeperCore final : public ReplicaKeeper {
 public:
  ReplicaKeeperCore(StoreCore& store, krcore::Node& memory_node, krcore::Region& region)
      : store_(store), region_(region), self_{memory_node.id(), memory_node.incarnation()} {}

  int64_t Step() override {
    if (client_) return GoOnBringing();
    const int64_t now_ns = store_.clock().NowNs();
    if (now_ns < look_at_ns_) return look_at_ns_ - now_ns;
    look_at_ns_ = now_ns + kLookNs;
    Look();
    return client_ ? 0 : std::max<int64_t>(look_at_ns_ - store_.clock().NowNs(), kPollNs);
  }
  const ReplicaKeeperStats& stats() const override { return stats_; }

 private:
  krcore::Deadline Soon() const { return krcore::Deadline::After(store_.clock(), kPatienceNs); }
  void Look();
  bool Prepare(const PoolView& view);
  void Begin(krcore::NodeId pool);
  int64_t GoOnBringing();

  StoreCore& store_;
  krcore::Region& region_;
  const Replica self_;
  int64_t look_at_ns_ = 0;
  ReplicaKeeperStats stats_;

  // While it brings its memory up to date. The task comes last, so that it is destroyed before its client.
  ReplicatorReport report_;
  std::unique_ptr<Client> client_;
  std::optional<Task<Status>> task_;
};

void ReplicaKeeperCore::Look() {
  const Result<Configuration> read = ReadConfiguration(store_.node(), Soon());
  if (!read.ok()) return;
  const bool was_used = stats_.state == ReplicaState::kMember || stats_.state == ReplicaState::kRemoved;
  stats_.is_home = false;
  for (const PoolView& view : read->pools) {
    if (view.learner == self_) {  // of an earlier process's attempt, or this one's
      stats_.pool = view.pool;
      return Begin(view.pool);
    }
    if (std::ranges::find(view.chain, self_) == view.chain.end()) continue;
    stats_.state = ReplicaState::kMember;
    stats_.pool = view.pool;
    stats_.is_home = view.pool == read->home && view.chain.front() == self_;
    return;
  }
  if (was_used) {
    stats_.state = ReplicaState::kRemoved;
    return;
  }
  stats_.state = ReplicaState::kSpare;
  stats_.pool = 0;
  if (!read->active) return;
  for (const PoolView& view : read->pools) {
    if (view.chain.size() >= read->replicas || view.learner.exists() || view.bytes > region_.bytes().size()) continue;
    if (Prepare(view)) return Begin(view.pool);
  }
}

// Fills the memory, so that none of it is taken for a copy.
bool ReplicaKeeperCore::Prepare(const PoolView& view) {
  const auto pool = RemotePool::Create(store_.node(), sizeof(Superblock));
  Superblock super;
  if (!pool.ok() || !(*pool)->Connect(view.chain.back().node, Soon(), &super).ok()) return false;
  FormatLearner(region_.bytes(), super, self_.node);
  return true;
}

void ReplicaKeeperCore::Begin(krcore::NodeId pool) {
  auto client = store_.NewClient({.max_in_flight = 4, .address_cache_entries = 0});
  if (!client.ok()) return;
  client_ = *std::move(client);
  stats_.state = ReplicaState::kLearner;
  stats_.pool = pool;
  task_ = static_cast<ClientCore&>(*client_).BringReplica(pool, self_, kBringMs, &report_);
  task_->Start();
}

int64_t ReplicaKeeperCore::GoOnBringing() {
  const size_t completions = client_->Poll();
  stats_.passes = report_.passes;
  stats_.words_pushed = report_.words_pushed;
  stats_.tables = report_.tables;
  if (!task_->done()) return completions > 0 ? 0 : kPollNs;
  const Status brought = task_->Take();
  task_.reset();
  client_.reset();
  stats_.state = brought.ok() ? ReplicaState::kMember : ReplicaState::kSpare;
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
  }
  return "";
}

Result<std::unique_ptr<ReplicaKeeper>> ReplicaKeeper::Create(Store& store, krcore::Node& memory_node,
                                                             krcore::Region& region) {
  auto& core = static_cast<StoreCore&>(store);
  if (!core.shape().mirrored) return Status(StatusCode::kBadState, "the store's pools are not mirrored");
  return std::unique_ptr<ReplicaKeeper>(std::make_unique<ReplicaKeeperCore>(core, memory_node, region));
}

}  // namespace kvs
