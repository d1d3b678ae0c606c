#include "kvs/layout/join.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/layout/survey.h"

namespace kvs {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr int64_t kRetryNs = 20'000'000;

// Waits about kRetryNs; false once the deadline has passed.
bool WaitToRetry(krcore::Clock& clock, Deadline deadline) {
  const int64_t until = clock.NowNs() + kRetryNs;
  for (uint32_t spins = 1'000'000; clock.NowNs() < until; ++spins) clock.Relax(spins);
  return !deadline.Passed(clock);
}

// One signaled 8-byte verb, waited for.
Status RunVerb(krcore::QueuePool& pool, krcore::VirtualQueue& queue, const krcore::WorkRequest& wr) {
  KRCORE_RETURN_IF_ERROR(queue.Push({&wr, 1}));
  std::array<krcore::Completion, 1> done;
  for (uint32_t spins = 0; queue.Pop(done) == 0; ++spins) {
    if (pool.Poll() == 0) pool.node().clock().Relax(spins);
  }
  if (done[0].status != krcore::WcStatus::kSuccess) {
    return {StatusCode::kUnavailable, "the store's home answered: " + std::string(WcStatusName(done[0].status))};
  }
  return Status::Ok();
}

// That the store has keys at this very node, which holds nothing.
Status LostMemory(const krcore::Node& node) {
  return {StatusCode::kBadState, "the store may have keys at memory node " + std::to_string(node.id()) +
                                     ", and this one comes without its memory"};
}

Status Unreachable(const HomeRecord& home, const Status& why) {
  return {StatusCode::kUnavailable,
          "the store's home, node " + std::to_string(home.node) +
              ", cannot be reached (start it again with its node id and memory): " + why.ToString()};
}

// Enters this node in the home's member list, and takes it back into use if it was being drained. `fresh`: it holds
// nothing.
Status EnterMember(krcore::Node& node, const HomeRecord& home, uint64_t chunk_bytes, bool fresh, Deadline deadline) {
  auto pool = node.CreateQueuePool({});
  if (!pool.ok()) return pool.status();
  auto queue = (*pool)->CreateQueue(4);
  if (!queue.ok()) return queue.status();
  KRCORE_RETURN_IF_ERROR((*queue)->Connect(home.node, deadline));
  const krcore::RemoteRegion* region = nullptr;
  for (const krcore::RemoteRegion& candidate : (*queue)->regions()) {
    if (candidate.tag == kPoolRegionTag) region = &candidate;
  }
  if (region == nullptr) return {StatusCode::kUnavailable, "the store's home has no pool"};

  uint64_t word = 0;
  auto scratch = node.RegisterLocal(&word, sizeof(word));
  if (!scratch.ok()) return scratch.status();
  const krcore::Sge sge{reinterpret_cast<uint64_t>(&word), sizeof(word), (*scratch)->lkey()};
  krcore::WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = krcore::Opcode::kRead;
  wr.remote_addr = region->addr + offsetof(Superblock, chunk_bytes);
  wr.rkey = region->rkey;
  KRCORE_RETURN_IF_ERROR(RunVerb(**pool, **queue, wr));
  if (word != chunk_bytes) {
    return {StatusCode::kInvalidArgument,
            "the store has chunks of " + std::to_string(word) + " bytes, not of " + std::to_string(chunk_bytes)};
  }
  wr.opcode = krcore::Opcode::kCompareSwap;
  wr.remote_addr = region->addr + kHomeAreaOffset + offsetof(HomeArea, members) + sizeof(uint64_t) * node.id();
  wr.rkey = region->rkey;
  const auto is_mine = [&node](MemberWord member) {
    return member.state() == MemberState::kInUse && member.incarnation() == node.incarnation();
  };
  for (uint64_t expected = 0; !is_mine(MemberWord(expected)); expected = word) {
    if (fresh && MayHoldKeys(MemberWord(expected).state())) return LostMemory(node);
    wr.compare_add = expected;
    wr.swap = MemberWord(expected).Joined(node.incarnation()).word();
    KRCORE_RETURN_IF_ERROR(RunVerb(**pool, **queue, wr));
    if (word == expected) break;
  }
  wr.opcode = krcore::Opcode::kFetchAdd;  // clients read the list when this has grown
  wr.remote_addr =
      region->addr + kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, member_changes);
  wr.compare_add = 1;
  return RunVerb(**pool, **queue, wr);
}

Result<HomeRecord> LookupHome(krcore::Node& node, Deadline deadline) {
  auto value = node.LookupService(kHomeService, deadline);
  if (!value.ok()) return value.status();
  HomeRecord home{};
  if (value->size() != sizeof(home)) return Status(StatusCode::kCorrupt, "the home record has another size");
  std::memcpy(&home, value->data(), sizeof(home));
  return home;
}

// Waits for the home's word, if there is a home, on whether a node that holds nothing may join. Before the pool is
// formatted, or a later start would take it for what the store has there; and before the node is published, or a client
// that knows its predecessor would.
Status AwaitLeave(krcore::Node& node, Deadline deadline) {
  const auto survey = Survey::Create(node);
  if (!survey.ok()) return survey.status();
  Status last;
  do {
    const Result<HomeRecord> record = LookupHome(node, deadline);
    if (record.status() == StatusCode::kNotFound) return Status::Ok();
    if (!record.ok()) {
      last = Status(StatusCode::kTimeout, std::string(record.status().message()));
      continue;
    }
    if (record->node == node.id()) return Status::Ok();  // the memory of a home: there is no store any more
    const Result<HomeView> home = (*survey)->ReadHome(deadline);
    if (!home.ok()) {
      last = Unreachable(*record, home.status());
      continue;
    }
    const auto is_lost = [&node](const MemberView& member) {
      return member.node == node.id() && MayHoldKeys(member.state);
    };
    return std::ranges::any_of(home->members, is_lost) ? LostMemory(node) : Status::Ok();
  } while (WaitToRetry(node.clock(), deadline));
  return last;
}

// A home formatted before publication, or adopted, claims the service. kExists: another node is the home.
Status ClaimHome(krcore::Node& node, Deadline deadline) {
  const HomeRecord mine{node.id(), node.incarnation()};
  return node.PublishService(kHomeService, std::as_bytes(std::span(&mine, 1)), deadline);
}

}  // namespace

Result<JoinResult> JoinStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& home_options,
                             Deadline deadline) {
  Superblock& super = *reinterpret_cast<Superblock*>(pool.bytes().data());
  const bool fresh = !pool.adopted() || !IsFormatted(pool.bytes());
  if (!fresh) {
    KRCORE_RETURN_IF_ERROR(CheckPool(pool.bytes(), node.id()));
  } else {
    KRCORE_RETURN_IF_ERROR(AwaitLeave(node, deadline));
    KRCORE_RETURN_IF_ERROR(FormatPool(pool.bytes(), node.id(), home_options.chunk_bytes));
  }
  KRCORE_RETURN_IF_ERROR(node.Publish(deadline));

  if (super.is_home != 0) {  // a restarted home
    KRCORE_RETURN_IF_ERROR(ClaimHome(node, deadline));
    KRCORE_RETURN_IF_ERROR(EnterMember(node, {node.id(), node.incarnation()}, super.chunk_bytes, fresh, deadline));
    return JoinResult{true, node.id()};
  }
  Status last(StatusCode::kTimeout, "the store's home did not appear");
  do {
    const Result<HomeRecord> home = LookupHome(node, deadline);
    if (home.ok() && home->node != node.id()) {
      last = EnterMember(node, *home, super.chunk_bytes, fresh, deadline);
      if (last.ok()) return JoinResult{false, home->node};
      if (last == StatusCode::kInvalidArgument || last == StatusCode::kBadState) return last;
      last = Unreachable(*home, last);
    } else if (!fresh && (home.ok() || home.status() == StatusCode::kNotFound)) {
      // Nobody may make a home of what a store has there.
      last = Status(StatusCode::kUnavailable,
                    "the memory is that of a store whose home has not appeared (start that memory node first, or too)");
    } else if (home.ok() || home.status() == StatusCode::kNotFound) {
      // Nobody has claimed it, or this node's predecessor had, whose memory is gone. The pool is made ready first, so
      // that who sees the claim sees a home.
      KRCORE_RETURN_IF_ERROR(FormatHome(pool.bytes(), home_options));
      last = ClaimHome(node, deadline);
      if (last.ok()) {
        KRCORE_RETURN_IF_ERROR(EnterMember(node, {node.id(), node.incarnation()}, super.chunk_bytes, fresh, deadline));
        return JoinResult{true, node.id()};
      }
      // Another one was faster. Nobody has read this pool as a home; make it a plain member again.
      std::memset(pool.bytes().data(), 0, super.reserved_chunks * super.chunk_bytes);
      KRCORE_RETURN_IF_ERROR(FormatPool(pool.bytes(), node.id(), home_options.chunk_bytes));
    } else {
      last = home.status();
    }
  } while (WaitToRetry(node.clock(), deadline));
  return last;
}

}  // namespace kvs
