#include "kvs/layout/join.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

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

// The home's pool, by a queue of its own, one word at a time.
class HomePool {
 public:
  static Result<std::unique_ptr<HomePool>> Open(krcore::Node& node, const HomeRecord& home, Deadline deadline) {
    auto opened = std::make_unique<HomePool>();
    auto pool = node.CreateQueuePool({});
    if (!pool.ok()) return pool.status();
    opened->pool_ = *std::move(pool);
    auto queue = opened->pool_->CreateQueue(4);
    if (!queue.ok()) return queue.status();
    opened->queue_ = *std::move(queue);
    KRCORE_RETURN_IF_ERROR(opened->queue_->Connect(home.node, deadline));
    for (const krcore::RemoteRegion& candidate : opened->queue_->regions()) {
      if (candidate.tag == kPoolRegionTag) opened->region_ = candidate;
    }
    if (opened->region_.length == 0) return Status(StatusCode::kUnavailable, "the store's home has no pool");
    auto word = node.RegisterLocal(&opened->word_, sizeof(opened->word_));
    if (!word.ok()) return word.status();
    opened->memory_ = *std::move(word);
    return opened;
  }

  // *word: what was there.
  Status Read(uint64_t offset, uint64_t* word) { return Run(krcore::Opcode::kRead, offset, 0, 0, word); }
  Status CompareSwap(uint64_t offset, uint64_t expected, uint64_t desired, uint64_t* word) {
    return Run(krcore::Opcode::kCompareSwap, offset, expected, desired, word);
  }
  Status Increment(uint64_t offset) {
    uint64_t before = 0;
    return Run(krcore::Opcode::kFetchAdd, offset, 1, 0, &before);
  }

 private:
  Status Run(krcore::Opcode opcode, uint64_t offset, uint64_t compare_add, uint64_t swap, uint64_t* word) {
    const krcore::Sge sge{reinterpret_cast<uint64_t>(&word_), sizeof(word_), memory_->lkey()};
    krcore::WorkRequest wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.remote_addr = region_.addr + offset;
    wr.rkey = region_.rkey;
    wr.compare_add = compare_add;
    wr.swap = swap;
    KRCORE_RETURN_IF_ERROR(RunVerb(*pool_, *queue_, wr));
    *word = word_;
    return Status::Ok();
  }

  uint64_t word_ = 0;
  std::unique_ptr<krcore::Region> memory_;
  std::unique_ptr<krcore::QueuePool> pool_;
  std::unique_ptr<krcore::VirtualQueue> queue_;
  krcore::RemoteRegion region_ = {};
};

uint64_t MemberOffset(const krcore::Node& node) {
  return kHomeAreaOffset + offsetof(HomeArea, members) + sizeof(uint64_t) * node.id();
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
  auto pool = HomePool::Open(node, home, deadline);
  if (!pool.ok()) return pool.status();
  uint64_t word = 0;
  KRCORE_RETURN_IF_ERROR((*pool)->Read(offsetof(Superblock, chunk_bytes), &word));
  if (word != chunk_bytes) {
    return {StatusCode::kInvalidArgument,
            "the store has chunks of " + std::to_string(word) + " bytes, not of " + std::to_string(chunk_bytes)};
  }
  const auto is_mine = [&node](MemberWord member) {
    return member.state() == MemberState::kInUse && member.incarnation() == node.incarnation();
  };
  for (uint64_t expected = 0; !is_mine(MemberWord(expected)); expected = word) {
    if (fresh && MemberWord(expected).may_hold_keys()) return LostMemory(node);
    const uint64_t joined = MemberWord(expected).Joined(node.incarnation()).word();
    KRCORE_RETURN_IF_ERROR((*pool)->CompareSwap(MemberOffset(node), expected, joined, &word));
    if (word == expected) break;
  }
  // Clients read the list when this has grown.
  return (*pool)->Increment(kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, member_changes));
}

Result<HomeRecord> LookupHome(krcore::Node& node, Deadline deadline) {
  auto value = node.LookupService(kHomeService, deadline);
  if (!value.ok()) return value.status();
  HomeRecord home{};
  if (value->size() != sizeof(home)) return Status(StatusCode::kCorrupt, "the home record has another size");
  std::memcpy(&home, value->data(), sizeof(home));
  return home;
}

// Whether a node that holds nothing may be a member.
Status MayEnterFresh(krcore::Node& node, const HomeRecord& home, Deadline deadline) {
  auto pool = HomePool::Open(node, home, deadline);
  if (!pool.ok()) return pool.status();
  uint64_t word = 0;
  KRCORE_RETURN_IF_ERROR((*pool)->Read(MemberOffset(node), &word));
  return MemberWord(word).may_hold_keys() ? LostMemory(node) : Status::Ok();
}

// Waits for the home's word, if there is a home, on whether a node that holds nothing may join. Before the pool is
// formatted, or a later start would take it for what the store has there; and before the node is published, or a client
// that knows its predecessor would.
Status AwaitLeave(krcore::Node& node, Deadline deadline) {
  Status leave;
  do {
    const Result<HomeRecord> home = LookupHome(node, deadline);
    if (home.status() == StatusCode::kNotFound) return Status::Ok();
    if (!home.ok()) {
      leave = Status(StatusCode::kTimeout, home.status().ToString());
      continue;
    }
    if (home->node == node.id()) return Status::Ok();  // the memory of a home: there is no store any more
    leave = MayEnterFresh(node, *home, deadline);
    if (leave.ok() || leave == StatusCode::kBadState) return leave;
    leave = Unreachable(*home, leave);
  } while (WaitToRetry(node.clock(), deadline));
  return leave;
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
  const bool fresh = !pool.adopted() || super.magic == 0;
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
