#include "kvs/epochs/home.h"

#include <algorithm>
#include <cstddef>

namespace kvs {
namespace {

// How many entries a new client looks at before it asks how many are in use.
constexpr uint32_t kGlance = 64;

}  // namespace

Task<Step> Home::Glance() {
  Registered& words = *registered_;
  Batch& batch = batch_;
  batch.Read({common_.shape.home, kCountersOffset}, &words.counters, sizeof(words.counters));
  batch.Read({common_.shape.home, kClientsOffset}, words.clients, kGlance * sizeof(ClientEntry));
  batch.Read({common_.shape.home, offsetof(Superblock, hash_seed)}, &words.hash_seed, sizeof(words.hash_seed));
  KVS_CO_RETURN_UNLESS_OK(co_await LearnMembers(batch));
  TakeClientsUsed();
  clients_glanced_ = std::min(clients_used_, kGlance);
  co_return Step::kOk;
}

Task<Step> Home::Read() {
  Registered& words = *registered_;
  Batch& batch = batch_;
  const krcore::NodeId home = common_.shape.home;
  const uint64_t round = ++rounds_;
  batch.Read({home, kEpochOffset}, &words.epoch, sizeof(words.epoch));
  batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
  batch.Read({home, kEvacuationOffset}, words.evacuation, sizeof(words.evacuation));
  batch.Read({home, kClientsOffset}, words.clients, static_cast<uint32_t>(clients_used_ * sizeof(ClientEntry)));
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  const uint32_t used = CountedClients();
  if (used > clients_used_) {
    // A client that claims an entry beyond those now began after what was retired here was unlinked.
    batch.Read({home, EntryOffset(clients_used_)}, &words.clients[clients_used_],
               static_cast<uint32_t>((used - clients_used_) * sizeof(ClientEntry)));
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    clients_used_ = used;
  }
  const Step learnt = co_await LearnMembers(batch);
  if (learnt == Step::kOk) read_in_round_ = round;
  co_return learnt;
}

Task<Step> Home::Count(Batch& batch, uint64_t offset, uint64_t by, uint64_t* old) {
  const size_t counter = (offset - kCountersOffset) / sizeof(uint64_t);
  // Counters grow, so of what was read and what was counted the larger one is newer.
  uint64_t expected = std::max(reinterpret_cast<const uint64_t*>(&registered_->counters)[counter], counted_[counter]);
  for (;;) {
    batch.CompareSwap({common_.shape.home, offset}, expected, expected + by, old);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    if (*old == expected) break;
    expected = *old;
  }
  counted_[counter] = expected + by;
  co_return Step::kOk;
}

Task<Step> Home::LearnMembers(Batch& batch) {
  Registered& words = *registered_;
  if (members_known_ && words.counters.member_changes == member_changes_seen_) co_return Step::kOk;
  batch.Read({common_.shape.home, kMembersOffset}, words.members, sizeof(words.members));
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (batch.Stale()) co_return Step::kRestart;
  members_.clear();
  draining_.clear();
  for (krcore::NodeId node = 1; node <= krcore::kMaxMemoryNode; ++node) {
    const MemberState state = MemberWord(words.members[node]).state();
    if (state == MemberState::kInUse || node == common_.shape.home) members_.push_back(node);
    if (state == MemberState::kDraining) draining_.push_back(node);
    if (state == MemberState::kDrained) common_.connections.Forget(node);
  }
  members_known_ = true;
  member_changes_seen_ = words.counters.member_changes;
  co_return Step::kOk;
}

}  // namespace kvs
