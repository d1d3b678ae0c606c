// ClientCore: the Client behind kvs/client.h. One class, because operations, splits and reclamation share the
// connections, the directory cache and the memory; its methods are grouped by file:
//
//   client_core.cc   life, polling, leases, back-off
//   scan.cc          reading a key's candidates in a table, and the blocks that match
//   directory.cc     finding the table of a hash
//   get.cc           Get
//   write.cc         Put, Insert, Update, Delete
//   split.cc         splitting a subtable, migrating slots
//   memory.cc        chunks, registration, epochs
//   table_stats.cc   ReadTableStats
//
// The protocol is docs/kvs.md; step numbers in comments refer to it.
#ifndef KVS_SRC_CLIENT_CORE_H_
#define KVS_SRC_CLIENT_CORE_H_

#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/src/connections.h"
#include "kvs/src/directory_cache.h"
#include "kvs/src/memory_state.h"
#include "kvs/src/operation.h"

namespace kvs {

class StoreCore;
class SplitBuffers;
class EpochBuffers;

// How a part of an operation ended.
enum class Step : uint8_t {
  kOk,
  kRestart,      // something changed under it: begin again with a fresh view
  kUnavailable,  // a memory node failed; what was posted last has an unknown outcome
  kFull,         // no memory, or no room in the directory
};

enum class WriteKind : uint8_t { kPut, kInsert, kUpdate, kDelete };

class ClientCore final : public Client {
 public:
  // Blocks for the few round trips of connecting and registering.
  static Result<std::unique_ptr<ClientCore>> Create(StoreCore& store, const ClientOptions& options);
  ~ClientCore() override;

  Task<Status> GetAsync(std::string_view key, std::string* value) override;
  Task<Status> PutAsync(std::string_view key, std::string_view value) override;
  Task<Status> InsertAsync(std::string_view key, std::string_view value) override;
  Task<Status> UpdateAsync(std::string_view key, std::string_view value) override;
  Task<Status> DeleteAsync(std::string_view key) override;
  void Spawn(Task<void> task) override;
  size_t Poll() override;
  size_t spawned() const override { return spawned_; }
  const ClientStats& stats() const override { return stats_; }
  Result<TableStats> ReadTableStats() override;

 private:
  static constexpr uint64_t kNoPin = UINT64_MAX;

  struct Delayed {
    uint64_t due_poll;
    std::coroutine_handle<> handle;
  };
  // A lock word as last seen, and since when it has not changed.
  struct SeenLock {
    uint64_t word = 0;
    int64_t since_ns = 0;
  };
  // A split of the table dir[parent] into dir[child] whose child is published.
  struct Migration {
    TableRef parent, child;
    uint32_t depth = 0;  // of the parent before
  };
  // What MigrateSlots works with: `count` slots at most, all registered.
  struct MigrationScratch {
    Batch* batch;
    std::span<uint64_t> slots;
    std::span<uint64_t> cas;
    std::span<BlockHeader> blocks;
  };
  struct Lease;

  explicit ClientCore(StoreCore& store);
  Status Open(const ClientOptions& options);

  // ---- client_core.cc
  auto LeaseOperation(std::string_view key);
  // One that nobody uses, made now if there are fewer than may be in flight; null: all are in use.
  Operation* FreeOperation();
  void Release(Operation& operation);
  // Suspends for some rounds of polling, more and at random the more often the operation has restarted. The operation
  // must hold no address of a block that it did not allocate: afterwards such a block may be reused.
  auto BackOff(Operation& operation);
  bool OutOfTime(Operation& operation);
  // What an operation that is out of time reports.
  static StatusCode TimeoutCode(const Operation& operation) {
    return operation.torn ? StatusCode::kCorrupt : StatusCode::kTimeout;
  }
  Status UnavailableStatus(const char* what) const;
  // Drives `task` to its end.
  template <typename T>
  T RunToEnd(Task<T> task);
  void RunDelayed();

  // ---- scan.cc
  // Reads the operation's two combined buckets in `table` (behind whatever its batch already holds) and the blocks of
  // candidates whose fingerprint matches and whose state is in `states`, a mask of 1 << SlotState.
  Task<Step> ScanTable(Operation& op, TableRef table, uint32_t states);
  uint32_t PlanMatches(Operation& op, uint32_t states, std::span<uint8_t> planned);
  Task<Step> ReadLargeBlock(Operation& op, Slot slot, uint64_t bytes);
  // Reads the four bucket headers of the last scan again: kOk if they all still fit the key, else kRestart.
  Task<Step> CheckHeaders(Operation& op);

  // ---- directory.cc
  Task<Step> Resolve(Operation& op, TableRef* table);
  Task<Step> ReadDirectoryEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table);
  GlobalAddress DirectoryAddress(uint32_t index) const;

  // ---- get.cc
  // The scan saw no VAL(key) and a migration may be the reason: steps (3) and (4) of Get.
  Task<Step> GetDuringMigration(Operation& op, std::string* value);
  Task<Step> ReadFrozenValue(Operation& op, Slot slot, std::string* value);

  // ---- write.cc
  Task<Status> Write(WriteKind kind, std::string_view key, std::string_view value);
  struct NewBlock;
  Task<Step> PrepareBlock(Operation& op, std::string_view key, std::string_view value, NewBlock* block);
  Task<Step> InsertTentatively(Operation& op, uint32_t candidate, Slot own, bool* exists, bool* unknown);
  Task<Step> MakeRoom(Operation& op);
  Task<Step> AbortTentative(Operation& op, GlobalAddress slot, Slot own);
  void RetireOld(Operation& op, const TableRef& table, Slot old);

  // ---- split.cc
  Task<Step> HelpMigrate(Operation& op);
  Task<Step> MigrateSlots(Migration migration, std::span<const uint32_t> slots, MigrationScratch scratch);
  void BeginSplit();
  Task<Step> Split(Operation& op, TableRef table);
  Task<Step> SplitLocked(Operation& op, TableRef table);
  Task<Step> FinishAbandonedSplit(uint32_t child_index);
  uint64_t SplitToken() { return uint64_t{client_index_ + 1} << 32 | (random_() & 0xffffffff); }
  Task<Step> LockTable(TableRef table, uint64_t token);
  Task<Step> UnlockTable(TableRef table, uint64_t token);
  Task<Step> PublishChild(Operation& op, TableRef parent, uint32_t child_index);
  Task<Step> FinishSplit(uint32_t parent_index, uint32_t child_index);

  // ---- memory.cc
  Task<Step> Allocate(Operation& op, uint64_t bytes, uint64_t alignment, GlobalAddress* address);
  Task<Step> TakeChunks(Operation& op, krcore::NodeId node, uint64_t count, uint64_t* offset);
  Task<Step> Register();
  Task<Step> Unregister();
  Task<void> Maintain();
  Task<Step> ReleaseHeldBlocks();
  bool MemberJoined();
  uint64_t FindDeadStraggler(uint64_t oldest);
  uint64_t OldestEpochInFlight() const;
  Task<Result<TableStats>> CollectTableStats();

  StoreCore& store_;
  krcore::Clock& clock_;
  ClientStats stats_;
  Connections connections_;
  DirectoryCache directory_;
  std::unique_ptr<MemoryState> memory_;
  SubtableGeometry geometry_;
  std::minstd_rand random_;

  uint32_t max_in_flight_ = 0;
  std::unique_ptr<krcore::Region> arena_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_operations_;
  std::deque<std::pair<std::coroutine_handle<>, Operation**>> lease_waiters_;
  std::vector<Delayed> delayed_;
  uint64_t polls_ = 0;
  size_t spawned_ = 0;

  std::unique_ptr<SplitBuffers> split_;
  bool splitting_ = false;
  std::unordered_map<uint64_t, SeenLock> locks_seen_;  // by table: others' locks that this client waited for

  std::vector<krcore::NodeId> members_;     // memory nodes, as the store knew them last
  std::vector<krcore::NodeId> full_nodes_;  // without a free chunk
  std::array<bool, krcore::kMaxMemoryNode + 1> taking_chunk_{};

  // Epochs. The buffers are in their own region, because maintenance runs beside operations.
  std::unique_ptr<EpochBuffers> epoch_buffers_;
  size_t maintaining_ = 0;  // 1 while Maintain() runs
  bool registered_ = false;
  bool closing_ = false;
  uint32_t client_index_ = 0;
  uint64_t epoch_ = 0;             // the global epoch as last read
  uint32_t straggler_ = 0;         // the entry that has held back reclamation,
  uint64_t straggler_epoch_ = 0;   // at which epoch,
  uint32_t straggler_rounds_ = 0;  // for how many rounds of maintenance
  uint32_t held_cursor_ = 0;
  int64_t refresh_at_ns_ = 0;
  uint64_t maintenance_epoch_ = kNoPin;  // in which maintenance began to finish somebody's split
};

// ---- inline parts

inline auto ClientCore::LeaseOperation(std::string_view key) {
  struct Awaiter {
    ClientCore& client;
    std::string_view key;
    Operation* operation = nullptr;
    bool await_ready() {
      operation = client.FreeOperation();
      return operation != nullptr;
    }
    void await_suspend(std::coroutine_handle<> handle) { client.lease_waiters_.push_back({handle, &operation}); }
    Operation& await_resume() {
      operation->in_use = true;
      operation->epoch = client.epoch_;
      operation->key = key;
      operation->hash = HashKey(key);
      operation->scan.places = PlacesOf(operation->hash, client.geometry_.groups);
      operation->attempt = 0;
      operation->deadline_ns = 0;
      operation->torn = false;
      operation->own_ins = 0;
      operation->strangers = 0;
      ++client.stats_.operations;
      return *operation;
    }
  };
  return Awaiter{*this, key};
}

// Gives the operation back when the coroutine that holds it ends.
struct ClientCore::Lease {
  ClientCore& client;
  Operation& operation;
  Lease(ClientCore& owner, Operation& leased) : client(owner), operation(leased) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { client.Release(operation); }
};

inline auto ClientCore::BackOff(Operation& operation) {
  struct Awaiter {
    ClientCore& client;
    Operation& operation;
    uint64_t rounds;
    bool await_ready() const { return rounds == 0; }
    void await_suspend(std::coroutine_handle<> handle) { client.delayed_.push_back({client.polls_ + rounds, handle}); }
    void await_resume() {
      // It begins again with nothing in its hands: what it saw before no longer holds back reclamation.
      operation.epoch = client.epoch_;
      operation.strangers = 0;
    }
  };
  ++stats_.restarts;
  const uint32_t attempt = operation.attempt++;
  uint64_t rounds = 0;
  if (attempt > 0) rounds = random_() % (uint64_t{1} << (attempt < 10 ? attempt : 10)) + 1;
  return Awaiter{*this, operation, rounds};
}

template <typename T>
T ClientCore::RunToEnd(Task<T> task) {
  task.Start();
  for (uint32_t idle = 0; !task.done();) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      clock_.Relax(++idle);
    }
  }
  return task.Take();
}

}  // namespace kvs

#endif  // KVS_SRC_CLIENT_CORE_H_
