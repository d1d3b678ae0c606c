// Everything that a run does. It is drawn from the run's seed.
#ifndef TESTS_SIM_PLAN_H_
#define TESTS_SIM_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "krcore/rnic/sim/world.h"

namespace surgekv_sim {

inline constexpr int64_t kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;  // in ns

enum class Phase : uint8_t { kGrowth, kHot, kChurn, kDelete, kMixed };

enum class Storm : uint8_t {
  kNone,    // anything may happen
  kSplits,  // tables split all the time while reads are slow, and splitters are paused
  kReuse,   // few keys, nothing is deleted; blocks are reused as fast as possible while reads are slow
};

enum class FaultKind : uint8_t {
  kKill,            // a process, before or after its n-th verb from now on
  kPause,           // a client is not polled for a while
  kPauseSplitter,   // ... one that is in the middle of a split, or else the next one that is
  kPauseAll,        // no client of a process is polled for a while
  kStall,           // doorbells of a process ring late
  kBreakQueues,     // of one process to one memory node
  kBreakNode,       // of all processes to one memory node
  kArrive,          // a new process, or a new client of a living one
  kLeave,           // a client ends
  kCompact,         // a client gives memory back, while the others run
  kDrain,           // a client empties a pool, or a memory node that has joined; if it succeeds, the memory is lost
  kKillMemoryNode,  // a replica of a mirrored pool that has another one
  kJoin,            // a new memory node, which becomes a replica or a pool
  kCutOff,          // a memory node cannot be reached for a while, though it lives
  kStop,            // a memory node serves nothing for a while, and then what has come meanwhile
  kSetReplicas,     // the pools are to have another number of replicas
};
inline constexpr uint32_t kFaultKinds = 16;
const char* FaultName(FaultKind kind);

struct Fault {
  uint32_t at_operation = 0;  // when this many have begun
  FaultKind kind = FaultKind::kPause;
  int64_t duration_ns = 0;  // of a pause or stall; how long a killed process's verbs linger
  uint64_t verb = 0;        // kKill: n; kJoin: its process is killed at its n-th verb, 0: it is not
  bool before = false;      // kKill, kJoin
  int64_t slow_ns = 0;      // kJoin: how long the load is slow, so that it lasts while the memory is copied
};

struct Plan {
  uint64_t seed = 0;
  Storm storm = Storm::kNone;
  uint32_t memory_nodes = 1;  // pools, really: each has so many memory nodes as it has replicas
  uint32_t replicas = 1;      // of each pool; 1: the store is not mirrored
  size_t pool_bytes = 0;      // of each
  uint64_t chunk_bytes = 0;
  bool tiny = false;    // the pools are tiny
  bool uneven = false;  // the other pools are larger than the first one, which is full when they are not
  uint32_t groups = 2;
  uint32_t initial_depth = 0;
  uint32_t keys = 0;
  uint32_t suffix_bits = 0, suffix = 0;  // most keys have these lowest bits
  uint32_t fingerprints = 256;           // how many different ones the keys have
  uint32_t operations = 0;
  double expiring = 0;              // how many of the values that are written expire
  int64_t clocks_differ_ms = 0;     // by at most so much do the processes' times of day differ
  double scans = 0;                 // how often a client takes steps of a scan over all keys instead of an operation
  std::vector<uint32_t> processes;  // clients of each
  uint32_t lanes = 0;               // the most operations that a client has in flight
  // RC queues to hot memory nodes: the connections that a memory node takes (0: no RC queues in this run), the WRs in
  // 10 ms from which on a node is hot, and the RC queues of a client.
  uint32_t rc_peers = 0, rc_hot_wrs = 0, rc_queues = 0;
  int64_t rc_poll_ns = 0;  // between a memory node's looks for clients that ask for a queue
  double spin = 0;         // how often a client polls in vain many times in a row
  krcore::rnic::sim::Chaos chaos;
  krcore::rnic::sim::Chaos slow;  // in a storm: the chaos of the first process, which mostly reads
  std::vector<Phase> phases;
  std::vector<Fault> faults;  // by at_operation
  bool joins = false;         // memory nodes join
  bool drains = false;        // of memory nodes: the others may be full meanwhile
  bool housekeeper = false;   // one looks after the store as the home's does
  bool queues_break = false;  // by chaos or by a fault: operations may fail

  std::string ToString() const;
};

// `replicas`: of each pool; 0: as the seed says. `joins`: memory nodes join in all runs with mirrored pools; if not,
// they do in about half of them, as the seed says.
Plan MakePlan(uint64_t seed, uint32_t replicas = 0, bool joins = false);

// Returns a number in [low, high], short times as often as long ones.
int64_t LogUniform(std::mt19937_64& random, int64_t low, int64_t high);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_PLAN_H_
