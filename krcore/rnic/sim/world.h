// World: a simulated fabric. One thread, one seed, virtual time. It implements the RNIC interface (provider "sim"), so
// krcore and kvs run on it unmodified; tests drive it through this header.
//
//   sim::World world({.fabric = "s1", .seed = 7});
//   auto node = Node::Open({.rnic = "sim", .fabric = "s1", .node = 1, .create_fabric = true, .clock = &world.clock()});
//
// A verb becomes a few events: it leaves (doorbell, and a stall if the device has one), executes at its target, and
// completes. Which orders are possible is what rnic.h promises and no more: in order per (queue, peer), but a WRITE,
// SEND or atomic does not wait for an earlier READ; nothing across queues or peers; the words of a READ or WRITE in any
// order, with other verbs between them (Chaos::tear). The same options and the same calls give the same run.
//
// Thread safety: a World, its devices and everything above them belong to one thread. Several Worlds may live on
// several threads. Blocking calls (Connect, Store::Open) spin on clock().Relax(), which executes the next event: they
// end while other clients stand still.
#ifndef KRCORE_RNIC_SIM_WORLD_H_
#define KRCORE_RNIC_SIM_WORLD_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "krcore/clock.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sim/cost_model.h"

namespace krcore::rnic::sim {

struct WorldOptions {
  std::string fabric;
  uint64_t seed = 1;
  CostModel cost;
  Chaos chaos;
};

struct WorldStats {
  uint64_t verbs = 0;
  uint64_t torn = 0, delayed = 0, broken = 0;
  uint64_t killed_devices = 0;
  uint64_t zombie_verbs = 0;  // of dead devices, executed after their death
  uint64_t late_verbs = 0;    // of living ones, executed after they had completed as failed or flushed
  uint64_t events = 0;
};

class Fabric;

class World {
 public:
  explicit World(const WorldOptions& options);
  ~World();  // every device must be closed
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Clock& clock();
  int64_t now_ns() const;
  // The world's randomness, for whoever drives it too.
  std::mt19937_64& random();

  // When the next event is due; INT64_MAX: none.
  int64_t next_event_ns() const;
  // Executes the next event and sets the time to it; false: there is none.
  bool Step();
  // Executes everything due up to `ns` and sets the time to it.
  void RunUntil(int64_t ns);
  // Sets all probabilities to 0, e.g. to verify in peace; or other ones.
  void set_chaos(const Chaos& chaos);
  // The same for the verbs that one device posts, until the chaos of all is set again. So that slow readers meet
  // quick writers.
  void set_chaos(NodeId node, const Chaos& chaos);

  // ---- faults
  // The device's process dies now, or at its n-th further verb (1: the next), before that verb is posted or right
  // after. Verbs that it has posted still execute, late (up to `linger_ns`), until somebody fences it: QueryPeer
  // answers kUnreachable while any is left and at random drops the rest and answers kDead, after linger_ns surely
  // kDead. The dead device's own calls fail or complete as flushed, and nothing that it posts reaches anybody.
  void Kill(NodeId node, int64_t linger_ns);
  void KillAtVerb(NodeId node, uint64_t verb, bool before, int64_t linger_ns);
  bool IsDead(NodeId node) const;
  // Verbs that the device posts from now on leave only after `duration_ns`: a process that was stopped between looking
  // at its clock and ringing the doorbell.
  void StallDoorbells(NodeId node, int64_t duration_ns);
  // The queues of `node` that have verbs under way to `peer` break.
  void BreakQueues(NodeId node, NodeId peer);
  // While `unanswered`, whoever asks the fabric who lives or what was announced waits until the deadline of the
  // question for an answer that does not come, as where the network to the membership service is cut.
  void LeaveUnanswered(bool unanswered);
  // The fabric forgets what the device has published, as a membership service does of one that it cannot reach for
  // long.
  void ForgetRecords(NodeId node);

  // ---- for schedulers: has the device completions to poll, or is the time come for what it posted?
  bool HasCompletions(NodeId node) const;
  // A device that has had completions since this last returned it, the one that had them first; kNoNode: none. So that
  // a scheduler of thousands of clients need not ask each.
  NodeId TakeReady();
  // Modelled time that the device's control path has taken so far (CostModel). It does not pass by itself: whoever
  // studies start-up charges it to the client.
  int64_t control_ns(NodeId node) const;

  const WorldStats& stats() const;
  // Changes with every verb that executes: what, where in which MR, when, and what an atomic found.
  uint64_t trace_hash() const;
  // Prints every verb that executes, one a line; null: none.
  void set_trace(std::FILE* file);

 private:
  std::unique_ptr<Fabric> fabric_;
};

// The simulated RNIC as a provider. Its fabrics are the Worlds of this process. docs/hacking.md.

// kNotFound: no World of that name. DeviceOptions::create_fabric means nothing here: a fabric is a World.
Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
// Nothing survives a process, so there is never anything to clean.
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_WORLD_H_
