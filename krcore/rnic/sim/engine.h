// The engine: a queue of events ordered by time, and the way of every verb through it.
#ifndef KRCORE_RNIC_SIM_ENGINE_H_
#define KRCORE_RNIC_SIM_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <queue>
#include <random>
#include <span>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/verb.h"
#include "krcore/rnic/sim/world.h"

namespace krcore::rnic::sim {

// Small plain events, ordered by time and, at the same time, by when they were added.
enum class EventKind : uint8_t {
  kArrive,   // a verb reaches its target, where others may have to go first
  kExecute,  // the target's NIC starts on it
  kStep,     // the next part of a torn verb
  kRespond,  // its answer reaches the initiator
  kFenced,   // a dead device's verbs have ended
};

struct Event {
  int64_t at_ns;
  uint64_t order_and_kind;
  uint32_t subject;     // verb, or device for kFenced
  uint32_t generation;  // of the verb: an event for a verb that is gone is void
  EventKind kind() const { return static_cast<EventKind>(order_and_kind & 0xff); }
};
static_assert(sizeof(Event) == 24);

// The earliest is the top of a priority queue.
struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.order_and_kind > b.order_and_kind;
  }
};

// Engine: time, and the way of every verb. A verb is posted, leaves, arrives, waits for its turn in its flow and for
// the target's NIC, executes (this changes the target's memory, perhaps in several steps), and is answered.
//
//   post --fence?--> Launch --kArrive--> TryExecute --kExecute?--> Execute --kStep?--> Finish --kRespond--> Complete
//
// engine.cc has this way and the faults, execute.cc what happens at the target.
class Engine {
 public:
  Engine(const CostModel& costs, const Chaos& chaos, uint64_t seed) : cost_(costs), chaos_(chaos), random_(seed) {}

  // ---- time
  int64_t now_ns() const { return now_ns_; }
  int64_t NextEventNs();
  // Executes the next event; false: there is none.
  bool Step();
  void RunUntil(int64_t ns);

  // ---- verbs (engine.cc)
  // `position` counts the WRs of the queue since its last reset, from 1.
  void Post(SendQueue& queue, const SendWr& wr, uint64_t position);
  // Completes everything outstanding as flushed. Verbs that have left may still execute.
  void Flush(SendQueue& queue);
  // Drops all verbs, completed or not: afterwards nothing of the queue executes.
  void Drop(SendQueue& queue);

  // ---- faults
  // The owner of `queue` is dead: verbs that have left linger until `until_ns`, and the buffers are not used any more.
  void Orphan(SendQueue& queue, int64_t until_ns);
  void ScheduleFence(const DeviceState& device, int64_t at_ns) { Add(at_ns, EventKind::kFenced, device.index, 0); }
  // Drops the verbs that a dead device left.
  void Fence(DeviceState& device);
  // Breaks the queue at its first verb to `peer` that has not been answered, if there is one.
  void Break(SendQueue& queue, const DeviceState* peer);

  // ---- completions to poll
  void CountCompletion(DeviceState& device) {
    ++device.unpolled;
    if (device.ready_listed) return;
    device.ready_listed = true;
    ready_.push_back(&device);
  }
  // Returns a device that has had completions since it was last returned here; null: none.
  DeviceState* TakeReady();

  const CostModel& cost() const { return cost_; }
  Chaos& chaos() { return chaos_; }
  const Chaos& ChaosOf(const Verb& verb) const {
    const DeviceState& device = *verb.queue->device;
    return device.chaos ? *device.chaos : chaos_;
  }
  std::mt19937_64& random() { return random_; }
  WorldStats& stats() { return stats_; }
  uint64_t trace_hash() const { return trace_hash_; }
  void set_trace(std::FILE* file) { trace_ = file; }
  std::vector<std::unique_ptr<DeviceState>>& devices() { return devices_; }

 private:
  // ---- engine.cc
  void Launch(Verb& verb);
  void LaunchWaiting(SendQueue& queue);
  void Arrive(Verb& verb);
  void TryExecute(SendQueue& queue, uint32_t flow);
  void Finish(Verb& verb, WcStatus status);
  // Takes the verb, whose turn it is, out of its flow.
  void Leave(Verb& verb);
  void DropList(VerbList<&Verb::next_in_flow>* list);
  void Deliver(SendQueue& queue);
  void Tell(Verb& verb, WcStatus status);
  void ExpectResponse(Verb& verb, int64_t at_ns);
  void Release(Verb& verb) {
    if (verb.done && verb.completed) verbs_.Give(verb);
  }
  // ---- execute.cc
  // Returns true when the verb is done.
  bool Begin(Verb& verb);
  bool Execute(Verb& verb);
  bool ExecuteStep(Verb& verb);
  // Does what was planned for this verb, once.
  static void Act(Verb& verb);
  bool IsCutOff(const Verb& verb) const;
  WcStatus CheckLocal(const Verb& verb) const;
  WcStatus FindTarget(const Verb& verb, QpEntry** entry) const;
  WcStatus FindRemote(const Verb& verb, const QpEntry& entry, const MrEntry** mr) const;
  WcStatus SendMessage(Verb& verb, QpEntry& entry, const MrEntry* mr);
  int64_t ReserveTarget(const Verb& verb);
  std::span<const std::byte> Gathered(const Verb& verb);
  void Trace(const Verb& verb, const MrEntry* mr, uint64_t word);
  // ---- faults
  void DrawFaults(Verb& verb, int64_t leave_ns, int64_t* arrive_ns);
  void DrawFate(Verb& verb, int64_t fails_ns);
  // The verb's buffers are about to be given back or are gone.
  void Detach(Verb& verb);

  bool Chance(double probability) {
    return probability > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  // Returns 1 to `most`; short and long values are equally frequent.
  int64_t LogUniform(int64_t most);
  int64_t TransferNs(uint64_t bytes) const { return static_cast<int64_t>(bytes) * cost_.ns_per_kib / 1024; }
  int64_t PayloadOutNs(const Verb& verb) const { return verb.IsRead() ? 0 : TransferNs(verb.length); }
  void Add(int64_t at_ns, EventKind kind, uint32_t subject, uint32_t generation) {
    events_.push({at_ns, next_order_++ << 8 | static_cast<uint64_t>(kind), subject, generation});
  }
  void Schedule(Verb& verb, int64_t at_ns, EventKind kind) {
    verb.due_ns = at_ns;
    Add(at_ns, kind, verb.id, verb.generation);
  }

  const CostModel cost_;
  Chaos chaos_;
  std::mt19937_64 random_;
  WorldStats stats_;
  uint64_t trace_hash_ = 0;
  std::FILE* trace_ = nullptr;
  int64_t now_ns_ = 1'000'000'000;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  uint64_t next_order_ = 0;
  VerbPool verbs_;
  std::vector<std::byte> scratch_;
  std::vector<DeviceState*> ready_;
  size_t ready_head_ = 0;
  std::vector<std::unique_ptr<DeviceState>> devices_;  // by index
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_ENGINE_H_
