#include "tests/sim/stage.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "kvs/layout/pool.h"
#include "tests/kvs/colliding_key.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_sim {
namespace {

using krcore::Status;
using krcore::StatusCode;

constexpr char kStageFabric[] = "stage";
// A seed with which every scenario reaches its subject. That depends on where the keys lie.
constexpr kvs::HashSeed kHashSeed{.low = 7, .high = 2};
// More rounds than any operation needs. At the usual tempo they take longer than a takeover of the lock of a client
// that is held.
constexpr uint32_t kHang = 40'000;

std::string ValueOfOperation(uint32_t id) {
  char value[32];
  std::snprintf(value, sizeof(value), "value-%08u", id);
  return value;
}

uint32_t OperationOf(const std::string& value) {
  const uint32_t id = value.size() > 6 ? static_cast<uint32_t>(std::atoi(value.c_str() + 6)) : 0;
  return value == ValueOfOperation(id) ? id : UINT32_MAX;
}

bool IsOperation(std::string_view value, uint32_t* id) {
  *id = OperationOf(std::string(value));
  return *id != UINT32_MAX;
}

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (uint32_t key = 0; key < Stage::kKeys; ++key) names.push_back(Stage::NameOf(key));
  return names;
}

}  // namespace

Stage::Stage(const StageOptions& options)
    : groups_(options.groups),
      address_cache_entries_(options.address_cache_entries),
      multi_get_(options.multi_get),
      breaks_(options.breaks),
      agree_(options.agree),
      world_({.fabric = kStageFabric, .seed = options.seed, .cost = {}, .chaos = {}}),
      history_(AllNames()),
      memory_nodes_(world_) {
  if (std::getenv("KVS_SIM_VERBS") != nullptr) world_.set_trace(stderr);
  MemoryNodesOptions nodes;
  nodes.fabric = kStageFabric;
  nodes.pools = options.memory_nodes;
  nodes.replicas = options.replicas;
  nodes.home_bytes = nodes.other_bytes = size_t{4} << 20;
  nodes.home.geometry.groups = options.groups;
  nodes.home.initial_depth = options.initial_depth;
  nodes.home.lease_ns = options.lease_ns != 0 ? options.lease_ns : kvs::kMaxLeaseNs;
  nodes.home.chunk_bytes = size_t{1} << 16;
  nodes.home.hash_seed = kHashSeed;
  if (const Status started = memory_nodes_.Start(nodes); !started.ok()) krcore::DieOfMissingValue(started);
}

Stage::~Stage() {
  actors_.clear();
  keeper_.reset();
  keepers_store_.reset();
  housekeeper_.reset();
  housekeepers_store_.reset();
  memory_nodes_.Close();
}

std::unique_ptr<kvs::Store> Stage::OpenStore() {
  kvs::StoreOptions options;
  options.rnic = "sim";
  options.fabric = kStageFabric;
  options.operation_timeout_ms = 60'000;
  options.clock = &world_.clock();
  return kvs::Store::Open(options).value();
}

uint32_t Stage::AddClient(uint32_t lanes) {
  Actor& actor = actors_.emplace_back();
  actor.store = OpenStore();
  actor.lanes = lanes;
  const auto c = static_cast<uint32_t>(actors_.size() - 1);
  Reopen(c);
  return c;
}

void Stage::Reopen(uint32_t c) {
  Actor& actor = actors_[c];
  actor.client =
      actor.store->NewClient({.max_in_flight = actor.lanes, .address_cache_entries = address_cache_entries_}).value();
}

void Stage::Kill(uint32_t c) {
  world_.Kill(NodeOf(c), 0);
  actors_[c].dead = true;
}

void Stage::Poll(uint32_t c, uint32_t rounds) {
  for (; rounds > 0; --rounds) {
    Wait(tempo_ns_);
    if (actors_[c].alive()) actors_[c].client->Poll();
  }
}

bool Stage::PollUntil(uint32_t c, const std::function<bool()>& until, uint32_t most) {
  for (; most > 0 && !until(); --most) Poll(c);
  return until();
}

krcore::NodeId Stage::Join() {
  const MemoryNodes::Joined joined = memory_nodes_.Join().value();
  keepers_store_ = OpenStore();
  keeper_ = kvs::ReplicaKeeper::Create(*keepers_store_, *joined.node, *joined.region).value();
  return joined.node->id();
}

kvs::Housekeeper& Stage::AddHousekeeper() {
  housekeepers_store_ = OpenStore();
  housekeeper_ = kvs::Housekeeper::Create(*housekeepers_store_).value();
  return *housekeeper_;
}

void Stage::StepKeeper() {
  Wait(tempo_ns_);
  if (!world_.IsDead(KeepersNode())) (void)keeper_->Step();
}

void Stage::KillKeeper(krcore::NodeId memory_node) {
  world_.Kill(memory_node, 0);
  world_.Kill(KeepersNode(), 0);
}

std::string Stage::NameOf(uint32_t key) {
  if (key < kFirstEqual) return "key-" + std::to_string(key);
  static const kvs::Hasher hasher(kHashSeed);
  return surgekv_test::CollidingKey(hasher.secret().data(), key);
}

const kvs::KeyHash& Stage::HashOf(uint32_t key) {
  static const std::vector<kvs::KeyHash> hashes = [] {
    std::vector<kvs::KeyHash> all;
    const kvs::Hasher hasher(kHashSeed);
    for (uint32_t k = 0; k < kKeys; ++k) all.push_back(hasher(NameOf(k)));
    return all;
  }();
  return hashes.at(key);
}

uint32_t Stage::Begin(uint32_t c, OpKind kind, uint32_t key) {
  const uint32_t operation = history_.Begin(key, kind, c + 1, world_.now_ns());
  ++actors_[c].in_flight;
  actors_[c].client->Spawn(Operate(c, operation));
  return operation;
}

kvs::Task<Status> Stage::Get(kvs::Client& client, std::string_view key, std::string* value) {
  Status status;
  if (multi_get_) {
    co_await client.MultiGetAsync(std::span(&key, 1), std::span(value, 1), std::span(&status, 1));
  } else {
    status = co_await client.GetAsync(key, value);
  }
  co_return status;
}

kvs::ModifyFunction Stage::FunctionOf(uint32_t operation) {
  return [this, operation](std::optional<std::string_view> value) {
    const OpRecord& record = history_.Decide(operation, value ? OperationOf(std::string(*value)) : 0);
    return kvs::Modification{record.wants, record.value != 0 ? ValueOfOperation(record.value) : std::string()};
  };
}

kvs::Task<void> Stage::Operate(uint32_t c, uint32_t operation) {
  kvs::Client& client = *actors_[c].client;
  const std::string& key = history_.NameOf(history_[operation].key);
  const OpKind kind = history_[operation].kind;
  std::string value = ValueOfOperation(history_[operation].value);
  const kvs::ModifyFunction function = FunctionOf(operation);
  Status status;
  switch (kind) {
    case OpKind::kGet: status = co_await Get(client, key, &value); break;
    case OpKind::kPut: status = co_await client.PutAsync(key, value); break;
    case OpKind::kInsert: status = co_await client.InsertAsync(key, value); break;
    case OpKind::kUpdate: status = co_await client.UpdateAsync(key, value); break;
    case OpKind::kDelete: status = co_await client.DeleteAsync(key); break;
    case OpKind::kModify: status = co_await client.ModifyAsync(key, &function); break;
  }
  if (actors_[c].dead) co_return;
  --actors_[c].in_flight;
  const bool found = kind == OpKind::kGet && status.ok();
  history_.End(operation, status.code(), found ? OperationOf(value) : 0, world_.now_ns());
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kNotFound:
    case StatusCode::kExists: break;
    case StatusCode::kUnavailable:
    case StatusCode::kUnknown:
      if (breaks_) break;
      [[fallthrough]];
    default:
      Violation(status.code() == StatusCode::kTimeout ? "hang" : "status",
                status.ToString() + "\n" + history_.Describe(history_[operation].key));
  }
}

void Stage::BeginScan(uint32_t c, uint32_t count) {
  ++actors_[c].in_flight;
  actors_[c].client->Spawn(Scan(c, {.count = count}));
}

kvs::Task<void> Stage::Scan(uint32_t c, kvs::ScanOptions options) {
  KeyScan& scan = actors_[c].scan;
  do {
    const OpRecord step = history_.BeginScanStep(&scan, c + 1, world_.now_ns());
    std::vector<kvs::ScanRecord> records;
    const Status status = co_await actors_[c].client->ScanAsync(&scan.cursor, &records, options);
    if (!status.ok()) {
      Violation("status", "a scan: " + status.ToString());
      break;
    }
    const std::string wrong = history_.EndScanStep(&scan, step, true, records, IsOperation, world_.now_ns());
    if (!wrong.empty()) Violation("scan", wrong);
  } while (scan.cursor != 0);
  --actors_[c].in_flight;
}

void Stage::BeginCompaction(uint32_t c) {
  ++actors_[c].in_flight;
  actors_[c].client->Spawn(Compact(c));
}

void Stage::BeginDrain(uint32_t c, krcore::NodeId node) {
  ++actors_[c].in_flight;
  actors_[c].client->Spawn(Drain(c, node));
}

kvs::Task<void> Stage::Drain(uint32_t c, krcore::NodeId node) {
  kvs::DrainReport report;
  const kvs::Status drained = co_await actors_[c].client->DrainNodeAsync(node, {}, &report);
  drained_ |= drained.ok();
  --actors_[c].in_flight;
}

kvs::Task<void> Stage::Compact(uint32_t c) {
  kvs::CompactReport report;
  (void)co_await actors_[c].client->CompactAsync({.thorough = true}, &report);
  chunks_freed_ += report.chunks_freed;
  --actors_[c].in_flight;
}

StatusCode Stage::Do(uint32_t c, OpKind kind, uint32_t key) {
  const uint32_t operation = Begin(c, kind, key);
  if (!PollUntil(
          c, [&] { return Ended(operation); }, kHang)) {
    Violation("hang", "never answered\n" + history_.Describe(key));
    return StatusCode::kTimeout;
  }
  return history_[operation].status;
}

void Stage::Finish(uint32_t c) {
  if (fine() && !PollUntil(
                    c, [&] { return Idle(c); }, kHang)) {
    Violation("hang", "client " + std::to_string(c + 1) + " does not end what it has begun");
  }
}

kvs::HomeArea Stage::Home() const { return memory_nodes_.Home(); }

kvs::DirectoryEntry Stage::Entry(uint32_t index) const {
  uint64_t word = 0;
  std::memcpy(&word, At({1, kvs::kDirectoryOffset + uint64_t{index} * sizeof(word)}), sizeof(word));
  return kvs::DirectoryEntry(word);
}

kvs::Slot Stage::SlotOf(kvs::GlobalAddress table, uint32_t slot) const {
  uint64_t word = 0;
  std::memcpy(&word, At({table.node, table.offset + kvs::SlotOffset(slot)}), sizeof(word));
  return kvs::Slot(word);
}

bool Stage::AnyCandidate(kvs::GlobalAddress table, uint32_t key, kvs::SlotState state) const {
  const kvs::KeyPlaces places = kvs::PlacesOf(HashOf(key), groups_);
  for (const kvs::CombinedBucket& place : places.place) {
    for (uint32_t s = 0; s < kvs::kCombinedSlots; ++s) {
      const kvs::Slot slot = SlotOf(table, kvs::FirstBucket(place) * kvs::kSlotsPerBucket + s);
      if (slot.state() == state && slot.fingerprint() == HashOf(key).fingerprint()) return true;
    }
  }
  return false;
}

bool Stage::IsInSecondPlace(kvs::GlobalAddress table, uint32_t key) const {
  const kvs::KeyPlaces places = kvs::PlacesOf(HashOf(key), groups_);
  const auto has = [&](const kvs::CombinedBucket& place) {
    for (uint32_t s = 0; s < kvs::kCombinedSlots; ++s) {
      const kvs::Slot slot = SlotOf(table, kvs::FirstBucket(place) * kvs::kSlotsPerBucket + s);
      if (slot.has_block() && slot.fingerprint() == HashOf(key).fingerprint()) return true;
    }
    return false;
  };
  return has(places.place[1]) && !has(places.place[0]);
}

void Stage::Violation(const std::string& kind, const std::string& text) {
  if (!fine()) return;
  violation_ = kind;
  text_ = text + "\n";
}

void Stage::Judge() {
  world_.set_chaos({});
  // In turn, because some may have to wait for others.
  for (uint32_t round = 0; round < kHang && fine(); ++round) {
    bool idle = true;
    for (uint32_t c = 0; c < actors_.size(); ++c) {
      if (!Idle(c)) Poll(c);
      idle = idle && Idle(c);
    }
    if (idle) break;
    if (round % 64 == 63) Wait(20'000'000);
  }
  for (uint32_t c = 0; c < actors_.size(); ++c) Finish(c);
  if (!fine()) return;
  const uint32_t fresh = AddClient();
  std::map<std::string, std::string> seen;
  std::vector<uint32_t> reads;
  const auto operations = static_cast<uint32_t>(history_.size());
  std::vector<bool> touched(kKeys);
  for (uint32_t i = 0; i < operations; ++i) touched[history_[i].key] = true;
  for (uint32_t key = 0; key < kKeys; ++key) {
    if (touched[key]) reads.push_back(Begin(fresh, OpKind::kGet, key));
  }
  Finish(fresh);
  if (!fine()) return;
  uint32_t gave_up = 0;
  const std::vector<uint32_t> wrong = history_.Violations(&gave_up);
  if (!wrong.empty() || gave_up > 0) {
    return Violation("history", std::to_string(wrong.size()) + " keys have a history that is not linearizable\n" +
                                    (wrong.empty() ? "" : history_.Describe(wrong.front())));
  }
  surgekv_test::PoolCheckOptions options;
  const bool deaths = std::any_of(actors_.begin(), actors_.end(), [](const Actor& actor) { return actor.dead; });
  options.after_deaths = deaths || agree_;
  // Merges and maintenance may be under way while operations run; closing ends them.
  actors_.clear();
  keeper_.reset();
  const auto look = [&](uint32_t from_tail) {
    surgekv_test::PoolReport report = CheckPools(memory_nodes_.Images(from_tail), options);
    // A lock is a hint: a late hop may lock it again at a later replica.
    for (const surgekv_test::Leftover& left : report.leftovers) {
      if (!deaths && left.kind != surgekv_test::Leftover::Kind::kLock) report.problems.push_back(left.what);
    }
    return report;
  };
  const surgekv_test::PoolReport report = look(0);
  if (!report.ok()) return Violation("pool", report.ToString());
  for (uint32_t from_tail = 1; from_tail < memory_nodes_.LongestChain(); ++from_tail) {
    const surgekv_test::PoolReport replica = look(from_tail);
    const std::string name = "the replicas " + std::to_string(from_tail) + " before the tail";
    if (!replica.ok()) return Violation("replica", name + ":\n" + replica.ToString());
    if (!deaths && (!breaks_ || agree_) && replica.contents != report.contents)
      return Violation("replica", name + " have other contents");
  }
  size_t present = 0;
  for (const uint32_t read : reads) {
    const OpRecord& record = history_[read];
    const bool there = report.contents.contains(NameOf(record.key));
    present += there;
    if (there != (record.status == StatusCode::kOk)) {
      Violation("pool",
                NameOf(record.key) + ": the memory does not hold what a client read\n" + history_.Describe(record.key));
    }
  }
  if (present != report.contents.size()) Violation("pool", "the memory holds keys that nobody wrote");
}

}  // namespace surgekv_sim
