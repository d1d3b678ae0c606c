// The key-value store: RACE hashing (USENIX ATC'21) over one-sided RDMA through krcore::VirtualQueue.
//
//   A store inside this process:                          A client of a running fabric:
//     auto store = kvs::Store::OpenEmbedded({}).value();    auto store = kvs::Store::Open({.fabric = "demo"}).value();
//     auto client = store->NewClient().value();             auto client = store->NewClient().value();
//     client->Put("hello", "world");                        client->Put("hello", "world");
//
// Keys are 1 to kMaxKeyBytes bytes, values 0 to kMaxValueBytes, both binary. Every operation is linearizable
// per key.
//
// Expiry: a value may have a time of day (expires_at_ms, in milliseconds since 1970, UTC; 0: none) from which on its
// key is absent. Each client goes by its own host's clock. But whoever finds that a value has expired removes it before
// it says that the key is absent. So clients whose clocks differ never disagree about the order in which things
// happened. A write of a value sets its time anew: a Put without one makes it stay for ever.
//
// Thread safety: a Store may be used from any thread. A Client, and everything started through it, belongs to
// one thread at a time; make one per thread. A Store must outlive its Clients.
//
// Fork: a Store and its Clients belong to the process that opened them. In a child that was forked later, every call
// returns kBadState, deleting them does nothing, and the child may end in any way; the parent goes on with them. A
// child that wants the store opens its own after the fork. For details, vfork and posix_spawn see krcore/fork.h.
//
// Failures that every operation may report, besides its own:
//   kInvalidArgument  the length of key or value is outside the limits; or 28 others collide with a new key, and more
//                     memory does not help. The message tells which. Nothing was changed
//   kUnavailable      a memory node is dead or unreachable; nothing was changed
//   kUnknown          a connection broke, or the client was expelled, during a write: it may or may not have happened
//   kTimeout          StoreOptions::operation_timeout_ms passed; a write may or may not have happened
//   kOutOfMemory      the memory nodes are full, or the table has its largest size (writes only); or there is no local
//                     memory for what is to be read. Nothing was changed
//   kCorrupt          a block's checksum did not match within the timeout. (A Scan names the block's place)
//   kBadState         the client was opened before fork, and this is the child; or the memory nodes were started anew
//                     with another store (Store::gone)
#ifndef KVS_CLIENT_H_
#define KVS_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/queue_pool.h"
#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/task.h"

namespace krcore {
class Node;
}

namespace kvs {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

inline constexpr size_t kMaxKeyBytes = 65'535;
inline constexpr size_t kMaxValueBytes = size_t{16} << 20;

struct StoreOptions {
  std::string rnic = "sw";  // provider
  std::string fabric;       // name of the fabric
  // For provider "verbs": where the fabric is, and through which port of a NIC to reach it; as in krcore::NodeOptions.
  std::string fabric_address{};
  std::string rnic_port{};
  // How clients connect, one of krcore::ControlPlanes() (krcore/control_plane.h). With "krcore", "lite" and "kernel"
  // all clients of the Store share one Node. With "verbs" each Client opens one of its own, as each worker of a plain
  // program does. "lite" and "verbs" need memory nodes that accept RC connections; "kernel" needs nodes that use it
  // themselves.
  std::string control_plane = "krcore";
  int64_t operation_timeout_ms = 5'000;  // per operation
  int64_t open_timeout_ms = 2'000;       // to wait for the fabric, its metadata server and its memory nodes
  krcore::Clock* clock = nullptr;        // null: the host's
};

struct EmbeddedOptions {
  size_t memory_bytes = size_t{256} << 20;  // of the one memory node inside the process
  // How many records there will be, roughly: the table begins with that size. 0: it grows from the smallest.
  uint64_t expected_records = 0;
  int64_t operation_timeout_ms = 5'000;
};

struct ClientOptions {
  uint32_t max_in_flight = 64;  // operations in flight; more wait for their turn, in order
  // The number of keys whose places are remembered, so that reading them takes one round trip; 16 bytes each. The
  // client measures whether that pays, and does without while it does not. 0: never.
  uint32_t address_cache_entries = 65'536;
  // Options of the client's pool of connections, for example when a memory node gets an RC queue.
  krcore::QueuePoolOptions queues{};
  friend bool operator==(const ClientOptions&, const ClientOptions&) = default;
};

// What a client did, to explain a run. Monotonic counts.
struct ClientStats {
  uint64_t operations = 0;
  // Batches waited for, and those of operations among them. Others announce epochs, renew leases, split, merge and
  // move.
  uint64_t round_trips = 0;
  uint64_t operation_round_trips = 0;
  uint64_t reads = 0, writes = 0, atomics = 0;  // verbs
  uint64_t cas_failures = 0;                    // slot CASes that lost a race
  uint64_t writes_done = 0;                     // writes that took effect; combined ones count once
  uint64_t write_attempts = 0;                  // CASes of a slot that writes tried
  // The address cache: keys that it did not know; blocks that were read by its guess; those of them that were right;
  // how often it was turned off or on again.
  uint64_t cache_misses = 0, cache_speculations = 0, cache_hits = 0, cache_switches = 0;
  uint64_t combined_operations = 0;  // operations that were combined with another one of the client
  uint64_t restarts = 0;             // operations that began again
  uint64_t splits = 0;               // subtable splits completed by this client
  uint64_t split_takeovers = 0;      // splits that were continued because their client had stopped
  uint64_t slots_migrated = 0;       // slots that this client has frozen or freed as it moved keys to a new subtable
  uint64_t merges = 0;               // merges of two subtables into one that this client completed
  uint64_t merge_takeovers = 0;      // merges that were continued because their client had stopped
  uint64_t table_replacements = 0;   // merges that ended in copies, because one table was not enough
  uint64_t stale_directory_hits = 0;
  uint64_t directory_reads = 0;
  uint64_t checksum_retries = 0;
  uint64_t expired = 0;  // values that this client removed or replaced because they had expired
  uint64_t blocks_retired = 0, blocks_reused = 0;
  uint64_t chunks_taken = 0;  // chunks of memory taken from memory nodes
  uint64_t chunks_freed = 0;  // chunks given back to them
  uint64_t compactions = 0;   // runs of the mover
  uint64_t blocks_moved = 0;  // by the mover
  uint64_t bytes_copied = 0;  // to memory nodes that join a mirrored pool
  uint64_t heartbeats = 0;
  uint64_t expulsions = 0;          // of other clients that had not renewed their lease
  uint64_t dead_clients_found = 0;  // dead clients whose entries were freed
  uint64_t outcomes_looked_up = 0;  // of verbs that had ended with an error
  uint64_t fenced = 0;              // how often this client was expelled
  uint64_t fenced_restarts = 0;     // operations that began again because of that
  uint64_t rc_connects = 0;         // how often this client went over to an RC queue for a memory node
  uint64_t rc_reclaims = 0;         // how often it gave such a queue up
};

// The table's shape, from one pass over the directory.
struct TableStats {
  uint32_t global_depth = 0;
  uint64_t subtables = 0;
  uint64_t slots = 0;
  uint64_t used_slots = 0;
  double load_factor = 0;  // used_slots / slots
  struct MemoryNode {
    krcore::NodeId node = 0;
    uint64_t capacity_bytes = 0;
    uint64_t taken_bytes = 0;  // in chunks that clients took and have not given back, or reserved by the layout
    bool draining = false;     // nothing is taken there any more
  };
  std::vector<MemoryNode> memory_nodes;
};

struct CompactOptions {
  bool thorough = false;        // empties every chunk that is not dense, not only those that are less than half full
  int64_t timeout_ms = 60'000;  // for all of it; what was done until then stays done
};

struct CompactReport {
  uint64_t chunks_freed = 0;  // which may now hold anything
  uint64_t chunks_left = 0;   // sparse, but not freed: an expelled client may know them, or there was no room
  uint64_t blocks_moved = 0, bytes_moved = 0;
  uint64_t tables_merged = 0;
  uint64_t pairs_spread = 0;  // pairs of initial subtables, still empty, that were moved to nodes that have joined
  uint64_t scans = 0;         // scans of the whole table
};

struct DrainOptions {
  int64_t timeout_ms = 600'000;  // for all of it; what was done until then stays done
};

// Filled in while the drain goes on.
struct DrainReport {
  bool closed = false;       // it is known that nobody takes memory there any more, until the node is taken back
  uint64_t chunks_left = 0;  // chunks of the memory node that hold anything
  uint64_t tables_left = 0;  // subtables there
  uint64_t tables_moved = 0, blocks_moved = 0, bytes_moved = 0;
  uint64_t rounds = 0;
  // Where pools are mirrored, these in place of the counts:
  bool mirrored = false;
  uint32_t pool = 0;   // of the replica that is there; 0: none
  bool waits = false;  // no memory node is there that could take its place
};

// How long the parts of making a client took, in nanoseconds, in this order. What was done in advance
// (Store::PrepareClient) does not count.
struct ClientTimes {
  int64_t node_ns = 0;      // opening and publishing a device of its own, where the control plane wants that (verbs)
  int64_t queues_ns = 0;    // the pool of queues
  int64_t memory_ns = 0;    // registering its buffers
  int64_t connect_ns = 0;   // connecting to every memory node
  int64_t register_ns = 0;  // reading the member list, between connects, and registering at the store's home
};

// What a key has.
struct Record {
  std::string_view value;      // borrowed
  uint64_t expires_at_ms = 0;  // 0: never
  // So that a function that does not care when it expires may take the value alone.
  operator std::string_view() const { return value; }  // NOLINT(google-explicit-constructor)
};

// What a Modify makes of its key.
struct Modification {
  enum class Action : uint8_t { kKeep, kSet, kDelete };
  Action action = Action::kKeep;
  std::string value{};         // kSet
  uint64_t expires_at_ms = 0;  // kSet

  static Modification Keep() { return {}; }
  static Modification Set(std::string value, uint64_t expires_at_ms = 0) {
    return {Action::kSet, std::move(value), expires_at_ms};
  }
  static Modification Delete() { return {Action::kDelete}; }
};

// Decides what a Modify makes of its key. `record` is what the key has, or is about to get from another Modify of this
// client that takes effect just before; nothing if it is absent. It is valid during the call. The function may be
// called several times, and only the last call counts. So each call sets anew whatever the function tells its caller.
// It runs on the client's thread, in any call of the client. It must not use the client, block or throw.
using ModifyFunction = std::function<Modification(const std::optional<Record>& record)>;

struct ScanOptions {
  // The call returns so many keys, or more where hashes are equal, or fewer. It reads a whole subtable in any case, so
  // small counts make a scan slow.
  uint32_t count = 1'000;
  // It returns fewer as soon as these have so many bytes. One key is always returned, however large its value.
  uint64_t max_bytes = uint64_t{1} << 20;
  bool values = true;  // false: keys alone
};

struct ScanRecord {
  std::string key, value;
  uint64_t expires_at_ms = 0;
};

enum class WriteKind : uint8_t { kPut, kInsert, kUpdate, kDelete, kModify };

// One of the writes of a MultiWrite.
struct WriteRequest {
  WriteKind kind = WriteKind::kPut;
  std::string_view key, value;             // borrowed; a Delete or Modify has no value
  Status status{};                         // how it ended, as the operation of that name reports it
  const ModifyFunction* modify = nullptr;  // of a Modify; borrowed
  uint64_t expires_at_ms = 0;              // of a Put, Insert or Update
};

class Client : public krcore::OfOneProcess {
 public:
  // Ends what was spawned, and gives up its place at the store's home. If the home is away then, another Client of its
  // Store gives the place up, or it ends with the Store. Until then, drains and the emptying of chunks wait.
  ~Client() override = default;

  // ---- Blocking: each does what the coroutine of the same name does, and everything else in flight runs meanwhile.
  virtual Status Get(std::string_view key, std::string* value);                                     // kNotFound
  virtual Status Put(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0);     // overwrites
  virtual Status Insert(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0);  // kExists
  virtual Status Update(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0);  // kNotFound
  virtual Status Delete(std::string_view key);                                                      // kNotFound
  virtual Status Modify(std::string_view key, const ModifyFunction& function);
  Status CompareAndSet(std::string_view key, std::optional<std::string_view> expected,
                       std::optional<std::string_view> desired, uint64_t expires_at_ms = 0);  // kExists, kNotFound
  virtual Status Scan(uint64_t* cursor, std::vector<ScanRecord>* records, const ScanOptions& options = {});
  virtual Status Compact(const CompactOptions& options = {}, CompactReport* report = nullptr);
  virtual Status DrainNode(krcore::NodeId node, const DrainOptions& options = {}, DrainReport* report = nullptr);
  virtual Status UndrainNode(krcore::NodeId node);
  virtual void MultiGet(std::span<const std::string_view> keys, std::span<std::string> values,
                        std::span<Status> statuses);
  virtual void MultiWrite(std::span<WriteRequest> writes);

  // ---- Asynchronous: lazily started coroutines. `key`, `value` are borrowed until the task is done. Await them
  // in a coroutine of your own that runs under Spawn; many such coroutines share doorbells, which is where
  // throughput comes from.
  virtual Task<Status> GetAsync(std::string_view key, std::string* value) = 0;
  // Reads keys[i] into values[i], with the status in statuses[i]. All three have the same length and are borrowed. Each
  // key is read as by GetAsync, and all share the two round trips. A key that occurs twice in a call, or that another
  // operation of this client reads meanwhile, is read each time.
  virtual Task<void> MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                                   std::span<Status> statuses) = 0;
  virtual Task<Status> PutAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0) = 0;
  virtual Task<Status> InsertAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0) = 0;
  virtual Task<Status> UpdateAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms = 0) = 0;
  virtual Task<Status> DeleteAsync(std::string_view key) = 0;
  // Reads the key, and does with it what `*function` decides, in one atomic step: kKeep changes nothing, kSet inserts
  // or overwrites, kDelete deletes. The function is borrowed. kOk: what its last call decided took effect (to keep, or
  // to delete an absent key, changes nothing). kInvalidArgument: its value is too long. Otherwise one of the failures
  // above; after kUnknown it is not tried again. It takes one round trip more than an Update, for its block, and one
  // more than that where the key is absent.
  virtual Task<Status> ModifyAsync(std::string_view key, const ModifyFunction* function) = 0;
  // If the key has the value `expected`, or is absent where that is nothing, gives it the value `desired`, or deletes
  // it. Otherwise nothing is changed. kExists: it has another value. kNotFound: it is absent. A Modify; `expected` and
  // `desired` are borrowed as well.
  Task<Status> CompareAndSetAsync(std::string_view key, std::optional<std::string_view> expected,
                                  std::optional<std::string_view> desired, uint64_t expires_at_ms = 0);
  // Does writes of any kind. `writes` is borrowed, and each status is set when the task is done. Each is done as by the
  // coroutine of its kind, and all share the two or three round trips (up to five, if there are Modifies): cheaper than
  // a coroutine each. Large values of other kinds are written by coroutines of their own meanwhile. More than
  // ClientOptions::max_in_flight writes go in groups, one after the other. They are not a transaction and have no
  // order, even those of one key.
  virtual Task<void> MultiWriteAsync(std::span<WriteRequest> writes) = 0;
  // Takes the next step of a scan over all keys. A scan begins with *cursor 0. Each call returns some keys in *records,
  // perhaps none, in no useful order, and sets *cursor for the next call. The scan ends with the call that sets it to
  // 0.
  //   A key that is there during the whole scan is returned exactly once, whatever else goes on meanwhile. Any other
  //   key is returned once at most. A value that is returned was the key's at some moment during the call.
  // Values that have expired are removed, as by a Get of the key.
  // A scan is no snapshot: each call sees the store as it is then. Nobody holds a cursor. It is good for ever and for
  // all clients of the store, and it only grows until the end. If the call fails, *cursor stays, and *records is empty.
  // A damaged block (kCorrupt) stops every scan there.
  virtual Task<Status> ScanAsync(uint64_t* cursor, std::vector<ScanRecord>* records, ScanOptions options) = 0;
  // Gives memory back: merges sparse subtables, moves the values of chunks with little in them elsewhere, finds what
  // killed clients held, and frees chunks for any other use. Operations go on meanwhile, this client's and others'.
  // Ends when there is nothing left to gain. A client begins this by itself when memory is short, a client was found
  // dead, or it has many free blocks; so this call is for callers that cannot wait. All living clients must be polled,
  // or it cannot go on. kTimeout: `report` tells how far it came. It also gives up early if it waits for a client that
  // is not polled while an operation of this client waits for memory. kExists: another client gives memory back.
  virtual Task<Status> CompactAsync(CompactOptions options, CompactReport* report) = 0;
  // Empties a memory node, so that it can be stopped and no key is lost: nobody takes memory there any more, and the
  // subtables and blocks that are there move to other nodes. Operations go on meanwhile, this client's and others'. All
  // living clients must be polled, or it cannot go on. `report` is filled in on the way.
  //   kOk           nothing is there, and no client knows anything of it
  //   kInvalidArgument  the store's home, which holds the directory
  //   kNotFound     no such memory node has joined
  //   kOutOfMemory  the others have no room for it. It is in use again; what has moved stays moved
  //   kTimeout, kUnavailable: any client may go on with DrainNode, or take it back by UndrainNode, as after the death
  //                 of this one. report->closed tells whether it is in use meanwhile
  //   kExists       another client gave memory back the whole time, or this one already drains a node
  //   kBadState     it was taken back into use meanwhile
  // Where pools are mirrored, another memory node joins the pool of its replica, which then leaves. This waits until
  // there is one without a replica. Any memory node can be drained so, and the others go on with it if this client
  // ends. kUnavailable: it was stopped. kBadState: it was taken back into use, or started again, which does the same.
  virtual Task<Status> DrainNodeAsync(krcore::NodeId node, DrainOptions options, DrainReport* report) = 0;
  // Takes a memory node back into use that is being drained, or was drained. One that was stopped is in use when it
  // joins again. kNotFound: no such memory node has joined. kUnavailable: it, or the home, cannot be reached.
  virtual Task<Status> UndrainNodeAsync(krcore::NodeId node) = 0;

  // Starts `task` now, runs it to its first suspension and owns it until it ends.
  virtual void Spawn(Task<void> task) = 0;
  // Runs one round: rings doorbells, collects completions, and resumes the coroutines that wait for them. Returns the
  // number of completions. Call it now and then while idle too: it lets other clients reuse memory. (A thread of the
  // Store does so for idle clients where pools are mirrored, unless StoreOptions::clock is set.)
  virtual size_t Poll() = 0;
  // Call it when a Poll brought nothing. Returns until when, on the store's clock, the caller may leave the client
  // alone, if it starts nothing before. A time that has passed: something is under way. For an idle client it is the
  // next heartbeat, some milliseconds away: others can reuse memory only after that.
  virtual int64_t IdleUntil() = 0;
  // Returns how many spawned tasks have not ended.
  virtual size_t spawned() const = 0;
  // Polls until every spawned task has ended. Blocks; ends because every operation has a deadline.
  virtual void Drain();

  virtual const ClientStats& stats() const = 0;
  virtual const ClientTimes& times() const = 0;
  // Returns how much memory this client holds for connections, in bytes, whatever the number of memory nodes.
  virtual size_t connection_bytes() const = 0;
  // Reads directory and subtables, which takes seconds for large tables. For reports, not for the data path.
  virtual Result<TableStats> ReadTableStats() = 0;

 protected:
  // Called while a blocking call waits, with the number of rounds in a row that brought nothing.
  virtual void Idle(uint32_t rounds);
  // A round of such a call. `idle` counts those rounds.
  void PollOrIdle(uint32_t* idle);
  // Polls until the task has ended.
  template <typename T>
  T Wait(Task<T> task);
};

class Store : public krcore::OfOneProcess {
 public:
  // Attaches to a running fabric, and waits for one that is starting. After open_timeout_ms, kNotFound: there is no
  // such fabric; kUnavailable: it has no store (no memory node). kInvalidArgument: no such control plane or provider.
  // kUnsupported: the store was made by programs of another version, whose memory has another layout; or its pools are
  // mirrored, and the control plane is not krcore.
  static Result<std::unique_ptr<Store>> Open(const StoreOptions& options);
  // Opens a whole store in this process: private fabric, metadata server and one memory node. Its data ends with it.
  static Result<std::unique_ptr<Store>> OpenEmbedded(const EmbeddedOptions& options);

  // Connects a new client to every memory node. This takes microseconds, fewer if this process has done it before. (It
  // takes longer with the control planes "verbs", which makes everything anew, and "lite", where the first client
  // connects.) kBadState: the memory nodes were started anew meanwhile, with another store.
  virtual Result<std::unique_ptr<Client>> NewClient(const ClientOptions& options = {}) = 0;
  // Makes the queues and registers the memory of one client in advance, touches what its first operation needs, and
  // makes its address cache: NewClient with the same options, from any thread, takes this client and only connects and
  // registers it. Until then it costs what an idle client costs (with `sw`, two of a device's 1,024 QPs), but has no
  // place at the store's home. If nobody takes it, it ends with the Store. Blocks while it does this. Does nothing with
  // the control plane "verbs". Fails like NewClient.
  virtual Status PrepareClient(const ClientOptions& options = {}) = 0;
  // Where pools are mirrored: how many replicas each is to have from now on, 1 to 3. Memory nodes without a replica
  // join pools that lack one, and replicas that are too many leave; this does not wait for them. Blocks for one change
  // of the fabric's record, up to StoreOptions::open_timeout_ms. kUnsupported: the store's pools are not mirrored.
  // kInvalidArgument. kTimeout, kUnavailable: it may be done.
  virtual Status SetReplicas(uint32_t replicas) = 0;
  // Whether a client has found that the fabric has another store by now, because the memory nodes were started anew.
  // Then every operation returns kBadState.
  virtual bool gone() const = 0;
  // The node that the clients share. With "verbs" each Client has one of its own.
  virtual krcore::Node& node() = 0;
  // What DC in software has done so far for that node; nothing where there is no DC in software. Requests sent
  // again show that the network loses some.
  virtual std::optional<krcore::SoftwareDcStats> software_dc() = 0;
};

}  // namespace kvs

#endif  // KVS_CLIENT_H_
