#include "ycsb/src/worker.h"

#include <algorithm>
#include <utility>

#include "ycsb/values.h"

namespace ycsb {
namespace {

constexpr int64_t kLookAgainNs = 1'000'000;  // where there is no request for now
// So long before an operation of the open loop is due its worker is awake: the latency is the store's alone, and not
// that of the end of a sleep. Requests of a queue do without, or many workers would spin for one request each.
constexpr int64_t kAwakeBeforeNs = 100'000;
constexpr uint64_t kTicketChunk = 64;  // per visit to the shared counter; a worker that retires finishes its chunk

}  // namespace

WorkloadWorker::WorkloadWorker(WorkloadJob& job, computenode::WorkerContext& context)
    : job_(job),
      context_(context),
      requests_(job.options_.requests),
      load_(job.options_.phase == Phase::kLoad),
      open_loop_(job.open_loop() || requests_ != nullptr),
      min_value_bytes_(job.options_.workload.min_value_bytes()),
      max_value_bytes_(job.options_.workload.value_bytes()),
      writer_(static_cast<uint16_t>(context.worker() + 1)),
      random_(job.options_.seed, context.worker()),
      chooser_(job.chooser_),
      epoch_(job.epoch_.load(std::memory_order_relaxed)),
      lanes_(context.lanes()) {
  const Workload& workload = job.options_.workload;
  const double sum = workload.read_proportion + workload.update_proportion + workload.insert_proportion +
                     workload.read_modify_write_proportion;
  read_below_ = workload.read_proportion / sum;
  update_below_ = read_below_ + workload.update_proportion / sum;
  insert_below_ = workload.read_modify_write_proportion > 0 ? update_below_ + workload.insert_proportion / sum : 1;
  if (workload.insert_proportion == 0 && workload.read_modify_write_proportion == 0) update_below_ = 1;
  if (update_below_ == 1 && workload.update_proportion == 0) read_below_ = 1;
  for (LaneState& lane : lanes_) {
    lane.key.reserve(job.keys_.key_bytes());
    lane.written.reserve(max_value_bytes_);
  }
  idle_lanes_.reserve(lanes_.size());
}

WorkloadWorker::~WorkloadWorker() {
  job_.Publish(epoch_, &measured_);
  job_.WorkerEnded();
}

int64_t WorkloadWorker::OnRound(computenode::WorkerContext& context) {
  const uint64_t epoch = job_.epoch_.load(std::memory_order_relaxed);
  if (epoch != epoch_) [[unlikely]] {
    job_.Publish(epoch_, &measured_);
    epoch_ = epoch;
  }
  if (!open_loop_ || idle_lanes_.empty()) return kNever;
  const bool ending = job_.stopped() || context.retiring();
  if (requests_ != nullptr) return ServeRequests(ending);
  const int64_t now_ns = job_.clock_->NowNs();
  while (!idle_lanes_.empty()) {
    LaneState& lane = *idle_lanes_.back();
    lane.ticket = kNoTicket;
    int64_t due_ns = kNever;
    if (!ending && job_.TakeDue(now_ns, &lane.ticket, &due_ns)) {
      lane.start_ns = due_ns;
    } else if (!ending && due_ns != kNever) {
      return due_ns - kAwakeBeforeNs;
    }
    idle_lanes_.pop_back();
    kvs::RunQueue::OfThisThread().Push(lane.waiting);
  }
  return kNever;
}

// One at a time is claimed, when this worker is free for it.
int64_t WorkloadWorker::ServeRequests(bool ending) {
  const int64_t now_ns = job_.clock_->NowNs();
  if (ending && std::exchange(claimed_, false)) requests_->Return(context_.worker(), claim_.index);
  while (!idle_lanes_.empty()) {
    LaneState& lane = *idle_lanes_.back();
    lane.ticket = kNoTicket;
    if (!ending) {
      if (!claimed_ && now_ns < free_ns_) return free_ns_;
      if (!claimed_) claimed_ = requests_->Claim(context_.worker(), &claim_);
      if (!claimed_) return now_ns + kLookAgainNs;
      if (claim_.due_ns > now_ns) return claim_.due_ns;
      claimed_ = false;
      context_.NoteBegin();
      lane.ticket = claim_.index;
      lane.start_ns = claim_.due_ns;
      // From when it could begin, so that a late wake-up costs no capacity.
      const int64_t period_ns = job_.options_.request_period_ns;
      free_ns_ = std::max({free_ns_, claim_.due_ns, now_ns - period_ns}) + period_ns;
    }
    idle_lanes_.pop_back();
    kvs::RunQueue::OfThisThread().Push(lane.waiting);
  }
  return kNever;
}

void WorkloadWorker::TakeClosedLoopTicket(LaneState& lane) {
  lane.ticket = kNoTicket;
  if (job_.stopped()) return;
  if (tickets_.begin == tickets_.end) {
    if (context_.retiring()) return;
    tickets_ = job_.TakeTickets(kTicketChunk);
    if (tickets_.begin == tickets_.end) return;
  }
  lane.ticket = tickets_.begin++;
}

void WorkloadWorker::Choose(LaneState& lane) {
  if (load_) {
    lane.operation = Operation::kInsert;
    lane.record = job_.options_.workload.insert_start + lane.ticket;
  } else {
    const double draw = random_.NextDouble();
    lane.operation = draw < read_below_     ? Operation::kRead
                     : draw < update_below_ ? Operation::kUpdate
                     : draw < insert_below_ ? Operation::kInsert
                                            : Operation::kReadModifyWrite;
    if (lane.operation == Operation::kInsert) {
      lane.own = job_.inserted_.Next();
      lane.record = job_.options_.workload.own_records().At(lane.own);
    } else {
      lane.record = chooser_.Next(random_, lane.ticket);
    }
  }
  lane.key.resize(job_.keys_.key_bytes());
  lane.key.resize(job_.keys_.Format(lane.record, lane.key.data()));
  if (lane.operation == Operation::kRead) return;
  const Version version = load_ ? Version{} : Version{writer_, ++writes_};
  lane.written.resize(job_.lengths_.Next(random_));
  FillValue(lane.record, version, lane.written.data(), lane.written.size());
  if (load_ && lane.record == job_.planted_record_ && !lane.written.empty()) lane.written.back() ^= 1;
}

int64_t WorkloadWorker::Finish(LaneState& lane, Operation operation, const kvs::Status& status, int64_t start_ns) {
  context_.NoteReply();
  if (!lane.timed) {
    measured_[operation].Count(status.code());
    return 0;
  }
  const int64_t now_ns = job_.clock_->NowNs();
  measured_[operation].Record(status.code(), now_ns - start_ns);
  lane.last_ns = now_ns;
  return now_ns;
}

void WorkloadWorker::CountWhole(LaneState& lane, const kvs::Status& status) {
  ++measured_.operations;
  if (requests_ != nullptr) {
    requests_->Reply(context_.worker(), lane.ticket, lane.timed ? lane.last_ns : job_.clock_->NowNs(), !status.ok());
  }
  if (computenode::LiveCounts* const counts = job_.options_.counts) {
    counts->operations.fetch_add(1, std::memory_order_relaxed);
    counts->failed.fetch_add(status.ok() ? 0 : 1, std::memory_order_relaxed);
  }
  if (status.ok()) [[likely]]
    return;
  ++measured_.failed_operations;
  job_.ReportProblem(std::string(OperationName(lane.operation)) + " of " + lane.key + " (record " +
                     std::to_string(lane.record) + ") failed: " + status.ToString());
}

void WorkloadWorker::Verify(LaneState& lane) {
  const size_t expected = std::clamp(lane.read.size(), min_value_bytes_, max_value_bytes_);
  if (VerifyValue(lane.record, lane.read, expected)) [[likely]] {
    ++measured_.verified;
    if (job_.options_.counts != nullptr) job_.options_.counts->verified.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ++measured_.mismatches;
  if (job_.options_.counts != nullptr) job_.options_.counts->mismatches.fetch_add(1, std::memory_order_relaxed);
  job_.ReportProblem("MISMATCH at key " + lane.key + " (record " + std::to_string(lane.record) +
                     "): " + ExplainMismatch(lane.record, lane.read, expected));
}

kvs::Task<void> WorkloadWorker::Lane(computenode::WorkerContext& context, uint32_t index) {
  LaneState& lane = lanes_[index];
  kvs::Client& client = context.client();
  const uint32_t sampling = std::max<uint32_t>(job_.options_.latency_sampling, 1);
  const bool overwrite = job_.options_.overwrite;
  lane.last_ns = job_.clock_->NowNs();
  while (true) {
    if (open_loop_) {
      co_await DueAwaiter{*this, lane};
    } else {
      TakeClosedLoopTicket(lane);
    }
    if (lane.ticket == kNoTicket) break;
    Choose(lane);
    // Closed loop, all timed: the end of one operation is the beginning of the next, one clock reading for both.
    lane.timed = open_loop_ || sampling == 1 || ++lane.since_timed % sampling == 0;
    if (!open_loop_ && lane.timed) lane.start_ns = sampling == 1 ? lane.last_ns : job_.clock_->NowNs();
    const uint64_t round = context.round();
    kvs::Status status;
    switch (lane.operation) {
      case Operation::kRead: {
        status = co_await client.GetAsync(lane.key, &lane.read);
        Finish(lane, Operation::kRead, status, lane.start_ns);
        if (status.ok()) [[likely]]
          Verify(lane);
        break;
      }
      case Operation::kUpdate: {
        status = co_await client.UpdateAsync(lane.key, lane.written);
        Finish(lane, Operation::kUpdate, status, lane.start_ns);
        break;
      }
      case Operation::kInsert: {
        if (overwrite) {
          status = co_await client.PutAsync(lane.key, lane.written);
        } else {
          status = co_await client.InsertAsync(lane.key, lane.written);
        }
        Finish(lane, Operation::kInsert, status, lane.start_ns);
        if (!load_ && status.ok()) {
          job_.inserted_.Acknowledge(lane.own);
          job_.inserted_records_.fetch_add(1, std::memory_order_relaxed);
        }
        break;
      }
      case Operation::kReadModifyWrite: {
        status = co_await client.GetAsync(lane.key, &lane.read);
        const int64_t read_ns = Finish(lane, Operation::kRead, status, lane.start_ns);
        if (status.ok()) [[likely]] {
          Verify(lane);
          status = co_await client.UpdateAsync(lane.key, lane.written);
          Finish(lane, Operation::kUpdate, status, read_ns);
        }
        Finish(lane, Operation::kReadModifyWrite, status, lane.start_ns);
        break;
      }
    }
    CountWhole(lane, status);
    if (context.round() == round) [[unlikely]]
      co_await context.Yield();
  }
}

}  // namespace ycsb
