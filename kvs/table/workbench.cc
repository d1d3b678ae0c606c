#include "kvs/table/workbench.h"

#include <cstddef>
#include <new>
#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// How long a lock word must not have changed before another client takes the split over. Safety does not depend on it.
constexpr int64_t kTakeoverNs = 100'000'000;

}  // namespace

void Workbench::Begin(const Batch& on_behalf_of) {
  busy_ = true;
  if (registered_ == nullptr) {
    registered_ = new (arena_.memory) Registered;
    batch_.Attach(&common_.connections, arena_.lkey);
  }
  batch_.Follow(on_behalf_of);
  batch_.RenewView();  // nothing of this work is written yet
}

void Workbench::Background(Task<void> task) { RunDetached(std::move(task), &background_); }

Task<Step> Workbench::LockTable(TableRef table, uint64_t token, uint64_t* takeovers) {
  static_assert(offsetof(SubtableHeader, lock) == 0);
  uint64_t& old = words().cas[0];
  batch_.CompareSwap(table.address, 0, token, &old, Word::kHint);
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  if (old == 0) co_return Step::kOk;
  const int64_t now_ns = common_.clock.NowNs();
  SeenLock& seen = locks_seen_[uint64_t{table.address.node} << 48 | table.address.offset];
  if (old != seen.word) {
    seen = {old, now_ns};
    co_return Step::kRestart;
  }
  if (now_ns - seen.since_ns < kTakeoverNs) co_return Step::kRestart;
  const uint64_t dead = old;
  batch_.CompareSwap(table.address, dead, token, &old, Word::kHint);
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  if (old != dead) co_return Step::kRestart;
  ++*takeovers;
  co_return Step::kOk;
}

Task<Step> Workbench::UnlockTable(TableRef table, uint64_t token) {
  if (Mutated(Mutation::kNeverUnlocked)) co_return Step::kOk;
  batch_.CompareSwap(table.address, token, 0, &words().cas[0]);
  const Outcome unlocked = co_await batch_.Run();  // lost: another client took over, and will unlock
  co_return unlocked == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

}  // namespace kvs
