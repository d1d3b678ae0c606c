#include "kvs/src/client_core.h"

#include <algorithm>
#include <new>

#include "kvs/src/epoch_buffers.h"
#include "kvs/src/split_buffers.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

constexpr uint64_t kMaintenancePolls = 1024;
constexpr uint32_t kMaxInFlight = 4096;
// Verbs in flight to one memory node; batches beyond wait for room.
constexpr uint32_t kMaxQueueDepth = 8192;

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

Detached RunDetached(Task<void> task, size_t* running) {
  ++*running;
  co_await std::move(task);
  --*running;
}

}  // namespace

ClientCore::ClientCore(StoreCore& store)
    : store_(store),
      clock_(store.clock()),
      connections_(store.node(), stats_),
      geometry_(store.geometry()),
      random_(static_cast<uint32_t>(clock_.NowNs())) {}

Result<std::unique_ptr<ClientCore>> ClientCore::Create(StoreCore& store, const ClientOptions& options) {
  std::unique_ptr<ClientCore> client(new ClientCore(store));
  if (Status opened = client->Open(options); !opened.ok()) return opened;
  return client;
}

Status ClientCore::Open(const ClientOptions& options) {
  if (options.max_in_flight == 0 || options.max_in_flight > kMaxInFlight) {
    return {StatusCode::kInvalidArgument, "ClientOptions::max_in_flight is 1 to " + std::to_string(kMaxInFlight)};
  }
  max_in_flight_ = options.max_in_flight;
  KRCORE_RETURN_IF_ERROR(
      connections_.Open(std::min(max_in_flight_ * kOperationVerbs + 2 * SplitBuffers::kWindow, kMaxQueueDepth)));
  const krcore::Deadline deadline = krcore::Deadline::After(clock_, store_.operation_timeout_ns());
  KRCORE_RETURN_IF_ERROR(connections_.Ensure(store_.home(), deadline));
  members_ = store_.members();
  for (const krcore::NodeId member : members_) {
    (void)connections_.Ensure(member, deadline);  // one that is dead fails the operations that need it, and no other
  }

  // One registered arena: the operations' buffers, the epochs' and the split's. What uses them is made when it is first
  // needed: a new worker should not wait for the pages of operations that it may never have in flight.
  krcore::RegionOptions arena;
  arena.length =
      max_in_flight_ * sizeof(OperationBuffers) + sizeof(EpochBuffers::Registered) + SplitBuffers::Bytes(geometry_);
  auto region = store_.node().CreateRegion(arena);
  if (!region.ok()) return region.status();
  arena_ = std::move(*region);
  operations_.reserve(max_in_flight_);
  epoch_buffers_ = std::make_unique<EpochBuffers>(arena_->bytes().data() + max_in_flight_ * sizeof(OperationBuffers),
                                                  &connections_, arena_->lkey());

  memory_ = store_.TakeMemory();
  const Step registered = RunToEnd(Register());
  if (registered == Step::kUnavailable) return UnavailableStatus("registering a client");
  if (registered != Step::kOk) {
    return {StatusCode::kOutOfMemory, "the store has " + std::to_string(kMaxClients) + " clients, its limit"};
  }
  return Status::Ok();
}

ClientCore::~ClientCore() {
  closing_ = true;
  for (uint32_t idle = 0; spawned_ > 0 || maintaining_ > 0;) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      clock_.Relax(++idle);
    }
  }
  if (registered_) (void)RunToEnd(Unregister());  // a home that is gone needs no goodbye
  if (memory_) store_.GiveMemory(std::move(memory_));
}

Operation* ClientCore::FreeOperation() {
  if (!free_operations_.empty()) {
    Operation* operation = free_operations_.back();
    free_operations_.pop_back();
    return operation;
  }
  if (operations_.size() == max_in_flight_) return nullptr;
  auto operation = std::make_unique<Operation>();
  operation->buffers = new (arena_->bytes().data() + operations_.size() * sizeof(OperationBuffers)) OperationBuffers;
  operation->batch.Attach(&connections_, arena_->lkey());
  operations_.push_back(std::move(operation));
  return operations_.back().get();
}

void ClientCore::Release(Operation& operation) {
  operation.in_use = false;
  operation.batch.Clear();
  if (lease_waiters_.empty()) {
    free_operations_.push_back(&operation);
    return;
  }
  auto [handle, slot] = lease_waiters_.front();
  lease_waiters_.pop_front();
  *slot = &operation;
  RunQueue::OfThisThread().Push(handle);
}

bool ClientCore::OutOfTime(Operation& operation) {
  const int64_t now_ns = clock_.NowNs();
  if (operation.deadline_ns == 0) operation.deadline_ns = now_ns + store_.operation_timeout_ns();
  return now_ns >= operation.deadline_ns;
}

Status ClientCore::UnavailableStatus(const char* what) const {
  return {StatusCode::kUnavailable, std::string(what) + ": memory node " + std::to_string(connections_.last_failed()) +
                                        " is dead or unreachable"};
}

void ClientCore::Spawn(Task<void> task) { RunDetached(std::move(task), &spawned_); }

void ClientCore::RunDelayed() {
  RunQueue& run_queue = RunQueue::OfThisThread();
  for (size_t i = 0; i < delayed_.size();) {
    if (delayed_[i].due_poll <= polls_) {
      run_queue.Push(delayed_[i].handle);
      delayed_[i] = delayed_.back();
      delayed_.pop_back();
    } else {
      ++i;
    }
  }
}

size_t ClientCore::Poll() {
  ++polls_;
  if (!delayed_.empty()) RunDelayed();
  const size_t completions = connections_.Poll();
  RunQueue::OfThisThread().RunAll();
  if (polls_ % kMaintenancePolls == 0 && registered_ && maintaining_ == 0 && !closing_) {
    RunDetached(Maintain(), &maintaining_);
  }
  return completions;
}

}  // namespace kvs
