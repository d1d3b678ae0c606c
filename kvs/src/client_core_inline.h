// ClientCore's inline functions, for client_core.h alone: operations that are leased and given back, waiting, driving;
// and tasks that nobody awaits.
#ifndef KVS_SRC_CLIENT_CORE_INLINE_H_
#define KVS_SRC_CLIENT_CORE_INLINE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>
#include <utility>

#include "kvs/src/client_core.h"
#include "kvs/task.h"

namespace kvs {

// Whether steps, of an operation or of several that share the batch, go on with what it has brought.
inline bool ClientCore::GoesOn(Step step, Outcome outcome, const Batch& batch) {
  return step == Step::kRun && outcome == Outcome::kOk && !batch.Stale();
}

// Asks for the two combined buckets of the operation's table.
inline void ClientCore::ReadBuckets(Operation& op, Batch& batch) {
  const GlobalAddress table = op.scan.table.address;
  const std::array<uint64_t, 2> offsets = {table.offset + CombinedOffset(op.scan.places.place[0]),
                                           table.offset + CombinedOffset(op.scan.places.place[1])};
  batch.Read(table.node, offsets, op.buffers->buckets.data(), kCombinedBytes);
}

// The usual case: of the candidates one matches, a value whose length is known, and nothing is known of it. It must be
// among those that the scan is for.
inline bool ClientCore::FindOnlyMatch(const Operation& op, uint32_t* candidate) {
  if (op.scan.guess != Slot::Free() || op.strangers != 0) return false;
  const uint32_t matches = MatchSlots(op.buffers->candidates(), op.hash.fingerprint()).same_fingerprint;
  if (matches == 0 || (matches & (matches - 1)) != 0) return false;  // has_single_bit is a call without popcnt
  *candidate = static_cast<uint32_t>(std::countr_zero(matches));
  const Slot slot = op.Candidate(*candidate);
  return slot.state() == SlotState::kVal && slot.length_units() != kLargeBlock;
}

inline Operation* ClientCore::FreeOperation() {
  if (free_operations_.empty()) [[unlikely]]
    return MakeOperation();
  Operation* const operation = free_operations_.back();
  free_operations_.pop_back();
  return operation;
}

inline void ClientCore::Release(Operation& operation) {
  operation.in_use = false;
  assert(operation.batch.size() == 0);
  if (!lease_waiters_.empty()) [[unlikely]]
    return HandOver(operation);
  free_operations_.push_back(&operation);
}

inline Operation& ClientCore::TakeToRead(Operation& operation, std::string_view key, const KeyHash& hash) {
  operation.in_use = true;
  operation.deadline_ns = 0;
  operation.epoch = epoch_;
  operation.key = key;
  operation.hash = hash;
  operation.scan.places = PlacesOf(operation.hash, geometry_.groups);
  operation.inserts = false;
  operation.own_ins = 0;
  operation.strangers = 0;
  return operation;
}

inline Operation& ClientCore::Take(Operation& operation, std::string_view key, const KeyHash& hash, bool of_user) {
  TakeToRead(operation, key, hash);
  operation.batch.Renew();
  operation.batch.CountForOperation(of_user);
  operation.attempt = operation.waits = operation.hurries = 0;
  operation.again = Again::kElse;
  operation.torn = false;
  operation.room_wait.begun = false;
  stats_.operations += of_user ? 1 : 0;
  return operation;
}

inline auto ClientCore::LeaseOperation(std::string_view key, const KeyHash& hash, bool of_user) {
  struct Awaiter {
    ClientCore& client;
    std::string_view key;
    KeyHash hash;
    bool of_user;
    Operation* operation = nullptr;
    bool await_ready() {
      operation = client.FreeOperation();
      return operation != nullptr;
    }
    void await_suspend(std::coroutine_handle<> handle) { client.lease_waiters_.push_back({handle, &operation}); }
    Operation& await_resume() { return client.Take(*operation, key, hash, of_user); }
  };
  return Awaiter{*this, key, hash, of_user};
}

inline auto ClientCore::LeaseOwnOperation(std::string_view what) { return LeaseOperation(what, KeyHash{}, false); }

// Gives the operation back when the coroutine that holds it ends.
struct ClientCore::Lease {
  ClientCore& client;
  Operation& operation;
  Lease(ClientCore& owner, Operation& leased) : client(owner), operation(leased) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { client.Release(operation); }
};

inline auto ClientCore::BackOff(Operation& operation) {
  struct Awaiter {
    ClientCore& client;
    Operation& operation;
    int64_t delay_ns;
    bool await_ready() const { return delay_ns == 0; }
    void await_suspend(std::coroutine_handle<> handle) {
      client.delayed_.push_back({client.registration_.Now() + delay_ns, handle});
    }
    void await_resume() {
      // It begins again with nothing in its hands: what it saw before no longer holds back reclamation.
      operation.epoch = client.epoch_;
      operation.strangers = 0;
    }
  };
  ++stats_.restarts;
  ++operation.attempt;
  return Awaiter{*this, operation, BackOffDelayNs(operation)};
}

inline auto ClientCore::Pause(int64_t delay_ns) {
  struct Awaiter {
    ClientCore& client;
    int64_t delay_ns;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      client.delayed_.push_back({client.registration_.Now() + delay_ns, handle});
    }
    void await_resume() {}
  };
  return Awaiter{*this, delay_ns};
}

inline void ClientCore::BeginAgain(Operation& op) {
  op.batch.Renew();
  op.epoch = epoch_;
  op.strangers = 0;
  op.own_ins = 0;
  op.room_wait.begun = false;
  ++stats_.fenced_restarts;
}

template <typename T>
T Client::Wait(Task<T> task) {
  task.Start();
  for (uint32_t idle = 0; !task.done();) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      Idle(++idle);
    }
  }
  return task.Take();
}

// ---- tasks that nobody awaits

// Runs a spawned task to its end; owns itself.
struct Detached {
  struct promise_type {
    static void* operator new(size_t bytes) { return internal::AllocateFrame(bytes); }
    static void operator delete(void* frame, size_t bytes) { internal::FreeFrame(frame, bytes); }
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

// *running counts it while it runs.
inline Detached RunDetached(Task<void> task, size_t* running) {
  ++*running;
  co_await std::move(task);
  --*running;
}

}  // namespace kvs

#endif  // KVS_SRC_CLIENT_CORE_INLINE_H_
