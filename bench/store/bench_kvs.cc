// The store inside one process: operations of one client, with a number of coroutines in flight, and what a new client
// costs. Keys of 16 bytes, values of 100, uniformly chosen. Measured on the sw provider, over memory of 4 KiB pages.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "kvs/client.h"
#include "kvs/layout/subtable.h"
#include "kvs/table/address_cache.h"
#include "kvs/table/combiner.h"

namespace {

using kvs::Client;
using kvs::Status;
using kvs::Store;
using kvs::Task;

constexpr uint64_t kRecords = 200'000;
constexpr uint64_t kOperationsPerRound = 20'000;
constexpr uint64_t kManyRecords = 1'000'000;  // for the address cache

using Key = std::array<char, 16>;

Key KeyOf(uint64_t number) {
  Key key;
  key.fill('0');
  std::memcpy(key.data(), "user", 4);
  for (size_t i = key.size(); number != 0; number /= 10) key[--i] = static_cast<char>('0' + number % 10);
  return key;
}

std::string_view View(const Key& key) { return {key.data(), key.size()}; }

void Check(const Status& status) {
  if (!status.ok()) krcore::DieOfMissingValue(status);
}

enum class Kind : uint8_t { kGet, kUpdate, kInsert };

// Runs operations until the shared counter reaches `end`.
Task<void> Lane(Client& client, Kind kind, uint64_t* next, uint64_t end, uint32_t seed) {
  std::minstd_rand random(seed);
  std::string value(100, 'v');
  while (*next < end) {
    const uint64_t number = (*next)++;
    const Key key = KeyOf(kind == Kind::kInsert ? number : random() % kRecords);
    Status status;
    switch (kind) {
      case Kind::kGet: status = co_await client.GetAsync(View(key), &value); break;
      case Kind::kUpdate: status = co_await client.UpdateAsync(View(key), value); break;
      case Kind::kInsert: status = co_await client.InsertAsync(View(key), value); break;
    }
    Check(status);
  }
}

void RunLanes(Client& client, Kind kind, uint64_t begin, uint64_t end, int64_t in_flight) {
  uint64_t next = begin;
  for (int64_t i = 0; i < in_flight; ++i) client.Spawn(Lane(client, kind, &next, end, static_cast<uint32_t>(i + 1)));
  client.Drain();
}

Store& LoadedStore() {
  static const std::unique_ptr<Store> store = [] {
    auto made = Store::OpenEmbedded({}).value();
    auto client = made->NewClient().value();
    RunLanes(*client, Kind::kInsert, 0, kRecords, 16);
    return made;
  }();
  return *store;
}

void RunOperations(benchmark::State& state, Kind kind) {
  auto client = LoadedStore().NewClient().value();
  RunLanes(*client, Kind::kGet, 0, kOperationsPerRound, 16);  // fills the directory cache
  for (auto _ : state) RunLanes(*client, kind, 0, kOperationsPerRound, state.range(0));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
}

void BM_Get(benchmark::State& state) { RunOperations(state, Kind::kGet); }
BENCHMARK(BM_Get)->ArgName("in_flight")->Arg(1)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

// Gets one after the other, by calls that block.
void BM_BlockingGet(benchmark::State& state) {
  auto client = LoadedStore().NewClient().value();
  RunLanes(*client, Kind::kGet, 0, kOperationsPerRound, 16);
  std::minstd_rand random(1);
  std::string value;
  for (auto _ : state) {
    for (uint64_t i = 0; i < kOperationsPerRound; ++i) Check(client->Get(View(KeyOf(random() % kRecords)), &value));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
}
BENCHMARK(BM_BlockingGet)->Unit(benchmark::kMillisecond);

// By MultiGet, a number of keys at once.
void BM_MultiGet(benchmark::State& state) {
  auto client = LoadedStore().NewClient().value();
  RunLanes(*client, Kind::kGet, 0, kOperationsPerRound, 16);
  const auto at_once = static_cast<size_t>(state.range(0));
  std::vector<Key> keys(at_once);
  std::vector<std::string_view> views(at_once);
  std::vector<std::string> values(at_once);
  std::vector<Status> statuses(at_once);
  std::minstd_rand random(1);
  for (auto _ : state) {
    for (uint64_t done = 0; done < kOperationsPerRound; done += at_once) {
      for (size_t i = 0; i < at_once; ++i) {
        keys[i] = KeyOf(random() % kRecords);
        views[i] = View(keys[i]);
      }
      client->MultiGet(views, values, statuses);
      for (const Status& status : statuses) Check(status);
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
}
BENCHMARK(BM_MultiGet)->ArgName("keys")->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_Update(benchmark::State& state) { RunOperations(state, Kind::kUpdate); }
BENCHMARK(BM_Update)->ArgName("in_flight")->Arg(1)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

// Updates one after the other, by calls that block.
void BM_BlockingUpdate(benchmark::State& state) {
  auto client = LoadedStore().NewClient().value();
  RunLanes(*client, Kind::kGet, 0, kOperationsPerRound, 16);
  std::minstd_rand random(1);
  const std::string value(100, 'v');
  for (auto _ : state) {
    for (uint64_t i = 0; i < kOperationsPerRound; ++i) Check(client->Update(View(KeyOf(random() % kRecords)), value));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
}
BENCHMARK(BM_BlockingUpdate)->Unit(benchmark::kMillisecond);

// Writes `end - begin` records by MultiWrite; record i has the number number_of(i).
template <typename NumberOf>
void WriteAtOnce(Client& client, kvs::WriteKind kind, uint64_t begin, uint64_t end, size_t at_once,
                 NumberOf number_of) {
  const std::string value(100, 'v');
  std::vector<Key> keys(at_once);
  std::vector<kvs::WriteRequest> writes(at_once);
  while (begin < end) {
    const size_t count = std::min<uint64_t>(at_once, end - begin);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = KeyOf(number_of(begin++));
      writes[i].kind = kind;
      writes[i].key = View(keys[i]);
      writes[i].value = value;
    }
    client.MultiWrite(std::span(writes).first(count));
    for (const kvs::WriteRequest& write : std::span(writes).first(count)) Check(write.status);
  }
}

void BM_MultiUpdate(benchmark::State& state) {
  auto client = LoadedStore().NewClient().value();
  RunLanes(*client, Kind::kGet, 0, kOperationsPerRound, 16);
  std::minstd_rand random(1);
  for (auto _ : state) {
    WriteAtOnce(*client, kvs::WriteKind::kUpdate, 0, kOperationsPerRound, static_cast<size_t>(state.range(0)),
                [&random](uint64_t) { return random() % kRecords; });
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
}
BENCHMARK(BM_MultiUpdate)->ArgName("keys")->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

// Inserts into an empty store, splits included. Counts the verbs of a record.
template <typename LoadInto>
void LoadEmptyStores(benchmark::State& state, LoadInto load) {
  const auto a_record = [](uint64_t verbs) { return static_cast<double>(verbs) / static_cast<double>(kRecords); };
  for (auto _ : state) {
    state.PauseTiming();
    auto store = Store::OpenEmbedded({}).value();
    auto client = store->NewClient().value();
    state.ResumeTiming();
    load(*client);
    state.PauseTiming();
    state.counters["READs"] = a_record(client->stats().reads);
    state.counters["WRITEs"] = a_record(client->stats().writes);
    state.counters["atomics"] = a_record(client->stats().atomics);
    client.reset();
    store.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kRecords));
}

void BM_Load(benchmark::State& state) {
  LoadEmptyStores(state, [&](Client& client) { RunLanes(client, Kind::kInsert, 0, kRecords, state.range(0)); });
}
BENCHMARK(BM_Load)->ArgName("in_flight")->Arg(1)->Arg(16)->Unit(benchmark::kMillisecond);

void BM_MultiLoad(benchmark::State& state) {
  LoadEmptyStores(state, [&](Client& client) {
    WriteAtOnce(client, kvs::WriteKind::kInsert, 0, kRecords, static_cast<size_t>(state.range(0)),
                [](uint64_t i) { return i; });
  });
}
BENCHMARK(BM_MultiLoad)->ArgName("keys")->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

// ---- address cache: Gets of a million keys, uniform or by Zipf's law, with and without it, in one run

Store& LargeStore() {
  static const std::unique_ptr<Store> store = [] {
    auto made = Store::OpenEmbedded({.memory_bytes = size_t{512} << 20}).value();
    auto client = made->NewClient({.address_cache_entries = 0}).value();
    RunLanes(*client, Kind::kInsert, 0, kManyRecords, 16);
    return made;
  }();
  return *store;
}

// Key numbers, drawn before the clock runs. Zipf 0.99; the ranks lie anywhere among the numbers.
const std::vector<uint32_t>& Choices(bool zipf) {
  static constexpr uint32_t kCount = 1 << 20;
  static std::array<std::vector<uint32_t>, 2> drawn;
  std::vector<uint32_t>& numbers = drawn[zipf ? 1 : 0];
  if (!numbers.empty()) return numbers;
  std::vector<double> sums(kManyRecords);
  double sum = 0;
  for (uint64_t rank = 0; rank < kManyRecords; ++rank) {
    sum += zipf ? 1 / std::pow(static_cast<double>(rank + 1), 0.99) : 1;
    sums[rank] = sum;
  }
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, sum);
  for (uint32_t i = 0; i < kCount; ++i) {
    const auto rank = static_cast<uint64_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin());
    numbers.push_back(static_cast<uint32_t>(rank * 2'654'435'761u % kManyRecords));
  }
  return numbers;
}

Task<void> ChosenLane(Client& client, const std::vector<uint32_t>& numbers, uint64_t* next, uint64_t end) {
  std::string value;
  while (*next < end) {
    const Key key = KeyOf(numbers[(*next)++ % numbers.size()]);
    const Status status = co_await client.GetAsync(View(key), &value);
    Check(status);
  }
}

void BM_AddressCache(benchmark::State& state) {
  const bool zipf = state.range(0) != 0;
  const int64_t in_flight = state.range(1);
  const std::vector<uint32_t>& numbers = Choices(zipf);
  auto client = LargeStore().NewClient({.address_cache_entries = static_cast<uint32_t>(state.range(2))}).value();
  uint64_t next = 0;
  const auto run = [&](uint64_t count) {
    const uint64_t end = next + count;
    for (int64_t i = 0; i < in_flight; ++i) client->Spawn(ChosenLane(*client, numbers, &next, end));
    client->Drain();
  };
  run(400'000);  // fills the directory cache; the address cache decides
  const kvs::ClientStats before = client->stats();
  for (auto _ : state) run(kOperationsPerRound);
  const kvs::ClientStats& after = client->stats();
  const auto operations = static_cast<double>(after.operations - before.operations);
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kOperationsPerRound));
  state.counters["trips/op"] =
      static_cast<double>(after.operation_round_trips - before.operation_round_trips) / operations;
  state.counters["hits/op"] = static_cast<double>(after.cache_hits - before.cache_hits) / operations;
  state.counters["switches"] = static_cast<double>(after.cache_switches);
}
BENCHMARK(BM_AddressCache)
    ->ArgNames({"zipf", "in_flight", "entries"})
    ->ArgsProduct({{0, 1}, {1, 16}, {0, 65'536}})
    ->Unit(benchmark::kMillisecond);

// ---- what turns and the address cache cost every operation where they gain nothing

// Takes its turn among 64 operations in flight on other keys.
void BM_TurnWithoutConflict(benchmark::State& state) {
  kvs::ClientStats stats;
  kvs::Combiner combiner(stats);
  combiner.SetSize(64);
  std::array<std::optional<kvs::Turn>, 64> turns;
  std::array<Key, 4096> keys;
  std::array<kvs::KeyHash, 4096> hashes;
  const kvs::Hasher hasher({});
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = KeyOf(i);
    hashes[i] = hasher(View(keys[i]));
  }
  std::string value;
  size_t i = 0;
  for (auto _ : state) {
    std::optional<kvs::Turn>& turn = turns[i % turns.size()];
    if (turn) benchmark::DoNotOptimize(turn->Share(Status::Ok()));
    const size_t k = i++ % keys.size();
    turn.emplace(combiner, hashes[k], View(keys[k]), &value);
    if (turn->leads()) turn->Gather();
  }
}
BENCHMARK(BM_TurnWithoutConflict);

void BM_AddressCacheThatIsOff(benchmark::State& state) {
  kvs::ClientStats stats;
  kvs::AddressCache cache(stats);
  uint64_t hash = 0;
  for (auto _ : state) {
    cache.Count(*krcore::RealClock());
    benchmark::DoNotOptimize(cache.Lookup(hash));
    cache.Learn(hash++, kvs::Slot());
  }
}
BENCHMARK(BM_AddressCacheThatIsOff);

// What a worker of a running process waits for before its first operation.
void BM_NewClient(benchmark::State& state) {
  Store& store = LoadedStore();
  for (auto _ : state) benchmark::DoNotOptimize(store.NewClient().value());
}
BENCHMARK(BM_NewClient)->Unit(benchmark::kMicrosecond);

}  // namespace
