// A client's operations. This pools them, leases them and takes them back. It also has their waiting before they begin
// again, and the oldest epoch in which one of them began.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_OPERATIONS_H_
#define KVS_EPOCHS_OPERATIONS_H_

#include <cassert>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvs/epochs/common.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/operation.h"
#include "kvs/epochs/registration.h"
#include "kvs/task.h"

namespace kvs {

class Operations final : private Part, public Connections::Waiting {
 public:
  static constexpr uint64_t kNoPin = UINT64_MAX;

  static size_t ArenaBytes(uint32_t max_in_flight) { return (max_in_flight + 1) * sizeof(OperationBuffers); }
  Operations(const Common& common, const Home& home, Registration& registration, uint32_t max_in_flight,
             ArenaPart arena);

  // ---- one operation
  // co_await it: gives an operation for `key` as soon as one is free.
  inline auto LeaseOperation(std::string_view key, const KeyHash& hash, bool of_user = true);
  // Gives one for work of the client's own, which needs the batch and the pin but is no operation of its user.
  inline auto LeaseOwnOperation();
  // Returns one that nobody uses, made now if there are fewer than may be in flight. Null: all are in use. The caller
  // must Take or Release it.
  inline Operation* FreeOperation();
  // Makes a free operation ready to read with a batch that is not its own.
  inline Operation& TakeToRead(Operation& operation, std::string_view key, const KeyHash& hash);
  // Makes a free operation ready for everything.
  inline Operation& Take(Operation& operation, std::string_view key, const KeyHash& hash, bool of_user);
  inline void Release(Operation& operation);
  // Returns the operation's registered buffer for a block of `bytes` that it is to write. Empty: there is none so
  // large.
  inline std::span<std::byte> BlockBuffer(Operation& operation, uint64_t bytes, uint32_t* lkey);
  // Takes the mover's operation, which is not one of those that users wait for. It is made when first needed.
  Operation& TakeMover(bool drains);
  void ReleaseMover() { mover_operation_->in_use = false; }

  // ---- waiting
  // Suspends for as long as operation.again calls for, which it resets. The operation must hold no address of a block
  // that it did not allocate: afterwards such a block may be reused.
  inline auto BackOff(Operation& operation);
  // Suspends for `delay_ns`; the operation keeps what it holds.
  inline auto Pause(int64_t delay_ns);
  // Resumes the coroutines that have waited long enough.
  void RunDelayed() {
    if (!delayed_.empty()) RunDue();
  }
  bool any_delayed() const { return !delayed_.empty(); }
  // Returns when the first of those is due, or `latest_ns` if that is earlier.
  int64_t NextDueNs(int64_t latest_ns) const;
  bool OutOfTime(Operation& operation);
  int64_t NextDeadlineNs() override;
  // Returns the deadline of an operation whose time begins now.
  int64_t DeadlineFromNow() const { return common_.clock.NowNs() + common_.shape.operation_timeout_ns; }
  // Call it for an operation that began under an earlier registration. After this it may begin again, knowing nothing.
  inline void BeginAgain(Operation& operation);

  // ---- all of them
  bool all_free() const { return free_.size() == operations_.size(); }
  // Returns the oldest epoch in which anything that is in flight began.
  uint64_t OldestEpochInFlight() const;
  // Sets the epoch in which maintenance began to finish another client's split. kNoPin: it does not finish one.
  void PinForMaintenance(uint64_t epoch) { maintenance_epoch_ = epoch; }
  // Raises the operations' epochs after an expulsion. They have posted nothing since, and announcements never go back.
  void RaiseEpochs(uint64_t epoch);
  // The lkey of all operations' buffers.
  uint32_t lkey() const { return arena_.lkey; }

 private:
  struct Delayed {
    int64_t due_ns;
    std::coroutine_handle<> handle;
  };
  Operation* MakeOperation();
  std::unique_ptr<Operation> NewOperation(size_t index);
  // Hands the operation to the coroutine that has waited longest.
  void HandOver(Operation& operation);
  int64_t BackOffDelayNs(Operation& operation);
  void RunDue();

  const Home& home_;
  Registration& registration_;
  const uint32_t max_in_flight_;
  const ArenaPart arena_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_;
  std::deque<std::pair<std::coroutine_handle<>, Operation**>> lease_waiters_;
  std::vector<Delayed> delayed_;
  std::unique_ptr<Operation> mover_operation_;
  uint64_t maintenance_epoch_ = kNoPin;
};

// Gives the operation back when the coroutine that holds it ends.
struct OperationLease {
  Operations& operations;
  Operation* operation;
  OperationLease(Operations& owner, Operation& leased) : operations(owner), operation(&leased) {}
  OperationLease(const OperationLease&) = delete;
  OperationLease& operator=(const OperationLease&) = delete;
  ~OperationLease() { End(); }
  void End() {
    if (operation != nullptr) operations.Release(*operation);
    operation = nullptr;
  }
};

inline Operation* Operations::FreeOperation() {
  if (free_.empty()) [[unlikely]]
    return MakeOperation();
  Operation* const operation = free_.back();
  free_.pop_back();
  return operation;
}

inline void Operations::Release(Operation& operation) {
  operation.in_use = false;
  assert(operation.batch.size() == 0);
  if (!lease_waiters_.empty()) [[unlikely]]
    return HandOver(operation);
  free_.push_back(&operation);
}

inline std::span<std::byte> Operations::BlockBuffer(Operation& operation, uint64_t bytes, uint32_t* lkey) {
  if (bytes <= kMaxSmallBlockBytes) [[likely]] {
    *lkey = arena_.lkey;
    return std::span(operation.buffers->block).first(bytes);
  }
  if (!operation.large_write.Grow(common_.node, bytes)) return {};
  *lkey = operation.large_write.region->lkey();
  return {operation.large_write.memory.get(), bytes};
}

inline Operation& Operations::TakeToRead(Operation& operation, std::string_view key, const KeyHash& hash) {
  operation.in_use = true;
  operation.deadline_ns = 0;
  operation.epoch = home_.epoch();
  operation.key = key;
  operation.hash = hash;
  operation.scan.places = PlacesOf(operation.hash, common_.shape.geometry.groups);
  operation.inserts = false;
  operation.own_ins = 0;
  operation.strangers = 0;
  return operation;
}

inline Operation& Operations::Take(Operation& operation, std::string_view key, const KeyHash& hash, bool of_user) {
  TakeToRead(operation, key, hash);
  operation.batch.Renew();
  operation.batch.CountForOperation(of_user);
  operation.attempt = operation.waits = operation.hurries = 0;
  operation.again = Again::kElse;
  operation.torn = false;
  operation.room_wait.begun = false;
  common_.stats.operations += of_user ? 1 : 0;
  return operation;
}

inline auto Operations::LeaseOperation(std::string_view key, const KeyHash& hash, bool of_user) {
  struct Awaiter {
    Operations& operations;
    std::string_view key;
    KeyHash hash;
    bool of_user;
    Operation* operation = nullptr;
    bool await_ready() {
      operation = operations.FreeOperation();
      return operation != nullptr;
    }
    void await_suspend(std::coroutine_handle<> handle) { operations.lease_waiters_.push_back({handle, &operation}); }
    Operation& await_resume() { return operations.Take(*operation, key, hash, of_user); }
  };
  return Awaiter{*this, key, hash, of_user};
}

inline auto Operations::LeaseOwnOperation() { return LeaseOperation({}, KeyHash{}, false); }

inline auto Operations::BackOff(Operation& operation) {
  struct Awaiter {
    Operations& operations;
    Operation& operation;
    int64_t delay_ns;
    bool await_ready() const { return delay_ns == 0; }
    void await_suspend(std::coroutine_handle<> handle) {
      operations.delayed_.push_back({operations.registration_.Now() + delay_ns, handle});
    }
    void await_resume() {
      // It begins again and holds nothing, so what it saw before no longer holds back reclamation.
      operation.epoch = operations.home_.epoch();
      operation.strangers = 0;
    }
  };
  ++common_.stats.restarts;
  ++operation.attempt;
  return Awaiter{*this, operation, BackOffDelayNs(operation)};
}

inline auto Operations::Pause(int64_t delay_ns) {
  struct Awaiter {
    Operations& operations;
    int64_t delay_ns;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      operations.delayed_.push_back({operations.registration_.Now() + delay_ns, handle});
    }
    void await_resume() {}
  };
  return Awaiter{*this, delay_ns};
}

inline void Operations::BeginAgain(Operation& operation) {
  operation.batch.Renew();
  operation.epoch = home_.epoch();
  operation.strangers = 0;
  operation.own_ins = 0;
  operation.room_wait.begun = false;
  ++common_.stats.fenced_restarts;
}

}  // namespace kvs

#endif  // KVS_EPOCHS_OPERATIONS_H_
