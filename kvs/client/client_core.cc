// A client's life, its polling, and the calls of Client that block.
#include "kvs/client/client_core.h"

#include <algorithm>
#include <utility>

#include "kvs/client.h"
#include "kvs/client/store_core.h"

namespace kvs {
namespace {

constexpr uint64_t kOverduePolls = 64;
// How often the caretaker polls an idle client in a round: enough for some round trips.
constexpr int kCareRounds = 200;
// A client with nothing to post looks at the clock once in this many polls.
constexpr uint64_t kIdlePolls = 64;
// A blocking call sleeps if nothing is due within this time. It does so only after kRoundsBeforeNap rounds, because it
// reads the clock for that.
constexpr int64_t kNapNs = 200'000;
constexpr uint32_t kRoundsBeforeNap = 100;
constexpr uint32_t kMaxInFlight = 4096;
// The most verbs in flight to one memory node; batches beyond that wait for room.
constexpr uint32_t kMaxQueueDepth = 8192;
// How many entries of the client table, as it is read, are touched in advance. More are seldom in use.
constexpr size_t kTouchedClients = 64;
// A home that repeated attempts have not reached for this long is away.
constexpr int64_t kReconnectedNs = 120'000'000;

}  // namespace

ClientCore::ClientCore(StoreCore& store, const ClientOptions& options, std::unique_ptr<krcore::Node> own_node,
                       std::unique_ptr<krcore::Region> arena)
    : store_(store),
      options_(options),
      own_node_(std::move(own_node)),
      random_(static_cast<uint32_t>(store.clock().NowNs())),
      nonces_((own_node_ ? *own_node_ : store.node()).id(), (own_node_ ? *own_node_ : store.node()).incarnation(),
              store.state().clients.fetch_add(1, std::memory_order_relaxed)),
      views_(store.shape().mirrored ? std::make_unique<Views>(own_node_ ? *own_node_ : store.node(),
                                                              store.shape().lease_ns, store.shape().geometry.bytes())
                                    : nullptr),
      connections_(own_node_ ? *own_node_ : store.node(), store.state().identity, store.shape().reconnect_budget_ns,
                   stats_),
      arena_(std::move(arena)),
      common_{own_node_ ? *own_node_ : store.node(),
              store.clock(),
              connections_,
              stats_,
              random_,
              store.shape(),
              store.state(),
              nonces_},
      epochs_(common_, options.max_in_flight, {arena_->bytes().data(), arena_->lkey()}),
      table_(epochs_,
             ArenaPart{arena_->bytes().data(), arena_->lkey()}.After(Epochs::ArenaBytes(options.max_in_flight))),
      upkeep_(epochs_, table_) {
  table_.combiner.SetSize(options.max_in_flight);
  table_.addresses.SetSize(options.address_cache_entries);
  if (!views_) return;
  connections_.SetViews(*views_, &epochs_.registration);
  views_->SetAbandoned([&held = common_.store.held_entries](uint32_t index, OwnerWord owner) {
    return held.IsAbandoned({index, owner});
  });
}

const ClientStats& ClientCore::stats() const {
  const krcore::QueuePoolStats& pool = connections_.pool().stats();
  stats_.rc_connects = pool.rc_connects;
  stats_.rc_reclaims = pool.rc_reclaims;
  return stats_;
}

// Returns a function that adds the time since its last call to a part.
auto ClientCore::Stopwatch() {
  return [this, last_ns = common_.clock.NowNs()](int64_t* part) mutable {
    const int64_t now_ns = common_.clock.NowNs();
    *part += now_ns - std::exchange(last_ns, now_ns);
  };
}

Result<std::unique_ptr<ClientCore>> ClientCore::Prepare(StoreCore& store, const ClientOptions& options) {
  const uint32_t max_in_flight = options.max_in_flight;
  if (max_in_flight == 0 || max_in_flight > kMaxInFlight) {
    return Status(StatusCode::kInvalidArgument, "ClientOptions::max_in_flight is 1 to " + std::to_string(kMaxInFlight));
  }
  const int64_t start_ns = store.clock().NowNs();
  auto own_node = store.OpenClientNode(krcore::Deadline::After(store.clock(), store.shape().operation_timeout_ns));
  if (!own_node.ok()) return own_node.status();
  const int64_t node_ns = store.clock().NowNs();

  // One registered arena: the operations' buffers, the home's words, and the workbench. The objects in it are made when
  // first needed: a new worker should not wait for the pages of operations that it may never have in flight.
  krcore::RegionOptions arena_options;
  arena_options.length = Epochs::ArenaBytes(max_in_flight) + Workbench::ArenaBytes(store.shape().geometry);
  auto arena = (*own_node ? **own_node : store.node()).CreateRegion(arena_options);
  if (!arena.ok()) return arena.status();
  std::unique_ptr<ClientCore> client(new ClientCore(store, options, *std::move(own_node), *std::move(arena)));
  client->times_.node_ns = node_ns - start_ns;
  client->times_.memory_ns = store.clock().NowNs() - node_ns;

  auto took = client->Stopwatch();
  KRCORE_RETURN_IF_ERROR(client->connections_.Open(
      std::min(max_in_flight * kOperationVerbs + 2 * Workbench::kWindow, kMaxQueueDepth), options.queues));
  took(&client->times_.queues_ns);
  return client;
}

Status ClientCore::MakeFirstUsed() {
  if (!views_) {
    KRCORE_RETURN_IF_ERROR(connections_.MakeQueue(common_.shape.home));
    for (const krcore::NodeId node : store_.members()) KRCORE_RETURN_IF_ERROR(connections_.MakeQueue(node));
  }
  Operation* const operation = epochs_.operations.FreeOperation();
  epochs_.operations.Release(*operation);
  table_.addresses.MakeTable();
  const auto touch = [](void* begin, size_t bytes) {
    constexpr size_t kPageBytes = 4096;
    auto* const memory = static_cast<volatile std::byte*>(begin);
    for (size_t i = 0; i < bytes; i += kPageBytes) memory[i] = memory[i];
    memory[bytes - 1] = memory[bytes - 1];
  };
  touch(operation->buffers, sizeof(OperationBuffers));
  Home::Registered& words = epochs_.home.words();
  touch(words.members, sizeof(words.members));
  touch(words.clients, kTouchedClients * sizeof(ClientEntry));
  return Status::Ok();
}

Status ClientCore::Begin() {
  RunQueue::OfThisThread().DropInherited();
  auto took = Stopwatch();
  Home& home = epochs_.home;
  const krcore::Deadline deadline = krcore::Deadline::After(common_.clock, common_.shape.operation_timeout_ns);
  if (views_) KRCORE_RETURN_IF_ERROR(views_->Open(deadline));
  KRCORE_RETURN_IF_ERROR(connections_.Ensure(common_.shape.home, deadline));
  took(&times_.connect_ns);
  // Make the connections first. They may take long, and others wait for a registered client.
  const Step learnt = Wait(home.Glance());
  if (learnt != Step::kOk) return connections_.UnavailableStatus("reading the store's home");
  KRCORE_RETURN_IF_ERROR(common_.store.identity.Confirm(home.words().hash_seed));
  took(&times_.register_ns);
  for (const krcore::NodeId node : home.all_nodes()) {
    (void)connections_.Ensure(node, deadline);  // a dead one fails only the operations that need it
  }
  took(&times_.connect_ns);

  connections_.pool().SetGate(&epochs_.registration);
  epochs_.memory.Set(store_.TakeMemory());
  Step registered = Wait(epochs_.registrar.Register());
  while (registered == Step::kUnavailable && views_ && !deadline.Passed(common_.clock)) {
    KRCORE_RETURN_IF_ERROR(views_->Open(deadline));  // there may be another configuration
    registered = Wait(epochs_.registrar.Register());
  }
  if (registered == Step::kUnavailable) return connections_.UnavailableStatus("registering a client");
  if (registered != Step::kOk) {
    return {StatusCode::kOutOfMemory, "the store has " + std::to_string(kMaxClients) + " clients, its limit"};
  }
  took(&times_.register_ns);
  store_.NoteMembers(home.all_nodes());
  // Clients that begin at the same moment must not back off in step.
  random_.seed(static_cast<uint32_t>(
      ((static_cast<uint64_t>(common_.clock.NowNs()) ^ uint64_t{epochs_.registrar.client_index()} << 48) *
       0x9e3779b97f4a7c15) >>
      32));
  return Status::Ok();
}

bool ClientCore::MayEnd() {
  if (!store_.ViewPending()) return true;
  if (!views_->changing()) views_->NoteNewer();
  return false;
}

ClientCore::~ClientCore() {
  epochs_.own_work.closing = true;
  for (uint32_t idle = 0; HasOwnWork();) PollOrIdle(&idle);
  Registrar& registrar = epochs_.registrar;
  if (registrar.registered()) SayGoodbye();
  if (registrar.registered()) {
    farewell_.held = &common_.store.held_entries;
    farewell_.entry = registrar.entry();
  }
  // If the client may have been expelled, its memory is not passed on: sweeping finds it.
  const Registration& registration = epochs_.registration;
  const bool may_be_expelled =
      registration.expelled() || (registrar.registered() && registration.standing() == Registration::Standing::kAlive);
  auto memory = epochs_.memory.Take();
  if (memory && !may_be_expelled) store_.GiveMemory(std::move(memory));
}

// Gives the entry back. A home that is gone is told late or never; one whose queue has just broken is tried again. An
// expelled client has to acknowledge that it has stopped, which takes a renewal. Otherwise no renewal may be under way
// when the entry is given back, because it would go on with the next holder's word.
void ClientCore::SayGoodbye() {
  Registrar& registrar = epochs_.registrar;
  const int64_t begun_ns = common_.clock.NowNs();
  const krcore::Deadline deadline{begun_ns + common_.shape.operation_timeout_ns};
  const krcore::Deadline reconnected{std::max(begun_ns, connections_.NextTryNs(common_.shape.home)) + kReconnectedNs};
  auto wait = [this, idle = 0u]() mutable {
    if (Poll() == 0) common_.clock.Relax(++idle);  // a clock that nobody waits on may stand still
  };
  while (registrar.registered() && !deadline.Passed(common_.clock)) {
    if (registrar.renewing()) {
      wait();
      continue;
    }
    const Step left = Wait(registrar.Unregister());
    if (left == Step::kOk || (left == Step::kUnavailable && reconnected.Passed(common_.clock))) break;
    wait();
  }
  while (!registrar.registered() && Wait(registrar.GiveBackAbandonedEntry())) {
  }
  registrar.EndRenewals();
  while (registrar.renewing()) wait();
}

void ClientCore::Spawn(Task<void> task) { RunDetached(std::move(task), &spawned_); }

size_t ClientCore::Poll() {
  if (forked()) [[unlikely]]
    return 0;
  ++polls_;
  epochs_.registration.ForgetNow();
  epochs_.operations.RunDelayed();
  if (table_.combiner.any_waiting() && polls_ % kOverduePolls == 0)
    table_.combiner.EndOverdue(epochs_.registration.Now());
  size_t completions = connections_.Poll();
  epochs_.registrar.PollRenewal(&completions);
  RunQueue::OfThisThread().RunAll();
  // This must not begin before the first heartbeat: registering uses the buffers of maintenance.
  const bool alive = epochs_.registration.standing() != Registration::Standing::kNone;
  if (alive && (std::exchange(look_, false) || epochs_.registration.looked() || polls_ % kIdlePolls == 0))
    CareForRegistration();
  return completions;
}

// After a look at the clock, begins what is due: maintenance, or the renewal of a lease that is over.
void ClientCore::CareForRegistration() {
  const int64_t now_ns = epochs_.registration.Now();
  if (epochs_.registrar.CareForLease() && upkeep_.maintenance.BeginIfDue(now_ns))
    upkeep_.compaction.BeginIfWanted(now_ns);
}

int64_t ClientCore::IdleUntil() {
  const Registration& registration = epochs_.registration;
  const bool shut = forked() || registration.standing() != Registration::Standing::kAlive || registration.overdue() ||
                    epochs_.registrar.renewing();
  if (shut || !connections_.NothingUnderWay()) return INT64_MIN;
  look_ = true;  // after the sleep the next Poll looks at the clock, or it would not see what is due
  const bool idle = epochs_.operations.all_free() && !epochs_.operations.any_delayed();
  return epochs_.operations.NextDueNs(upkeep_.maintenance.next_ns(idle));
}

bool ClientCore::CareWhileIdle(bool goes_on) {
  if (!goes_on && !epochs_.operations.all_free()) return false;  // no coroutine of its user is resumed here
  const int64_t now_ns = common_.clock.NowNs();
  (void)IdleUntil();  // so that the Poll looks at the clock
  for (int round = 0; round < kCareRounds; ++round) {
    Poll();
    if (IdleUntil() > now_ns) return false;
  }
  return true;
}

// A call that waits only for time need not spin.
void ClientCore::Idle(uint32_t rounds) {
  const bool naps = rounds >= kRoundsBeforeNap && IdleUntil() > common_.clock.NowNs() + kNapNs;
  common_.clock.Relax(naps ? UINT32_MAX : rounds);
}

Task<Status> ClientCore::ScanAsync(uint64_t* cursor, std::vector<ScanRecord>* records, ScanOptions options) {
  records->clear();
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await table_.scanner.Scan(cursor, options, records);
}

Task<Status> ClientCore::CompactAsync(CompactOptions options, CompactReport* report) {
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await upkeep_.compaction.Compact(options, report);
}

Task<Status> ClientCore::DrainNodeAsync(krcore::NodeId node, DrainOptions options, DrainReport* report) {
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await upkeep_.drainer.Drain(node, options, report);
}

Task<Status> ClientCore::UndrainNodeAsync(krcore::NodeId node) {
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await upkeep_.drainer.Undrain(node);
}

Task<Status> ClientCore::BringReplica(krcore::NodeId pool, Replica learner, int64_t timeout_ms, uint64_t bytes_per_s,
                                      ReplicatorReport* report) {
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await upkeep_.replicator.Bring(pool, learner, timeout_ms, bytes_per_s, report);
}

Task<Status> ClientCore::EnterPool(krcore::NodeId pool) {
  if (forked()) co_return OpenedBeforeFork();
  co_return co_await upkeep_.replicator.Enter(pool);
}

// ---- Client's calls that block: each drives the coroutine of the same name

void Client::Idle(uint32_t rounds) { krcore::RealClock()->Relax(rounds); }

Status Client::Get(std::string_view key, std::string* value) { return Wait(GetAsync(key, value)); }
Status Client::Put(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Wait(PutAsync(key, value, expires_at_ms));
}
Status Client::Insert(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Wait(InsertAsync(key, value, expires_at_ms));
}
Status Client::Update(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Wait(UpdateAsync(key, value, expires_at_ms));
}
Status Client::Delete(std::string_view key) { return Wait(DeleteAsync(key)); }
Status Client::Modify(std::string_view key, const ModifyFunction& function) {
  return Wait(ModifyAsync(key, &function));
}

Status Client::Scan(uint64_t* cursor, std::vector<ScanRecord>* records, const ScanOptions& options) {
  return Wait(ScanAsync(cursor, records, options));
}

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

// Sets *compared to how the comparison ended.
static ModifyFunction Comparison(std::optional<std::string_view> expected, std::optional<std::string_view> desired,
                                 uint64_t expires_at_ms, Status* compared) {
  return [=](std::optional<std::string_view> value) {
    *compared = value == expected ? StatusCode::kOk : value ? StatusCode::kExists : StatusCode::kNotFound;
    if (!compared->ok()) return Modification::Keep();
    return desired ? Modification::Set(std::string(*desired), expires_at_ms) : Modification::Delete();
  };
}

Status Client::CompareAndSet(std::string_view key, std::optional<std::string_view> expected,
                             std::optional<std::string_view> desired, uint64_t expires_at_ms) {
  Status compared;
  const Status modified = Modify(key, Comparison(expected, desired, expires_at_ms, &compared));
  return modified.ok() ? compared : modified;
}

Task<Status> Client::CompareAndSetAsync(std::string_view key, std::optional<std::string_view> expected,
                                        std::optional<std::string_view> desired, uint64_t expires_at_ms) {
  Status compared;
  const ModifyFunction comparison = Comparison(expected, desired, expires_at_ms, &compared);
  Status modified = co_await ModifyAsync(key, &comparison);
  if (!modified.ok()) co_return modified;
  co_return compared;
}

void Client::Drain() {
  for (uint32_t idle = 0; spawned() > 0;) PollOrIdle(&idle);
}

}  // namespace kvs
