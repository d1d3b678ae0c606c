#include "memnode/huge_page_collapser.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "cli/size.h"
#include "krcore/resources.h"

namespace memnode {
namespace {

// Small enough to stop soon (some 10 ms), large enough that the cost of a call does not count.
constexpr size_t kPieceBytes = size_t{16} << 20;
constexpr uint64_t kLogEveryBytes = uint64_t{1} << 30;

// Makes the thread run only when a core has nothing better to do. If the system refuses, it stays at normal priority,
// which does no harm.
void LowerPriority() {
  const sched_param param{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &param);
}

}  // namespace

HugePageCollapser::HugePageCollapser(krcore::Region& region) : region_(region) {
  auto thread = krcore::StartServiceThread("hugepages", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    LOG(WARNING) << "huge pages: " << thread.status().message() << "; small pages stay in use";
  }
}

HugePageCollapser::~HugePageCollapser() { Stop(); }

void HugePageCollapser::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  if (!thread_.joinable()) return;
  // On a busy machine an idle-priority thread may not run for minutes, and then whoever waits for it does not run
  // either.
  const sched_param param{};
  pthread_setschedparam(thread_.native_handle(), SCHED_OTHER, &param);
  thread_.join();
}

void HugePageCollapser::Run() {
  LowerPriority();
  const size_t total = region_.bytes().size();
  uint64_t refused_bytes = 0;
  krcore::Status last_refusal;
  for (size_t offset = 0; offset < total && !stop_.load(std::memory_order_relaxed); offset += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, total - offset);
    const krcore::Status status = region_.CollapseToHugePages(offset, piece);
    cpu_ns_.store(krcore::ThreadCpuNs(pthread_self()), std::memory_order_relaxed);
    if (status == krcore::StatusCode::kUnsupported) {
      LOG(INFO) << "huge pages: " << status.ToString() << "; small pages stay in use";
      return;
    }
    if (!status.ok()) {  // e.g. memory too fragmented just there; the rest may still work
      refused_bytes += piece;
      last_refusal = status;
      continue;
    }
    const uint64_t before = collapsed_bytes_.fetch_add(piece, std::memory_order_relaxed);
    if (before / kLogEveryBytes != (before + piece) / kLogEveryBytes && before + piece < total) {
      LOG(INFO) << "huge pages: moved " << cli::FormatSize(before + piece) << " of " << cli::FormatSize(total);
    }
  }
  if (stop_.load(std::memory_order_relaxed)) return;
  if (refused_bytes != 0) {
    LOG(WARNING) << "huge pages: moved " << cli::FormatSize(collapsed_bytes()) << " of " << cli::FormatSize(total)
                 << "; the kernel refused to move the rest: " << last_refusal.ToString();
  } else {
    LOG(INFO) << "huge pages: moved all " << cli::FormatSize(total);
  }
}

}  // namespace memnode
