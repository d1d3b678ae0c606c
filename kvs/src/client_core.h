// ClientCore: the Client behind kvs/client.h. One class, because operations, splits and reclamation share the
// connections, the directory cache and the memory; its methods are grouped by file:
//
//   client_core.cc   life, polling, leases, back-off; and the blocking calls of Client
//   scan.cc          reading a key's candidates in a table, and the blocks that match
//   directory.cc     finding the table of a hash; ReadTableStats
//   get.cc           Get and MultiGet
//   write.cc         Put, Insert, Update, Delete and MultiWrite
//   write_steps.cc   their usual case, their blocks, and what has become of one that is no usual case
//   split.cc         splitting a subtable, migrating slots
//   merge.cc         merging two subtables into one; and merge_steps.cc
//   memory.cc        blocks and subtables, epochs
//   chunks.cc        chunks of the memory nodes
//   mover.cc         giving memory back; and evacuation.cc
//   drain.cc         emptying a memory node
//   registration.cc  the client's entry at the store's home
//
// The protocol is docs/protocol.md; step numbers in comments refer to it.
#ifndef KVS_SRC_CLIENT_CORE_H_
#define KVS_SRC_CLIENT_CORE_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/src/address_cache.h"
#include "kvs/src/combiner.h"
#include "kvs/src/connections.h"
#include "kvs/src/directory.h"
#include "kvs/src/memory_state.h"
#include "kvs/src/operation.h"
#include "kvs/src/registration.h"

namespace kvs {

class StoreCore;
class SplitBuffers;
class EpochBuffers;

class ClientCore final : public Client, public Connections::Waiting {
 public:
  // With its queues and its memory, but not connected. May be handed to another thread, until Begin.
  static Result<std::unique_ptr<ClientCore>> Prepare(StoreCore& store, const ClientOptions& options);
  // Makes what else would be made, and memory touched, when it is first needed: the queues to memory nodes that are
  // known, an operation, the address cache. Between the two, by who has the time.
  Status MakeFirstUsed();
  // Blocks for the few round trips of connecting and registering. Once.
  Status Begin();
  const ClientOptions& options() const { return options_; }
  // Its entry has been this since then, as the caller has seen, by this client's clock: it need not be watched anew.
  void SawUnchanged(uint32_t index, const ClientEntry& entry, int64_t since_ns) {
    seen_unchanged_[index] = {entry, since_ns};
  }
  // What was made in advance takes no time of the client's start.
  void ForgetTimes() { times_ = {}; }
  ~ClientCore() override;

  Status Get(std::string_view key, std::string* value) override;
  Status Put(std::string_view key, std::string_view value) override;
  Status Insert(std::string_view key, std::string_view value) override;
  Status Update(std::string_view key, std::string_view value) override;
  Status Delete(std::string_view key) override;
  Task<Status> GetAsync(std::string_view key, std::string* value) override;
  Task<void> MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                           std::span<Status> statuses) override;
  Task<Status> PutAsync(std::string_view key, std::string_view value) override;
  Task<Status> InsertAsync(std::string_view key, std::string_view value) override;
  Task<Status> UpdateAsync(std::string_view key, std::string_view value) override;
  Task<Status> DeleteAsync(std::string_view key) override;
  Task<void> MultiWriteAsync(std::span<WriteRequest> writes) override;
  void Spawn(Task<void> task) override;
  size_t Poll() override;
  int64_t IdleUntil() override;
  size_t spawned() const override { return forked() ? 0 : spawned_; }
  const ClientStats& stats() const override;
  const ClientTimes& times() const override { return times_; }
  size_t connection_bytes() const override { return connections_.memory_bytes(); }
  Result<TableStats> ReadTableStats() override;
  Task<Status> CompactAsync(CompactOptions options, CompactReport* report) override;
  Task<Status> DrainNodeAsync(krcore::NodeId node, DrainOptions options, DrainReport* report) override;
  Task<Status> UndrainNodeAsync(krcore::NodeId node) override;

 protected:
  void Idle(uint32_t rounds) override;

 private:
  static constexpr uint64_t kNoPin = UINT64_MAX;

  struct Delayed {
    int64_t due_ns;
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
    uint32_t depth = 0;           // of the parent before
    std::vector<uint64_t> early;  // Mutation::kSlotBeforeHeader: the parent's slots as they were before; else empty
  };
  // What MigrateSlots works with: `count` slots at most, all registered.
  struct MigrationScratch {
    Batch* batch;
    std::span<uint64_t> slots;
    std::span<uint64_t> cas;
    std::span<BlockHeader> blocks;
    std::span<uint64_t> run{};  // for words that lie together, of the slots and between
  };
  struct Lease;
  // Queues that no lease shuts, to renew it.
  struct Renewal {
    Connections connections;
    Batch batch;
    Renewal(krcore::Node& node, int64_t reconnect_budget_ns, Connections::Waiting& waiting, ClientStats& stats)
        : connections(node, reconnect_budget_ns, waiting, stats) {}
  };
  // Another client's mover word: as seen last, since when, when to ask whether its process is dead, and how often it
  // has changed.
  struct SeenMover {
    MoverWord word;
    int64_t since_ns = 0, ask_at_ns = 0;
    uint64_t changes = 0;
  };
  // The client that has held back reclamation, and since when its entry has not changed.
  struct Straggler {
    uint32_t index = 0;
    uint64_t owner = 0, word = 0;
    int64_t since_ns = 0;
    int64_t ask_at_ns = 0;  // when to ask the fabric whether it is dead
  };

  ClientCore(StoreCore& store, const ClientOptions& options, std::unique_ptr<krcore::Node> own_node);
  Status MakeQueuesAndMemory();
  auto Stopwatch();
  // A registered buffer of `bytes` or more; keeps the one that `buffer` holds if it is large enough.
  bool AllocateLarge(uint64_t bytes, LargeBuffer* buffer);

  // ---- client_core.cc
  // Makes ready one that was free, for a batch that is not its own to read with.
  inline Operation& TakeToRead(Operation& operation, std::string_view key, const KeyHash& hash);
  // ... for all else as well.
  inline Operation& Take(Operation& operation, std::string_view key, const KeyHash& hash, bool of_user);
  auto LeaseOperation(std::string_view key, const KeyHash& hash, bool of_user = true);
  // For what the client does by itself and is no operation of its user: for the batch, and the pin.
  auto LeaseOwnOperation(std::string_view what);
  // One that nobody uses, made now if there are fewer than may be in flight; null: all are in use.
  inline Operation* FreeOperation();
  Operation* MakeOperation();
  inline void Release(Operation& operation);
  // To the one that has waited longest.
  void HandOver(Operation& operation);
  // Suspends for as long as operation.again calls for, which it resets. The operation must hold no address of a block
  // that it did not allocate: afterwards such a block may be reused.
  auto BackOff(Operation& operation);
  int64_t BackOffDelayNs(Operation& operation);
  // Suspends for so long, and keeps what the operation holds.
  auto Pause(int64_t delay_ns);
  bool OutOfTime(Operation& operation);
  int64_t NextDeadlineNs() override;
  // For one whose time begins now.
  int64_t DeadlineFromNow() const;
  // The step failed for good: not because the client was expelled, after which the operation begins again.
  static bool Failed(const Operation& operation, Step step) {
    return step == Step::kUnavailable && !operation.batch.Stale();
  }
  // What an operation that is out of time reports.
  static StatusCode TimeoutCode(const Operation& operation) {
    return operation.torn ? StatusCode::kCorrupt : StatusCode::kTimeout;
  }
  Status UnavailableStatus(const char* what) const;
  void RunDelayed();
  // Starts a split or merge that no operation waits for.
  void Background(Task<void> task);

  // ---- scan.cc
  // A scan reads the operation's two combined buckets in op.scan.table (after whatever the batch already holds) and the
  // blocks of candidates whose fingerprint matches and whose state is in `states`, a mask of 1 << SlotState with VAL.
  // `guess`: a slot word whose block is read along, FREE: none. In steps, each of which looks at what the last round
  // trip has brought and asks for the next; the batch is the operation's own or that of many:
  //
  //   Step scanned = BeginScan(op, batch, states, guess);
  //   for (;;) {
  //     const Outcome read = co_await batch.Run();
  //     if (scanned != Step::kRun || read != Outcome::kOk) break;
  //     scanned = GoOnScan(op, batch);
  //   }
  Step BeginScan(Operation& op, Batch& batch, uint32_t states, Slot guess);
  Step GoOnScan(Operation& op, Batch& batch);
  // The same as a coroutine, for where it is rare.
  Task<Step> ScanTable(Operation& op, TableRef table, uint32_t states, Slot guess = Slot::Free());
  Slot UsableGuess(Slot guess, krcore::NodeId node) const;
  inline static void ReadBuckets(Operation& op, Batch& batch);
  inline static bool FindOnlyMatch(const Operation& op, uint32_t* candidate);
  bool AskForOnlyMatch(Operation& op, Batch& batch);
  static bool IsOnlyMatchRight(Operation& op);
  void PlanMatches(Operation& op);
  void LookAtBuckets(Operation& op);
  bool IsGuessRight(Operation& op);
  Step ReadMatches(Operation& op, Batch& batch);
  bool JudgeRead(Operation& op, Batch& batch, Step* step);
  Step JudgeMatches(Operation& op, Batch& batch);
  bool JudgeMatch(Operation& op, uint32_t c, BlockView block);
  Step AskForLargeBlock(Operation& op, Batch& batch, Slot slot, uint64_t bytes);
  Step CheckLargeBlock(Operation& op, uint64_t bytes);
  Step BeginRead(Operation& op, Batch& batch);
  Step GoOnReading(Operation& op, Batch& batch);
  Task<Step> ReadLargeBlock(Operation& op, Slot slot, uint64_t bytes);
  // Reads the four bucket headers of the last scan again: kOk if they all still fit the key, else kRestart.
  Task<Step> CheckHeaders(Operation& op);
  static void ReadHeaders(Operation& op, Batch& batch);
  static bool HeadersFit(const Operation& op);

  // ---- directory.cc
  Task<Step> Resolve(Operation& op, TableRef* table, DirectoryEntry* parent = nullptr);
  Task<Step> ReadDirectoryEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table);
  GlobalAddress DirectoryAddress(uint32_t index) const;
  Task<Result<TableStats>> CollectTableStats();

  // ---- get.cc
  // The scan saw no VAL(key) and a migration may be the reason: steps (3) and (4) of Get.
  Task<Step> GetDuringMigration(Operation& op, std::string* value);
  Task<Step> ReadFrozenValue(Operation& op, Slot slot, std::string* value);
  struct Group;
  Status ResultOf(const Operation& op, std::string* value);
  bool OthersWait() const;
  void PollAlone(uint32_t* idle);
  Step ReadAlone(Operation& op);

  // ---- write.cc
  static bool IsKey(std::string_view key) { return !key.empty() && key.size() <= kMaxKeyBytes; }
  static bool IsRecord(std::string_view key, std::string_view value) {
    return IsKey(key) && value.size() <= kMaxValueBytes;
  }
  static Status LengthStatus(std::string_view key, std::string_view value);
  Task<Status> Write(OpKind kind, std::string_view key, std::string_view value);
  auto TakeStep(PendingWrite& write);
  Task<void> FinishWrite(PendingWrite& write);
  void EndWrite(const PendingWrite& write);
  Task<Step> PublishAlone(PendingWrite& write);
  Task<void> WriteAfterAll(PendingWrite& write);
  Task<Step> LeaveTable(Operation& op);
  Task<Step> MakeRoom(Operation& op, Status* why_not);
  Task<Step> CanBeSplit(Operation& op, Status* why_not);
  struct Member;
  void Answer(Member& member);
  Task<void> Settle(Member& member, std::vector<WriteRequest*>* undone);
  Status WriteAlone(OpKind kind, std::string_view key, std::string_view value);

  // ---- write_steps.cc
  inline static bool GoesOn(Step step, Outcome outcome, const Batch& batch);
  Step GoOnWriting(PendingWrite& write, Batch& batch);
  Step BeginWrite(PendingWrite& write, Batch& batch);
  Step Publish(PendingWrite& write, Batch& batch);
  Step LookBehindTentative(PendingWrite& write, Batch& batch);
  static void AskToSwap(PendingWrite& write, Batch& batch, Slot old, Slot now);
  static Slot Replacement(const PendingWrite& write, Slot old);
  void Replaced(PendingWrite& write);
  void Inserted(PendingWrite& write);
  Task<Step> SettleWrite(PendingWrite& write);
  Task<Step> ReplaceAfterAll(PendingWrite& write, Outcome outcome);
  Task<Step> LookAgain(PendingWrite& write, Slot there);
  Task<Step> ConfirmAfterAll(PendingWrite& write, Step scanned);
  static void AskToConfirm(PendingWrite& write);
  Task<Step> LookAtConfirm(PendingWrite& write, Outcome outcome);
  Task<Step> AbortTentative(PendingWrite& write);
  Step InDoubt(PendingWrite& write);
  Task<Step> LookAtOutcome(Operation& op, GlobalAddress at, Slot before, Slot after);
  Status UnknownStatus() const;
  // Its block fits an operation's own buffer.
  static bool IsSmall(std::string_view key, std::string_view value) {
    return BlockBytes(key.size(), value.size()) <= kMaxSmallBlockBytes;
  }
  Step PlaceBlock(PendingWrite& write);
  Step BuildNewBlock(PendingWrite& write);
  bool SendBlock(Operation& op, NewBlock* block);
  void RetireOld(Operation& op, Slot old);
  void GiveBackUnused(const PendingWrite& write);

  // ---- split.cc
  Task<Step> ReadSplit(Batch& batch, std::span<uint64_t, 3> words, uint32_t child_index, Migration* migration);
  Task<Step> HelpMigrate(Operation& op);
  Task<Step> MoveHeaders(const Migration& migration);
  Task<Step> MigrateSlots(const Migration& migration, std::span<const uint32_t> slots, MigrationScratch scratch);
  void BeginSplit(const Batch& on_behalf_of);
  Task<Step> Split(Operation& op, TableRef table);
  Task<Step> SplitLocked(TableRef table, GlobalAddress* spare, Merge* met);
  Task<Step> FinishAbandonedSplit(const Batch& on_behalf_of, uint32_t child_index);
  uint64_t SplitToken() { return uint64_t{client_index_ + 1} << 32 | (random_() & 0xffffffff); }
  Task<Step> LockTable(TableRef table, uint64_t token, uint64_t* takeovers);
  Task<Step> UnlockTable(TableRef table, uint64_t token);
  Task<Step> PublishChild(TableRef parent, uint32_t child_index, GlobalAddress* spare);
  Task<Step> FinishSplit(uint32_t child_index);

  // ---- merge.cc, merge_steps.cc
  Task<Step> ReadMerge(Batch& batch, MergeRecord* scratch, DirectoryEntry entry, Merge* merge);
  void NoteMerge(uint32_t index);
  Task<Step> GetFromClosed(Operation& op, std::string* value);
  Task<Step> HelpMerge(Operation& op);
  Task<Step> PassMerge(uint32_t index, DirectoryEntry entry);
  Task<Step> AllocateSpares(Operation& op, uint32_t index, SpareTables* spares);
  void FreeSpares(Operation& op, SpareTables* spares);
  void ConsiderMerge(const Operation& op, const TableRef& table);
  Task<void> MergeUpwards(uint32_t index);
  Task<Step> TryMerge(Operation& op, uint32_t* index, MergeFor purpose = MergeFor::kSpace);
  Task<Step> FindSiblings(uint32_t index, Merge* merge);
  Task<Step> CheckSparse(Merge merge);
  Task<Step> MergeLocked(Operation& op, Merge* merge, SpareTables* spares, GlobalAddress* record);
  Task<Step> FinishMerge(Operation& op, Merge* merge, SpareTables* spares);
  Task<Step> Settle(Merge* merge, MergeStatus wanted);
  Task<Step> DecideEngagement(Merge* merge);
  Task<Step> AbandonMerge(Merge merge);
  Task<Step> CloseTable(TableRef table, uint32_t image);
  Task<Step> CloseHeaders(TableRef table, uint32_t image);
  Task<Step> FreezeSlots(TableRef table, uint32_t image);
  Task<Step> BuildMerged(Operation& op, Merge merge, bool* fits);
  Task<Step> ReadKeyHash(Operation& op, Slot slot, KeyHash* hash);
  Task<Step> Publish(uint32_t index, DirectoryEntry expected, uint32_t depth, SpareTables* spares, bool* won);
  Task<Step> PublishCopies(Merge merge, bool parent_left, SpareTables* spares);
  Task<Step> UnlinkChild(Merge merge);
  Task<Step> RetireMerged(Merge merge);
  Task<Step> ReportRetiredTables(Batch& batch, uint64_t* scratch);
  void SawRetiredTables(uint64_t counter);
  void LookAfterMerges();
  Task<void> FinishSeenMerge(uint32_t index);

  // ---- memory.cc
  bool AllocateAtOnce(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  Task<Step> Allocate(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  Task<Step> AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  Step SeekRoom(Operation& op);
  Task<Step> AllocateFrom(Operation& op, krcore::NodeId node, uint64_t bytes, GlobalAddress* address);
  Task<Step> AllocateTable(Operation& op, uint32_t index, GlobalAddress* table);
  uint64_t TableBytes() const { return geometry_.bytes(); }
  bool IsFull(krcore::NodeId node) const;
  void NoteFull(krcore::NodeId node) {
    if (!IsFull(node)) full_nodes_.push_back(node);
  }
  Task<void> Maintain();
  Task<Step> ReadHome(Batch& batch);
  Task<Step> ReleaseHeldBlocks();
  Task<Step> LearnMembers(Batch& batch);
  uint64_t OldestEpochInFlight() const;

  // ---- registration.cc
  static uint64_t EntryOffset(uint32_t index);
  GlobalAddress EntryWord() const;
  uint64_t OwnerWord() const;
  // Of the entries below `below` in the table as it was read.
  std::vector<uint32_t> FreeEntries(uint32_t below) const;
  Task<Step> LearnHome();
  Task<Step> Register();
  Task<Step> FreeDeadEntries();
  Task<Step> Unregister();
  Task<bool> GiveBackAbandonedEntry(Batch& batch);
  void SayGoodbye();
  Task<Step> Announce(Batch& batch, uint64_t epoch);
  void BecomeExpelled(ClientWord word);
  Task<void> RenewLease();
  void CareForRegistration();
  Task<void> Observe(Batch& batch, uint64_t oldest, uint64_t epoch);
  bool IsDead(uint64_t owner);
  Task<void> FreeEntry(Batch& batch, uint32_t index, uint64_t owner);
  Task<void> FreeOthersThatDied(Batch& batch, uint32_t index, uint64_t epoch);
  // What belongs to an operation of an earlier registration must not get into the present one's lists.
  MemoryState& MemoryOf(const Batch& batch) { return batch.Stale() ? *void_memory_ : *memory_; }
  // The operation was begun under an earlier registration: after this it may begin again, knowing nothing.
  inline void BeginAgain(Operation& op);

  // ---- mover.cc
  class Mover;
  void StartCompaction(const CompactOptions& options, bool for_room);
  Task<void> RunCompaction(CompactOptions options, bool for_room);
  Operation& MoverOperation();
  Operation& BeginMover(bool drains);
  void EndMover(uint64_t chunks_freed);
  Task<Step> MaintainNow();

  // ---- drain.cc
  struct Draining;
  Task<void> RunDrainRound(int64_t timeout_ms);
  Task<Status> DrainInRounds(DrainOptions options, DrainReport* report);
  Task<Status> TakeBack(krcore::NodeId node);
  Task<Step> ChangeMember(Operation& op, krcore::NodeId node, MemberWord from, MemberState to, bool* changed);

  // ---- chunks.cc
  Task<Step> TakeSpan(Operation& op, krcore::NodeId node, uint64_t least, Span* span);
  Task<Step> CutSpan(Operation& op, krcore::NodeId node, std::span<const ChunkWord> words, uint64_t begin, Span* span,
                     uint64_t least);
  Task<Step> LookForFree(Operation& op, krcore::NodeId node, uint64_t wanted, Span* taken, uint64_t least);
  Task<Step> TakeChunks(Operation& op, krcore::NodeId node, ChunkKind kind, uint32_t count, uint32_t tag, Span* taken,
                        uint64_t least = 0);
  Task<Step> ClaimRun(Operation& op, krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words,
                      ChunkKind kind, uint32_t tag);
  Task<Step> ReleaseChunks(Batch& batch, std::span<uint64_t> scratch, krcore::NodeId node, uint64_t first,
                           std::span<const ChunkWord> words, ChunkKind kind, uint32_t tag);
  Task<Step> GiveBackRun(Batch& batch, std::span<ChunkWord> window, std::span<uint64_t> scratch, Extent run);
  Task<Step> CutTable(Operation& op, krcore::NodeId node, GlobalAddress* table);

  // Leaves the entry of a client that could not give it back to the store's others.
  class Farewell {
   public:
    Farewell(HeldEntries& held, const ClaimedEntry& entry) : held_(held), entry_(entry) {}
    ~Farewell();
    Farewell(const Farewell&) = delete;
    Farewell& operator=(const Farewell&) = delete;

   private:
    HeldEntries& held_;
    const ClaimedEntry entry_;
  };

  std::optional<Farewell> farewell_;  // destroyed last: by then nothing that this client posted can execute any more
  StoreCore& store_;
  const ClientOptions options_;
  const std::unique_ptr<krcore::Node> own_node_;  // null: shared with the store's other clients
  krcore::Node& node_;                            // that posts this client's verbs
  krcore::Clock& clock_;
  mutable ClientStats stats_;  // stats() adds what the pool of connections counts
  Connections connections_;
  DirectoryCache directory_;
  Combiner combiner_{stats_};
  ClientTimes times_;
  AddressCache address_cache_{stats_};
  std::unique_ptr<MemoryState> memory_;
  std::unique_ptr<MemoryState> void_memory_;  // what operations of earlier registrations freed: nobody's
  SubtableGeometry geometry_;
  const uint64_t chunk_bytes_;
  const Hasher hasher_;
  Registration registration_;
  std::unique_ptr<Renewal> renewal_;
  size_t renewing_ = 0;              // 1 while RenewLease() runs
  int64_t renew_at_ns_ = INT64_MIN;  // the next try
  bool renewal_failed_ = false;      // the last try had no answer
  bool renewals_end_ = false;        // none begins any more
  int64_t maintain_at_ns_ = 0;
  int64_t maintain_idle_at_ns_ = 0;  // the same, while this client does nothing
  bool look_ = false;                // the next Poll looks at the clock
  std::minstd_rand random_;

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

  // The mover. Its operation is not one of those that users wait for.
  std::unique_ptr<Operation> mover_op_;
  size_t compacting_ = 0;     // 1 while RunCompaction() runs
  uint64_t compactions_ = 0;  // ended
  CompactReport last_compaction_;
  Step last_step_ = Step::kOk;  // how it ended
  SeenMover seen_mover_;
  int64_t compact_again_at_ns_ = 0;  // unless memory is wanted
  bool room_wanted_ = false;         // an operation waits for it: it does not wait for clients that have stopped
  bool compaction_wanted_ = false;
  // The last one found nothing to gain: until then there is nothing, if the rest is still so.
  int64_t full_until_ns_ = 0;
  uint64_t full_freed_chunks_ = 0, full_free_bytes_ = 0;
  int64_t pinned_until_ns_ = 0;  // the last one could not have what there is: somebody else may

  std::unique_ptr<Draining> drain_;  // of a memory node, by this client

  size_t restructuring_ = 0;                   // 1 while a Background() task runs
  std::vector<uint32_t> seen_merges_;          // indexes whose entries were MERGING, to look after
  std::vector<GlobalAddress> retired_tables_;  // out of use, which HomeArea::retired_tables does not tell yet
  uint64_t seen_retired_tables_ = 0;           // that counter, as the directory cache knows it
  uint64_t deletes_ = 0;
  std::unordered_map<uint32_t, uint64_t> merge_not_before_;  // by index: in deletes_

  std::vector<krcore::NodeId> members_;   // memory nodes where memory may be taken: the home is always one
  std::vector<krcore::NodeId> draining_;  // ... and where it may not, any more
  bool members_known_ = false;
  uint64_t member_changes_seen_ = 0;        // the counter of the member list's changes when it was read
  uint64_t rounds_ = 0;                     // reads of the home begun by maintenance,
  uint64_t home_read_in_round_ = 0;         // and the last one that has ended well
  std::vector<krcore::NodeId> full_nodes_;  // without a free chunk, when freed_chunks_seen_ had been freed
  uint64_t freed_chunks_seen_ = 0;
  uint32_t turn_ = 0;  // of the memory nodes, for what has no preference
  std::array<bool, krcore::kMaxMemoryNode + 1> taking_chunk_{};
  std::array<uint32_t, krcore::kMaxMemoryNode + 1> chunk_guess_{};  // where a chunk was free last

  // Epochs. The buffers are in their own region, because maintenance runs beside operations.
  std::unique_ptr<EpochBuffers> epoch_buffers_;
  size_t maintaining_ = 0;  // 1 while Maintain() runs
  bool registered_ = false;
  bool closing_ = false;
  uint32_t client_index_ = 0;
  uint32_t clients_used_ = 0;     // of the client table, as last read
  uint32_t clients_glanced_ = 0;  // entries of it that were read before registering, and not looked at yet
  uint64_t epoch_ = 0;            // the global epoch as last read
  Straggler straggler_;
  std::map<uint32_t, std::pair<ClientEntry, int64_t>> seen_unchanged_;  // by another observer of this process
  std::vector<uint64_t> expelled_epochs_;                               // announced by clients that are expelled now
  uint32_t expelled_cursor_ = 0;
  int64_t ask_expelled_at_ns_ = 0;
  uint64_t announced_by_living_ = 0;  // at least, when maintenance looked last
  uint32_t held_cursor_ = 0;
  uint64_t maintenance_epoch_ = kNoPin;  // in which maintenance began to finish somebody's split
};

}  // namespace kvs

#include "kvs/src/client_core_inline.h"

#endif  // KVS_SRC_CLIENT_CORE_H_
