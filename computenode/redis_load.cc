#include "computenode/redis_load.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "computenode/queue_load.h"
#include "ycsb/workload/counts.h"

namespace computenode {
namespace {

using nlohmann::ordered_json;
using redis::FrontEndCounts;

}  // namespace

Status RedisLoad::Listen() {
  auto front_end = redis::FrontEnd::Listen(*options_.redis);
  if (!front_end.ok()) return front_end.status();
  front_end_ = *std::move(front_end);
  return {};
}

Status RedisLoad::Open() {
  return OpenThreads(*front_end_, options_.elastic ? options_.elastic->standby : 0, Rehearses(options_));
}

void RedisLoad::Begin() {
  window_from_ns_ = status_from_ns_ = clock_.NowNs();
  StartScaling(window_from_ns_);
}

int64_t RedisLoad::WakeNs(int64_t now_ns) const {
  return ScalingAtNs(now_ns + 20'000'000);  // to look for workers that have ended
}

// A worker takes another connection's commands as soon as it is there, so how long commands wait is not known. What is
// known: how many there were, which workers were busy, and that nobody serves those who wait for a worker at all.
void RedisLoad::Tend(int64_t now_ns) {
  fleet_->Look();
  ReplaceTheDead(now_ns);
  if (!ScalingIsDue(now_ns)) return;
  const FrontEndCounts counts = front_end_->Counts();
  const double window_s = Seconds(std::max<int64_t>(now_ns - window_from_ns_, 1));
  ScaleSample sample = SampleFleet(now_ns);
  sample.arrivals_per_s = static_cast<double>(counts.commands - window_counts_.commands) / window_s;
  sample.backlog = static_cast<double>(counts.waiting);
  if (sample.workers > 0) {
    const double busy_s = Seconds(static_cast<int64_t>(counts.busy_ns - window_counts_.busy_ns));
    sample.utilisation = std::min(busy_s / (sample.workers * window_s), 1.0);
  }
  window_counts_ = counts;
  window_from_ns_ = now_ns;
  Scale(sample);
}

// ---- what it tells

void RedisLoad::AddReady(ordered_json* json) const { (*json)["redis"] = front_end_->address(); }

void RedisLoad::AddStatus(ordered_json* json) {
  const int64_t now_ns = clock_.NowNs();
  const FrontEndCounts counts = front_end_->Counts();
  const WorkerCounts workers = CountWorkers(fleet_->Records());
  const double seconds = std::max(Seconds(now_ns - status_from_ns_), 1e-9);
  const auto per_second = [&](uint64_t FrontEndCounts::*count) {
    return static_cast<double>(counts.*count - status_counts_.*count) / seconds;
  };
  json->update({{"workers", workers.serving},
                {"starting", workers.starting},
                {"draining", workers.draining},
                {"interval_s", seconds},
                {"clients", counts.clients},
                {"clients_of_workers", counts.of_workers},
                {"commands_per_s", per_second(&FrontEndCounts::commands)},
                {"errors_per_s", per_second(&FrontEndCounts::errors)},
                {"busy_workers", per_second(&FrontEndCounts::busy_ns) * 1e-9}});
  status_from_ns_ = now_ns;
  status_counts_ = counts;
}

bool RedisLoad::AddSummary(const std::string&, ordered_json* json) {
  const FrontEndCounts counts = front_end_->Counts();
  json->update({{"commands", counts.commands},
                {"errors", counts.errors},
                {"connections", counts.accepted},
                {"refused", counts.refused},
                {"moved", counts.moved},
                {"closed_as_idle", counts.idle},
                {"closed_as_slow", counts.slow}});
  (*json)["client_stats"] = ycsb::ClientStatsJson(fleet_->TotalClientStats());
  AddStarts(View(), json);
  return !gave_up_;
}

void RedisLoad::AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView&, metrics::Families* families) {
  lock->unlock();
  const FrontEndCounts counts = front_end_->Counts();
  const auto number = [](uint64_t count) { return static_cast<double>(count); };
  families->AddGauge("surgekv_redis_clients", "Clients of Redis that are connected", number(counts.clients));
  families->AddGauge("surgekv_redis_clients_waiting", "Clients of Redis that no worker serves", number(counts.waiting));
  families->AddCounter("surgekv_redis_connections_total", "Clients of Redis accepted", number(counts.accepted));
  families->AddCounter("surgekv_redis_refused_total", "Clients of Redis refused because there were too many",
                       number(counts.refused));
  families->AddCounter("surgekv_redis_moved_total", "Connections handed from worker to worker", number(counts.moved));
  const std::string disconnected = "Clients of Redis that were disconnected", name = "surgekv_redis_disconnected_total";
  families->AddCounter(name, disconnected, number(counts.idle), {{"why", "idle"}});
  families->AddCounter(name, disconnected, number(counts.slow), {{"why", "slow"}});
  families->AddCounter("surgekv_redis_commands_total", "Commands of Redis executed", number(counts.commands));
  families->AddCounter("surgekv_redis_errors_total", "Commands of Redis with an error as reply", number(counts.errors));
  families->AddCounter("surgekv_redis_received_bytes_total", "Bytes received from clients of Redis",
                       number(counts.received_bytes));
  families->AddCounter("surgekv_redis_sent_bytes_total", "Bytes sent to clients of Redis", number(counts.sent_bytes));
  families->AddCounter("surgekv_workers_busy_seconds_total", "Seconds in which workers did something, summed up",
                       number(counts.busy_ns) * 1e-9);
}

}  // namespace computenode
