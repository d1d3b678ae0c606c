#include "memnode/steward.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "cli/common_flags.h"
#include "cli/stop_signal.h"
#include "krcore/resources.h"
#include "kvs/client.h"
#include "kvs/housekeeper.h"

namespace memnode {
namespace {

// How long an attempt to reach the store may take, and how long to wait before the next one. Where pools are mirrored,
// a client waits for another view if one is on its way.
constexpr int64_t kAttemptMs = 100, kMirroredAttemptMs = 1'000;
constexpr int64_t kAgainMs = 1'000, kMirroredAgainMs = 200;
// If the next step is due sooner than this, the steward's client waits for others.
constexpr int64_t kSoonNs = 100'000;

}  // namespace

Steward::Steward(const Options& options, MemoryServer& server) : options_(options), server_(server) {
  auto thread = krcore::StartServiceThread("steward", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else if (server.mirrored()) {
    LOG(ERROR) << "this memory node's memory stays unused: " << thread.status().message();
  } else {
    LOG(WARNING) << "no thread looks after the store, so memory that short-lived clients leave becomes free later: "
                 << thread.status().message();
  }
}

Steward::~Steward() { Join(); }

void Steward::Join() {
  if (thread_.joinable()) thread_.join();
}

void Steward::Run() {
  if (const auto store = OpenStore(); store != nullptr) LookAfter(*store);
  cpu_ns_ = krcore::ThreadCpuNs(pthread_self());
}

void Steward::Tell(const kvs::ReplicaKeeperStats& stats) {
  const bool changed = !told_any_ || stats.state != told_.state || stats.pool != told_.pool;
  told_any_ = true;
  if (!changed && stats.state == kvs::ReplicaState::kLearner && stats.all_tables > 0) {
    LOG_EVERY_T(INFO, 1) << "copying pool " << stats.pool << ": " << stats.tables << " of " << stats.all_tables
                         << " tables";
  }
  {
    const std::lock_guard lock(mutex_);
    told_ = stats;
  }
  if (!changed) return;
  switch (stats.state) {
    case kvs::ReplicaState::kSpare: LOG(INFO) << "a spare"; break;
    case kvs::ReplicaState::kLearner: LOG(INFO) << "copying pool " << stats.pool; break;
    case kvs::ReplicaState::kMember:
      LOG(INFO) << "a replica of pool " << stats.pool << " (" << stats.words_pushed << " words copied)";
      break;
    case kvs::ReplicaState::kRemoved:
      LOG(WARNING) << "the store goes on without what this memory node has; it joins again, with fresh memory";
      break;
    case kvs::ReplicaState::kDrained: LOG(INFO) << "drained: this memory node has no replica, and gets none"; break;
  }
}

kvs::ReplicaKeeperStats Steward::replica() const {
  const std::lock_guard lock(mutex_);
  return told_;
}

std::unique_ptr<kvs::Store> Steward::OpenStore() {
  const bool mirrored = server_.mirrored();
  const int64_t attempt_ms = mirrored ? kMirroredAttemptMs : kAttemptMs;
  // The store's clock is the host's, not one that jumps when a stop is requested: it decides whose lease is over.
  kvs::StoreOptions open{
      .control_plane = options_.control_plane, .operation_timeout_ms = attempt_ms, .open_timeout_ms = attempt_ms};
  cli::SetFabric(&open);
  for (;;) {
    auto store = kvs::Store::Open(open);
    if (cli::StopSignal::Requested()) return nullptr;
    if (store.ok()) return *std::move(store);
    LOG_FIRST_N(WARNING, 1) << "cannot reach the store yet to look after it: " << store.status().ToString();
    if (cli::StopSignal::WaitFor(mirrored ? kMirroredAgainMs : kAgainMs)) return nullptr;
  }
}

void Steward::LookAfter(kvs::Store& store) {
  std::unique_ptr<kvs::ReplicaKeeper> keeper;
  std::unique_ptr<kvs::Housekeeper> housekeeper;
  for (;;) {
    // Where there is no memory for one of them, it is tried again.
    int64_t next_ns = kAgainMs * 1'000'000;
    if (server_.mirrored() && keeper == nullptr) {
      auto created =
          kvs::ReplicaKeeper::Create(store, server_.fabric(), *server_.pool(),
                                     {.domain = options_.domain, .copy_bytes_per_s = options_.copy_bytes_per_s});
      if (created.ok()) keeper = *std::move(created);
    }
    // To go on with a view of which nobody knows the keeper begins a client, which waits for the view. The view may
    // wait for the housekeeper's client.
    const bool sweeps = housekeeper != nullptr && housekeeper->stats().is_client;
    if (keeper != nullptr && (keeper->stats().is_client || !sweeps)) {
      next_ns = keeper->Step();
      Tell(keeper->stats());
      if (keeper->stats().state == kvs::ReplicaState::kRemoved) return;
    }
    const bool is_home = keeper != nullptr ? keeper->stats().is_home : server_.is_home();
    if (!is_home) {
      housekeeper.reset();
    } else if (housekeeper == nullptr) {
      auto created = kvs::Housekeeper::Create(store);
      if (created.ok()) housekeeper = *std::move(created);
    }
    if (housekeeper != nullptr) {
      next_ns = std::min(next_ns, housekeeper->Step());
      chunks_freed_ = housekeeper->stats().chunks_freed;
      expired_ = housekeeper->stats().expired;
    }
    if (cli::StopSignal::Requested()) return;
    if (next_ns < kSoonNs) {
      // Its client waits for others, which need the CPU. A wait for the stop signal takes a millisecond at least.
      std::this_thread::sleep_for(std::chrono::nanoseconds(next_ns));
    } else if (cli::StopSignal::WaitFor(next_ns / 1'000'000 + 1)) {
      return;
    }
  }
}

}  // namespace memnode
