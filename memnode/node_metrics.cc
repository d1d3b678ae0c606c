#include "memnode/node_metrics.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "krcore/clock.h"

namespace memnode {
namespace {

using krcore::Status;
using metrics::Families;

constexpr int64_t kSurveyNs = 100'000'000;
constexpr double kNsPerS = 1e9;

constexpr std::array<std::pair<kvs::ChunkKind, const char*>, kvs::kChunkKinds> kKinds = {{
    {kvs::ChunkKind::kFree, "free"},
    {kvs::ChunkKind::kBlocks, "blocks"},
    {kvs::ChunkKind::kTables, "tables"},
    {kvs::ChunkKind::kRun, "large"},
    {kvs::ChunkKind::kRunRest, "large_rest"},
    {kvs::ChunkKind::kReserved, "reserved"},
}};

double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerS; }
double AsDouble(uint64_t count) { return static_cast<double>(count); }

}  // namespace

NodeMetrics::NodeMetrics(const Options& options) : options_(options), started_ns_(metrics::UnixNowNs()) {
  said_.role = options.memory_bytes == 0 ? metrics::Role::kMetadata : metrics::Role::kMemory;
  said_.pid = static_cast<uint32_t>(getpid());
  said_.started_s = static_cast<uint32_t>(started_ns_ / 1'000'000'000);
}

void NodeMetrics::Attach(MemoryServer& server, const Steward* steward) {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kServing;
  server_ = &server;
  steward_ = steward;
}

void NodeMetrics::Detach() {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::kStopping;
  server_ = nullptr;
  steward_ = nullptr;
  survey_.reset();
}

void NodeMetrics::NoteRefresh(const Status& status) {
  const std::lock_guard lock(mutex_);
  refreshed_ = status;
  if (!status.ok()) ++refresh_failures_;
}

void NodeMetrics::NoteName(const Status& status) {
  const std::lock_guard lock(mutex_);
  name_ = status;
}

void NodeMetrics::set_address(const cli::Address& address) {
  const std::lock_guard lock(mutex_);
  said_.set_metrics(address);
}

std::string NodeMetrics::TroubleLocked() const {
  if (stage_ == Stage::kStarting) return "starting";
  if (stage_ == Stage::kStopping) return "stopping";
  if (!name_.ok()) return std::string(name_.message());
  if (!refreshed_.ok()) return "not published at a metadata server: " + refreshed_.ToString();
  if (member_ == kvs::MemberState::kDraining) return "draining";
  if (member_ == kvs::MemberState::kDrained) return "drained";
  if (member_ == kvs::MemberState::kNone) return kvs::kNoMember;
  if (steward_ != nullptr && steward_->replica().state == kvs::ReplicaState::kRemoved) {
    return "removed: its pool went on without it; it joins again, with fresh memory";
  }
  return "";
}

// Where pools are mirrored, the home's head changes.
bool NodeMetrics::IsHomeLocked() const {
  if (server_ == nullptr) return false;
  return steward_ == nullptr ? server_->is_home() : steward_->replica().is_home;
}

std::string NodeMetrics::Trouble() const {
  const std::lock_guard lock(mutex_);
  return TroubleLocked();
}

std::string NodeMetrics::Remark() const {
  const std::lock_guard lock(mutex_);
  if (steward_ == nullptr) return "";
  const kvs::ReplicaKeeperStats stats = steward_->replica();
  std::string remark(kvs::ReplicaStateName(stats.state));
  if (stats.pool == 0) return remark;
  remark += " of pool " + std::to_string(stats.pool) + ", which has " + std::to_string(stats.replicas) + " of " +
            std::to_string(stats.wanted) + " replicas";
  if (stats.state != kvs::ReplicaState::kLearner || stats.all_tables == 0) return remark;
  return remark + "; " + std::to_string(stats.tables) + " of " + std::to_string(stats.all_tables) + " tables copied";
}

// Finds this node in the home's list, which has pools instead of nodes where these are mirrored.
void NodeMetrics::FindMember() {
  member_.reset();
  if (steward_ == nullptr) member_ = kvs::MemberState::kNone;
  const krcore::NodeId id = steward_ == nullptr ? server_->node() : steward_->replica().pool;
  for (const kvs::MemberView& member : home_.members) {
    if (member.node != id) continue;
    if (steward_ != nullptr || member.incarnation == server_->fabric().incarnation()) member_ = member.state;
  }
}

metrics::Announcement NodeMetrics::Tell() {
  krcore::Result<kvs::HomeView> view = krcore::StatusCode::kNotFound;
  if (said_.role == metrics::Role::kMemory) {
    if (survey_ == nullptr) {
      auto survey = kvs::Survey::Create(server_->fabric());
      if (survey.ok()) survey_ = *std::move(survey);
    }
    const auto deadline = krcore::Deadline::After(*krcore::RealClock(), kSurveyNs);
    if (survey_ != nullptr) view = survey_->ReadHome(deadline);
  }
  const std::lock_guard lock(mutex_);
  if (view.ok()) {
    home_ = *std::move(view);
    FindMember();
  }
  said_.flags = 0;
  if (IsHomeLocked()) said_.flags |= metrics::Announcement::kHome;
  if (options_.metaserver) said_.flags |= metrics::Announcement::kMetaServer;
  if (steward_ != nullptr && steward_->replica().state == kvs::ReplicaState::kRemoved)
    said_.flags |= metrics::Announcement::kRemoved;
  said_.state = member_ == kvs::MemberState::kDraining  ? metrics::State::kDraining
                : member_ == kvs::MemberState::kDrained ? metrics::State::kDrained
                : TroubleLocked().empty()               ? metrics::State::kServing
                                                        : metrics::State::kTroubled;
  return said_;
}

void NodeMetrics::AddMemory(Families* families) const {
  const kvs::PoolUse use = kvs::CountChunks(server_->pool()->bytes());
  for (const auto& [kind, name] : kKinds) {
    families->AddGauge("surgekv_memory_bytes", "Bytes of pool memory, by what their chunks are used for",
                       AsDouble(use.Bytes(kind)), {{"use", name}});
    families->AddGauge("surgekv_memory_chunks", "Chunks of pool memory, by what they are used for",
                       AsDouble(use.chunks[static_cast<size_t>(kind)]), {{"use", name}});
  }
  families->AddGauge("surgekv_memory_pool_bytes", "Bytes of memory that this node exposes",
                     AsDouble(server_->pool()->bytes().size()));
  const HugePageCollapser* const huge_pages = server_->huge_pages();
  families->AddGauge("surgekv_memory_hugepage_bytes",
                     "Bytes of this memory that were moved into huge pages since the start",
                     huge_pages == nullptr ? 0 : AsDouble(huge_pages->collapsed_bytes()));
  for (const auto& [state, name] : {std::pair{kvs::MemberState::kInUse, "in_use"},
                                    {kvs::MemberState::kDraining, "draining"},
                                    {kvs::MemberState::kDrained, "drained"}}) {
    families->AddGauge("surgekv_memory_state",
                       "1 for the state that the store's home records for this node or its mirrored pool, else 0",
                       member_ == state ? 1 : 0, {{"state", name}});
  }
}

void NodeMetrics::AddReplica(Families* families) const {
  const kvs::ReplicaKeeperStats stats = steward_->replica();
  for (const auto state : {kvs::ReplicaState::kSpare, kvs::ReplicaState::kLearner, kvs::ReplicaState::kMember,
                           kvs::ReplicaState::kRemoved, kvs::ReplicaState::kDrained}) {
    families->AddGauge("surgekv_replica_state", "1 for what this node is in its mirrored pool, else 0",
                       stats.state == state ? 1 : 0, {{"state", std::string(kvs::ReplicaStateName(state))}});
  }
  families->AddGauge("surgekv_replica_pool", "The mirrored pool of this node; 0: none", stats.pool);
  // The home's list has the pools that are in use.
  const auto is_this = [&stats](const kvs::MemberView& member) { return member.node == stats.pool; };
  const bool waits = !home_.members.empty() && std::ranges::none_of(home_.members, is_this);
  families->AddGauge("surgekv_replica_pool_missing", "Replicas that the pool of this node lacks; 0 until it is in use",
                     stats.pool == 0 || waits || stats.replicas > stats.wanted ? 0 : stats.wanted - stats.replicas);
  const bool learns = stats.state == kvs::ReplicaState::kLearner;
  families->AddGauge("surgekv_replica_tables_left", "Subtables that a learner has not looked through yet",
                     learns && stats.tables < stats.all_tables ? stats.all_tables - stats.tables : 0);
}

// Only the home tells what it knows; otherwise each node would count the same clients.
void NodeMetrics::AddStore(Families* families) const {
  families->AddGauge("surgekv_store_clients", "Clients that are registered at the store's home",
                     AsDouble(home_.clients));
  for (const auto& [state, name] : {std::pair{kvs::MemberState::kInUse, "in_use"},
                                    {kvs::MemberState::kDraining, "draining"},
                                    {kvs::MemberState::kDrained, "drained"}}) {
    const auto members = std::ranges::count_if(
        home_.members, [wanted = state](const kvs::MemberView& member) { return member.state == wanted; });
    families->AddGauge("surgekv_store_memory_nodes", "Memory nodes in the store's list, by state; dead ones included",
                       static_cast<double>(members), {{"state", name}});
  }
}

std::string NodeMetrics::Collect() const {
  Families families;
  metrics::AddProcess(Seconds(started_ns_), &families);
  const std::lock_guard lock(mutex_);
  families.AddGauge("surgekv_healthy", "1 if /healthz reports that this program can serve, else 0",
                    TroubleLocked().empty() ? 1 : 0);
  if (server_ == nullptr) return families.Text();
  families.AddGauge("surgekv_node_info", "Always 1; the labels describe this node", 1,
                    {{"fabric", options_.fabric},
                     {"node", std::to_string(server_->node())},
                     {"role", metrics::RoleName(said_.role)},
                     {"home", YesNo(IsHomeLocked())},
                     {"metaserver", YesNo(options_.metaserver)}});
  families.AddCounter("surgekv_refresh_failures_total",
                      "Failed attempts to write this node's record into the metadata servers",
                      AsDouble(refresh_failures_));
  if (RcAcceptor* const acceptor = server_->rc_acceptor(); acceptor != nullptr) {
    families.AddCounter("surgekv_rc_requests_total",
                        "Connection requests of clients with the control plane verbs or lite",
                        AsDouble(acceptor->requests()));
    families.AddGauge("surgekv_rc_connections", "RC connections of clients with the control plane verbs or lite",
                      AsDouble(acceptor->connections()));
    families.AddCounter("surgekv_rc_acceptor_cpu_seconds_total",
                        "CPU time of the thread that answers connection requests, in seconds",
                        Seconds(acceptor->cpu_ns()));
  }
  if (const auto dc = server_->fabric().software_dc()) metrics::AddSoftwareDc(*dc, &families);
  if (server_->pool() != nullptr) AddMemory(&families);
  if (steward_ != nullptr) AddReplica(&families);
  if (IsHomeLocked()) AddStore(&families);
  return families.Text();
}

}  // namespace memnode
