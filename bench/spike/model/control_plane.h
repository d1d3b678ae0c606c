// The control planes that are compared, and what follows from the constants for each: a worker's capacity, when a peer
// is hot, and memory. Everything is modelled.
#ifndef BENCH_SPIKE_MODEL_CONTROL_PLANE_H_
#define BENCH_SPIKE_MODEL_CONTROL_PLANE_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "bench/spike/model/constants.h"
#include "krcore/queue_pool.h"

namespace spike_model {

enum class Plane : uint8_t {
  kVerbs,       // each worker opens the device and makes an RC connection to each memory node
  kLite,        // RC connections of the host's kernel, made when the first worker of a host needs them
  kKrcore,      // DC through the host's kernel; metadata looked up, then cached on the host
  kKrcoreRc,    // starts as krcore; a worker's peers that prove hot get RC queues of its own, used from user space
  kKrcoreUser,  // without the kernel: each process opens the device, each worker makes DC initiators of its own
};
inline constexpr std::array kPlanes = {Plane::kVerbs, Plane::kLite, Plane::kKrcore, Plane::kKrcoreRc,
                                       Plane::kKrcoreUser};
std::string_view PlaneName(Plane plane);

enum class Spawn : uint8_t { kThread, kPrefork, kExec };
inline constexpr std::array kSpawns = {Spawn::kThread, Spawn::kPrefork, Spawn::kExec};
std::string_view SpawnName(Spawn spawn);
double SpawnNs(Spawn spawn, const Constants& constants);

// The cluster and the operation. Scale 1 is KRCORE's RACE experiment: 10 client machines of 24 threads and one server
// (github.com/SJTU-IPADS/krcore-artifacts, exp_scripts/templates-run/app/*race-hashing*.toml).
struct Cluster {
  uint32_t hosts = 10;  // of compute nodes
  uint32_t cores = 24;  // a host, a worker each
  uint32_t memory_nodes = 1;
  uint32_t round_trips = 2;           // of an operation: a Get
  uint32_t verbs = 3;                 // two buckets, one block
  uint32_t bytes = 3 * 128;           // that they read
  uint32_t worker_bytes = 1U << 20U;  // that a worker registers
  uint32_t rc_places = 256;           // of RC connections at a memory node (memnode)
  krcore::QueuePoolOptions pool;

  uint32_t workers() const { return hosts * cores; }
};
Cluster ClusterAt(uint32_t scale);

// How long one operation takes a worker that has one in flight. `rc_share`: of its requests that go over RC queues of
// its own, with kKrcoreRc.
double ServiceNs(Plane plane, const Cluster& cluster, const Constants& constants, double rc_share);
// The same with RC queues that stay in the kernel: every request pays the kernel's tax.
double KernelRcServiceNs(const Cluster& cluster, const Constants& constants);

// What a fresh process of kKrcoreUser pays for its device, DC target and the channel of its lookups, and a worker for a
// CQ and its initiators.
double OpenNodeNs(const Constants& constants);
double MakePoolNs(const Cluster& cluster, const Constants& constants);

// Operations a second that the memory nodes' NICs serve.
double NicLimitPerS(const Cluster& cluster, const Constants& constants);

// RC queues that a worker at `utilisation` ends up with: those of hot peers, as many as a pool keeps.
uint32_t PromotedQueues(const Cluster& cluster, const Constants& constants, double utilisation);

// The share of requests that go over RC where every worker of the cluster asks for `queues`: a memory node has places
// for some of them only.
double PromotedShare(const Cluster& cluster, uint32_t queues);

// Memory for connections, both ends together, with `workers` workers on `hosts` hosts that have `rc_connections`. A
// send queue has pool.sq_depth WQEs of 64 bytes, a CQ as many CQEs of 64; the passive end is a QP without sends, a
// page. krcore: pool.dc_initiators and a CQ a host, and the metadata cache's 365 bytes a peer, as bench_connect
// measures.
double ConnectionBytes(Plane plane, const Cluster& cluster, uint64_t workers, uint64_t hosts, uint64_t rc_connections);

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_CONTROL_PLANE_H_
