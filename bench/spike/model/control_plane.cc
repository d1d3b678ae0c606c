#include "bench/spike/model/control_plane.h"

#include <algorithm>

namespace spike_model {
namespace {

double TransferNs(const Cluster& cluster, const Constants& constants) {
  return cluster.bytes / 1024.0 * constants.ns_per_kib;
}

}  // namespace

std::string_view PlaneName(Plane plane) {
  switch (plane) {
    case Plane::kVerbs: return "verbs";
    case Plane::kLite: return "lite";
    case Plane::kKrcore: return "krcore";
    case Plane::kKrcoreRc: return "krcore + RC";
    case Plane::kKrcoreUser: return "krcore, user space";
  }
  return "?";
}

std::string_view SpawnName(Spawn spawn) {
  switch (spawn) {
    case Spawn::kThread: return "thread";
    case Spawn::kPrefork: return "prefork";
    case Spawn::kExec: return "exec";
  }
  return "?";
}

double SpawnNs(Spawn spawn, const Constants& constants) {
  switch (spawn) {
    case Spawn::kThread: return constants.spawn_thread_ns;
    case Spawn::kPrefork: return constants.spawn_prefork_ns;
    case Spawn::kExec: return constants.spawn_exec_ns;
  }
  return 0;
}

Cluster ClusterAt(uint32_t scale) {
  Cluster cluster;
  cluster.hosts *= scale;
  cluster.memory_nodes *= scale;
  return cluster;
}

double ServiceNs(Plane plane, const Cluster& cluster, const Constants& constants, double rc_share) {
  double read_ns = 0;
  switch (plane) {
    case Plane::kVerbs: read_ns = constants.read_verbs_ns; break;
    case Plane::kLite: return KernelRcServiceNs(cluster, constants);
    case Plane::kKrcore: read_ns = constants.read_dc_kernel_ns; break;
    case Plane::kKrcoreRc:
      read_ns = rc_share * constants.read_verbs_ns + (1 - rc_share) * constants.read_dc_kernel_ns;
      break;
    case Plane::kKrcoreUser:
      // Not published; DC through the kernel less the kernel's tax would be less than RC takes.
      read_ns = std::max(constants.read_verbs_ns, constants.read_dc_kernel_ns - constants.kernel_tax_ns);
      break;
  }
  return cluster.round_trips * read_ns + TransferNs(cluster, constants);
}

double KernelRcServiceNs(const Cluster& cluster, const Constants& constants) {
  return cluster.round_trips * (constants.read_verbs_ns + constants.kernel_tax_ns) + TransferNs(cluster, constants);
}

double OpenNodeNs(const Constants& constants) {
  const double channel = constants.create_cq_ns + constants.create_qp_ns + 3 * constants.modify_qp_ns;
  return constants.open_device_ns + constants.create_qp_ns + constants.register_ns + channel;
}

double MakePoolNs(const Cluster& cluster, const Constants& constants) {
  return constants.create_cq_ns + cluster.pool.dc_initiators * (constants.create_qp_ns + 3 * constants.modify_qp_ns);
}

double NicLimitPerS(const Cluster& cluster, const Constants& constants) {
  const double busy_ns = std::max(cluster.verbs * constants.verb_gap_ns, TransferNs(cluster, constants));
  return cluster.memory_nodes * 1e9 / busy_ns;
}

uint32_t PromotedQueues(const Cluster& cluster, const Constants& constants, double utilisation) {
  const double ops_per_s = utilisation * 1e9 / ServiceNs(Plane::kKrcore, cluster, constants, 0);
  const double wrs_to_a_peer = ops_per_s * cluster.verbs * constants.rc_heat_ns / 1e9 / cluster.memory_nodes;
  return wrs_to_a_peer < cluster.pool.rc_hot_wrs ? 0 : std::min(cluster.memory_nodes, cluster.pool.max_rc_queues);
}

double PromotedShare(const Cluster& cluster, uint32_t queues) {
  const double asked = static_cast<double>(cluster.workers()) * queues;
  const double places = static_cast<double>(cluster.rc_places) * cluster.memory_nodes;
  return asked == 0 ? 0 : std::min(1.0, places / asked) * queues / cluster.memory_nodes;
}

double ConnectionBytes(Plane plane, const Cluster& cluster, uint64_t workers, uint64_t hosts, uint64_t rc_connections) {
  constexpr double kPage = 4096, kEntry = 64, kMetadata = 365;
  const double queue = cluster.pool.sq_depth * kEntry, cq = queue;
  const auto rc = static_cast<double>(rc_connections);
  const auto pools = static_cast<double>(plane == Plane::kKrcoreUser ? workers : hosts);
  const double initiators = pools * (cluster.pool.dc_initiators * queue + cq + cluster.memory_nodes * kMetadata);
  switch (plane) {
    case Plane::kVerbs: return rc * (queue + kPage) + static_cast<double>(workers) * cq;
    case Plane::kLite: return rc * (queue + cq + kPage);
    case Plane::kKrcore:
    case Plane::kKrcoreUser: return initiators;
    case Plane::kKrcoreRc:
      return initiators + rc * (queue + kPage) + (rc_connections == 0 ? 0 : static_cast<double>(workers) * cq);
  }
  return 0;
}

}  // namespace spike_model
