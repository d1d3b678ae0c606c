#include "memnode/huge_page_collapser.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "cli/size.h"
#include "krcore/clock.h"
#include "krcore/resources.h"

namespace memnode {
namespace {

// Small enough to stop soon (some 10 ms), large enough that the cost of a call does not count.
constexpr size_t kPieceBytes = size_t{16} << 20;
constexpr uint64_t kLogEveryBytes = uint64_t{1} << 30;
constexpr int64_t kRestsPerPiece = 3;  // so the thread takes a quarter of a core

}  // namespace

HugePageCollapser::HugePageCollapser(krcore::Region& region, krcore::Clock& clock, int64_t at_once_ns)
    : region_(region) {
  const krcore::Deadline at_once = krcore::Deadline::After(*krcore::RealClock(), at_once_ns);
  while (!at_once.Passed(clock)) {
    if (!MovePiece()) return;
  }
  auto thread = krcore::StartServiceThread("hugepages", [this] { MoveRest(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    LOG(WARNING) << "huge pages: " << thread.status().message() << "; most of the memory stays in small pages";
  }
}

HugePageCollapser::~HugePageCollapser() { Stop(); }

void HugePageCollapser::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool HugePageCollapser::MovePiece() {
  const size_t total = region_.bytes().size();
  const size_t piece = std::min(kPieceBytes, total - offset_);
  const int64_t begin_ns = krcore::ThreadCpuNs(pthread_self());
  const krcore::Status status = region_.CollapseToHugePages(offset_, piece);
  cpu_ns_.fetch_add(krcore::ThreadCpuNs(pthread_self()) - begin_ns, std::memory_order_relaxed);
  if (status == krcore::StatusCode::kUnsupported) {
    LOG(INFO) << "huge pages: " << status.ToString() << "; small pages stay in use";
    return false;
  }
  offset_ += piece;
  if (!status.ok()) {  // e.g. memory too fragmented just there; the rest may still work
    refused_bytes_ += piece;
    last_refusal_ = status;
  } else {
    const uint64_t before = collapsed_bytes_.fetch_add(piece, std::memory_order_relaxed);
    if (before / kLogEveryBytes != (before + piece) / kLogEveryBytes && offset_ < total) {
      LOG(INFO) << "huge pages: moved " << cli::FormatSize(before + piece) << " of " << cli::FormatSize(total);
    }
  }
  if (offset_ < total) return true;
  if (refused_bytes_ != 0) {
    LOG(WARNING) << "huge pages: moved " << cli::FormatSize(collapsed_bytes()) << " of " << cli::FormatSize(total)
                 << "; the kernel refused to move the rest: " << last_refusal_.ToString();
  } else {
    LOG(INFO) << "huge pages: moved all " << cli::FormatSize(total);
  }
  return false;
}

void HugePageCollapser::MoveRest() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const int64_t begin_ns = krcore::RealClock()->NowNs();
    if (!MovePiece()) return;
    const int64_t took_ns = krcore::RealClock()->NowNs() - begin_ns;
    lock.lock();
    stopping_.wait_for(lock, std::chrono::nanoseconds(kRestsPerPiece * took_ns), [this] { return stop_; });
  }
}

}  // namespace memnode
