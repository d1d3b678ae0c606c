#include "tools/surge/cluster.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "krcore/clock.h"
#include "krcore/control_plane.h"

namespace surge {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::StatusCode;
using metrics::Announcement;

constexpr int64_t kNsPerS = 1'000'000'000;
// Covers all announcements: 512 look-ups, one after the other, of a millisecond or two each if DC is software.
constexpr int64_t kPatienceNs = 10 * kNsPerS;
constexpr int64_t kNodePatienceNs = kNsPerS;   // for one memory node
constexpr int64_t kTablePatienceNs = kNsPerS;  // for all subtables

Deadline Patience(int64_t ns) { return Deadline::After(*krcore::RealClock(), ns); }

Memory MemoryOf(const kvs::PoolUse& use) {
  return {use.total_bytes(), use.used_bytes(), use.free_bytes(), use.reserved_bytes(), std::nullopt};
}

const char* MemberStateName(kvs::MemberState state) {
  switch (state) {
    case kvs::MemberState::kDraining: return "draining";
    case kvs::MemberState::kDrained: return "drained";
    default: return "serving";
  }
}

// The home's state is newer than the node's announcement, but the home does not know of trouble.
void SetState(kvs::MemberState member, NodeView* node) {
  const bool troubled = node->state == "troubled" && member == kvs::MemberState::kInUse;
  if (!troubled && node->state != "silent" && node->state != "starting") node->state = MemberStateName(member);
}

bool Reachable(const NodeView& node) { return node.state != "dead"; }
bool IsMemory(const NodeView& node) { return node.role == metrics::RoleName(metrics::Role::kMemory); }

bool IsLongDead(const NodeView& node, int64_t now_ns) {
  return node.state == "dead" && node.announcement && now_ns - node.announcement->updated_ns > kRememberDeadS * kNsPerS;
}

// A memory node that only the store knows of.
NodeView Unannounced(krcore::NodeId id, const char* state) {
  NodeView node;
  node.id = id;
  node.role = metrics::RoleName(metrics::Role::kMemory);
  node.state = state;
  return node;
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::Open(std::string_view control_plane, const krcore::NodeOptions& options) {
  std::unique_ptr<Cluster> cluster(new Cluster());
  cluster->fabric_ = options.fabric;
  cluster->rnic_ = options.rnic;
  auto node = krcore::OpenNode(control_plane, options);
  if (!node.ok()) return node.status();
  cluster->node_ = *std::move(node);
  auto survey = kvs::Survey::Create(*cluster->node_);
  if (!survey.ok()) return survey.status();
  cluster->survey_ = *std::move(survey);
  return cluster;
}

NodeView Cluster::ViewOf(const Announcement& announcement, int64_t now_ns) {
  NodeView node;
  node.id = announcement.node;
  node.role = metrics::RoleName(announcement.role);
  node.announcement = announcement;
  const bool dead = node_->IsConfirmedDead(announcement.node, announcement.incarnation);
  const bool silent = now_ns - announcement.updated_ns > kSilentS * kNsPerS;
  node.state = dead ? "dead" : silent ? "silent" : metrics::StateName(announcement.state);
  const int64_t until_ns = dead ? announcement.updated_ns : now_ns;
  node.uptime_s = std::max(static_cast<double>(until_ns) / kNsPerS - announcement.started_s, 0.0);
  return node;
}

// Adds what the store's home knows of its memory nodes.
void Cluster::AddListed(const kvs::HomeView& home, ClusterView* view) {
  for (const kvs::MemberView& member : home.members) {
    const auto same = [&](const NodeView& node) { return node.id == member.node && Reachable(node); };
    auto node = std::ranges::find_if(view->nodes, same);
    if (node != view->nodes.end()) {
      SetState(member.state, &*node);
      continue;
    }
    const bool dead = IsDead({member.node, member.incarnation});
    if (dead && std::ranges::any_of(view->nodes, [&](const NodeView& known) { return known.id == member.node; })) {
      continue;  // its announcement says more
    }
    view->nodes.push_back(Unannounced(member.node, dead ? "dead" : MemberStateName(member.state)));
  }
}

// Adds which memory nodes have the mirrored pools.
void Cluster::AddReplicas(const kvs::Configuration& configuration, ClusterView* view) {
  view->configuration = configuration.number;
  if (!configuration.active) view->problems.emplace_back("a change of replicas is under way");
  for (NodeView& node : view->nodes) {
    if (node.announcement) node.announcement->flags &= ~Announcement::kHome;  // below, the configuration tells
    if (!IsMemory(node) || !Reachable(node)) continue;
    const bool removed = node.announcement && (node.announcement->flags & Announcement::kRemoved) != 0;
    const bool leaving = node.announcement && configuration.IsLeaving({node.id, node.announcement->incarnation});
    node.place = leaving ? "drained" : removed ? "removed" : "spare";
    if (leaving) node.state = "drained";
  }
  for (const kvs::PoolView& pool : configuration.pools) {
    const auto add = [&](const kvs::Replica& replica, const char* place) {
      const auto same = [&](const NodeView& node) {
        return node.announcement && node.id == replica.node && node.announcement->incarnation == replica.incarnation;
      };
      auto node = std::ranges::find_if(view->nodes, same);
      if (node == view->nodes.end()) {
        view->nodes.push_back(Unannounced(replica.node, IsDead(replica) ? "dead" : "serving"));
        node = std::prev(view->nodes.end());
      }
      node->pool = pool.pool;
      node->place = place;
      if (configuration.IsLeaving(replica) && Reachable(*node)) node->state = "draining";
      const bool is_home = pool.pool == configuration.home && replica == pool.chain.front();
      if (is_home && node->announcement) node->announcement->flags |= Announcement::kHome;
    };
    for (const kvs::Replica& replica : pool.chain) {
      const bool head = replica == pool.chain.front(), tail = replica == pool.chain.back();
      add(replica, head && tail ? "only" : head ? "head" : tail ? "tail" : "middle");
    }
    if (pool.learner.exists()) add(pool.learner, "learner");
    // Those that have died and that nobody has missed yet do not count.
    const auto lives = [&](const kvs::Replica& replica) { return !IsDead(replica); };
    const auto stays = [&](const kvs::Replica& replica) { return lives(replica) && !configuration.IsLeaving(replica); };
    const auto living = std::ranges::count_if(pool.chain, lives), staying = std::ranges::count_if(pool.chain, stays);
    if (living == 0) {
      std::string nodes;
      for (const kvs::Replica& replica : pool.chain) {
        nodes += (nodes.empty() ? "" : " or ") + std::to_string(replica.node);
      }
      view->problems.push_back("pool " + std::to_string(pool.pool) + " has no living replica: start memory node " +
                               nodes + " again, with its memory");
    } else if (pool.in_use && staying < configuration.replicas) {
      view->problems.push_back("pool " + std::to_string(pool.pool) + " has " + std::to_string(staying) + " of " +
                               std::to_string(configuration.replicas) + " replicas");
    } else if (const size_t domains = configuration.DomainsOf(pool); pool.in_use && domains != 0) {
      const size_t wanted = std::min<size_t>(configuration.replicas, configuration.Domains());
      if (domains < wanted) {
        view->problems.push_back("pool " + std::to_string(pool.pool) + " is in " + std::to_string(domains) + " of " +
                                 std::to_string(wanted) + " failure domains");
      }
    }
  }
}

// Reads the memory of a node, or of a mirrored pool at its tail, and adds it to the sums. live: null, or what is live.
Result<Memory> Cluster::ReadMemory(krcore::NodeId id, const kvs::LiveBytes* live, ClusterView* view) {
  std::vector<kvs::ChunkWord> words;
  const auto use = survey_->ReadPool(id, Patience(kNodePatienceNs), &words);
  if (!use.ok()) return use.status();
  Memory memory = MemoryOf(*use);
  if (live != nullptr) {
    memory.use = kvs::UseOf(id, words, use->chunk_bytes, *live);
    view->memory.use->live += memory.use->live;
    view->memory.use->open += memory.use->open;
    view->memory.use->unswept += memory.use->unswept;
  }
  view->memory.total += memory.total;
  view->memory.used += memory.used;
  view->memory.free += memory.free;
  view->memory.reserved += memory.reserved;
  return memory;
}

// Adds the memory of mirrored pools, each once to the sums. Clients take none yet where a pool is not in use.
void Cluster::AddPoolMemory(const kvs::Configuration& configuration, const kvs::LiveBytes* live, ClusterView* view) {
  for (const kvs::PoolView& pool : configuration.pools) {
    if (!pool.in_use) continue;
    const auto memory = ReadMemory(pool.pool, live, view);
    if (!memory.ok()) {
      view->problems.push_back("pool " + std::to_string(pool.pool) + " cannot be read: " + memory.status().ToString());
      continue;
    }
    for (NodeView& node : view->nodes) {
      if (node.pool == pool.pool && node.place != "learner" && Reachable(node)) node.memory = *memory;
    }
  }
}

// Adds the memory of memory nodes whose pools are not mirrored. home: null, or what the home has told.
void Cluster::AddNodeMemory(const kvs::HomeView* home, const kvs::LiveBytes* live, ClusterView* view) {
  const auto is_member = [home](krcore::NodeId id) {
    return home == nullptr ||
           std::ranges::any_of(home->members, [id](const auto& member) { return member.node == id; });
  };
  for (NodeView& node : view->nodes) {
    if (!IsMemory(node) || !Reachable(node)) continue;
    if (!is_member(node.id)) {
      view->problems.push_back("memory node " + std::to_string(node.id) + " is " + kvs::kNoMember);
      continue;
    }
    const auto memory = ReadMemory(node.id, live, view);
    if (memory.ok()) {
      node.memory = *memory;
    } else if (node.announcement && IsDead({node.id, node.announcement->incarnation})) {
      node.state = "dead";  // it has died since it was listed
    } else {
      view->problems.push_back("memory node " + std::to_string(node.id) +
                               " cannot be read: " + memory.status().ToString());
    }
  }
}

// Adds what the store knows of its memory nodes, and what their memory holds.
void Cluster::AddMembers(ClusterView* view) {
  const auto home = survey_->ReadHome(Patience(kNodePatienceNs));
  const kvs::Configuration* const pools = survey_->configuration();
  Result<kvs::LiveBytes> live = StatusCode::kNotFound;
  if (home.ok()) {
    view->clients = home->clients;
    live = survey_->ReadLive(*home, Patience(kTablePatienceNs));
    if (live.ok()) view->memory.use.emplace();
    if (pools == nullptr) AddListed(*home, view);
  } else if (home.status() == StatusCode::kNotFound) {
    view->problems.emplace_back("there is no store: no memory node has joined yet, or the home was stopped");
  } else {
    view->problems.push_back("the store's home cannot be read: " + home.status().ToString());
  }
  const kvs::LiveBytes* const live_bytes = live.ok() ? &*live : nullptr;
  if (pools == nullptr) {
    AddNodeMemory(home.ok() ? &*home : nullptr, live_bytes, view);
  } else {
    AddReplicas(*pools, view);
    AddPoolMemory(*pools, live_bytes, view);
  }
}

// Adds the rates between two announcements of a compute node, by its own clock.
void Cluster::AddRates(ClusterView* view) {
  std::map<uint32_t, Sample> now;
  for (NodeView& node : view->nodes) {
    if (!node.announcement || node.announcement->role != metrics::Role::kCompute) continue;
    const Announcement& said = *node.announcement;
    Sample sample{said.operations, said.updated_ns, std::nullopt};
    const auto before = samples_.find(said.incarnation);
    if (before != samples_.end()) {
      sample.rate = before->second.rate;
      const int64_t passed_ns = said.updated_ns - before->second.at_ns;
      if (passed_ns > 0) {
        sample.rate =
            static_cast<double>(said.operations - before->second.operations) * kNsPerS / static_cast<double>(passed_ns);
      }
    }
    if (node.state == "dead" || node.state == "silent") {
      sample.rate.reset();
    } else {
      node.operations_per_s = sample.rate;
    }
    now[said.incarnation] = sample;
  }
  samples_ = std::move(now);
}

// Adds processes that cannot be found by the fabric's name, because its files were removed.
void Cluster::AddNames(ClusterView* view) {
  if (const krcore::Status name = node_->CheckName(); !name.ok()) {
    view->problems.push_back(std::string(name.message()) + "; only nodes that were attached before are shown");
    return;
  }
  const auto processes = krcore::ProcessesOfRemovedFabric(rnic_, fabric_);
  for (const int32_t pid : processes.ok() ? *processes : std::vector<int32_t>()) {
    view->problems.push_back("process " + std::to_string(pid) +
                             " uses an older fabric of this name, whose files were removed: no other program can find "
                             "that fabric, and it is not shown here; stop the process when it is not needed");
  }
}

Result<ClusterView> Cluster::Look() {
  ClusterView view;
  view.fabric = fabric_;
  auto announcements = metrics::ReadAnnouncements(*node_, Patience(kPatienceNs));
  if (!announcements.ok()) return announcements.status();
  const int64_t now_ns = metrics::UnixNowNs();
  for (const Announcement& announcement : *announcements) {
    NodeView node = ViewOf(announcement, now_ns);
    if (IsMemory(node) || !IsLongDead(node, now_ns)) view.nodes.push_back(std::move(node));
  }
  AddMembers(&view);
  // Of a mirrored pool that went on, nobody misses those that died.
  std::erase_if(view.nodes, [&](const NodeView& node) {
    return view.configuration && node.pool == krcore::kNoNode && IsLongDead(node, now_ns);
  });
  AddRates(&view);
  AddNames(&view);
  std::ranges::sort(view.nodes, {}, [](const NodeView& node) {
    return std::pair(node.id, node.announcement ? node.announcement->incarnation : 0);
  });
  return view;
}

}  // namespace surge
