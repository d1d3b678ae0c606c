// What the clients do to the store, and whether the answers are among those allowed.
#include <algorithm>
#include <iterator>
#include <optional>

#include "tests/sim/simulation_core.h"

namespace surgekv_sim {

void Simulation::StartOperation(ClientState& state) {
  static constexpr OpKind kRead[] = {OpKind::kGet, OpKind::kGet,    OpKind::kGet,   OpKind::kGet,
                                     OpKind::kGet, OpKind::kUpdate, OpKind::kModify};
  static constexpr OpKind kAll[] = {OpKind::kGet,    OpKind::kGet,    OpKind::kGet,    OpKind::kPut,
                                    OpKind::kPut,    OpKind::kInsert, OpKind::kInsert, OpKind::kUpdate,
                                    OpKind::kUpdate, OpKind::kDelete, OpKind::kModify, OpKind::kModify};
  static constexpr OpKind kGrow[] = {OpKind::kInsert, OpKind::kInsert, OpKind::kPut,   OpKind::kGet,
                                     OpKind::kGet,    OpKind::kUpdate, OpKind::kModify};
  static constexpr OpKind kShrink[] = {OpKind::kDelete, OpKind::kDelete, OpKind::kDelete, OpKind::kDelete,
                                       OpKind::kGet};
  static constexpr OpKind kChurn[] = {OpKind::kUpdate, OpKind::kPut, OpKind::kGet, OpKind::kModify};
  static constexpr OpKind kStormyGrow[] = {OpKind::kInsert, OpKind::kInsert, OpKind::kUpdate,
                                           OpKind::kUpdate, OpKind::kModify, OpKind::kGet,
                                           OpKind::kGet,    OpKind::kGet,    OpKind::kGet};
  const auto any = [this](const auto& kinds) { return kinds[Below(std::size(kinds))]; };
  if (!state.scan.under_way && Chance(plan_.scans)) {
    kvs::ScanOptions options;
    options.count = 1 + Below(Chance(0.5) ? 10 : 200);
    options.values = Chance(0.8);
    return StartScan(state, options, 1 + Below(16));
  }
  OpKind kind = any(kAll);
  uint32_t key = hot_[Below(hot_count_)];
  const bool hot = phase_ == Phase::kHot ? Chance(0.9)
                                         : Chance(plan_.storm == Storm::kNone     ? 0.25
                                                  : plan_.storm == Storm::kSplits ? 0.1
                                                                                  : 0.0);
  if (!hot || state.process->slow) {
    key = Below(plan_.keys);
    switch (phase_) {
      case Phase::kGrowth:
        kind = plan_.storm == Storm::kSplits ? any(kStormyGrow) : any(kGrow);
        if (state.process->slow) kind = any(kRead);
        // Keys are inserted in order, and the other operations use keys that are there: an answer "not found" is wrong.
        if (plan_.storm == Storm::kSplits)
          key = kind == OpKind::kInsert ? grow_cursor_++ % plan_.keys : Below(std::min(grow_cursor_ + 1, plan_.keys));
        break;
      case Phase::kDelete: kind = any(kShrink); break;
      case Phase::kChurn:
        kind = state.process->slow ? any(kRead) : any(kChurn);
        if (plan_.storm == Storm::kNone) key %= 30;
        break;
      case Phase::kHot:
      case Phase::kMixed: break;
    }
    if (phase_ == Phase::kDelete && Chance(0.8)) key = delete_cursor_++ % plan_.keys;
  }
  if (Chance(0.2)) return kind == OpKind::kGet ? StartMultiGet(state, key) : StartMultiWrite(state, kind, key);
  Start(state, kind, key);
}

uint32_t Simulation::Begin(ClientState& state, OpKind kind, uint32_t key) {
  const bool writes = kind != OpKind::kGet && kind != OpKind::kDelete;
  const bool expires = writes && plan_.expiring > 0 && Chance(plan_.expiring);
  // Some expire at once, and some long after the run.
  const int64_t expires_ns = expires ? world_.now_ns() + LogUniform(random_, 500 * kUs, kSecond) - kMs : 0;
  const uint64_t expires_at_ms =
      expires ? DayClock::kBeginMs + static_cast<uint64_t>(std::max<int64_t>(expires_ns, 0) / kMs) : 0;
  const uint32_t index = history_.Begin(key, kind, state.number, world_.now_ns(), expires_at_ms);
  ++state.in_flight;
  Trace("client %u begins %u: %s of %s, value %u", state.number, index, KindName(kind), history_.NameOf(key).c_str(),
        history_[index].value);
  return index;
}

uint32_t Simulation::Start(ClientState& state, OpKind kind, uint32_t key) {
  const uint32_t index = Begin(state, kind, key);
  state.client->Spawn(RunOperation(&state, index));
  return index;
}

uint32_t Simulation::AnotherKey() {
  // As above, a storm of splits uses only keys that are there.
  const bool splits = plan_.storm == Storm::kSplits && phase_ == Phase::kGrowth;
  const uint32_t keys = splits ? std::min(grow_cursor_ + 1, plan_.keys) : plan_.keys;
  return Chance(0.3) ? hot_[Below(hot_count_)] : Below(keys);
}

void Simulation::StartMultiGet(ClientState& state, uint32_t key) {
  std::vector<uint32_t> indexes = {Begin(state, OpKind::kGet, key)};
  for (uint32_t more = Below(5); more > 0; --more) indexes.push_back(Begin(state, OpKind::kGet, AnotherKey()));
  state.client->Spawn(RunMultiGet(&state, std::move(indexes)));
}

void Simulation::StartMultiWrite(ClientState& state, OpKind kind, uint32_t key) {
  std::vector<uint32_t> indexes = {Begin(state, kind, key)};
  for (uint32_t more = Below(5); more > 0; --more) {
    const bool same_key = Chance(0.2);  // which the client combines
    const OpKind other = Chance(0.5) ? OpKind::kUpdate : kind;
    indexes.push_back(Begin(state, other, same_key ? key : AnotherKey()));
  }
  state.client->Spawn(RunMultiWrite(&state, std::move(indexes)));
}

const char* Simulation::KindName(OpKind kind) {
  static constexpr const char* kNames[] = {"Get", "Put", "Insert", "Update", "Delete", "Modify"};
  return kNames[static_cast<int>(kind)];
}

kvs::ModifyFunction Simulation::FunctionOf(uint32_t index) {
  return [this, index](const std::optional<kvs::Record>& found) {
    uint32_t read = 0;
    if (found && !IdOf(found->value, &read)) {
      Violation("value", "Modify of " + history_.NameOf(history_[index].key) + ": a value of " +
                             std::to_string(found->value.size()) + " bytes that nobody wrote");
    }
    CheckExpiry(history_[index], world_.now_ns(), read, found ? std::optional(found->expires_at_ms) : std::nullopt);
    ++result_.counts.functions_called;
    const OpRecord& record = history_.Decide(index, read);
    if (record.value == 0) return kvs::Modification{record.wants};
    return kvs::Modification::Set(ValueOf(record.value), record.expires_at_ms);
  };
}

kvs::Task<void> Simulation::RunOperation(ClientState* state, uint32_t index) {
  const OpRecord record = history_[index];
  const std::string key = history_.NameOf(record.key);
  std::string value;
  if (record.value != 0) value = ValueOf(record.value);
  std::string read;
  const kvs::ModifyFunction function = FunctionOf(index);
  Status status;
  switch (record.kind) {
    case OpKind::kGet: status = co_await state->client->GetAsync(key, &read); break;
    case OpKind::kPut: status = co_await state->client->PutAsync(key, value, record.expires_at_ms); break;
    case OpKind::kInsert: status = co_await state->client->InsertAsync(key, value, record.expires_at_ms); break;
    case OpKind::kUpdate: status = co_await state->client->UpdateAsync(key, value, record.expires_at_ms); break;
    case OpKind::kDelete: status = co_await state->client->DeleteAsync(key); break;
    case OpKind::kModify: status = co_await state->client->ModifyAsync(key, &function); break;
  }
  --state->in_flight;
  if (closing_ || world_.IsDead(state->process->store->node().id())) co_return;  // nobody got this answer
  End(index, status, read);
}

kvs::Task<void> Simulation::RunMultiGet(ClientState* state, std::vector<uint32_t> indexes) {
  std::vector<std::string> names, read(indexes.size());
  for (const uint32_t index : indexes) names.push_back(history_.NameOf(history_[index].key));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<Status> statuses(indexes.size(), StatusCode::kBadState);
  co_await state->client->MultiGetAsync(keys, read, statuses);
  state->in_flight -= static_cast<uint32_t>(indexes.size());
  if (closing_ || world_.IsDead(state->process->store->node().id())) co_return;
  for (size_t i = 0; i < indexes.size(); ++i) End(indexes[i], statuses[i], read[i]);
}

kvs::Task<void> Simulation::RunMultiWrite(ClientState* state, std::vector<uint32_t> indexes) {
  std::vector<std::string> names, values;
  for (const uint32_t index : indexes) {
    const OpRecord record = history_[index];
    names.push_back(history_.NameOf(record.key));
    values.push_back(record.value != 0 ? ValueOf(record.value) : std::string());
  }
  std::vector<kvs::WriteRequest> writes(indexes.size());
  std::vector<kvs::ModifyFunction> functions;
  for (const uint32_t index : indexes) functions.push_back(FunctionOf(index));
  for (size_t i = 0; i < indexes.size(); ++i) {
    switch (history_[indexes[i]].kind) {
      case OpKind::kInsert: writes[i].kind = kvs::WriteKind::kInsert; break;
      case OpKind::kUpdate: writes[i].kind = kvs::WriteKind::kUpdate; break;
      case OpKind::kDelete: writes[i].kind = kvs::WriteKind::kDelete; break;
      case OpKind::kModify: writes[i].kind = kvs::WriteKind::kModify; break;
      default: writes[i].kind = kvs::WriteKind::kPut; break;
    }
    writes[i].key = names[i];
    writes[i].value = values[i];
    writes[i].expires_at_ms = history_[indexes[i]].expires_at_ms;
    writes[i].modify = &functions[i];
    writes[i].status = StatusCode::kBadState;
  }
  co_await state->client->MultiWriteAsync(writes);
  state->in_flight -= static_cast<uint32_t>(indexes.size());
  if (closing_ || world_.IsDead(state->process->store->node().id())) co_return;
  for (size_t i = 0; i < indexes.size(); ++i) End(indexes[i], writes[i].status, {});
}

void Simulation::StartScan(ClientState& state, const kvs::ScanOptions& options, uint32_t steps) {
  ++state.in_flight;
  state.client->Spawn(RunScan(&state, options, steps));
}

kvs::Task<void> Simulation::RunScan(ClientState* state, kvs::ScanOptions options, uint32_t steps) {
  KeyScan& scan = state->scan;
  for (bool goes_on = true; goes_on && steps > 0; --steps) {
    const OpRecord step = history_.BeginScanStep(&scan, state->number, world_.now_ns());
    const uint64_t cursor = scan.cursor;
    std::vector<kvs::ScanRecord> records;
    const Status status = co_await state->client->ScanAsync(&scan.cursor, &records, options);
    if (closing_ || world_.IsDead(state->process->store->node().id())) break;
    progress_ns_ = world_.now_ns();
    Trace("client %u scans from %016lx to %016lx: %s, %zu keys", state->number, cursor, scan.cursor,
          status.ToString().c_str(), records.size());
    scan.under_way = false;
    if (!status.ok()) {
      if (status != StatusCode::kUnavailable || !(plan_.queues_break || MayHaveWaited(step)))
        Violation(status == StatusCode::kTimeout ? "hang" : "status", "a scan: " + status.ToString());
      Rest(step);
      break;
    }
    for (const kvs::ScanRecord& record : records) {
      uint32_t id = 0;
      if (options.values && IdOf(record.value, &id)) CheckExpiry(step, step.start_ns, id, record.expires_at_ms);
    }
    const std::string wrong = history_.EndScanStep(&scan, step, options.values, records, IdOf, world_.now_ns());
    if (!wrong.empty()) Violation("scan", wrong);
    ++result_.counts.scan_steps;
    result_.counts.scanned_keys += records.size();
    result_.counts.scans += scan.cursor == 0;
    goes_on = scan.cursor != 0;
  }
  --state->in_flight;
}

void Simulation::Rest(const OpRecord& record) {
  any_gave_up_ |= MayHaveWaited(record);
  // The client does not try to reach the node for a while, so that others go on and time passes.
  clients_[record.client - 1].rests_until_ns = world_.now_ns() + LogUniform(random_, 20 * kUs, 60 * kMs);
  if (Chance(0.2)) SlowDown(60 * kMs);
}

void Simulation::CheckExpiry(const OpRecord& record, int64_t at_ns, uint32_t value,
                             std::optional<uint64_t> expires_at_ms) {
  const uint64_t expiry = history_.ExpiryOf(value);
  const ClientState& client = clients_[record.client - 1];
  const uint64_t ago_ms = static_cast<uint64_t>(world_.now_ns() / kMs - at_ns / kMs);
  const bool expired = expiry != 0 && client.process->clock->UnixMs() - ago_ms >= expiry;
  const bool as_written = !expires_at_ms || *expires_at_ms == expiry;
  if (!expired && as_written) return;
  Violation("expiry", "client " + std::to_string(record.client) + " read value " + std::to_string(value) +
                          (as_written ? ", which had expired" : ", which expires at another time than was written") +
                          "\n" + history_.Describe(history_[value - 1].key));
}

void Simulation::End(uint32_t index, const Status& status, const std::string& read) {
  const OpRecord record = history_[index];
  progress_ns_ = world_.now_ns();
  uint32_t value = 0;
  const std::string what = std::string(KindName(record.kind)) + " of " + history_.NameOf(record.key) + " by client " +
                           std::to_string(record.client) + ": " + status.ToString();
  if (record.kind == OpKind::kGet && status.ok() && !IdOf(read, &value)) {
    Violation("value", what + ": a value of " + std::to_string(read.size()) + " bytes that nobody wrote");
  }
  if (value != 0) CheckExpiry(record, record.start_ns, value, std::nullopt);
  history_.End(index, status.code(), value, world_.now_ns());
  Trace("client %u ends %u: %s of %s %s, value %u", record.client, index, KindName(record.kind),
        history_.NameOf(record.key).c_str(), status.ToString().c_str(), history_[index].value);
  Counts& counts = result_.counts;
  ++counts.checked;
  counts.modified += record.kind == OpKind::kModify;
  if (record.value != 0 && record.value % 67 == 0) ++counts.large_values;
  bool allowed = false;
  switch (status.code()) {
    case StatusCode::kOk: allowed = true; break;
    case StatusCode::kNotFound:
      allowed = record.kind == OpKind::kGet || record.kind == OpKind::kUpdate || record.kind == OpKind::kDelete;
      break;
    case StatusCode::kExists: allowed = record.kind == OpKind::kInsert; break;
    case StatusCode::kUnknown:
      allowed = record.kind != OpKind::kGet && (plan_.queues_break || MayLoseAnswer(record));
      ++counts.unknown;
      counts.unknown_without_breaks += !plan_.queues_break;
      break;
    case StatusCode::kUnavailable:
      allowed = plan_.queues_break || MayHaveWaited(record);
      ++counts.unavailable;
      Rest(record);
      break;
    case StatusCode::kOutOfMemory:
      allowed = may_be_full();
      ++counts.out_of_memory;
      break;
    case StatusCode::kTimeout:
      // In a full store a write may wait for memory several times, or behind others that do, until its time is over.
      allowed = record.kind != OpKind::kGet && may_be_full() && counts.out_of_memory > 0;
      if (!allowed) Violation("hang", what + "\n" + history_.Describe(record.key));
      break;
    default: break;
  }
  if (!allowed) Violation("status", what + "\n" + history_.Describe(record.key));
}

// Where pools are mirrored, a CAS counts only if the client has its lease, and goes on along the same chain, until the
// end (docs/replication.md).
bool Simulation::MayLoseAnswer(const OpRecord& record) const {
  if (!memory_nodes_.mirrored()) return false;
  return AnyNodeFailed(record.start_ns) || clients_[record.client - 1].lapsed_ns >= record.start_ns;
}

// Several changes in a row may take longer than a client waits for one: each takes 1.5 leases if another client sleeps.
bool Simulation::MayHaveWaited(const OpRecord& record) const {
  return !joiners_.empty() && world_.now_ns() - record.start_ns >= 4 * kLeaseNs;
}

std::string Simulation::InFlight() const {
  std::string text;
  for (uint32_t i = 0; i < history_.size(); ++i) {
    const OpRecord& record = history_[i];
    const ClientState& state = clients_[record.client - 1];
    if (record.end == 0 && state.alive()) {
      text += std::string("in flight: ") + KindName(record.kind) + " of " + history_.NameOf(record.key) +
              " by client " + std::to_string(record.client) + " since " + std::to_string(record.start_ns / kUs) +
              " us\n";
    }
  }
  for (const ClientState& state : clients_) {
    if (!state.alive()) continue;
    const kvs::ClientStats& stats = state.client->stats();
    text += "client " + std::to_string(state.number) + ": " + std::to_string(state.in_flight) + " in flight, " +
            std::to_string(stats.round_trips) + " round trips, " + std::to_string(stats.restarts) + " restarts, " +
            std::to_string(stats.reads) + " reads, next poll " + std::to_string(state.next_poll_ns / kUs) + " us" +
            (world_.HasCompletions(state.process->store->node().id()) ? ", has completions" : "") + "\n";
  }
  return text + "now " + std::to_string(world_.now_ns() / kUs) + " us, next event " +
         std::to_string(world_.next_event_ns() / kUs) + "\n";
}

}  // namespace surgekv_sim
