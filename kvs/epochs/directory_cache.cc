#include "kvs/epochs/directory_cache.h"

#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {

Task<Step> RetiredTables::Report(Batch& batch, uint64_t* scratch) {
  if (tables_.empty()) co_return Step::kOk;
  std::vector<GlobalAddress> tables = std::exchange(tables_, {});
  batch.FetchAdd({common_.shape.home, kRetiredTablesOffset}, 1, scratch);
  const Outcome reported = co_await batch.Run();
  if (reported != Outcome::kOk) {
    tables_.insert(tables_.end(), tables.begin(), tables.end());
    co_return Step::kUnavailable;
  }
  if (batch.Stale()) co_return Step::kRestart;
  const uint64_t bytes = common_.shape.geometry.bytes();
  for (const GlobalAddress table : tables) memory_->Retire({.address = table, .bytes = bytes, .is_table = true});
  co_return Step::kOk;
}

void RetiredTables::SawCounter(uint64_t counter) {
  if (counter == seen_) return;
  seen_ = counter;
  if (!Mutated(Mutation::kDirectoryCacheKept)) cache_.Clear();
}

}  // namespace kvs
