#include "tools/surge/cluster.h"

#include <algorithm>
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

// Adds what the store's home knows of its memory nodes, and their pools.
void Cluster::AddMembers(ClusterView* view) {
  auto home = survey_->ReadHome(Patience(kNodePatienceNs));
  if (!home.ok()) {
    if (home.status() == StatusCode::kNotFound) {
      view->problems.emplace_back("there is no store: no memory node has joined yet, or the home was stopped");
    } else {
      view->problems.push_back("the store's home cannot be read: " + home.status().ToString());
    }
  } else {
    view->clients = home->clients;
    for (const kvs::MemberView& member : home->members) {
      const auto same = [&](const NodeView& node) { return node.id == member.node && Reachable(node); };
      auto node = std::ranges::find_if(view->nodes, same);
      if (node == view->nodes.end()) {
        const bool dead = node_->IsConfirmedDead(member.node, member.incarnation);
        if (dead && std::ranges::any_of(view->nodes, [&](const NodeView& known) { return known.id == member.node; })) {
          continue;  // its announcement says more
        }
        NodeView unannounced;
        unannounced.id = member.node;
        unannounced.role = metrics::RoleName(metrics::Role::kMemory);
        unannounced.state = dead ? "dead" : MemberStateName(member.state);
        view->nodes.push_back(unannounced);
      } else {
        SetState(member.state, &*node);
      }
    }
  }
  Result<kvs::LiveBytes> live = StatusCode::kNotFound;
  if (home.ok()) live = survey_->ReadLive(*home, Patience(kTablePatienceNs));
  if (live.ok()) view->memory.use.emplace();
  std::vector<kvs::ChunkWord> words;
  const auto is_member = [&home](krcore::NodeId id) {
    return !home.ok() || std::ranges::any_of(home->members, [id](const auto& member) { return member.node == id; });
  };
  for (NodeView& node : view->nodes) {
    if (node.role != metrics::RoleName(metrics::Role::kMemory) || !Reachable(node)) continue;
    if (!is_member(node.id)) {
      view->problems.push_back("memory node " + std::to_string(node.id) + " is " + kvs::kNoMember);
      continue;
    }
    const auto use = survey_->ReadPool(node.id, Patience(kNodePatienceNs), &words);
    if (use.ok()) {
      node.memory = MemoryOf(*use);
      if (live.ok()) {
        node.memory->use = kvs::UseOf(node.id, words, use->chunk_bytes, *live);
        view->memory.use->live += node.memory->use->live;
        view->memory.use->open += node.memory->use->open;
        view->memory.use->unswept += node.memory->use->unswept;
      }
      view->memory.total += node.memory->total;
      view->memory.used += node.memory->used;
      view->memory.free += node.memory->free;
      view->memory.reserved += node.memory->reserved;
    } else if (node.announcement && node_->IsConfirmedDead(node.id, node.announcement->incarnation)) {
      node.state = "dead";  // it has died since it was listed
    } else {
      view->problems.push_back("memory node " + std::to_string(node.id) +
                               " cannot be read: " + use.status().ToString());
    }
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
    const bool long_dead = node.state == "dead" && now_ns - announcement.updated_ns > kRememberDeadS * kNsPerS;
    if (announcement.role == metrics::Role::kMemory || !long_dead) view.nodes.push_back(std::move(node));
  }
  AddMembers(&view);
  AddRates(&view);
  AddNames(&view);
  std::ranges::sort(view.nodes, {}, [](const NodeView& node) {
    return std::pair(node.id, node.announcement ? node.announcement->incarnation : 0);
  });
  return view;
}

}  // namespace surge
