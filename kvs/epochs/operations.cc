#include "kvs/epochs/operations.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// The time between two looks for memory, at first. It grows up to 64 times as long.
constexpr int64_t kRoomNs = 200'000;

}  // namespace

Operations::Operations(const Common& common, const Home& home, Registration& registration, uint32_t max_in_flight,
                       ArenaPart arena)
    : Part(common), home_(home), registration_(registration), max_in_flight_(max_in_flight), arena_(arena) {
  common.connections.SetWaiting(*this);
  operations_.reserve(max_in_flight);
  free_.reserve(max_in_flight);
}

std::unique_ptr<Operation> Operations::NewOperation(size_t index) {
  auto operation = std::make_unique<Operation>();
  operation->buffers = new (arena_.memory + index * sizeof(OperationBuffers)) OperationBuffers;
  operation->batch.Attach(&common_.connections, arena_.lkey);
  return operation;
}

Operation* Operations::MakeOperation() {
  if (operations_.size() == max_in_flight_) return nullptr;
  operations_.push_back(NewOperation(operations_.size()));
  return operations_.back().get();
}

Operation& Operations::TakeMover(bool drains) {
  if (!mover_operation_) mover_operation_ = NewOperation(max_in_flight_);
  Operation& operation = *mover_operation_;
  operation.in_use = operation.makes_room = true;
  operation.drains = drains;
  operation.batch.Renew();
  operation.epoch = home_.epoch();
  operation.strangers = 0;
  operation.own_ins = 0;
  operation.deadline_ns = 0;
  ++common_.stats.compactions;
  return operation;
}

void Operations::HandOver(Operation& operation) {
  auto [handle, slot] = lease_waiters_.front();
  lease_waiters_.pop_front();
  *slot = &operation;
  RunQueue::OfThisThread().Push(handle);
}

int64_t Operations::BackOffDelayNs(Operation& operation) {
  // Restarts that need no delay are progress, but more than this many in a row are not.
  constexpr uint32_t kMaxHurries = 16;
  const Again again = std::exchange(operation.again, Again::kElse);
  if (again == Again::kAtOnce && operation.hurries++ < kMaxHurries) return 0;
  const uint32_t waits = operation.waits++;
  if (again == Again::kRoom) return BackOffNs(kRoomNs, waits, static_cast<uint32_t>(common_.random()));
  if (again != Again::kLost && waits == 0) return 0;
  return BackOffNs(common_.connections.round_trip_ns(), waits, static_cast<uint32_t>(common_.random()));
}

bool Operations::OutOfTime(Operation& operation) {
  const int64_t now_ns = common_.clock.NowNs();
  if (operation.deadline_ns == 0) operation.deadline_ns = now_ns + common_.shape.operation_timeout_ns;
  return now_ns >= operation.deadline_ns;
}

// Operations that had met no trouble, and so had no deadline, get one now.
int64_t Operations::NextDeadlineNs() {
  const int64_t latest_ns = DeadlineFromNow();
  int64_t next_ns = latest_ns;
  for (const auto& operation : operations_) {
    if (!operation->in_use) continue;
    if (operation->deadline_ns == 0) operation->deadline_ns = latest_ns;
    next_ns = std::min(next_ns, operation->deadline_ns);
  }
  return next_ns;
}

void Operations::RunDue() {
  const int64_t now_ns = registration_.Now();
  RunQueue& run_queue = RunQueue::OfThisThread();
  for (size_t i = 0; i < delayed_.size();) {
    if (delayed_[i].due_ns <= now_ns) {
      run_queue.Push(delayed_[i].handle);
      delayed_[i] = delayed_.back();
      delayed_.pop_back();
    } else {
      ++i;
    }
  }
}

int64_t Operations::NextDueNs(int64_t latest_ns) const {
  for (const Delayed& delayed : delayed_) latest_ns = std::min(latest_ns, delayed.due_ns);
  return latest_ns;
}

uint64_t Operations::OldestEpochInFlight() const {
  uint64_t oldest = std::min(home_.epoch(), maintenance_epoch_);
  if (mover_operation_ && mover_operation_->in_use) oldest = std::min(oldest, mover_operation_->epoch);
  if (Mutated(Mutation::kNoPin)) return oldest;
  for (const auto& operation : operations_) {
    if (operation->in_use) oldest = std::min(oldest, operation->epoch);
  }
  return oldest;
}

void Operations::RaiseEpochs(uint64_t epoch) {
  for (const auto& operation : operations_) operation->epoch = std::max(operation->epoch, epoch);
  if (mover_operation_) mover_operation_->epoch = std::max(mover_operation_->epoch, epoch);
}

}  // namespace kvs
