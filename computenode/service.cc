#include "computenode/service.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/stop_signal.h"
#include "metrics/families.h"

namespace computenode {
namespace {

using krcore::StatusCode;
using nlohmann::ordered_json;

constexpr int64_t kStatusNs = 1'000'000'000;
constexpr int64_t kReadyLookNs = 100'000;  // between looks at whether the first workers are ready
constexpr uint32_t kSleepingRelax = 1'000'000;

}  // namespace

Service::Service(const Options& options, Load& load, int input)
    : options_(options), load_(load), channel_(input), clock_(*krcore::RealClock()) {}

void Service::Wait(int64_t timeout_ns) {
  Channel::Flush();
  channel_.Wait(std::max<int64_t>(timeout_ns, 0), [this](const Command& command) { Obey(command); });
}

void Service::Obey(const Command& command) {
  const std::lock_guard lock(mutex_);
  switch (command.kind) {
    case Command::Kind::kStatus: return PrintStatus();
    case Command::Kind::kQuit: quit_ = true; return Channel::Print({{"event", "quit"}});
    case Command::Kind::kWorkers:
      if (load_.scaled()) {
        return Channel::Print(
            {{"event", "error"}, {"message", "workers N is refused: --autoscale decides how many workers there are"}});
      }
      return load_.SetWorkers(command.workers, "command");
  }
}

void Service::PrintStatus() {
  ordered_json json = {{"event", "status"}, {"time_s", load_.SecondsSinceStart(clock_.NowNs())}};
  load_.AddStatus(&json);
  Channel::Print(json);
}

int Service::PrintSummary(const char* end) {
  ordered_json json = {{"event", "summary"},
                       {"end", end},
                       {"time_s", load_.SecondsSinceStart(clock_.NowNs())},
                       {"control_plane", options_.store.control_plane}};
  const bool good = load_.AddSummary(end, &json) && !load_.store_is_gone();
  Channel::Print(json);
  Channel::Flush();
  return good ? 0 : cli::kExitFailure;
}

std::string Service::TroubleNow(const FleetView& view) const {
  if (draining_) return "draining";
  const std::string trouble = load_.trouble();
  return trouble.empty() ? TroubleOf(view, operation_) : trouble;
}

std::string Service::Trouble() const {
  const std::lock_guard lock(mutex_);
  return TroubleNow(load_.View());
}

metrics::Announcement Service::Tell() const {
  const std::lock_guard lock(mutex_);
  const FleetView view = load_.View();
  const std::string trouble = TroubleNow(view);
  return AnnouncementOf(view, started_unix_ns_,
                        draining_         ? metrics::State::kDraining
                        : trouble.empty() ? metrics::State::kServing
                                          : metrics::State::kTroubled);
}

std::string Service::Collect() const {
  metrics::Families families;
  metrics::AddProcess(static_cast<double>(started_unix_ns_) * 1e-9, &families);
  std::unique_lock lock(mutex_);
  const FleetView view = load_.View();
  families.AddGauge("surgekv_healthy", "1 if /healthz reports that this program can serve, else 0",
                    TroubleNow(view).empty() ? 1 : 0);
  load_.AddMetrics(&lock, view, &families);  // releases the lock
  AddFleet(options_, view, &families);
  return families.Text();
}

krcore::Status Service::AwaitFirstWorkers() {
  for (;;) {
    std::unique_lock lock(mutex_);
    const krcore::Result<bool> ready = load_.Ready();
    if (!ready.ok()) return ready.status();
    if (*ready) {
      load_.Begin();
      return {};
    }
    lock.unlock();
    if (cli::StopSignal::Requested()) return {StatusCode::kUnavailable, "stopped by a signal"};
    Wait(kReadyLookNs);
  }
}

const char* Service::End(int64_t now_ns) {
  if (quit_) return "quit";
  if (load_.store_is_gone()) return "the store is gone";
  if (cli::StopSignal::Requested()) return "signal";
  if (options_.duration_s > 0 && load_.SecondsSinceStart(now_ns) >= options_.duration_s) return "duration";
  return load_.End(now_ns, channel_.open());
}

void Service::Drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  load_.Stop();
  load_.fleet().RetireWorkers(std::numeric_limits<uint32_t>::max());
  while (!load_.fleet().WaitForAll(krcore::Deadline::After(clock_, 0))) {  // it ends: every operation has a deadline
    lock.unlock();
    clock_.Relax(kSleepingRelax);
    lock.lock();
  }
}

int Service::Run() {
  if (const Status status = load_.Listen(); !status.ok()) return cli::Fail(status);
  if (const Status status = load_.Open(); !status.ok()) {
    const bool own = status == StatusCode::kInvalidArgument || status == StatusCode::kOutOfMemory;
    return own ? cli::Fail(status) : cli::FailToOpen(status);
  }
  // Only now: the processes to be forked have been made.
  if (const Status status = operation_.Listen(options_, *this); !status.ok()) return cli::Fail(status);
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = load_.AddFirstWorkers(); !status.ok()) return cli::Fail(status);
  }
  if (const Status status = AwaitFirstWorkers(); !status.ok()) return cli::FailToOpen(status);
  operation_.Announce(options_, [this] { return Tell(); });
  ordered_json ready = {{"event", "ready"},
                        {"pid", getpid()},
                        {"control_plane", options_.store.control_plane},
                        {"workers", load_.fleet().active()}};
  load_.AddReady(&ready);
  Channel::Print(ready);
  const char* end = nullptr;
  for (int64_t status_at_ns = clock_.NowNs() + kStatusNs; end == nullptr;) {
    int64_t now_ns = clock_.NowNs();
    const int64_t wake_ns = load_.WakeNs(now_ns);
    Wait((options_.json_status ? std::min(wake_ns, status_at_ns) : wake_ns) - now_ns);
    now_ns = clock_.NowNs();
    const std::lock_guard lock(mutex_);
    load_.Tend(now_ns);
    if (options_.json_status && now_ns >= status_at_ns) {
      status_at_ns = std::max(status_at_ns + kStatusNs, now_ns);
      PrintStatus();
    }
    end = End(now_ns);
  }
  Channel::Flush();
  Drain();
  operation_.Stop();
  return PrintSummary(end);
}

}  // namespace computenode
