// What a worker serves with, and the life of one that is a process of its own.
#ifndef COMPUTENODE_WORKER_PROCESS_H_
#define COMPUTENODE_WORKER_PROCESS_H_

#include <cstdint>

#include "computenode/elastic/request_queue.h"
#include "computenode/elastic/worker_processes.h"
#include "computenode/options.h"
#include "ycsb/workload/job.h"

namespace computenode {

// The job of a worker, thread or process: whatever `queue` holds.
ycsb::JobOptions RequestJob(const Options& options, RequestQueue* queue, LiveCounts* counts);

// Whether its workers rehearse while they wait to be wanted (computenode/worker.h). Those of verbs and lite would
// keep the connections.
bool Rehearses(const Options& options);

// The life of a worker process, until it is retired: main of a forked one, and of a fresh one. Returns its exit status.
// `started_ns`: when it began to run.
int ServeAsProcess(const Options& options, RequestQueue& queue, WorkerSlot& slot, int64_t started_ns);
// The same of a fresh program, which was given the two descriptors and the slot's number.
int ServeAsProgram(const Options& options, int64_t started_ns);

}  // namespace computenode

#endif  // COMPUTENODE_WORKER_PROCESS_H_
