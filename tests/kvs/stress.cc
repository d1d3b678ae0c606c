#include "tests/kvs/stress.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

namespace surgekv_test {
namespace {

using kvs::Status;
using kvs::StatusCode;

int64_t NowNs() { return krcore::RealClock()->NowNs(); }

std::string FillerKey(const StressOptions& options, uint32_t worker, uint32_t lane, uint32_t n) {
  return options.prefix + "filler-" + std::to_string(worker) + "-" + std::to_string(lane) + "-" + std::to_string(n);
}
uint32_t FillerId(uint32_t worker, uint32_t lane, uint32_t n) { return (worker * kMaxLanes + lane) << 22 | n; }
std::string HotKey(const StressOptions& options, uint32_t key) { return options.prefix + "hot-" + std::to_string(key); }

void Pause(int64_t us) {
  const timespec nap{us / 1'000'000, us % 1'000'000 * 1'000};
  nanosleep(&nap, nullptr);
}

class Worker {
 public:
  Worker(kvs::Client& client, const StressOptions& options, StressLogs& logs, uint32_t worker)
      : client_(client), options_(options), logs_(logs), log_(logs.log(worker)), worker_(worker) {}

  kvs::Task<void> Lane(uint32_t lane) {
    std::mt19937 random(options_.seed * 7919 + worker_ * 131 + lane);
    while (begun_ < options_.operations && !logs_.stop().load(std::memory_order_relaxed)) {
      ++begun_;
      logs_.operations().fetch_add(1, std::memory_order_relaxed);
      const uint32_t dice = random() % 100;
      if (dice < options_.filler_percent) {
        if (Shrinking()) {  // delete faster than they were inserted
          co_await DeleteFiller(lane);
          co_await DeleteFiller(lane);
        } else {
          co_await InsertFiller(lane);
        }
      } else if (dice < options_.filler_percent + 15) {
        co_await ReadFiller(random);
      } else {
        co_await UseHotKey(random);
      }
    }
  }

 private:
  kvs::Task<void> InsertFiller(uint32_t lane) {
    const uint32_t n = log_.fillers[lane].load(std::memory_order_relaxed);
    const std::string key = FillerKey(options_, worker_, lane, n), value = ValueOf(FillerId(worker_, lane, n));
    const Status inserted = co_await client_.InsertAsync(key, value);
    if (!inserted.ok()) Fail("Insert of " + key + ": " + inserted.ToString());
    log_.fillers[lane].store(n + 1, std::memory_order_release);  // pairs with the readers' acquire
  }

  bool Shrinking() const {
    return options_.operations_per_phase != 0 && begun_ / options_.operations_per_phase % 2 == 1;
  }

  kvs::Task<void> DeleteFiller(uint32_t lane) {
    uint32_t n = log_.deleted[lane].load(std::memory_order_relaxed);
    if (n % kKeptFiller == 0) log_.deleted[lane].store(++n, std::memory_order_relaxed);
    if (n >= log_.fillers[lane].load(std::memory_order_relaxed)) co_return;
    log_.deleting[lane].store(n + 1, std::memory_order_release);  // pairs with the readers' acquire
    const std::string key = FillerKey(options_, worker_, lane, n);
    const Status deleted = co_await client_.DeleteAsync(key);
    if (!deleted.ok()) Fail("Delete of " + key + ": " + deleted.ToString());
    log_.deleted[lane].store(n + 1, std::memory_order_release);  // likewise
  }

  // A key that nobody changes any more must be found, whatever is being split or merged; a deleted one must not be
  // found.
  kvs::Task<void> ReadFiller(std::mt19937& random) {
    const uint32_t worker = random() % logs_.workers(), lane = random() % options_.lanes;
    const WorkerLog& log = logs_.log(worker);
    const uint32_t count = log.fillers[lane].load(std::memory_order_acquire);
    if (count == 0) co_return;
    const uint32_t recent = count < 64 ? count : 64;
    const uint32_t n = random() % 2 == 0 ? random() % count : count - 1 - random() % recent;
    const bool kept = n % kKeptFiller == 0;
    const bool gone = n < log.deleted[lane].load(std::memory_order_acquire) && !kept;
    const std::string key = FillerKey(options_, worker, lane, n);
    std::string value;
    const Status got = co_await client_.GetAsync(key, &value);
    const bool there = n >= log.deleting[lane].load(std::memory_order_acquire) || kept;
    if (!got.ok() && (there || !(got == StatusCode::kNotFound))) {
      Fail("Get of " + key + ", which is there: " + got.ToString());
    }
    if (got.ok() && gone) Fail("Get of " + key + ", which is deleted");
    if (got.ok() && value != ValueOf(FillerId(worker, lane, n))) Fail("Get of " + key + ": another value");
  }

  kvs::Task<void> UseHotKey(std::mt19937& random) {
    const uint32_t index = log_.records.load(std::memory_order_relaxed);
    if (index == logs_.capacity()) co_return;
    const uint64_t generation = logs_.operations().load(std::memory_order_relaxed) / options_.operations_per_hot;
    Record& record = logs_.records(worker_)[index];
    record.key = static_cast<uint32_t>(generation * options_.hot_keys + random() % options_.hot_keys);
    static constexpr OpKind kMix[] = {OpKind::kGet,    OpKind::kGet,    OpKind::kGet,    OpKind::kPut,
                                      OpKind::kPut,    OpKind::kInsert, OpKind::kInsert, OpKind::kUpdate,
                                      OpKind::kUpdate, OpKind::kDelete, OpKind::kModify, OpKind::kModify};
    record.kind = kMix[random() % std::size(kMix)];
    const uint32_t id = (worker_ + 1) << 22 | (++values_);
    record.value = record.kind == OpKind::kGet || record.kind == OpKind::kDelete ? kAbsent : id;
    record.read = UINT32_MAX;
    record.start_ns = NowNs();
    log_.records.store(index + 1, std::memory_order_release);

    const std::string key = HotKey(options_, record.key), value = ValueOf(id);
    std::string read;
    Status status;
    switch (record.kind) {
      case OpKind::kGet: status = co_await client_.GetAsync(key, &read); break;
      case OpKind::kPut: status = co_await client_.PutAsync(key, value); break;
      case OpKind::kInsert: status = co_await client_.InsertAsync(key, value); break;
      case OpKind::kUpdate: status = co_await client_.UpdateAsync(key, value); break;
      case OpKind::kDelete: status = co_await client_.DeleteAsync(key); break;
      case OpKind::kModify: {
        const kvs::ModifyFunction function = [this, &record, &value, id](std::optional<std::string_view> old) {
          record.read = kAbsent;
          if (old && !IdOf(std::string(*old), &record.read)) Fail("Modify: a mixed value");
          record.value = old && id % 4 == 0 ? kAbsent : id;
          return record.value == id ? kvs::Modification::Set(value) : kvs::Modification::Delete();
        };
        status = co_await client_.ModifyAsync(key, &function);
        break;
      }
    }
    const int64_t end_ns = NowNs();
    record.result = OpResult::kOk;
    if (status == StatusCode::kNotFound) {
      record.result = OpResult::kNotFound;
    } else if (status == StatusCode::kExists) {
      record.result = OpResult::kExists;
    } else if (!status.ok()) {
      record.result = OpResult::kUnknown;
      Fail("operation on " + key + ": " + status.ToString());
    }
    if (record.kind == OpKind::kGet && status.ok() && !IdOf(read, &record.value))
      Fail("Get of " + key + ": a mixed value");
    record.end_ns.store(end_ns, std::memory_order_release);
  }

  void Fail(const std::string& what) {
    if (log_.error[0] == 0) std::strncpy(log_.error.data(), what.c_str(), log_.error.size() - 1);
    logs_.stop().store(true, std::memory_order_relaxed);
  }

  kvs::Client& client_;
  const StressOptions& options_;
  StressLogs& logs_;
  WorkerLog& log_;
  const uint32_t worker_;
  uint32_t begun_ = 0;
  uint32_t values_ = 0;
};

void VerifyHistories(const StressOptions& options, const StressLogs& logs) {
  std::map<uint32_t, std::vector<RegisterOp>> histories;
  for (uint32_t w = 0; w < logs.workers(); ++w) {
    for (uint32_t i = 0; i < logs.log(w).records.load(std::memory_order_acquire); ++i) {
      const Record& record = logs.records(w)[i];
      const int64_t end_ns = record.end_ns.load(std::memory_order_acquire);
      histories[record.key].push_back({record.start_ns, end_ns, record.kind,
                                       end_ns == 0 ? OpResult::kUnknown : record.result, record.value, record.read});
    }
  }
  uint32_t wrong = 0, undecided = 0;
  for (const auto& [key, history] : histories) {
    const Verdict verdict = CheckLinearizable(history);
    if (verdict == Verdict::kLinearizable) continue;
    if (verdict == Verdict::kGaveUp) {
      ++undecided;
      continue;
    }
    if (++wrong > 1) continue;
    ADD_FAILURE() << HotKey(options, key) << " is not linearizable\n" << Describe(history).substr(0, 20'000);
  }
  EXPECT_LE(wrong, 1u) << "keys with a wrong history";
  // A client that was not scheduled for a while has all its operations in flight at once; too many orders are possible.
  if (undecided > 0) std::printf("%u of %zu histories not decided\n", undecided, histories.size());
  EXPECT_LE(undecided, 1 + histories.size() / 50) << "histories in which the checker gave up";
}

void VerifyFillers(kvs::Client& client, const StressOptions& options, const StressLogs& logs) {
  uint64_t missing = 0, wrong = 0;
  std::string first;
  for (uint32_t w = 0; w < logs.workers(); ++w) {
    for (uint32_t lane = 0; lane < kMaxLanes; ++lane) {
      const uint32_t count = logs.log(w).fillers[lane].load(std::memory_order_acquire);
      const uint32_t deleted = logs.log(w).deleted[lane].load(std::memory_order_acquire);
      const uint32_t deleting = logs.log(w).deleting[lane].load(std::memory_order_acquire);
      for (uint32_t n = 0; n <= count; ++n) {
        const std::string key = FillerKey(options, w, lane, n);
        std::string value;
        const Status got = client.Get(key, &value);
        const bool kept = n % kKeptFiller == 0;
        const bool in_doubt = n == count || (n >= deleted && n < deleting);
        if (got == StatusCode::kNotFound && (in_doubt || (n < deleted && !kept))) continue;
        if (!got.ok()) ++missing;
        if (got.ok() && n < deleted && !kept) ++wrong;
        if (got.ok() && value != ValueOf(FillerId(w, lane, n))) ++wrong;
        if (missing + wrong == 1 && first.empty()) first = key + ": " + got.ToString();
      }
    }
  }
  EXPECT_EQ(missing, 0u) << first;
  EXPECT_EQ(wrong, 0u) << first;
}

}  // namespace

// ---- values

std::string ValueOf(uint32_t id) {
  const size_t padding = id % 211 == 0 ? 5'000 : id % 61;
  std::string value(sizeof(id) + padding, static_cast<char>(id * 37));
  std::memcpy(value.data(), &id, sizeof(id));
  return value;
}

bool IdOf(const std::string& value, uint32_t* id) {
  if (value.size() < sizeof(*id)) return false;
  std::memcpy(id, value.data(), sizeof(*id));
  return value == ValueOf(*id);
}

// ---- logs

struct StressLogs::Shared {
  std::atomic<uint64_t> operations;
  std::atomic<bool> stop;
  std::array<WorkerLog, kMaxWorkers> logs;
  alignas(64) Record records[1];  // workers x capacity
};

StressLogs::StressLogs(uint32_t workers, uint32_t records)
    : workers_(workers), capacity_(records), bytes_(sizeof(Shared) + sizeof(Record) * workers * records) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = static_cast<Shared*>(memory);  // zeroes, which is how all its fields begin
}

StressLogs::~StressLogs() { munmap(shared_, bytes_); }

WorkerLog& StressLogs::log(uint32_t worker) const { return shared_->logs[worker]; }
Record* StressLogs::records(uint32_t worker) const { return &shared_->records[size_t{worker} * capacity_]; }
std::atomic<uint64_t>& StressLogs::operations() const { return shared_->operations; }
std::atomic<bool>& StressLogs::stop() const { return shared_->stop; }

// ---- running

kvs::ClientStats RunWorker(kvs::Store& store, const StressOptions& options, StressLogs& logs, uint32_t worker) {
  auto client = store.NewClient({.max_in_flight = options.max_in_flight}).value();
  Worker work(*client, options, logs, worker);
  for (uint32_t lane = 0; lane < options.lanes; ++lane) client->Spawn(work.Lane(lane));
  std::mt19937 random(options.seed * 31 + worker);
  for (uint32_t idle = 0; client->spawned() > 0;) {
    if (client->Poll() != 0) {
      idle = 0;
    } else {
      krcore::RealClock()->Relax(++idle);
    }
    if (options.short_pause_every != 0 && random() % options.short_pause_every == 0) Pause(random() % 200);
    if (options.long_pause_every != 0 && random() % options.long_pause_every == 0) Pause(120'000 + random() % 100'000);
    logs.log(worker).splits.store(client->stats().splits, std::memory_order_relaxed);
    logs.log(worker).merges.store(client->stats().merges, std::memory_order_relaxed);
  }
  return client->stats();
}

void VerifyLogs(kvs::Store& store, const StressOptions& options, const StressLogs& logs) {
  for (uint32_t w = 0; w < logs.workers(); ++w) EXPECT_STREQ(logs.log(w).error.data(), "") << "worker " << w;
  VerifyHistories(options, logs);
  auto client = store.NewClient().value();
  VerifyFillers(*client, options, logs);
}

namespace {

kvs::Task<void> DeleteOne(kvs::Client& client, std::string key, bool must_exist) {
  const Status deleted = co_await client.DeleteAsync(key);
  if (deleted.ok() || (!must_exist && deleted == StatusCode::kNotFound)) co_return;
  ADD_FAILURE() << "Delete of " << key << ": " << deleted.ToString();
}

}  // namespace

void DeleteAll(kvs::Client& client, const StressOptions& options, const StressLogs& logs) {
  const auto spawn = [&client](std::string key, bool must_exist) {
    while (client.spawned() >= 64) client.Poll();
    client.Spawn(DeleteOne(client, std::move(key), must_exist));
  };
  const uint64_t generations = logs.operations().load(std::memory_order_acquire) / options.operations_per_hot + 1;
  for (uint64_t key = 0; key < generations * options.hot_keys; ++key)
    spawn(HotKey(options, static_cast<uint32_t>(key)), false);
  for (uint32_t w = 0; w < logs.workers(); ++w) {
    for (uint32_t lane = 0; lane < kMaxLanes; ++lane) {
      const uint32_t count = logs.log(w).fillers[lane].load(std::memory_order_acquire);
      for (uint32_t n = 0; n <= count; ++n) spawn(FillerKey(options, w, lane, n), n < count);
    }
  }
  client.Drain();
}

}  // namespace surgekv_test
