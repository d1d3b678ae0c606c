// The load of the concurrency tests. A worker drives one client with several lanes. They compete for a few hot keys,
// insert fillers that make subtables split, and read back acknowledged fillers. The history is recorded in memory that
// other processes see, so that the history of a killed worker survives.
//
// Hot keys change during the run, so that the load meets young and old keys, and keys in every phase of a split.
#ifndef TESTS_KVS_STRESS_H_
#define TESTS_KVS_STRESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvs/client.h"
#include "tests/kvs/linearizability.h"

namespace surgekv_test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint32_t kSlowdown = 8;
#else
inline constexpr uint32_t kSlowdown = 1;
#endif

inline constexpr uint32_t kMaxWorkers = 32;
inline constexpr uint32_t kMaxLanes = 16;
inline constexpr uint32_t kKeptFiller = 24;

struct StressOptions {
  uint32_t seed = 1;
  std::string prefix = {};  // of all keys; successive runs on one store take different ones
  uint32_t lanes = 8;
  uint32_t max_in_flight = 6;           // fewer than lanes: some wait for their turn
  uint32_t operations = 20'000;         // of a worker
  uint32_t hot_keys = 6;                // at a time
  uint32_t operations_per_hot = 3'000;  // of all workers together; then other keys are hot
  uint32_t filler_percent = 30;
  // Each worker does this many operations that insert fillers, then as many that delete its oldest ones instead (all
  // but every kKeptFiller-th), and so on. 0: nothing is deleted.
  uint32_t operations_per_phase = 0;
  uint32_t short_pause_every = 400;  // polls; 0: never. A pause holds the client between two round trips
  uint32_t long_pause_every = 0;     // polls; longer than the time after which others take a split over
};

// One operation on a hot key.
struct Record {
  int64_t start_ns;
  std::atomic<int64_t> end_ns;  // 0: it has not returned
  uint32_t key;
  OpKind kind;
  OpResult result;
  uint32_t value;
  uint32_t read;  // of a Modify; as long as its function has not been called, a value that no key has
};

// What a worker leaves behind. It lies in memory that processes share.
struct WorkerLog {
  std::array<std::atomic<uint32_t>, kMaxLanes> fillers;  // of each lane: 0 .. n-1 are acknowledged
  // ... and of these 0 .. n-1 are deleted, but for the kept ones; n may be under way if `deleting` is larger.
  std::array<std::atomic<uint32_t>, kMaxLanes> deleted, deleting;
  std::atomic<uint32_t> records;
  std::atomic<uint64_t> splits, merges;
  std::array<char, 256> error;  // the first thing that was wrong, or ""
};

// Shared memory for the logs of `workers` workers, with room for `records` records each.
class StressLogs {
 public:
  StressLogs(uint32_t workers, uint32_t records);
  ~StressLogs();
  StressLogs(const StressLogs&) = delete;
  StressLogs& operator=(const StressLogs&) = delete;

  uint32_t workers() const { return workers_; }
  uint32_t capacity() const { return capacity_; }
  WorkerLog& log(uint32_t worker) const;
  Record* records(uint32_t worker) const;
  std::atomic<uint64_t>& operations() const;  // begun, by all workers
  std::atomic<bool>& stop() const;

 private:
  struct Shared;
  const uint32_t workers_, capacity_;
  size_t bytes_;
  Shared* shared_;
};

// Runs the load to its end on this thread. Returns its client's statistics.
kvs::ClientStats RunWorker(kvs::Store& store, const StressOptions& options, StressLogs& logs, uint32_t worker);

// Checks with gtest expectations: every history is linearizable, no worker met an error, every acknowledged filler is
// there with its value, and each lane's filler in doubt has that value or none.
void VerifyLogs(kvs::Store& store, const StressOptions& options, const StressLogs& logs);

// Deletes every key that the run may have left. Uses gtest expectations.
void DeleteAll(kvs::Client& client, const StressOptions& options, const StressLogs& logs);

// Values tell who wrote them. Their length follows from the id, and some are out of line.
std::string ValueOf(uint32_t id);
bool IdOf(const std::string& value, uint32_t* id);

}  // namespace surgekv_test

#endif  // TESTS_KVS_STRESS_H_
