// WorkloadWorker: one worker's lanes of a WorkloadJob.
#ifndef YCSB_SRC_WORKER_H_
#define YCSB_SRC_WORKER_H_

#include <coroutine>
#include <cstdint>
#include <string>
#include <vector>

#include "computenode/elastic/fleet.h"
#include "kvs/client.h"
#include "ycsb/job.h"
#include "ycsb/key_chooser.h"
#include "ycsb/measurements.h"
#include "ycsb/random.h"

namespace ycsb {

class WorkloadWorker final : public computenode::WorkerJob {
 public:
  WorkloadWorker(WorkloadJob& job, computenode::WorkerContext& context);
  ~WorkloadWorker() override;

  kvs::Task<void> Lane(computenode::WorkerContext& context, uint32_t lane) override;
  int64_t OnRound(computenode::WorkerContext& context) override;

 private:
  static constexpr uint64_t kNoTicket = UINT64_MAX;

  // One lane's current operation, and its buffers, which are reused.
  struct LaneState {
    uint64_t ticket = kNoTicket;
    Operation operation = Operation::kRead;
    uint64_t record = 0;
    uint64_t own = 0;  // the same, of an insert, as OwnRecords counts
    bool timed = true;
    int64_t start_ns = 0;
    int64_t last_ns = 0;  // when the lane's last timed operation ended
    uint64_t since_timed = 0;
    std::coroutine_handle<> waiting;  // open loop, requests: for a due operation
    std::string key;
    std::string written;
    std::string read;
  };
  // Open loop and requests: suspends until OnRound has put a ticket, or kNoTicket, into the lane.
  struct DueAwaiter {
    WorkloadWorker& worker;
    LaneState& lane;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      lane.waiting = handle;
      worker.idle_lanes_.push_back(&lane);
    }
    void await_resume() const noexcept {}
  };

  void TakeClosedLoopTicket(LaneState& lane);
  int64_t ServeRequests(bool ending);
  void Choose(LaneState& lane);
  // Counts and times the operation, or a part of one, that began at start_ns. Returns when it ended.
  int64_t Finish(LaneState& lane, Operation operation, const kvs::Status& status, int64_t start_ns);
  void CountWhole(LaneState& lane, const kvs::Status& status);
  void Verify(LaneState& lane);

  WorkloadJob& job_;
  computenode::WorkerContext& context_;
  computenode::RequestQueue* const requests_;
  const bool load_;
  const bool open_loop_;
  const size_t min_value_bytes_, max_value_bytes_;
  const uint16_t writer_;
  uint64_t writes_ = 0;
  Random random_;
  KeyChooser chooser_;
  double read_below_, update_below_, insert_below_;  // a uniform number in [0, 1) below it: that operation
  WorkloadJob::Tickets tickets_;                     // closed loop: taken and not yet begun
  computenode::Request claim_;                       // requests: the next one to serve, if claimed_
  bool claimed_ = false;
  int64_t free_ns_ = 0;    // requests: when this worker may begin another one
  Measurements measured_;  // since the last Publish
  uint64_t epoch_;
  std::vector<LaneState> lanes_;
  std::vector<LaneState*> idle_lanes_;
};

}  // namespace ycsb

#endif  // YCSB_SRC_WORKER_H_
