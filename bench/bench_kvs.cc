// The store inside one process: operations of one client, with a number of coroutines in flight, and what a new client
// costs. Keys of 16 bytes, values of 100, uniformly chosen. Measured on the sw provider, over memory of 4 KiB pages.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "kvs/client.h"

namespace {

using kvs::Client;
using kvs::Status;
using kvs::Store;
using kvs::Task;

constexpr uint64_t kRecords = 200'000;
constexpr uint64_t kOperationsPerRound = 20'000;

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

void BM_Update(benchmark::State& state) { RunOperations(state, Kind::kUpdate); }
BENCHMARK(BM_Update)->ArgName("in_flight")->Arg(1)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);

// Inserts into an empty store: splits included.
void BM_Load(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    auto store = Store::OpenEmbedded({}).value();
    auto client = store->NewClient().value();
    state.ResumeTiming();
    RunLanes(*client, Kind::kInsert, 0, kRecords, state.range(0));
    state.PauseTiming();
    client.reset();
    store.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kRecords));
}
BENCHMARK(BM_Load)->ArgName("in_flight")->Arg(1)->Arg(16)->Unit(benchmark::kMillisecond);

// What a worker of a running process waits for before its first operation.
void BM_NewClient(benchmark::State& state) {
  Store& store = LoadedStore();
  for (auto _ : state) benchmark::DoNotOptimize(store.NewClient().value());
}
BENCHMARK(BM_NewClient)->Unit(benchmark::kMicrosecond);

}  // namespace
