#include "memnode/housekeeper.h"

#include <glog/logging.h>

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

// How long an attempt to reach the store may take, and how long to wait before the next one.
constexpr int64_t kAttemptMs = 100;
constexpr int64_t kAgainMs = 1'000;
// If the next step is due sooner than this, the housekeeper's client waits for others.
constexpr int64_t kSoonNs = 100'000;

}  // namespace

Housekeeper::Housekeeper(const Options& options) : options_(options) {
  auto thread = krcore::StartServiceThread("housekeeper", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    LOG(WARNING) << "the housekeeper did not start, so memory that short-lived clients leave becomes free later: "
                 << thread.status().message();
  }
}

Housekeeper::~Housekeeper() { Join(); }

void Housekeeper::Join() {
  if (thread_.joinable()) thread_.join();
}

void Housekeeper::Run() {
  LookAfterStore();
  cpu_ns_ = krcore::ThreadCpuNs(pthread_self());
}

void Housekeeper::LookAfterStore() {
  // The store's clock is the host's, not one that jumps when a stop is requested: it decides whose lease is over.
  kvs::StoreOptions open{
      .control_plane = options_.control_plane, .operation_timeout_ms = kAttemptMs, .open_timeout_ms = kAttemptMs};
  cli::SetFabric(&open);
  std::unique_ptr<kvs::Store> store;
  std::unique_ptr<kvs::Housekeeper> housekeeper;  // destroyed before the store
  while (housekeeper == nullptr) {
    krcore::Status status;
    if (auto opened = kvs::Store::Open(open); opened.ok()) {
      store = *std::move(opened);
      auto created = kvs::Housekeeper::Create(*store);
      status = created.status();
      if (status.ok()) housekeeper = *std::move(created);
    } else {
      status = opened.status();
    }
    if (!status.ok()) {
      LOG_FIRST_N(WARNING, 1) << "the housekeeper cannot reach the store yet: " << status.ToString();
    }
    if (cli::StopSignal::WaitFor(housekeeper == nullptr ? kAgainMs : 0)) return;
  }
  for (;;) {
    const int64_t next_ns = housekeeper->Step();
    chunks_freed_ = housekeeper->stats().chunks_freed;
    if (cli::StopSignal::Requested()) return;
    if (next_ns < kSoonNs) {
      std::this_thread::sleep_for(
          std::chrono::nanoseconds(next_ns));  // its client waits for others, which need the CPU
    } else if (cli::StopSignal::WaitFor(next_ns / 1'000'000 + 1)) {
      return;
    }
  }
}

}  // namespace memnode
