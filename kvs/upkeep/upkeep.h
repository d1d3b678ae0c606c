// Upkeep: what a client does for the store by itself.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_UPKEEP_H_
#define KVS_UPKEEP_UPKEEP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/layout/pool.h"
#include "kvs/table/table.h"
#include "kvs/task.h"
#include "kvs/upkeep/replicator.h"

namespace kvs {

// The interval at which a part of upkeep looks whether something has ended.
inline constexpr int64_t kLookNs = 200'000;

// Finishes another client's split or merge of dir[index], if it goes on and its client has stopped. kRestart: it goes
// on. kFull: there is no room for that.
Task<Step> FinishOthersWork(Table& table, Operation& op, uint32_t index);

// Maintenance: the rounds in which a client announces its epoch, frees what is old enough, and finishes what others
// have left.
class Maintenance : private Part {
 public:
  Maintenance(Epochs& epochs, Table& table) : Part(epochs.common), epochs_(epochs), table_(table) {}

  // Begins a round if one is due. True: it has begun. Call it after a look at the clock, while the lease lasts.
  bool BeginIfDue(int64_t now_ns);
  // Runs one round that begins now, to its end.
  Task<void> MaintainNow();
  bool running() const { return running_ > 0; }
  // Returns when the next round is due. `idle`: this client does nothing.
  int64_t next_ns(bool idle) const { return idle ? idle_at_ns_ : epochs_.own_work.maintain_at_ns; }

  // All clients that are not expelled had announced at least this epoch when the last round looked.
  uint64_t announced_by_living() const { return announced_by_living_; }
  // These are the announcements of the expelled ones.
  const std::vector<uint64_t>& expelled_epochs() const { return expelled_epochs_; }

 private:
  Task<void> Maintain();
  void LookAfterOthers();
  Task<void> LookAfter(uint32_t index);
  Task<Step> ReleaseHeldBlocks();

  Epochs& epochs_;
  Table& table_;
  size_t running_ = 0;    // 1 while Maintain() runs
  bool awaited_ = false;  // MaintainNow waits for it to end
  int64_t idle_at_ns_ = 0;
  std::vector<uint64_t> expelled_epochs_;
  uint64_t announced_by_living_ = 0;
  uint32_t held_cursor_ = 0;
};

// The longest interval between looks while a client waits to be the mover, or for a run's end. The first is kLookNs.
inline constexpr int64_t kMaxLookNs = 10'000'000;
inline int64_t NextLook(int64_t look_ns) { return std::min(2 * look_ns, kMaxLookNs); }

// Another client's mover word as last seen, the time since which it is so, and when to ask whether its process is dead.
struct SeenMover {
  MoverWord word;
  int64_t since_ns = 0, ask_at_ns = 0;
};

// Compaction: when a client gives memory back by a run of the mover (mover.h), and what it learns from that.
class Compaction final : private Part, public Room::Maker {
 public:
  Compaction(Epochs& epochs, Table& table, Maintenance& maintenance)
      : Part(epochs.common), epochs_(epochs), table_(table), maintenance_(maintenance) {
    epochs.room.maker = this;
  }

  // Runs the mover and returns when that has ended. For Client::CompactAsync.
  Task<Status> Compact(CompactOptions options, CompactReport* report);
  // With each round of maintenance: begins a run if a client that held memory has gone, or free blocks are many.
  void BeginIfWanted(int64_t now_ns);
  void BeginRun(int64_t timeout_ms) override { Start({.thorough = true, .timeout_ms = timeout_ms}, /*for_room=*/true); }

  // Call it when a run of the mover has ended: gives its operation back.
  void EndMover(uint64_t chunks_freed);
  SeenMover& seen_mover() { return seen_mover_; }

 private:
  void Start(const CompactOptions& options, bool for_room);
  Task<void> Run(CompactOptions options, bool for_room);

  Epochs& epochs_;
  Table& table_;
  Maintenance& maintenance_;
  CompactReport last_report_;
  SeenMover seen_mover_;
  int64_t again_at_ns_ = 0;  // the next run of its own; runs that make room begin before
};

// How a drain has ended.
enum class DrainEnd : uint8_t { kGoesOn, kDone, kUnknownNode, kTakenBack, kNoRoom };

// What a client knows of a memory node that it drains, from round to round.
struct Draining {
  krcore::NodeId node = krcore::kNoNode;
  MemberWord mark;       // the node's word, as it last said DRAINING
  bool settled = false;  // all clients have learnt it since, and take nothing there
  bool elected = false;  // this client has been the mover
  DrainEnd end = DrainEnd::kGoesOn;
  Step step = Step::kOk;  // how the last round ended
  DrainReport report;
};

// Drainer: empties a memory node, so that it can be stopped, and takes it back into use.
class Drainer : private Part {
 public:
  Drainer(Epochs& epochs, Table& table, Maintenance& maintenance, Compaction& compaction)
      : Part(epochs.common), epochs_(epochs), table_(table), maintenance_(maintenance), compaction_(compaction) {}

  // These do what Client's calls DrainNode and UndrainNode do.
  Task<Status> Drain(krcore::NodeId node, DrainOptions options, DrainReport* report);
  Task<Status> Undrain(krcore::NodeId node);

 private:
  Task<void> RunRound(int64_t timeout_ms);
  Task<Status> DrainInRounds(DrainOptions options, DrainReport* report);
  Task<Status> DrainReplica(krcore::NodeId node, DrainOptions options, DrainReport* report);
  Task<Status> TakeBack(krcore::NodeId node);

  Epochs& epochs_;
  Table& table_;
  Maintenance& maintenance_;
  Compaction& compaction_;
  std::unique_ptr<Draining> draining_;  // null: this client drains none
};

struct Upkeep {
  Upkeep(Epochs& epochs, Table& table)
      : maintenance(epochs, table),
        compaction(epochs, table, maintenance),
        drainer(epochs, table, maintenance, compaction),
        replicator(epochs, table) {}

  Maintenance maintenance;
  Compaction compaction;
  Drainer drainer;
  Replicator replicator;
};

}  // namespace kvs

#endif  // KVS_UPKEEP_UPKEEP_H_
