#include "computenode/elastic/fleet.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

#include "krcore/resources.h"

namespace computenode {

Status Fleet::SetWorkers(uint32_t count) {
  const uint32_t now = active();
  if (count > now) return AddWorkers(count - now);
  RetireWorkers(now - count);
  return {};
}

Status Fleet::FirstError() const {
  for (const WorkerRecord& record : Records()) {
    if (!record.status.ok()) return record.status;
  }
  return {};
}

kvs::ClientStats Fleet::TotalClientStats() const {
  kvs::ClientStats sum;
  for (const WorkerRecord& record : Records()) AddStats(record.client_stats, &sum);
  return sum;
}

ElasticWorkers::ElasticWorkers(kvs::Store& store, Job& job, const ElasticWorkersOptions& options)
    : store_(store),
      job_(job),
      lanes_per_worker_(std::max<uint32_t>(options.lanes_per_worker, 1)),
      standby_wanted_(options.standby),
      rehearse_(options.rehearse),
      clock_(options.clock ? options.clock : krcore::RealClock()) {}

void ElasticWorkers::Look() {
  std::unique_lock lock(mutex_);
  JoinEnded(lock);
  const int64_t now_ns = clock_->NowNs();
  if (standby_.size() >= standby_wanted_ || now_ns < refill_not_before_ns_) return;
  refill_not_before_ns_ = now_ns + kRefillEveryNs;
  (void)Start(&standby_);  // if that fails, whoever wants workers is told
}

// Called with the lock held. Threads get numbers as they are started, and are taken in that order.
Status ElasticWorkers::Start(std::list<Worker>* workers) {
  Worker& worker = workers->emplace_back(next_worker_, lanes_per_worker_, clock_);
  worker.record.worker = next_worker_;
  auto thread = krcore::StartThread("worker " + std::to_string(next_worker_), [this, &worker] { Run(&worker); });
  if (!thread.ok()) {
    workers->pop_back();
    return thread.status();
  }
  worker.thread = *std::move(thread);
  ++next_worker_;
  return {};
}

// A waiting thread sees what was written before it was called.
void ElasticWorkers::Call(Worker& worker, uint32_t call) {
  worker.call.store(call, std::memory_order_release);
  worker.call.notify_one();
}

ElasticWorkers::~ElasticWorkers() {
  RetireWorkers(std::numeric_limits<uint32_t>::max());
  WaitForAll();
  for (Worker& worker : standby_) {
    Call(worker, kDismissed);
    worker.thread.join();
  }
}

Status ElasticWorkers::AddWorkers(uint32_t count) {
  const int64_t wanted_ns = clock_->NowNs();
  const Status started = StartWorkers(count, wanted_ns);
  // Some of them may be queued behind this thread on its own core, and would wait there until it sleeps.
  sched_yield();
  return started;
}

Status ElasticWorkers::StartWorkers(uint32_t count, int64_t wanted_ns) {
  std::unique_lock lock(mutex_);
  JoinEnded(lock);
  refill_not_before_ns_ = wanted_ns + kRefillAfterNs;
  for (uint32_t i = 0; i < count; ++i) {
    if (!standby_.empty()) {
      workers_.splice(workers_.end(), standby_, standby_.begin());
    } else {
      KRCORE_RETURN_IF_ERROR(Start(&workers_));
    }
    workers_.back().record.wanted_ns = wanted_ns;
    Call(workers_.back(), kWanted);
  }
  return {};
}

uint32_t ElasticWorkers::RetireWorkers(uint32_t count) {
  const int64_t now_ns = clock_->NowNs();
  const std::lock_guard lock(mutex_);
  uint32_t asked = 0;
  for (auto worker = workers_.rbegin(); worker != workers_.rend() && asked < count; ++worker) {
    if (worker->record.retired_ns != 0 || worker->record.ended_ns != 0) continue;
    worker->record.retired_ns = now_ns;
    worker->retiring.store(true, std::memory_order_relaxed);
    ++asked;
  }
  return asked;
}

bool ElasticWorkers::WaitUntil(krcore::Deadline deadline, bool (*done)(const WorkerRecord&)) {
  std::unique_lock lock(mutex_);
  const auto all_done = [&] {
    return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) { return done(worker.record); });
  };
  while (!all_done()) {
    if (deadline.at_ns == krcore::Deadline::Never().at_ns) {
      changed_.wait(lock);
      continue;
    }
    const int64_t left_ns = deadline.at_ns - clock_->NowNs();
    if (left_ns <= 0) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
  }
  JoinEnded(lock);
  return true;
}

bool ElasticWorkers::WaitForAll(krcore::Deadline deadline) {
  return WaitUntil(deadline, [](const WorkerRecord& record) { return record.ended_ns != 0; });
}

bool ElasticWorkers::WaitForClients(krcore::Deadline deadline) {
  return WaitUntil(deadline, [](const WorkerRecord& record) { return record.client_ns != 0 || record.ended_ns != 0; });
}

// A thread that has set ended_ns takes no more locks, so joining it under the lock cannot deadlock.
void ElasticWorkers::JoinEnded(std::unique_lock<std::mutex>&) {
  for (Worker& worker : workers_) {
    if (worker.record.ended_ns != 0 && worker.thread.joinable()) worker.thread.join();
  }
}

void ElasticWorkers::Run(Worker* worker) {
  const auto note = [this, worker](int64_t WorkerTimes::*part, int64_t at_ns) {
    const std::lock_guard lock(mutex_);
    worker->record.*part = at_ns;
    if (part == &WorkerTimes::client_ns) changed_.notify_all();
  };
  if (worker->call.load(std::memory_order_acquire) == 0) {  // else it is wanted at once, and reports errors itself
    GetReady(store_, lanes_per_worker_, rehearse_, worker->call);
    worker->call.wait(0, std::memory_order_acquire);
  }
  if (worker->call.load(std::memory_order_acquire) == kDismissed) return;
  const int64_t thread_ns = clock_->NowNs();
  note(&WorkerTimes::thread_ns, thread_ns);
  note(&WorkerTimes::store_ns, thread_ns);
  const Status status = Serve(worker->context, store_, job_, note, &worker->trace);
  const std::lock_guard lock(mutex_);
  worker->record.status = status;
  worker->record.client_times = worker->trace.times;
  worker->record.ended_ns = clock_->NowNs();
  // Notify under the lock: after it is released, the object may be gone.
  changed_.notify_all();
}

uint32_t ElasticWorkers::active() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.record.retired_ns == 0 && worker.record.ended_ns == 0;
  }));
}

uint32_t ElasticWorkers::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(std::count_if(workers_.begin(), workers_.end(),
                                             [](const Worker& worker) { return worker.record.ended_ns == 0; }));
}

uint32_t ElasticWorkers::standby() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(standby_.size());
}

std::vector<WorkerRecord> ElasticWorkers::Records() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerRecord> records;
  for (const Worker& worker : workers_) {
    records.push_back(worker.record);
    SetProgress(worker.trace.Load(), &records.back());
  }
  return records;
}

}  // namespace computenode
