#include "kvs/upkeep/replicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "kvs/memory/mutation.h"
#include "kvs/memory/views.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {
namespace {

constexpr uint64_t kComparedAtOnce = 4096;  // words
constexpr uint64_t kPushes = 64;            // CASes that go out at once

// The registered memory: a window of each of the learner, tail and head, and old words.
struct Buffers {
  std::array<uint64_t, kComparedAtOnce> learner, tail, head;
  std::array<uint64_t, kPushes> old;
};

// Whether the word of a subtable at this offset is a slot.
bool IsSlotAt(uint64_t offset) {
  return offset >= sizeof(SubtableHeader) && (offset - sizeof(SubtableHeader)) % kBucketBytes != 0;
}

}  // namespace

Replicator::Replicator(Epochs& epochs, Table& table) : Part(epochs.common), epochs_(epochs), table_(table) {}

Replicator::Place Replicator::PlaceOf(krcore::NodeId pool, const Replica& learner) const {
  const PoolView* const view = common_.connections.views()->used().Find(pool);
  if (view == nullptr) return Place::kNowhere;
  if (view->learner == learner) return Place::kLearner;
  return std::ranges::find(view->chain, learner) != view->chain.end() ? Place::kMember : Place::kNowhere;
}

Task<Status> Replicator::Bring(krcore::NodeId pool, Replica learner, int64_t timeout_ms, uint64_t bytes_per_s,
                               ReplicatorReport* report) {
  Views* const views = common_.connections.views();
  if (views == nullptr) co_return Status(StatusCode::kBadState, "the store's pools are not mirrored");
  const Running running(running_);
  report_ = report;
  bytes_per_s_ = bytes_per_s;
  auto region = common_.node.CreateRegion({.length = sizeof(Buffers)});
  if (!region.ok()) co_return region.status();
  region_ = *std::move(region);
  batch_.Attach(&common_.connections, region_->lkey());
  const krcore::Deadline deadline = krcore::Deadline::After(common_.clock, timeout_ms * 1'000'000);
  while (!deadline.Passed(common_.clock) && !epochs_.own_work.closing) {
    co_await epochs_.operations.Pause(kLookNs);
    if (views->changing()) continue;
    const Place place = PlaceOf(pool, learner);
    if (place == Place::kMember) {
      views->SetPromoter({}, {});
      co_return Status::Ok();
    }
    if (place == Place::kNowhere) {
      if (report_->joined) co_return Status(StatusCode::kBadState, "the learner was thrown out");
      const Step ready = co_await AwaitHeartbeats();
      if (ready != Step::kOk) continue;
      const Status added = views->Change([&](Configuration& next) { return next.AddLearner(pool, learner); });
      if (added == StatusCode::kBadState) {
        co_return Status(StatusCode::kBadState, "the pool has all its replicas, or another learner");
      }
      // What may have been done counts: memory that others may have used does not join again.
      report_->joined |= added.ok() || (added != StatusCode::kExists && added != StatusCode::kBadState);
      continue;
    }
    report_->joined = true;
    const Step peaceful = co_await AwaitPeace();
    if (peaceful != Step::kOk) continue;
    ++report_->passes;
    report_->tables = report_->all_tables = 0;
    const Step swept = co_await Sweep(pool);
    if (swept != Step::kOk) {
      const auto is_dead = [this](const Replica& replica) { return kvs::IsDead(common_.node, replica); };
      (void)views->Change([&](Configuration& next) { return next.RemoveDead(is_dead); });
      continue;
    }
    const Step ready = co_await AwaitHeartbeats();
    if (ready != Step::kOk) continue;
    views->SetPromoter(learner, [this](std::span<const ClientEntry> entries) { return IsPeace(entries); });
    (void)views->Change([&](Configuration& next) { return next.Promote(learner); });
  }
  // Nobody else can end a promotion that is pending.
  while (views->changing() && !epochs_.own_work.closing) co_await epochs_.operations.Pause(kLookNs);
  views->SetPromoter({}, {});
  co_return StatusCode::kTimeout;
}

Task<Status> Replicator::Enter(krcore::NodeId pool) {
  const Running running(running_);
  const Status again(StatusCode::kUnavailable, "the member list could not be changed");
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  const GlobalAddress at{common_.shape.home, kMembersOffset + uint64_t{pool} * sizeof(uint64_t)};
  uint64_t& word = op.buffers->cas[0];
  op.batch.Read(at, &word, sizeof(word));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return again;
  const MemberWord found(word);
  if (found.state() == MemberState::kNone) {
    op.batch.CompareSwap(at, found.word(), found.Joined(0).word(), &word);
    const Outcome entered = co_await op.batch.Run();
    if (entered != Outcome::kOk || word != found.word()) co_return again;
  }
  // Also if it is there already: whoever entered it may not have come to this.
  const Step told = co_await epochs_.home.Count(op.batch, kMemberChangesOffset, 1, &word);
  co_return told == Step::kOk ? Status::Ok() : again;
}

// At the head, as IsPeace gets them: a client that died as it claimed an entry may have done so there alone, and nobody
// takes that to the tail before the entry is claimed again.
Task<Step> Replicator::ReadClients(std::vector<ClientEntry>* entries) {
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  batch_.Follow(op.batch);
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  batch_.ReadReplica(ReadAt::kHead, {common_.shape.home, kClientsUsedOffset}, buffers.old.data(), sizeof(uint64_t));
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  const uint64_t used = std::min<uint64_t>(buffers.old[0], kMaxClients);
  entries->resize(used);
  constexpr uint64_t kEntries = kComparedAtOnce * sizeof(uint64_t) / sizeof(ClientEntry);
  for (uint64_t begin = 0; begin < used; begin += kEntries) {
    const uint64_t bytes = std::min(kEntries, used - begin) * sizeof(ClientEntry);
    batch_.ReadReplica(ReadAt::kHead, {common_.shape.home, EntryOffset(static_cast<uint32_t>(begin))},
                       buffers.tail.data(), static_cast<uint32_t>(bytes));
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    std::memcpy(entries->data() + begin, buffers.tail.data(), bytes);
  }
  co_return Step::kOk;
}

// A view in which a replica joins needs all clients. One whose lease has ended, or that has missed the view in use,
// cannot end its CASes while another view is pending, nor get a lease. So all would wait for 1.5 leases. A heartbeat
// may have been posted long ago, when its client stopped; but the one after it was not.
Task<Step> Replicator::AwaitHeartbeats() {
  const Views& views = *common_.connections.views();
  const uint64_t number = views.number();
  const int64_t until_ns = common_.clock.NowNs() + views.lease_ns() / 2;
  std::vector<ClientEntry> before, now;
  const auto waits_for = [&](size_t i) {
    const OwnerWord owner(now[i].owner);
    return owner.held() && i < before.size() && now[i] == before[i] &&
           ClientWord(now[i].word).state() != ClientState::kExpelled && !IsDead(common_.node, owner);
  };
  for (int beats = 0; beats < 2; ++beats) {
    KVS_CO_RETURN_UNLESS_OK(co_await ReadClients(&before));
    for (size_t first = 0;;) {
      if (views.changing() || views.number() != number || epochs_.own_work.closing) co_return Step::kRestart;
      if (common_.clock.NowNs() >= until_ns) co_return Step::kOk;
      co_await epochs_.operations.Pause(kLookNs);
      KVS_CO_RETURN_UNLESS_OK(co_await ReadClients(&now));
      while (first < now.size() && !waits_for(first)) ++first;
      if (first >= now.size()) break;
    }
  }
  co_return Step::kOk;
}

Task<Step> Replicator::AwaitPeace() {
  KVS_CO_RETURN_UNLESS_OK(co_await ReadClients(&peace_));
  dead_.assign(peace_.size(), false);
  for (size_t i = 0; i < peace_.size(); ++i) {
    const OwnerWord owner(peace_[i].owner);
    dead_[i] = owner.held() && IsDead(common_.node, owner);
    if (owner.held() && !dead_[i] && ClientWord(peace_[i].word).state() == ClientState::kExpelled) {
      co_return Step::kRestart;
    }
  }
  co_return Step::kOk;
}

// An entry that has changed hands tells that its last holder is dead, but not how an earlier one has ended.
bool Replicator::IsPeace(std::span<const ClientEntry> entries) const {
  for (size_t i = 0; i < entries.size(); ++i) {
    const OwnerWord before(i < peace_.size() ? peace_[i].owner : 0), now(entries[i].owner);
    if (now == before && i < dead_.size() && dead_[i]) continue;  // it was dead before the sweep began
    if (now.held() && ClientWord(entries[i].word).state() == ClientState::kExpelled) return false;
    if (now.held() && IsDead(common_.node, now)) return false;
    if (now == before) continue;
    const uint32_t turns = (now.turn() + OwnerWord::kTurns - before.turn()) % OwnerWord::kTurns;
    if (turns > 1) return false;
    if (before.held() && IsDead(common_.node, before)) return false;
    if (turns == 1 && !now.held() && IsDead(common_.node, now)) return false;
  }
  return true;
}

Task<Step> Replicator::Sweep(krcore::NodeId pool) {
  const uint64_t chunks = common_.connections.PoolBytes(pool) / common_.shape.chunk_bytes;
  constexpr uint64_t kHints = offsetof(Superblock, chunk_cursor);
  KVS_CO_RETURN_UNLESS_OK(co_await Bring({pool, kHints}, 2 * sizeof(uint64_t), false));
  KVS_CO_RETURN_UNLESS_OK(co_await Bring({pool, kChunkTableOffset}, chunks * sizeof(uint64_t), false));
  if (pool == common_.shape.home) {
    // `configuration` and what clients acknowledge are written to the learner, too.
    constexpr uint64_t kAfter = kConfigurationOffset + sizeof(uint64_t);
    KVS_CO_RETURN_UNLESS_OK(co_await Bring({pool, kHomeAreaOffset}, kConfigurationOffset - kHomeAreaOffset, false));
    KVS_CO_RETURN_UNLESS_OK(co_await Bring({pool, kAfter}, AcknowledgedOffset(0) - kAfter, false));
    KVS_CO_RETURN_UNLESS_OK(co_await Bring({pool, kDirectoryOffset}, uint64_t{8} << kMaxDepth, false));
  }
  if (Mutated(Mutation::kSweepSkipsTables)) co_return Step::kOk;
  co_return co_await SweepDirectory(pool);
}

// Looks at what the directory names in the pool, and then once more at what it names besides: a table that a split has
// published since may have values which were frozen before the learner came, and which its parent has no more. All
// others that come meanwhile are made by clients that know of the learner.
Task<Step> Replicator::SweepDirectory(krcore::NodeId pool) {
  std::vector<bool> seen(size_t{1} << kMaxDepth);
  KVS_CO_RETURN_UNLESS_OK(co_await SweepNamed(pool, &seen));
  if (Mutated(Mutation::kSweepOnce)) co_return Step::kOk;
  co_return co_await SweepNamed(pool, &seen);
}

// Looks at what the entries name that are present and not yet `seen`.
Task<Step> Replicator::SweepNamed(krcore::NodeId pool, std::vector<bool>* seen) {
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  std::vector<uint32_t> found;
  for (uint32_t begin = 0; begin < 1u << kMaxDepth; begin += kComparedAtOnce) {
    Operation& op = co_await epochs_.operations.LeaseOwnOperation();
    const OperationLease lease(epochs_.operations, op);
    batch_.Follow(op.batch);
    const GlobalAddress at = table_.directory.EntryAddress(begin);
    KVS_CO_RETURN_UNLESS_OK(co_await ReadHeadAndTail(at, kComparedAtOnce * sizeof(uint64_t)));
    std::vector<uint32_t> todo;
    for (uint32_t i = 0; i < kComparedAtOnce; ++i) {
      const uint64_t head = buffers.head[i], tail = buffers.tail[i];
      if (head != tail) todo.push_back(i);
      if ((*seen)[begin + i] || !(DirectoryEntry(head).present() || DirectoryEntry(tail).present())) continue;
      (*seen)[begin + i] = true;
      found.push_back(begin + i);
    }
    KVS_CO_RETURN_UNLESS_OK(co_await Push(at, 0, false, todo));
  }
  report_->all_tables += found.size();
  for (const uint32_t index : found) {
    if (epochs_.own_work.closing) co_return Step::kRestart;
    KVS_CO_RETURN_UNLESS_OK(co_await BringNamed(pool, index));
    co_await KeepToLimit();
  }
  co_return Step::kOk;
}

Task<Step> Replicator::BringNamed(krcore::NodeId pool, uint32_t index) {
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  batch_.Follow(op.batch);
  batch_.Read(table_.directory.EntryAddress(index), buffers.old.data(), sizeof(uint64_t));
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  const DirectoryEntry entry(buffers.old[0]);
  std::vector<GlobalAddress> tables;
  if (entry.has_subtable()) tables.push_back(entry.subtable());
  if (entry.merging()) {
    const GlobalAddress record = entry.merge_record();
    if (record.node == pool) KVS_CO_RETURN_UNLESS_OK(co_await Bring(record, sizeof(MergeRecord), false));
    batch_.Read(record, buffers.old.data(), sizeof(MergeRecord));
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    MergeRecord terms;
    std::memcpy(&terms, buffers.old.data(), sizeof(terms));
    tables = {terms.parent().subtable(), terms.child().subtable()};
  }
  for (const GlobalAddress table : tables) {
    ++report_->tables;
    KVS_CO_RETURN_UNLESS_OK(co_await BringTable(pool, table));
  }
  co_return Step::kOk;
}

Task<Step> Replicator::BringTable(krcore::NodeId pool, GlobalAddress table) {
  const uint64_t bytes = common_.shape.geometry.bytes();
  if (table.node == pool) co_return co_await Bring(table, bytes, true);
  // The table has no new replica, but blocks that it names may have; also by a word that a dead client left at the head
  // alone, which somebody brings to the tail after the promotion.
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  for (uint64_t begin = 0; begin < bytes; begin += sizeof(buffers.tail)) {
    const uint64_t window = std::min<uint64_t>(sizeof(buffers.tail), bytes - begin);
    const GlobalAddress at{table.node, table.offset + begin};
    KVS_CO_RETURN_UNLESS_OK(co_await ReadHeadAndTail(at, window));
    const auto is_there = [pool](Slot slot) { return slot.has_block() && slot.block().node == pool; };
    std::vector<uint32_t> todo;
    for (uint32_t w = 0; w < window / sizeof(uint64_t); ++w) {
      if (!IsSlotAt(begin + w * sizeof(uint64_t))) continue;
      if (is_there(Slot(buffers.head[w])) || is_there(Slot(buffers.tail[w]))) todo.push_back(w);
    }
    KVS_CO_RETURN_UNLESS_OK(co_await Push(at, begin, true, todo));
  }
  co_return Step::kOk;
}

// In this order: a word that has left the head by then is at the tail, or was.
Task<Step> Replicator::ReadHeadAndTail(GlobalAddress at, uint64_t bytes) {
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  batch_.ReadReplica(ReadAt::kHead, at, buffers.head.data(), static_cast<uint32_t>(bytes));
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  batch_.Read(at, buffers.tail.data(), static_cast<uint32_t>(bytes));
  KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
  if (Mutated(Mutation::kSweepIgnoresHead)) buffers.head = buffers.tail;
  co_return Step::kOk;
}

Task<Step> Replicator::Bring(GlobalAddress from, uint64_t bytes, bool is_table) {
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  for (uint64_t begin = 0; begin < bytes; begin += sizeof(buffers.tail)) {
    const auto window = static_cast<uint32_t>(std::min<uint64_t>(sizeof(buffers.tail), bytes - begin));
    const GlobalAddress at{from.node, from.offset + begin};
    // In this order: so what is the same was the same at one moment.
    batch_.ReadReplica(ReadAt::kLearner, at, buffers.learner.data(), window);
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    batch_.Read(at, buffers.tail.data(), window);
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    batch_.ReadReplica(ReadAt::kHead, at, buffers.head.data(), window);
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    std::vector<uint32_t> todo;
    for (uint32_t w = 0; w < window / sizeof(uint64_t); ++w) {
      const uint64_t word = buffers.tail[w];
      const bool same = buffers.learner[w] == word && (buffers.head[w] == word || Mutated(Mutation::kSweepIgnoresHead));
      // The client of a merge WRITEs the new table to the learner, too, but not the blocks that it names.
      const bool names_block = is_table && IsSlotAt(begin + w * sizeof(uint64_t)) && Slot(word).has_block() &&
                               Slot(word).block().node == from.node && !Mutated(Mutation::kSweepTrustsSlots);
      if (!same || names_block) todo.push_back(w);
    }
    KVS_CO_RETURN_UNLESS_OK(co_await Push(at, begin, is_table, todo));
  }
  co_return Step::kOk;
}

// CASes words of the window at `at`, as the tail had them, to what they are: this brings them to the learner, with what
// they name, and helps what it finds at the head. `begin`: where the window begins in its table.
Task<Step> Replicator::Push(GlobalAddress at, uint64_t begin, bool is_table, std::vector<uint32_t> todo) {
  auto& buffers = *reinterpret_cast<Buffers*>(region_->bytes().data());
  for (size_t next = 0; next < todo.size();) {
    for (uint64_t pushes = 0; next < todo.size() && pushes < kPushes; ++pushes, ++next) {
      const uint64_t offset = todo[next] * sizeof(uint64_t), word = buffers.tail[todo[next]];
      const bool is_slot = is_table && IsSlotAt(begin + offset);
      batch_.CompareSwap({at.node, at.offset + offset}, word, word, &buffers.old[pushes],
                         is_slot ? Word::kAnyonesSlot : Word::kAnyones);
      ++report_->words_pushed;
    }
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    if (epochs_.own_work.closing) co_return Step::kRestart;
  }
  co_return Step::kOk;
}

Task<void> Replicator::KeepToLimit() {
  const uint64_t blocks = common_.stats.bytes_copied - std::exchange(copied_, common_.stats.bytes_copied);
  if (bytes_per_s_ == 0) co_return;
  const uint64_t bytes = common_.shape.geometry.bytes() + blocks;
  const double took_s = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_);
  within_ns_ = std::max(within_ns_, common_.clock.NowNs()) + static_cast<int64_t>(took_s * 1e9);
  while (within_ns_ - common_.clock.NowNs() > kLookNs && !epochs_.own_work.closing) {
    co_await epochs_.operations.Pause(kLookNs);
  }
}

}  // namespace kvs
