// World: a simulated fabric. One thread, one seed, virtual time. It implements the RNIC interface (provider "sim"), so
// krcore and kvs run on it unmodified; tests drive it through this header.
//
//   sim::World world({.fabric = "s1", .seed = 7});
//   auto node = Node::Open({.rnic = "sim", .fabric = "s1", .node = 1, .create_fabric = true, .clock = &world.clock()});
//
// A verb becomes a few events: it leaves (at its doorbell, or later if the device has a stall), executes at its target,
// and completes. The possible orders are those that rnic.h allows: in order per (queue, peer), but a WRITE, SEND or
// atomic does not wait for an earlier READ; no order across queues or peers; the words of a READ or WRITE in any order,
// with other verbs between them (Chaos::tear). The same options and the same calls give the same run.
//
// Thread safety: a World, its devices and everything above them belong to one thread. Several Worlds may live on
// several threads. Blocking calls (Connect, Store::Open) spin on clock().Relax(), which executes the next event: so
// they end while other clients stand still.
#ifndef KRCORE_RNIC_SIM_WORLD_H_
#define KRCORE_RNIC_SIM_WORLD_H_

#include <cstdint>
#include <cstdio>
#include <functional>
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
  uint64_t late_verbs = 0;    // of living devices, executed after they had completed as failed or flushed
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
  // The world's source of randomness, also for the code that drives it.
  std::mt19937_64& random();

  // Returns when the next event is due; INT64_MAX: there is none.
  int64_t next_event_ns() const;
  // Executes the next event and sets the time to it; false: there is none.
  bool Step();
  // Executes everything due up to `ns` and sets the time to it.
  void RunUntil(int64_t ns);
  // Sets all probabilities, e.g. to 0 in order to verify in peace.
  void set_chaos(const Chaos& chaos);
  // The same for the verbs that one device posts, until the chaos of all devices is set again. With it slow readers
  // meet quick writers.
  void set_chaos(NodeId node, const Chaos& chaos);

  // ---- faults
  // The device's process dies now, or at its n-th verb from now (1: the next), before that verb is posted or right
  // after. Verbs that it has posted still execute, late (up to `linger_ns`), until somebody fences it. While any is
  // left, QueryPeer answers kUnreachable, or at random drops the rest and answers kDead; after linger_ns it always
  // answers kDead. The dead device's own calls fail or complete as flushed, and nothing that it posts reaches anybody.
  void Kill(NodeId node, int64_t linger_ns);
  void KillAtVerb(NodeId node, uint64_t verb, bool before, int64_t linger_ns);
  bool IsDead(NodeId node) const;
  // Verbs that the device posts from now on leave only after `duration_ns`, as if its process was stopped between
  // looking at its clock and ringing the doorbell.
  void StallDoorbells(NodeId node, int64_t duration_ns);
  // For so long no verb reaches the device, and none that it posts reaches anybody: they fail as if the other side was
  // dead. An answer to what executes at that moment is lost. The fabric goes on to say that the device lives.
  void CutOff(NodeId node, int64_t duration_ns);
  // For so long the device's NIC serves nothing, and what arrives waits. If that takes longer than the initiator tries,
  // the verb fails first and executes afterwards, unless the QP is reset before.
  void Freeze(NodeId node, int64_t duration_ns);
  // Calls `action` at the n-th verb of the device that executes anywhere from now on (1: the next): just before it
  // executes, or just after that and before it is answered. `action` may do faults to other devices, and nothing that
  // takes time. 0: nothing any more.
  void AtVerb(NodeId node, uint64_t verb, bool before, std::function<void()> action);
  // Breaks the queues of `node` that have verbs in flight to `peer`.
  void BreakQueues(NodeId node, NodeId peer);
  // While `unanswered`, a question to the fabric about who lives or what was announced waits until its deadline for an
  // answer that does not come, as if the network to the membership service was cut.
  void LeaveUnanswered(bool unanswered);
  // The fabric forgets what the device has published, as a membership service does if it cannot reach the device for
  // long.
  void ForgetRecords(NodeId node);

  // ---- for schedulers: whether the device has completions to poll
  bool HasCompletions(NodeId node) const;
  // Returns the device that was first to have completions since it was last returned here; kNoNode: none. So a
  // scheduler of thousands of clients need not ask each.
  NodeId TakeReady();
  // Returns the modelled time that the device's control path has taken so far (CostModel). Virtual time does not
  // include it: studies of start-up charge it to the client.
  int64_t control_ns(NodeId node) const;

  const WorldStats& stats() const;
  // A hash that changes with every verb that executes: what, where in which MR, when, and what an atomic found.
  uint64_t trace_hash() const;
  // Prints every verb that executes, one per line; null: prints none.
  void set_trace(std::FILE* file);

 private:
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_WORLD_H_
