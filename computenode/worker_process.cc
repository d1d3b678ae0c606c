// What a worker serves a queue of requests with, and the life of a worker that is a process of its own.
#include <glog/logging.h>

#include <algorithm>
#include <string>

#include "cli/fail.h"
#include "computenode/queue_load.h"

namespace computenode {

ycsb::JobOptions RequestJob(const Options& options, RequestQueue* queue, LiveCounts* counts) {
  ycsb::JobOptions job = options.job;
  job.arrivals = nullptr;
  job.workload.operation_count = 0;
  job.workload.target_ops = 0;
  job.max_failures = 0;  // the front end counts
  job.requests = queue;
  if (options.elastic->capacity > 0) {
    job.request_period_ns = static_cast<int64_t>(1e9 / options.elastic->capacity);
  }
  job.counts = counts;
  return job;
}

bool Rehearses(const Options& options) {
  return options.store.control_plane == "krcore" || options.store.control_plane == "kernel";
}

int ServeAsProcess(const Options& options, RequestQueue& queue, WorkerSlot& slot, int64_t started_ns) {
  krcore::Clock& clock = *krcore::RealClock();
  auto store = kvs::Store::Open(options.store);
  if (!store.ok()) {
    LOG(ERROR) << "a worker cannot open the store: " << store.status().ToString();
    slot.Fail(store.status().ToString());
    return cli::kExitFailure;
  }
  ycsb::WorkloadJob job(RequestJob(options, &queue, &slot.counts));
  // A worker that is wanted at once need not prepare anything, and notices below what is wrong.
  if (slot.calls.load(std::memory_order_relaxed) == 0)
    GetReady(**store, options.in_flight, Rehearses(options), slot.calls);
  const int64_t prepared_ns = clock.NowNs();
  bool woken = false;
  if (!slot.AwaitCall(&woken)) return 0;
  // What was done before the worker was wanted does not count as part of its start.
  const int64_t wanted_ns = woken ? clock.NowNs() : slot.times.wanted_ns;
  slot.Note(&WorkerTimes::thread_ns, std::max(started_ns, wanted_ns));
  slot.Note(&WorkerTimes::store_ns, std::max(prepared_ns, wanted_ns));
  WorkerContext context(slot.worker, options.in_flight, &clock, slot.retiring);
  const auto note = [&slot](int64_t WorkerTimes::*part, int64_t at_ns) { slot.Note(part, at_ns); };
  const Status served = Serve(context, **store, job, note, &slot.client);
  for (const std::string& problem : job.TakeProblems()) LOG(WARNING) << "worker " << slot.worker << ": " << problem;
  if (!served.ok()) {
    LOG(ERROR) << "worker " << slot.worker << " cannot serve: " << served.ToString();
    slot.Fail(served.ToString());
    return cli::kExitFailure;
  }
  store->reset();
  slot.Note(&WorkerTimes::ended_ns, clock.NowNs());
  const LoadCounts counts = slot.counts.Load();
  LOG(INFO) << "worker " << slot.worker << " has ended: " << counts.operations << " requests, " << counts.failed
            << " failed";
  return 0;
}

int ServeAsProgram(const Options& options, int64_t started_ns) {
  LeaveSignalsToFrontEnd();
  auto board = WorkerBoard::Attach(options.elastic->board_fd);
  if (!board.ok()) return cli::Fail(board.status());
  if (options.elastic->slot >= static_cast<int>(WorkerBoard::kSlots)) {
    return cli::FailUsage("--worker_slot=" + std::to_string(options.elastic->slot) + ": there is no such place");
  }
  WorkerSlot& slot = (*board)[static_cast<uint32_t>(options.elastic->slot)];
  auto queue = RequestQueue::Attach(options.elastic->requests_fd);
  if (!queue.ok()) {
    slot.Fail(queue.status().ToString());
    return cli::kExitFailure;
  }
  return ServeAsProcess(options, **queue, slot, started_ns);
}

}  // namespace computenode
