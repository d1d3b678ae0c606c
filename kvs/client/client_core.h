// ClientCore: the Client behind kvs/client.h. It puts a client's parts together and polls them:
//
//   memory    verbs to the memory nodes (kvs/memory/connections.h)
//   epochs    its place in the store, its operations, and its memory (kvs/epochs/epochs.h)
//   table     reading and changing the table (kvs/table/table.h)
//   upkeep    what it does for the store by itself (kvs/upkeep/upkeep.h)
//
// Each builds on those before it. The protocol is docs/protocol.md.
#ifndef KVS_CLIENT_CLIENT_CORE_H_
#define KVS_CLIENT_CLIENT_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/memory/connections.h"
#include "kvs/memory/views.h"
#include "kvs/table/table.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {

class StoreCore;

class ClientCore final : public Client {
 public:
  // Makes a client with its queues and its memory, but not connected. It may be handed to another thread until Begin.
  static Result<std::unique_ptr<ClientCore>> Prepare(StoreCore& store, const ClientOptions& options);
  // Makes, and touches in memory, what would otherwise be made when first needed: the queues to known memory nodes, an
  // operation, the address cache. Call it between Prepare and Begin, when there is time.
  Status MakeFirstUsed();
  // Connects and registers the client; blocks for the few round trips of that. Call it once.
  Status Begin();
  const ClientOptions& options() const { return options_; }
  // Forgets the times: what was made in advance takes no time of the client's start.
  void ForgetTimes() { times_ = {}; }
  // Observer::SawUnchanged.
  void SawUnchanged(uint32_t index, const ClientEntry& entry, int64_t since_ns) {
    epochs_.observer.SawUnchanged(index, entry, since_ns);
  }
  // False: to end this client now would block until the view that is pending is active, which another client of this
  // thread may have to acknowledge. The client goes on with that view when it is polled: perhaps nobody else knows of
  // it.
  bool MayEnd();
  ~ClientCore() override;
  // A round of the caretaker's: polls the client if it is idle, until that has nothing more to do now or this takes
  // long. `goes_on`: the last round left something under way, and nobody has called the client since. Returns whether
  // this one did.
  bool CareWhileIdle(bool goes_on);
  // For tests. Null: the store's pools are not mirrored.
  Views* views() { return views_.get(); }

  Status Get(std::string_view key, std::string* value) override;
  Status Put(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Status Insert(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Status Update(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Status Delete(std::string_view key) override;
  Task<Status> GetAsync(std::string_view key, std::string* value) override;
  Task<void> MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                           std::span<Status> statuses) override;
  Task<Status> PutAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Task<Status> InsertAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Task<Status> UpdateAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override;
  Task<Status> DeleteAsync(std::string_view key) override;
  Task<Status> ModifyAsync(std::string_view key, const ModifyFunction* function) override;
  Task<void> MultiWriteAsync(std::span<WriteRequest> writes) override;
  void Spawn(Task<void> task) override;
  size_t Poll() override;
  int64_t IdleUntil() override;
  size_t spawned() const override { return forked() ? 0 : spawned_; }
  const ClientStats& stats() const override;
  const ClientTimes& times() const override { return times_; }
  size_t connection_bytes() const override { return connections_.memory_bytes(); }
  Result<TableStats> ReadTableStats() override;
  Task<Status> ScanAsync(uint64_t* cursor, std::vector<ScanRecord>* records, ScanOptions options) override;
  Task<Status> CompactAsync(CompactOptions options, CompactReport* report) override;
  Task<Status> DrainNodeAsync(krcore::NodeId node, DrainOptions options, DrainReport* report) override;
  Task<Status> UndrainNodeAsync(krcore::NodeId node) override;
  // Replicator::Bring and Enter.
  Task<Status> BringReplica(krcore::NodeId pool, Replica learner, int64_t timeout_ms, uint64_t bytes_per_s,
                            ReplicatorReport* report);
  Task<Status> EnterPool(krcore::NodeId pool);

 protected:
  void Idle(uint32_t rounds) override;

 private:
  struct Group;   // reads.cc
  struct Member;  // writes.cc

  ClientCore(StoreCore& store, const ClientOptions& options, std::unique_ptr<krcore::Node> own_node,
             std::unique_ptr<krcore::Region> arena);
  auto Stopwatch();
  void SayGoodbye();
  void CareForRegistration();

  // ---- reads.cc
  static bool IsKey(std::string_view key) { return !key.empty() && key.size() <= kMaxKeyBytes; }
  static bool IsRecord(std::string_view key, std::string_view value) {
    return IsKey(key) && value.size() <= kMaxValueBytes;
  }
  static Task<Status> Ended(Status status);
  // Returns the status for an invalid length.
  static Status LengthStatus(std::string_view key, std::string_view value);
  // Returns whether anything runs that no call waits for: what was spawned, or work of the client's own.
  bool HasOwnWork() const {
    return spawned_ > 0 || upkeep_.maintenance.running() || table_.workbench.in_background() ||
           epochs_.room.running > 0 || upkeep_.replicator.running();
  }
  bool OthersWait() const;
  void PollAlone(uint32_t* idle);
  Step ReadAlone(Operation& op);
  // Returns whether the steps found a value, and it has expired.
  bool FoundExpired(const Operation& op) const {
    return op.scan.val >= 0 && HasExpired(op.scan.block.expires_at_ms(), common_.clock);
  }
  Status ResultOf(const Operation& op, std::string* value);

  // ---- writes.cc
  Task<Status> Write(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms,
                     const ModifyFunction* modify = nullptr);
  Status WriteAlone(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms = 0);
  void Answer(Member& member);
  Task<void> Settle(Member& member, std::vector<WriteRequest*>* undone);

  // ---- table_stats.cc
  Task<Result<TableStats>> CollectTableStats();

  // Leaves the client's entry, if it has one to leave, to the store's other clients.
  struct Farewell {
    HeldEntries* held = nullptr;
    ClaimedEntry entry;
    Farewell() = default;
    Farewell(const Farewell&) = delete;
    Farewell& operator=(const Farewell&) = delete;
    ~Farewell() {
      if (held != nullptr) held->Abandon(entry);
    }
  };
  Farewell farewell_;  // first, so that it is destroyed last: then nothing that this client posted executes any more
  StoreCore& store_;
  const ClientOptions options_;
  const std::unique_ptr<krcore::Node> own_node_;  // null: shared with the store's other clients
  mutable ClientStats stats_;                     // stats() adds what the pool of connections counts
  ClientTimes times_;
  std::minstd_rand random_;
  Nonces nonces_;
  const std::unique_ptr<Views> views_;  // null: the pools are not mirrored
  Connections connections_;
  const std::unique_ptr<krcore::Region> arena_;  // what is posted from and read into, except large blocks
  const Common common_;
  Epochs epochs_;
  Table table_;
  Upkeep upkeep_;
  uint64_t polls_ = 0;
  bool look_ = false;  // the next Poll looks at the clock
  size_t spawned_ = 0;
};

inline void Client::PollOrIdle(uint32_t* idle) {
  if (Poll() != 0) {
    *idle = 0;
  } else {
    Idle(++*idle);
  }
}

template <typename T>
T Client::Wait(Task<T> task) {
  task.Start();
  for (uint32_t idle = 0; !task.done();) PollOrIdle(&idle);
  return task.Take();
}

}  // namespace kvs

#endif  // KVS_CLIENT_CLIENT_CORE_H_
