#include "computenode/elastic_workers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <system_error>
#include <type_traits>

namespace computenode {
namespace {

// A lane due sooner than this is waited for by spinning: a sleep may take so long (50 us, and the kernel's slack).
constexpr int64_t kSleepGrainNs = 200'000;
constexpr uint32_t kSpinningRelax = 100;  // Clock::Relax spins below 200

}  // namespace

ElasticWorkers::ElasticWorkers(kvs::Store& store, Job& job, const ElasticWorkersOptions& options)
    : store_(store),
      job_(job),
      lanes_per_worker_(std::max<uint32_t>(options.lanes_per_worker, 1)),
      clock_(options.clock ? options.clock : krcore::RealClock()) {}

ElasticWorkers::~ElasticWorkers() {
  RetireWorkers(std::numeric_limits<uint32_t>::max());
  WaitForAll();
}

Status ElasticWorkers::AddWorkers(uint32_t count) {
  const int64_t wanted_ns = clock_->NowNs();
  std::unique_lock lock(mutex_);
  JoinEnded(lock);
  for (uint32_t i = 0; i < count; ++i) {
    Worker& worker = workers_.emplace_back();
    worker.record.worker = worker.context.worker_ = next_worker_++;
    worker.record.wanted_ns = wanted_ns;
    worker.context.clock_ = clock_;
    worker.context.lanes_ = lanes_per_worker_;
    try {
      worker.thread = std::thread(&ElasticWorkers::Run, this, &worker);
    } catch (const std::system_error& error) {
      workers_.pop_back();
      return {krcore::StatusCode::kUnavailable, std::string("cannot start another worker thread: ") + error.what()};
    }
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
    worker->context.retiring_.store(true, std::memory_order_relaxed);
    ++asked;
  }
  return asked;
}

Status ElasticWorkers::SetWorkers(uint32_t count) {
  const uint32_t now = active();
  if (count > now) return AddWorkers(count - now);
  RetireWorkers(now - count);
  return {};
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

// A thread that has set ended_ns takes no lock any more, so that joining it under the lock cannot deadlock.
void ElasticWorkers::JoinEnded(std::unique_lock<std::mutex>&) {
  for (Worker& worker : workers_) {
    if (worker.record.ended_ns == 0 || worker.joined) continue;
    worker.thread.join();
    worker.joined = true;
  }
}

void ElasticWorkers::Run(Worker* worker) {
  const int64_t thread_ns = clock_->NowNs();
  // More in flight than lanes is never asked for; the client need not queue.
  krcore::Result<std::unique_ptr<kvs::Client>> client = store_.NewClient({.max_in_flight = lanes_per_worker_});
  {
    const std::lock_guard lock(mutex_);
    worker->record.thread_ns = thread_ns;
    worker->record.status = client.status();
    if (client.ok()) worker->record.client_ns = clock_->NowNs();
  }
  changed_.notify_all();
  kvs::ClientStats stats;
  if (client.ok()) {
    Serve(worker, **client);
    stats = (*client)->stats();
    client->reset();
  }
  const std::lock_guard lock(mutex_);
  worker->record.client_stats = stats;
  worker->record.first_reply_ns = worker->context.first_reply_ns_;
  worker->record.ended_ns = clock_->NowNs();
  // Under the lock: after it, the object may be gone.
  changed_.notify_all();
}

void ElasticWorkers::Serve(Worker* worker, kvs::Client& client) {
  WorkerContext& context = worker->context;
  context.client_ = &client;
  const std::unique_ptr<WorkerJob> job = job_.StartWorker(context);
  for (uint32_t lane = 0; lane < context.lanes_; ++lane) client.Spawn(job->Lane(context, lane));
  const int64_t lanes_ns = clock_->NowNs();
  {
    const std::lock_guard lock(mutex_);
    worker->record.lanes_ns = lanes_ns;
  }
  uint32_t idle_rounds = 0;
  bool reply_recorded = false;
  while (client.spawned() > 0) {
    ++context.round_;
    const int64_t due_ns = job->OnRound(context);
    for (const std::coroutine_handle<> lane : context.yielded_) kvs::RunQueue::OfThisThread().Push(lane);
    context.yielded_.clear();
    const bool resumes = !kvs::RunQueue::OfThisThread().empty();
    const size_t completions = client.Poll();
    if (!reply_recorded && context.first_reply_ns_ != 0) [[unlikely]] {
      const std::lock_guard lock(mutex_);
      worker->record.first_reply_ns = context.first_reply_ns_;
      reply_recorded = true;
    }
    if (completions > 0 || resumes) {
      idle_rounds = 0;
      continue;
    }
    const bool due_soon = due_ns != WorkerJob::kNever && due_ns - clock_->NowNs() < kSleepGrainNs;
    clock_->Relax(due_soon ? kSpinningRelax : idle_rounds++);
  }
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

std::vector<WorkerRecord> ElasticWorkers::Records() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerRecord> records;
  for (const Worker& worker : workers_) records.push_back(worker.record);
  return records;
}

Status ElasticWorkers::FirstError() const {
  const std::lock_guard lock(mutex_);
  for (const Worker& worker : workers_) {
    if (!worker.record.status.ok()) return worker.record.status;
  }
  return {};
}

kvs::ClientStats ElasticWorkers::EndedClientStats() const {
  kvs::ClientStats sum;
  for (const WorkerRecord& record : Records()) AddStats(record.client_stats, &sum);
  return sum;
}

void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum) {
  // All of its members are counts.
  using Counts = std::array<uint64_t, sizeof(kvs::ClientStats) / sizeof(uint64_t)>;
  static_assert(std::is_trivially_copyable_v<kvs::ClientStats> && sizeof(Counts) == sizeof(kvs::ClientStats));
  Counts total = std::bit_cast<Counts>(*sum);
  const Counts added = std::bit_cast<Counts>(more);
  for (size_t i = 0; i < total.size(); ++i) total[i] += added[i];
  *sum = std::bit_cast<kvs::ClientStats>(total);
}

}  // namespace computenode
