// A client's life, its polling, and what its operations wait for; and the calls of Client that block.
#include "kvs/src/client_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kvs/client.h"
#include "kvs/src/buffers.h"
#include "kvs/src/mover.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

constexpr uint64_t kOverduePolls = 64;
// A client with nothing to post looks at the clock once in so many polls.
constexpr uint64_t kIdlePolls = 64;
// A blocking call sleeps where nothing is due sooner; after so many rounds, since it reads the clock for that.
constexpr int64_t kNapNs = 200'000;
constexpr uint32_t kRoundsBeforeNap = 100;
constexpr uint32_t kMaxInFlight = 4096;
// Between two looks for memory, at first; up to 64 times as long.
constexpr int64_t kRoomNs = 200'000;
// Verbs in flight to one memory node; batches beyond wait for room.
constexpr uint32_t kMaxQueueDepth = 8192;
// Of the client table, as it is read: seldom are more of its entries in use.
constexpr size_t kTouchedClients = 64;
// A home that has not been reached for so long, by one attempt after the other, is away.
constexpr int64_t kReconnectedNs = 120'000'000;

}  // namespace

ClientCore::ClientCore(StoreCore& store, const ClientOptions& options, std::unique_ptr<krcore::Node> own_node)
    : store_(store),
      options_(options),
      own_node_(std::move(own_node)),
      node_(own_node_ ? *own_node_ : store.node()),
      clock_(store.clock()),
      connections_(node_, store.reconnect_budget_ns(), *this, stats_),
      geometry_(store.geometry()),
      chunk_bytes_(store.chunk_bytes()),
      hasher_(store.hasher()),
      registration_(clock_, store.lease_ns()),
      random_(static_cast<uint32_t>(clock_.NowNs())) {}

const ClientStats& ClientCore::stats() const {
  const krcore::QueuePoolStats& pool = connections_.pool().stats();
  stats_.rc_connects = pool.rc_connects;
  stats_.rc_reclaims = pool.rc_reclaims;
  return stats_;
}

Result<std::unique_ptr<ClientCore>> ClientCore::Prepare(StoreCore& store, const ClientOptions& options) {
  if (options.max_in_flight == 0 || options.max_in_flight > kMaxInFlight) {
    return Status(StatusCode::kInvalidArgument, "ClientOptions::max_in_flight is 1 to " + std::to_string(kMaxInFlight));
  }
  const int64_t start_ns = store.clock().NowNs();
  auto own_node = store.OpenClientNode(krcore::Deadline::After(store.clock(), store.operation_timeout_ns()));
  if (!own_node.ok()) return own_node.status();
  std::unique_ptr<ClientCore> client(new ClientCore(store, options, *std::move(own_node)));
  client->times_.node_ns = store.clock().NowNs() - start_ns;
  KRCORE_RETURN_IF_ERROR(client->MakeQueuesAndMemory());
  return client;
}

// Adds the time since it was called last to a part.
auto ClientCore::Stopwatch() {
  return [this, last_ns = clock_.NowNs()](int64_t* part) mutable {
    const int64_t now_ns = clock_.NowNs();
    *part += now_ns - std::exchange(last_ns, now_ns);
  };
}

Status ClientCore::MakeQueuesAndMemory() {
  const uint32_t max_in_flight = options_.max_in_flight;
  auto took = Stopwatch();
  KRCORE_RETURN_IF_ERROR(connections_.Open(
      std::min(max_in_flight * kOperationVerbs + 2 * SplitBuffers::kWindow, kMaxQueueDepth), options_.queues));
  took(&times_.queues_ns);

  // One registered arena: the operations' buffers, the epochs' and the split's. What uses them is made when it is first
  // needed: a new worker should not wait for the pages of operations that it may never have in flight.
  krcore::RegionOptions arena;
  arena.length = (max_in_flight + 1) * sizeof(OperationBuffers) + sizeof(EpochBuffers::Registered) +
                 SplitBuffers::Bytes(geometry_);
  auto region = node_.CreateRegion(arena);
  if (!region.ok()) return region.status();
  arena_ = std::move(*region);
  operations_.reserve(max_in_flight);
  free_operations_.reserve(max_in_flight);
  combiner_.SetSize(max_in_flight);
  address_cache_.SetSize(options_.address_cache_entries);
  epoch_buffers_ = std::make_unique<EpochBuffers>(
      arena_->bytes().data() + (max_in_flight + 1) * sizeof(OperationBuffers), &connections_, arena_->lkey());
  took(&times_.memory_ns);
  return Status::Ok();
}

Status ClientCore::MakeFirstUsed() {
  KRCORE_RETURN_IF_ERROR(connections_.MakeQueue(store_.home()));
  for (const krcore::NodeId node : store_.members()) KRCORE_RETURN_IF_ERROR(connections_.MakeQueue(node));
  Operation* const operation = FreeOperation();
  Release(*operation);
  address_cache_.MakeTable();
  const auto touch = [](void* begin, size_t bytes) {
    constexpr size_t kPageBytes = 4096;
    auto* const memory = static_cast<volatile std::byte*>(begin);
    for (size_t i = 0; i < bytes; i += kPageBytes) memory[i] = memory[i];
    memory[bytes - 1] = memory[bytes - 1];
  };
  touch(operation->buffers, sizeof(OperationBuffers));
  EpochBuffers::Registered& words = epoch_buffers_->words();
  touch(words.members, sizeof(words.members));
  touch(words.clients, kTouchedClients * sizeof(ClientEntry));
  return Status::Ok();
}

Status ClientCore::Begin() {
  RunQueue::OfThisThread().DropInherited();
  auto took = Stopwatch();
  const krcore::Deadline deadline = krcore::Deadline::After(clock_, store_.operation_timeout_ns());
  KRCORE_RETURN_IF_ERROR(connections_.Ensure(store_.home(), deadline));
  took(&times_.connect_ns);
  // First the connections, which may take long: others wait for who is registered.
  const Step learnt = Wait(LearnHome());
  if (learnt != Step::kOk) return UnavailableStatus("reading the store's home");
  if (epoch_buffers_->words().hash_seed != hasher_.seed()) {
    return {StatusCode::kBadState, "the fabric has another store since this one was opened (open it again)"};
  }
  took(&times_.register_ns);
  for (const std::vector<krcore::NodeId>& nodes : {members_, draining_}) {
    for (const krcore::NodeId node : nodes) {
      (void)connections_.Ensure(node, deadline);  // one that is dead fails the operations that need it, and no other
    }
  }
  took(&times_.connect_ns);

  connections_.pool().SetGate(&registration_);
  memory_ = store_.TakeMemory();
  const Step registered = Wait(Register());
  if (registered == Step::kUnavailable) return UnavailableStatus("registering a client");
  if (registered != Step::kOk) {
    return {StatusCode::kOutOfMemory, "the store has " + std::to_string(kMaxClients) + " clients, its limit"};
  }
  took(&times_.register_ns);
  std::vector<krcore::NodeId> members = members_;
  members.insert(members.end(), draining_.begin(), draining_.end());
  store_.NoteMembers(std::move(members));
  // Clients that begin at the same moment must not back off in step.
  random_.seed(static_cast<uint32_t>(
      ((static_cast<uint64_t>(clock_.NowNs()) ^ uint64_t{client_index_} << 48) * 0x9e3779b97f4a7c15) >> 32));
  return Status::Ok();
}

ClientCore::Farewell::~Farewell() { held_.Abandon(entry_); }

ClientCore::~ClientCore() {
  closing_ = true;
  for (uint32_t idle = 0; spawned_ > 0 || maintaining_ > 0 || restructuring_ > 0 || compacting_ > 0;) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      clock_.Relax(++idle);
    }
  }
  if (registered_) SayGoodbye();
  if (registered_) farewell_.emplace(store_.held_entries(), ClaimedEntry{client_index_, OwnerWord()});
  // What one that may have been expelled held is found by sweeping.
  if (registration_.expelled() || (registered_ && registration_.standing() == Registration::Standing::kAlive)) {
    memory_.reset();
  }
  if (memory_) store_.GiveMemory(std::move(memory_));
}

// A home that is gone gets no goodbye, or a late one; one whose queue has just broken is tried again. An expelled
// client has to say that it has stopped, which takes a renewal. Otherwise none may be under way when the entry is given
// back, for it would go on with the next holder's word.
void ClientCore::SayGoodbye() {
  const int64_t begun_ns = clock_.NowNs();
  const krcore::Deadline deadline{begun_ns + store_.operation_timeout_ns()};
  const krcore::Deadline reconnected{std::max(begun_ns, connections_.NextTryNs(store_.home())) + kReconnectedNs};
  auto wait = [this, idle = 0u]() mutable {
    if (Poll() == 0) clock_.Relax(++idle);  // a clock that nobody waits on may stand still
  };
  while (registered_ && !deadline.Passed(clock_)) {
    if (renewing_ > 0) {
      wait();
      continue;
    }
    const Step left = Wait(Unregister());
    if (left == Step::kOk || (left == Step::kUnavailable && reconnected.Passed(clock_))) break;
    wait();
  }
  while (!registered_ && Wait(GiveBackAbandonedEntry(epoch_buffers_->batch()))) {
  }
  renewals_end_ = true;
  while (renewing_ > 0) wait();
}

bool ClientCore::AllocateLarge(uint64_t bytes, LargeBuffer* buffer) {
  if (buffer->region && buffer->region->bytes().size() >= bytes) return true;
  buffer->region.reset();
  buffer->memory.reset(new (std::align_val_t{64}, std::nothrow) std::byte[bytes]);
  if (!buffer->memory) return false;
  auto region = node_.RegisterLocal(buffer->memory.get(), bytes);
  if (!region.ok()) return false;
  buffer->region = std::move(*region);
  return true;
}

Operation* ClientCore::MakeOperation() {
  if (operations_.size() == options_.max_in_flight) return nullptr;
  auto operation = std::make_unique<Operation>();
  operation->buffers = new (arena_->bytes().data() + operations_.size() * sizeof(OperationBuffers)) OperationBuffers;
  operation->batch.Attach(&connections_, arena_->lkey());
  operations_.push_back(std::move(operation));
  return operations_.back().get();
}

void ClientCore::HandOver(Operation& operation) {
  auto [handle, slot] = lease_waiters_.front();
  lease_waiters_.pop_front();
  *slot = &operation;
  RunQueue::OfThisThread().Push(handle);
}

int64_t ClientCore::BackOffDelayNs(Operation& operation) {
  // Restarts that need no delay are progress; so many of them in a row are not.
  constexpr uint32_t kMaxHurries = 16;
  const Again again = std::exchange(operation.again, Again::kElse);
  if (again == Again::kAtOnce && operation.hurries++ < kMaxHurries) return 0;
  const uint32_t waits = operation.waits++;
  if (again == Again::kRoom) return BackOffNs(kRoomNs, waits, static_cast<uint32_t>(random_()));
  if (again != Again::kLost && waits == 0) return 0;
  return BackOffNs(connections_.round_trip_ns(), waits, static_cast<uint32_t>(random_()));
}

bool ClientCore::OutOfTime(Operation& operation) {
  const int64_t now_ns = clock_.NowNs();
  if (operation.deadline_ns == 0) operation.deadline_ns = now_ns + store_.operation_timeout_ns();
  return now_ns >= operation.deadline_ns;
}

// Those that have met no trouble before meet it now.
int64_t ClientCore::NextDeadlineNs() {
  const int64_t latest_ns = DeadlineFromNow();
  int64_t next_ns = latest_ns;
  for (const auto& operation : operations_) {
    if (!operation->in_use) continue;
    if (operation->deadline_ns == 0) operation->deadline_ns = latest_ns;
    next_ns = std::min(next_ns, operation->deadline_ns);
  }
  return next_ns;
}

int64_t ClientCore::DeadlineFromNow() const { return clock_.NowNs() + store_.operation_timeout_ns(); }

Status ClientCore::UnavailableStatus(const char* what) const {
  return {StatusCode::kUnavailable, std::string(what) + ": memory node " + std::to_string(connections_.last_failed()) +
                                        " is dead or unreachable"};
}

void ClientCore::Spawn(Task<void> task) { RunDetached(std::move(task), &spawned_); }

void ClientCore::Background(Task<void> task) { RunDetached(std::move(task), &restructuring_); }

void ClientCore::RunDelayed() {
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

size_t ClientCore::Poll() {
  if (forked()) [[unlikely]]
    return 0;
  ++polls_;
  registration_.ForgetNow();
  if (!delayed_.empty()) RunDelayed();
  if (combiner_.any_waiting() && polls_ % kOverduePolls == 0) combiner_.EndOverdue(registration_.Now());
  size_t completions = connections_.Poll();
  if (renewal_ && renewing_ > 0) [[unlikely]]
    completions += renewal_->connections.Poll();
  RunQueue::OfThisThread().RunAll();
  // Not before the first heartbeat: registering uses the buffers of maintenance.
  const bool alive = registration_.standing() != Registration::Standing::kNone;
  if (alive && (std::exchange(look_, false) || registration_.looked() || polls_ % kIdlePolls == 0))
    CareForRegistration();
  return completions;
}

int64_t ClientCore::IdleUntil() {
  const bool shut = forked() || registration_.standing() != Registration::Standing::kAlive || registration_.overdue() ||
                    renewing_ > 0;
  if (shut || !connections_.NothingUnderWay()) return INT64_MIN;
  look_ = true;  // at the end of the sleep, or there would be nothing to see
  const bool idle = free_operations_.size() == operations_.size() && delayed_.empty();
  int64_t until_ns = idle ? maintain_idle_at_ns_ : maintain_at_ns_;
  for (const Delayed& delayed : delayed_) until_ns = std::min(until_ns, delayed.due_ns);
  return until_ns;
}

// A call that waits for nothing but time need not spin.
void ClientCore::Idle(uint32_t rounds) {
  const bool naps = rounds >= kRoundsBeforeNap && IdleUntil() > clock_.NowNs() + kNapNs;
  clock_.Relax(naps ? UINT32_MAX : rounds);
}

// ---- Client's calls that block: each drives the coroutine of its name

void Client::Idle(uint32_t rounds) { krcore::RealClock()->Relax(rounds); }

Status Client::Get(std::string_view key, std::string* value) { return Wait(GetAsync(key, value)); }
Status Client::Put(std::string_view key, std::string_view value) { return Wait(PutAsync(key, value)); }
Status Client::Insert(std::string_view key, std::string_view value) { return Wait(InsertAsync(key, value)); }
Status Client::Update(std::string_view key, std::string_view value) { return Wait(UpdateAsync(key, value)); }
Status Client::Delete(std::string_view key) { return Wait(DeleteAsync(key)); }

Status Client::Compact(const CompactOptions& options, CompactReport* report) {
  CompactReport unwanted;
  return Wait(CompactAsync(options, report != nullptr ? report : &unwanted));
}

Status Client::DrainNode(krcore::NodeId node, const DrainOptions& options, DrainReport* report) {
  DrainReport unwanted;
  return Wait(DrainNodeAsync(node, options, report != nullptr ? report : &unwanted));
}

Status Client::UndrainNode(krcore::NodeId node) { return Wait(UndrainNodeAsync(node)); }

void Client::MultiGet(std::span<const std::string_view> keys, std::span<std::string> values,
                      std::span<Status> statuses) {
  Wait(MultiGetAsync(keys, values, statuses));
}

void Client::MultiWrite(std::span<WriteRequest> writes) { Wait(MultiWriteAsync(writes)); }

void Client::Drain() {
  for (uint32_t idle = 0; spawned() > 0;) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      Idle(++idle);
    }
  }
}

}  // namespace kvs
