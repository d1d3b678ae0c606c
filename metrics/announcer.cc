#include "metrics/announcer.h"

#include <glog/logging.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

#include "krcore/clock.h"
#include "krcore/resources.h"

namespace metrics {
namespace {

constexpr std::chrono::milliseconds kPeriod(1'000);
constexpr int64_t kPatienceNs = 100'000'000;

}  // namespace

krcore::Result<std::unique_ptr<Announcer>> Announcer::Start(krcore::Node& node, std::function<Announcement()> tell) {
  std::unique_ptr<Announcer> announcer(new Announcer(node, std::move(tell)));
  auto thread = krcore::StartThread("announcer", [self = announcer.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  announcer->thread_ = *std::move(thread);
  return announcer;
}

Announcer::~Announcer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Announcer::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Announcer::Run() {
  sigset_t signals;  // a request to stop is for the main thread
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  pthread_setname_np(pthread_self(), "announcer");
  AnnouncementWriter writer(node_);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const krcore::Status status = writer.Write(tell_(), krcore::Deadline::After(*krcore::RealClock(), kPatienceNs));
    std::string trouble = status.ok() ? "" : status.ToString();
    if (!status.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
    lock.lock();
    if (trouble.empty() != trouble_.empty()) {
      if (trouble.empty()) {
        LOG(INFO) << "announced at the metadata server again";
      } else {
        LOG(WARNING) << "not announced: " << trouble << "; trying again every second";
      }
    }
    trouble_ = std::move(trouble);
    changed_.wait_for(lock, kPeriod, [this] { return stop_; });
  }
}

}  // namespace metrics
