// WorkerProcesses: workers as processes of their own, each with one client, added and retired while they serve.
//
// They are forked by the template, a small process made for that beforehand. It has the program loaded and nothing of
// the store open, so a fork costs little, and a process with threads is never forked. Or they are fresh programs
// (exec). Some may be kept on standby: processes that have prepared themselves and sleep until a worker is wanted; one
// that is taken is replaced. A worker that dies is noticed; to replace it, call SetWorkers.
//
// What a worker shares with this process is its WorkerSlot. All workers die with this process, and with the template:
// after that no worker can be added.
//
// Thread safety: one thread, the one that called Start.
#ifndef COMPUTENODE_ELASTIC_WORKER_PROCESSES_H_
#define COMPUTENODE_ELASTIC_WORKER_PROCESSES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "computenode/elastic/fleet.h"
#include "computenode/elastic/shared_memory.h"
#include "computenode/elastic/worker.h"
#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"

namespace computenode {

// A worker's part of shared memory. The worker writes it, except the first four fields and wanted_ns.
struct WorkerSlot {
  uint32_t worker;              // once it is wanted
  std::atomic<uint32_t> calls;  // a futex: 0 while it is a standby worker
  std::atomic<bool> in_use;
  std::atomic<bool> retiring;
  LiveCounts counts;
  // Each part is written by Note.
  WorkerTimes times;
  ClientTrace client;
  char error[256];  // why it failed, in words; ends with a 0

  void Note(int64_t WorkerTimes::*part, int64_t at_ns) {
    std::atomic_ref(times.*part).store(at_ns, std::memory_order_release);
  }
  void Fail(const std::string& why);
  // For the worker: sleeps until it is wanted. False: it never will be. *woken: it was a standby worker.
  bool AwaitCall(bool* woken);
  // Wakes the worker.
  void Call(bool wanted);
};

// The slots of all workers.
class WorkerBoard {
 public:
  static constexpr uint32_t kSlots = 1024;

  static krcore::Result<WorkerBoard> Create();
  static krcore::Result<WorkerBoard> Attach(int fd);
  int fd() const { return memory_.fd(); }
  WorkerSlot& operator[](uint32_t slot) const { return reinterpret_cast<WorkerSlot*>(memory_.data())[slot]; }

 private:
  explicit WorkerBoard(SharedMemory memory) : memory_(std::move(memory)) {}
  SharedMemory memory_;
};

struct WorkerProcessesOptions {
  // Runs a worker's life in the new process, and returns its exit status. It prepares itself and then calls AwaitCall.
  std::function<int(WorkerSlot&)> main;
  uint32_t standby = 0;  // so many standby workers are kept
  // If not empty: instead of main, this command line is executed (exec[0] is the program's path), with two more
  // arguments: "--worker_board=FD" and "--worker_slot=N". `inherited`: descriptors that stay open. The program finds no
  // signal ignored or blocked, and should call LeaveSignalsToFrontEnd first.
  std::vector<std::string> exec;
  std::vector<int> inherited;
  // Called when a worker has died: it does nothing any more.
  std::function<void(const WorkerRecord&)> on_death;
  krcore::Clock* clock = nullptr;  // null: the host's
};

// For a worker process; already done for a forked one. The front end handles a Ctrl-C in the terminal, the end of the
// terminal and SIGTERM to all, and drains the workers.
void LeaveSignalsToFrontEnd();

class WorkerProcesses final : public Fleet {
 public:
  // Makes the template process. Call it while this process has one thread and nothing open that a worker must not
  // inherit.
  static krcore::Result<std::unique_ptr<WorkerProcesses>> Start(WorkerProcessesOptions options);
  // Retires all workers and waits for them.
  ~WorkerProcesses() override;
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  Status AddWorkers(uint32_t count) override;
  uint32_t RetireWorkers(uint32_t count) override;
  bool WaitForAll(krcore::Deadline deadline = krcore::Deadline::Never()) override;
  // These are as of the last call of any other non-const method.
  uint32_t active() const override;
  uint32_t running() const override;
  uint32_t standby() const override { return static_cast<uint32_t>(standby_.size()); }  // kept ready, or on the way
  std::vector<WorkerRecord> Records() const override;
  // Also worth calling when fd() is readable.
  void Look() override;
  int fd() const { return socket_; }

 private:
  struct Worker {
    uint32_t slot = 0;
    WorkerRecord record;
    bool ended = false;
  };
  WorkerProcesses(WorkerProcessesOptions options, WorkerBoard board, int socket, int32_t template_pid);
  // Asks the template for a standby process in a free slot.
  krcore::Result<uint32_t> Spawn();
  void KeepStandby();
  WorkerRecord RecordOf(const Worker& worker) const;
  void Ended(Worker* worker, int wait_status);
  void AllDied();

  const WorkerProcessesOptions options_;
  krcore::Clock* const clock_;
  const WorkerBoard board_;
  int socket_;  // to the template; -1: it is gone
  const int32_t template_pid_;
  std::vector<Worker> workers_;
  std::deque<uint32_t> standby_;                // standby workers' slots, the oldest first
  std::unordered_map<uint32_t, int32_t> pids_;  // by slot, of all that were spawned and have not ended
  int64_t spawn_not_before_ns_ = 0;             // of the next standby worker, after one has failed
  uint32_t next_slot_ = 0;
  bool closing_ = false;
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_WORKER_PROCESSES_H_
