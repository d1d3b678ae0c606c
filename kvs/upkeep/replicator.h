// Replicator: brings a learner of a mirrored pool up to date, and makes it the tail (docs/replication.md, "A replica
// joins"). One client does this, in the process of the learner's memory node.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_REPLICATOR_H_
#define KVS_UPKEEP_REPLICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvs/epochs/epochs.h"
#include "kvs/layout/configuration.h"
#include "kvs/table/table.h"
#include "kvs/task.h"

namespace kvs {

// What a replicator has done so far.
struct ReplicatorReport {
  uint64_t passes = 0;        // over everything, begun
  uint64_t words_pushed = 0;  // words that the learner lacked, or had not yet
  uint64_t tables = 0;        // looked through in this pass
  uint64_t all_tables = 0;    // that this pass looks through, about; 0: not known yet
  bool joined = false;        // the learner is, or was, in the store's configuration, or may have been
};

class Replicator : private Part {
 public:
  Replicator(Epochs& epochs, Table& table);

  // Makes `learner`, whose region was formatted (FormatLearner) and is exposed, a replica of the pool: a learner, and
  // then the tail. Suspends for as long as that takes. kBadState: the pool has all its replicas or another learner, or
  // the learner was thrown out. kTimeout. kUnavailable: the store cannot be reached. `report` is kept up to date.
  // `bytes_per_s`: how many bytes of subtables and blocks to look through or copy in a second, on average, so that
  // others can use the store; 0: any number. What one subtable names is copied in one go.
  Task<Status> Bring(krcore::NodeId pool, Replica learner, int64_t timeout_ms, uint64_t bytes_per_s,
                     ReplicatorReport* report);
  // Enters a pool that has all its replicas in the member list, unless it is there: clients take memory there from then
  // on. kUnavailable: try again.
  Task<Status> Enter(krcore::NodeId pool);
  // Whether any of these is under way. When the client is closing, they end soon.
  bool running() const { return running_ > 0; }

 private:
  class Running {
   public:
    explicit Running(uint32_t& running) : running_(running) { ++running_; }
    Running(const Running&) = delete;
    ~Running() { --running_; }

   private:
    uint32_t& running_;
  };

  // Where the learner is now.
  enum class Place : uint8_t { kNowhere, kLearner, kMember };
  Place PlaceOf(krcore::NodeId pool, const Replica& learner) const;
  Task<Step> ReadClients(std::vector<ClientEntry>* entries);
  // Waits until each client uses the view in use and has its lease, which two heartbeats show; for half a lease at
  // most. kRestart: there is another view.
  Task<Step> AwaitHeartbeats();
  // Waits until no client is expelled whose verbs may still execute, and keeps the client table as it is then.
  Task<Step> AwaitPeace();
  // Whether no client was lost since.
  bool IsPeace(std::span<const ClientEntry> entries) const;
  Task<Step> Sweep(krcore::NodeId pool);
  Task<Step> SweepDirectory(krcore::NodeId pool);
  Task<Step> SweepNamed(krcore::NodeId pool, std::vector<bool>* seen);
  // Brings what the directory names there. Clients' epochs stand still meanwhile.
  Task<Step> BringNamed(krcore::NodeId pool, uint32_t index);
  // Brings a subtable to the learner, or, if that is in another pool, the blocks of `pool` that it names.
  Task<Step> BringTable(krcore::NodeId pool, GlobalAddress table);
  // Brings words to the learner of their pool. is_table: they are a whole subtable.
  Task<Step> Bring(GlobalAddress from, uint64_t bytes, bool is_table);
  Task<Step> Push(GlobalAddress at, uint64_t begin, bool is_table, std::vector<uint32_t> todo);
  // Reads what is to be compared into `head` and `tail` of the buffers.
  Task<Step> ReadHeadAndTail(GlobalAddress at, uint64_t bytes);
  // Waits until one more subtable, and the blocks that were copied since the last call, are within the limit.
  Task<void> KeepToLimit();

  Epochs& epochs_;
  Table& table_;
  std::unique_ptr<krcore::Region> region_;  // where words are read to
  Batch batch_;
  std::vector<ClientEntry> peace_;
  std::vector<bool> dead_;  // of those: whose process was dead by then
  ReplicatorReport* report_ = nullptr;
  uint64_t bytes_per_s_ = 0;
  uint64_t copied_ = 0;    // ClientStats::bytes_copied as it was last seen
  int64_t within_ns_ = 0;  // when all that was done is within the limit
  uint32_t running_ = 0;
};

}  // namespace kvs

#endif  // KVS_UPKEEP_REPLICATOR_H_
