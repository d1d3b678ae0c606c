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

constexpr int64_t kAttemptMs = 1'000;
constexpr int64_t kAgainMs = 200;
// If the next step is due sooner than this, a client waits for others.
constexpr int64_t kSoonNs = 100'000;

}  // namespace

Steward::Steward(MemoryServer& server) : server_(server) {
  auto thread = krcore::StartServiceThread("steward", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    LOG(ERROR) << "this memory node's memory stays unused: " << thread.status().message();
  }
}

Steward::~Steward() { Join(); }

void Steward::Join() {
  if (thread_.joinable()) thread_.join();
}

void Steward::Run() {
  Serve();
  cpu_ns_ = krcore::ThreadCpuNs(pthread_self());
}

void Steward::Tell(const kvs::ReplicaKeeperStats& stats) {
  const bool changed = !told_any_ || stats.state != told_.state || stats.pool != told_.pool;
  told_any_ = true;
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
      LOG(ERROR) << "this memory node was replaced while it did not answer, and serves nobody any more; to join again, "
                    "start it anew";
      break;
  }
}

kvs::ReplicaKeeperStats Steward::stats() const {
  const std::lock_guard lock(mutex_);
  return told_;
}

void Steward::Serve() {
  // The store's clock is the host's, not one that jumps when a stop is requested: it decides whose lease is over.
  kvs::StoreOptions open{.operation_timeout_ms = kAttemptMs, .open_timeout_ms = kAttemptMs};
  cli::SetFabric(&open);
  std::unique_ptr<kvs::Store> store;
  std::unique_ptr<kvs::ReplicaKeeper> keeper;     // destroyed before the store
  std::unique_ptr<kvs::Housekeeper> housekeeper;  // likewise
  while (keeper == nullptr) {
    krcore::Status status;
    if (auto opened = kvs::Store::Open(open); opened.ok()) {
      store = *std::move(opened);
      auto created = kvs::ReplicaKeeper::Create(*store, server_.fabric(), *server_.pool());
      status = created.status();
      if (status.ok()) keeper = *std::move(created);
    } else {
      status = opened.status();
    }
    if (!status.ok()) {
      LOG_FIRST_N(WARNING, 1) << "cannot reach the store yet: " << status.ToString();
    }
    if (cli::StopSignal::WaitFor(keeper == nullptr ? kAgainMs : 0)) return;
  }
  for (;;) {
    int64_t next_ns = keeper->Step();
    Tell(keeper->stats());
    if (!keeper->stats().is_home) {
      housekeeper.reset();
    } else if (housekeeper == nullptr) {
      if (auto created = kvs::Housekeeper::Create(*store); created.ok()) housekeeper = *std::move(created);
    }
    if (housekeeper != nullptr) {
      next_ns = std::min(next_ns, housekeeper->Step());
      chunks_freed_ = housekeeper->stats().chunks_freed;
    }
    if (cli::StopSignal::Requested()) return;
    if (next_ns < kSoonNs) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(next_ns));
    } else if (cli::StopSignal::WaitFor(next_ns / 1'000'000 + 1)) {
      return;
    }
  }
}

}  // namespace memnode
