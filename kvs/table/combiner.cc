#include "kvs/table/combiner.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "kvs/epochs/common.h"
#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// Does the leader's outcome hold for every member as well? A write that was not done may still succeed with another
// value, or at another memory node. One that may have been done may have been done for all.
bool IsCommon(bool is_write, const Status& status) {
  return status.ok() || status == StatusCode::kNotFound || status == StatusCode::kUnknown ||
         (!is_write && status == StatusCode::kUnavailable);
}

}  // namespace

Status ValueTooLong(size_t bytes) {
  return {StatusCode::kInvalidArgument, "a value has at most 16777216 bytes, not " + std::to_string(bytes)};
}

void Combiner::SetSize(uint32_t max_in_flight) { buckets_.resize(std::bit_ceil(std::max(max_in_flight, 64u) * 4)); }

void Combiner::Enter(Turn& turn) {
  Turn** const bucket = BucketOf(turn.hash_);
  for (Turn* leader = *bucket; leader != nullptr; leader = leader->chain_) {
    if (leader->hash_ != turn.hash_ || leader->is_write() != turn.is_write() || leader->key_ != turn.key_) continue;
    turn.leads_ = false;
    if (Mutated(Mutation::kJoinsPosted) && leader->GoesWith(turn)) {
      turn.next_ = leader->members_;
      leader->members_ = &turn;
      return;
    }
    (leader->waiting_ == nullptr ? leader->waiting_ : leader->last_waiting_->next_) = &turn;
    leader->last_waiting_ = &turn;
    ++waiting_count_;
    return;
  }
  turn.chain_ = *bucket;
  *bucket = &turn;
}

void Turn::GatherWaiting() {
  Turn** tail = &members_;
  while (*tail != nullptr) tail = &(*tail)->next_;
  while (waiting_ != nullptr && GoesWith(*waiting_)) {
    Turn* const member = waiting_;
    waiting_ = member->next_;
    member->next_ = nullptr;
    *tail = member;
    tail = &member->next_;
    --combiner_.waiting_count_;
    if (member->kind_ == WriteKind::kPut) group_kind_ = WriteKind::kPut;
    group_in_ = member->in_;
  }
}

Modification Turn::Fold(std::optional<Record> record, krcore::Clock& clock) {
  Modification folded;
  const auto run = [&](Turn& turn) {
    Modification wanted = (*turn.modify_)(record);
    const bool too_long = wanted.value.size() > kMaxValueBytes;
    turn.result_ = too_long ? ValueTooLong(wanted.value.size()) : Status::Ok();
    if (too_long || wanted.action == Modification::Action::kKeep) return;
    folded = std::move(wanted);
    if (Mutated(Mutation::kFoldOnOldValue)) return;
    // What has expired by now is absent for the next one, so it must not be found later.
    const bool expired = HasExpired(folded.expires_at_ms, clock) && !Mutated(Mutation::kFoldOnExpired);
    if (folded.action == Modification::Action::kSet && expired) folded = Modification::Delete();
    record.reset();
    if (folded.action == Modification::Action::kSet) record = Record{folded.value, folded.expires_at_ms};
  };
  run(*this);
  for (Turn* member = members_; member != nullptr; member = member->next_) run(*member);
  return folded;
}

Status Turn::ShareWithMembers(Status status, bool existed) {
  if (!IsCommon(is_write(), status)) return status;
  const bool folded = modifies() && status.ok();  // then each has its result already
  bool there = existed || kind_ == WriteKind::kPut;
  RunQueue& run_queue = RunQueue::OfThisThread();
  while (members_ != nullptr) {
    Turn& member = *members_;
    members_ = member.next_;
    if (!folded) member.result_ = status;
    if (status.ok() && !folded) {
      if (!member.is_write()) member.out_->assign(*out_);
      there |= member.kind_ == WriteKind::kPut;
      // This member comes before the group's first Put, which inserted the key.
      if (!there) member.result_ = StatusCode::kNotFound;
    }
    ++combiner_.stats_.operations;
    ++combiner_.stats_.combined_operations;
    run_queue.Push(member.handle_);
  }
  if (folded) return std::move(result_);
  if (status.ok() && kind_ == WriteKind::kUpdate && !existed) return StatusCode::kNotFound;
  return status;
}

// The members have waited longest, so they come first.
bool Turn::LetMembersWait() {
  if (members_ == nullptr) return false;
  Turn* last = members_;
  for (++combiner_.waiting_count_; last->next_ != nullptr; last = last->next_) ++combiner_.waiting_count_;
  last->next_ = waiting_;
  if (waiting_ == nullptr) last_waiting_ = last;
  waiting_ = std::exchange(members_, nullptr);
  return true;
}

void Combiner::HandOver(Turn& leader) {
  (void)leader.LetMembersWait();
  Turn& next = *leader.waiting_;
  --waiting_count_;
  next.waiting_ = next.next_;
  next.last_waiting_ = leader.last_waiting_;
  next.next_ = nullptr;
  next.leads_ = true;
  Turn** link = BucketOf(leader.hash_);
  while (*link != &leader) link = &(*link)->chain_;
  next.chain_ = leader.chain_;
  *link = &next;
  RunQueue::OfThisThread().Push(next.handle_);
}

void Combiner::EndOverdue(int64_t now_ns) {
  if (now_ns < look_at_ns_) return;
  look_at_ns_ = now_ns + kLookEveryNs;
  for (Turn* leader : buckets_) {
    for (; leader != nullptr; leader = leader->chain_) {
      // The one that came first is out of time first.
      while (leader->waiting_ != nullptr && leader->waiting_->deadline_ns_ <= now_ns) {
        Turn& overdue = *leader->waiting_;
        leader->waiting_ = overdue.next_;
        --waiting_count_;
        overdue.result_ = StatusCode::kTimeout;
        ++stats_.operations;
        RunQueue::OfThisThread().Push(overdue.handle_);
      }
    }
  }
}

}  // namespace kvs
