// What is on a fabric: its nodes, as they announce themselves and as the store's home lists them, and what the pools of
// the memory nodes hold. Everything is read one-sided; no node takes part, so none can delay it.
#ifndef TOOLS_SURGE_CLUSTER_H_
#define TOOLS_SURGE_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/memory/survey.h"
#include "metrics/announcement.h"

namespace surge {

struct Memory {
  uint64_t total = 0, used = 0, free = 0, reserved = 0;  // bytes
  std::optional<kvs::LiveUse> use;                       // of the used bytes; nothing: the table was not read in time
};

struct NodeView {
  krcore::NodeId id = krcore::kNoNode;
  std::string role;   // memory, metadata, compute
  std::string state;  // of metrics::State; or dead: the fabric confirms it; silent: it no longer announces itself
  std::optional<metrics::Announcement> announcement;  // nothing: it is only in the store's list
  double uptime_s = 0;                                // of a dead one: until it died
  std::optional<Memory> memory;  // of a memory node that could be read; of a mirrored pool at each of its replicas
  std::optional<double> operations_per_s;  // of a compute node, once there are two samples
  // Of a memory node, where pools are mirrored.
  krcore::NodeId pool = krcore::kNoNode;  // kNoNode: it is in none
  std::string place;  // only, head, middle, tail, learner, spare, removed, drained; empty: not mirrored
};

struct ClusterView {
  std::string fabric;
  std::vector<NodeView> nodes;            // by id; an id that has a successor appears once for each
  uint64_t clients = 0;                   // registered at the store's home
  Memory memory;                          // of all memory nodes, or mirrored pools, that could be read
  std::optional<uint64_t> configuration;  // its number, where pools are mirrored
  std::vector<std::string> problems;      // what could not be read, and why
};

// How long dead compute nodes are shown, and dead memory nodes that are in no mirrored pool.
inline constexpr int64_t kRememberDeadS = 600;
// A node that has announced nothing for this long is silent.
inline constexpr int64_t kSilentS = 5;

// Looks at one fabric again and again.
//
// Thread safety: one thread.
class Cluster {
 public:
  // `control_plane`: that of its nodes, krcore or kernel. kNotFound: no such fabric. With kernel every fabric is found:
  // one that does not exist just has no nodes.
  static krcore::Result<std::unique_ptr<Cluster>> Open(std::string_view control_plane,
                                                       const krcore::NodeOptions& options);

  // Returns its present state. Rates are since the previous call, so the first has none. kUnavailable: no metadata
  // server lives.
  krcore::Result<ClusterView> Look();

 private:
  struct Sample {
    uint64_t operations = 0;
    int64_t at_ns = 0;
    std::optional<double> rate;  // the last that was known
  };
  Cluster() = default;
  NodeView ViewOf(const metrics::Announcement& announcement, int64_t now_ns);
  void AddMembers(ClusterView* view);
  void AddListed(const kvs::HomeView& home, ClusterView* view);
  void AddReplicas(const kvs::Configuration& configuration, ClusterView* view);
  krcore::Result<Memory> ReadMemory(krcore::NodeId id, const kvs::LiveBytes* live, ClusterView* view);
  void AddPoolMemory(const kvs::Configuration& configuration, const kvs::LiveBytes* live, ClusterView* view);
  void AddNodeMemory(const kvs::HomeView* home, const kvs::LiveBytes* live, ClusterView* view);
  bool IsDead(const kvs::Replica& replica) const { return node_->IsConfirmedDead(replica.node, replica.incarnation); }
  void AddRates(ClusterView* view);

  void AddNames(ClusterView* view);

  std::string fabric_, rnic_;
  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<kvs::Survey> survey_;  // destroyed before node_
  std::map<uint32_t, Sample> samples_;   // by incarnation
};

// ---- render.cc: a view for people, and for programs

// Returns a table with a line for each node; then the sums, and what could not be read.
std::string Table(const ClusterView& view);
// Returns one JSON object, on one line. docs/operating.md has its members.
std::string Json(const ClusterView& view);

}  // namespace surge

#endif  // TOOLS_SURGE_CLUSTER_H_
