#include "kvs/memory/join.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <string>

#include "kvs/layout/configuration.h"
#include "kvs/memory/remote_pool.h"
#include "kvs/memory/survey.h"

namespace kvs {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr int64_t kRetryNs = 20'000'000;
constexpr int64_t kAttemptNs = 1'000'000'000;
constexpr int64_t kTellAfterNs = 900'000'000;  // a start of several nodes at once is over by then

// How long a joining node waits, and what it tells meanwhile.
class Patience {
 public:
  Patience(krcore::Clock& clock, Deadline deadline, const TellWaiting& tell)
      : clock_(clock), deadline_(deadline), tell_(tell), begun_ns_(clock.NowNs()) {}

  // The deadline of one attempt. It is short, so that what the node waits for is told before all is over.
  Deadline attempt() const { return {std::min(deadline_.at_ns, clock_.NowNs() + kAttemptNs)}; }

  // Waits about kRetryNs; false once the deadline has passed.
  bool Retry(const Status& why) {
    if (tell_ && clock_.NowNs() - begun_ns_ >= kTellAfterNs && why.message() != told_) {
      told_ = why.message();
      tell_(why);
    }
    const int64_t until = clock_.NowNs() + kRetryNs;
    for (uint32_t spins = 1'000'000; clock_.NowNs() < until; ++spins) clock_.Relax(spins);
    return !deadline_.Passed(clock_);
  }

 private:
  krcore::Clock& clock_;
  const Deadline deadline_;
  const TellWaiting& tell_;
  const int64_t begun_ns_;
  std::string told_;
};

// Makes the pool unformatted again. What FormatHome wrote into chunks stays, as contents of free chunks always do.
void Unformat(std::span<std::byte> pool) {
  const Superblock super = *reinterpret_cast<const Superblock*>(pool.data());
  if (super.magic != 0) std::memset(pool.data(), 0, super.reserved_chunks * super.chunk_bytes);
}

// The status if the store may have keys at this very node, which holds nothing.
Status LostMemory(const krcore::Node& node) {
  return {StatusCode::kBadState, "the store may have keys at memory node " + std::to_string(node.id()) +
                                     ", and this one comes without its memory"};
}

// The home, as far as it is known.
struct FoundHome {
  HomeRecord record{};
  bool lives = false;  // for certain: it has told the fabric, although the metadata servers do not know it
};

Status Unreachable(const FoundHome& home, const Status& why) {
  return {StatusCode::kUnavailable,
          "the store's home, node " + std::to_string(home.record.node) +
              (home.lives ? ", lives, but the metadata servers do not know it yet: "
                          : ", cannot be reached (start it again with its node id and memory): ") +
              why.ToString()};
}

// Enters this node in the home's member list, and takes it back into use if it was being drained. `fresh`: it holds
// nothing. *entered: it is in the list, or may be.
Status EnterMember(krcore::Node& node, const HomeRecord& home, uint64_t chunk_bytes, bool fresh, Deadline deadline,
                   bool* entered) {
  auto pool = RemotePool::Create(node, sizeof(Superblock));
  if (!pool.ok()) return pool.status();
  Superblock super;
  KRCORE_RETURN_IF_ERROR((*pool)->Connect(home.node, deadline, &super));
  if (super.pool != krcore::kNoNode) {
    return {StatusCode::kUnavailable, "the store, whose pools are mirrored, is just beginning"};
  }
  if (super.chunk_bytes != chunk_bytes) {
    return {StatusCode::kInvalidArgument, "the store has chunks of " + std::to_string(super.chunk_bytes) +
                                              " bytes, not of " + std::to_string(chunk_bytes)};
  }
  const uint64_t member_at = kHomeAreaOffset + offsetof(HomeArea, members) + sizeof(uint64_t) * node.id();
  const auto is_mine = [&node](MemberWord member) {
    return member.state() == MemberState::kInUse && member.incarnation() == node.incarnation();
  };
  for (MemberWord expected(0); !is_mine(expected);) {
    if (fresh && MayHoldKeys(expected.state())) return LostMemory(node);
    const uint64_t joined = expected.Joined(node.incarnation()).word();
    const Status tried = (*pool)->CompareSwap(member_at, expected.word(), joined, deadline);
    const uint64_t found = (*pool)->words()[0];
    const bool won = found == expected.word();
    *entered |= !tried.ok() || won;  // a CAS that failed may have been done
    KRCORE_RETURN_IF_ERROR(tried);
    if (won) break;
    expected = MemberWord(found);
  }
  // Clients read the list when this has grown.
  for (uint64_t expected = 0;;) {
    KRCORE_RETURN_IF_ERROR((*pool)->CompareSwap(kMemberChangesOffset, expected, expected + 1, deadline));
    const uint64_t found = (*pool)->words()[0];
    if (found == expected) return Status::Ok();
    expected = found;
  }
}

// Looks the home up at the metadata servers; if they have lost it, by the claim of a living home, as the fabric knows
// it. kNotFound: there is none. kTimeout: it could not be found out, for any reason.
Result<FoundHome> LookupHome(krcore::Node& node, Deadline deadline) {
  auto value = node.LookupService(kHomeService, deadline);
  FoundHome home;
  if (value.status() == StatusCode::kNotFound) {
    value = node.LookupClaim(kHomeService);
    home.lives = true;
  }
  if (value.status() == StatusCode::kNotFound) return value.status();
  if (!value.ok()) return Status(StatusCode::kTimeout, std::string(value.status().message()));
  const Result<HomeRecord> record = HomeRecordOf(value);
  if (!record.ok()) return record.status();
  home.record = *record;
  return home;
}

// Returns whether a node that finds no home may begin a store. It may not if a home's memory is on this host. That home
// has died or was stopped, together with those that knew of it; or it lives and is about to claim its place.
Status MayBeginStore(krcore::Node& node) {
  const auto found = node.FindMemory(kPoolRegionName, sizeof(Superblock));
  if (!found.ok()) return found.status();
  for (const krcore::FoundMemory& memory : *found) {
    Superblock super{};
    if (memory.begin.size() < sizeof(super)) continue;
    std::memcpy(&super, memory.begin.data(), sizeof(super));
    const Status layout = CheckLayout(super, memory.node);
    if (layout == StatusCode::kCorrupt || super.is_home == 0) continue;
    if (!layout.ok()) return layout;
    return {StatusCode::kUnavailable, "the memory of node " + std::to_string(memory.node) +
                                          " is that of a store's home, which does not serve "
                                          "(start it again with its node id and memory)"};
  }
  return Status::Ok();
}

// If there is a home, waits to learn from it whether a node that holds nothing may join. This comes before the pool is
// formatted, because a later start would take the pool for what the store has there. It comes before the node is
// published, because a client that knows its predecessor would do the same.
Status AwaitLeave(krcore::Node& node, Patience& patience) {
  const auto survey = Survey::Create(node);
  if (!survey.ok()) return survey.status();
  Status last;
  do {
    const Result<FoundHome> found = LookupHome(node, patience.attempt());
    if (found.status() == StatusCode::kNotFound) {
      last = MayBeginStore(node);
      if (last.ok() || last == StatusCode::kUnsupported) return last;
      continue;
    }
    if (!found.ok()) {
      last = found.status();
      continue;
    }
    if (found->record.node == node.id()) return Status::Ok();  // the home's memory is gone, and so is the store
    const Result<HomeView> home = (*survey)->ReadHome(found->record, patience.attempt());
    if (home.status() == StatusCode::kUnsupported) return home.status();
    if (!home.ok()) {
      last = Unreachable(*found, home.status());
      continue;
    }
    const auto is_lost = [&node](const MemberView& member) {
      return member.node == node.id() && MayHoldKeys(member.state);
    };
    return std::ranges::any_of(home->members, is_lost) ? LostMemory(node) : Status::Ok();
  } while (patience.Retry(last));
  return last;
}

Status PublishNode(krcore::Node& node, Patience& patience) {
  Status status;
  do {
    status = node.Publish(patience.attempt());
  } while (status == StatusCode::kTimeout && patience.Retry(status));
  return status;
}

// Claims the service for a home that was formatted before or adopted. kExists: another node is the home.
Status ClaimHome(krcore::Node& node, Deadline deadline) {
  const HomeRecord mine{node.id(), node.incarnation()};
  return node.ClaimService(kHomeService, std::as_bytes(std::span(&mine, 1)), deadline);
}

// Begins a store whose pools are mirrored: this node's is the first, and as yet has no other replica. kExists: another
// node was faster.
Status BeginMirroredStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& options, Deadline deadline) {
  Configuration configuration;
  configuration.number = 1;
  configuration.home = 1;
  configuration.replicas = options.replicas;
  configuration.pools.push_back({1, pool.bytes().size(), true, {{node.id(), node.incarnation()}}, {}});
  KRCORE_RETURN_IF_ERROR(
      FormatPool(pool.bytes(), node.id(), options.chunk_bytes, configuration.home, node.incarnation()));
  KRCORE_RETURN_IF_ERROR(FormatHome(pool.bytes(), options));
  auto& area = *reinterpret_cast<HomeArea*>(pool.bytes().data() + kHomeAreaOffset);
  area.members[configuration.home] = MemberWord().Joined(0).word();
  area.counters.member_changes = 1;
  area.configuration = configuration.number;
  // Whoever begins a store claims its service, so that there are not two stores.
  KRCORE_RETURN_IF_ERROR(ClaimHome(node, deadline));
  return node.CompareAndSetRecord(kConfigurationRecord, 0, Encode(configuration), deadline);
}

// Makes the node a replica again with the memory that it had before a stop, if no view without that memory has begun.
// False: one has. The superblock names the incarnation in the configuration whenever this process may be killed.
Result<bool> Return(krcore::Node& node, krcore::Region& pool, Deadline deadline, Patience& patience) {
  const Status layout = CheckPool(pool.bytes(), node.id());
  if (layout == StatusCode::kUnsupported) return layout;
  if (!layout.ok()) return false;  // it died while it formatted its memory
  auto& held = reinterpret_cast<Superblock*>(pool.bytes().data())->incarnations;
  const auto set = [](uint32_t& word, uint32_t incarnation) { std::atomic_ref(word).store(incarnation); };
  Status last;
  do {
    uint64_t version = 0;
    const Result<Configuration> read = ReadConfiguration(node, deadline, &version);
    last = read.status();
    if (!read.ok()) continue;
    Configuration next = *read;
    const Replica self{node.id(), node.incarnation()};
    const auto returns = [&](uint32_t incarnation) { return next.Return({node.id(), incarnation}, self); };
    const auto* const found = std::ranges::find_if(held, returns);
    if (found == std::end(held)) return false;
    set(held[0], *found);
    set(held[1], self.incarnation);
    last = node.CompareAndSetRecord(kConfigurationRecord, version, Encode(next), deadline);
    if (last.ok()) return true;
  } while (patience.Retry(last));
  return last;
}

// Joins a store whose pools are mirrored, or begins one.
Result<JoinResult> JoinMirrored(krcore::Node& node, krcore::Region& pool, bool fresh, bool begins,
                                const HomeOptions& options, Deadline deadline, Patience& patience, bool* seen) {
  // Others look for a replica as soon as it is in the configuration.
  KRCORE_RETURN_IF_ERROR(PublishNode(node, patience));
  if (!fresh) {
    const Result<bool> returned = Return(node, pool, deadline, patience);
    if (!returned.ok()) return returned.status();
    return JoinResult{.mirrored = true, .returned = *returned};
  }
  if (begins) {
    const Status begun = BeginMirroredStore(node, pool, options, deadline);
    if (begun.ok()) {
      *seen = true;
      return JoinResult{.is_home = true, .home = node.id(), .mirrored = true};
    }
    Unformat(pool.bytes());
    if (begun != StatusCode::kExists) return begun;
    const Status another(StatusCode::kInvalidArgument,
                         "another memory node has begun a store whose pools are not mirrored");
    while (!ReadConfiguration(node, deadline).ok()) {
      if (!patience.Retry(another)) return another;
    }
  }
  return JoinResult{.mirrored = true};
}

// *seen: others may have learnt that this pool belongs to the store.
Result<JoinResult> Join(krcore::Node& node, krcore::Region& pool, bool fresh, const HomeOptions& home_options,
                        Deadline deadline, Patience& patience, bool* seen) {
  Superblock& super = *reinterpret_cast<Superblock*>(pool.bytes().data());
  const Result<Configuration> configuration = ReadConfiguration(node, deadline);
  if (configuration.ok()) return JoinMirrored(node, pool, fresh, false, home_options, deadline, patience, seen);
  if (configuration.status() == StatusCode::kCorrupt) return configuration.status();
  if (!fresh && super.pool != krcore::kNoNode) {
    return Status(
        StatusCode::kUnavailable,
        "the memory is that of a store whose pools are mirrored, and the fabric's record of who holds what is gone");
  }
  if (home_options.replicas > 0) {
    if (configuration.status() != StatusCode::kNotFound) return configuration.status();
    const Result<FoundHome> home = LookupHome(node, patience.attempt());
    if (!fresh || (home.ok() && home->record.node != node.id())) {
      return Status(StatusCode::kInvalidArgument, "the store's pools are not mirrored, and it cannot be changed");
    }
    return JoinMirrored(node, pool, fresh, true, home_options, deadline, patience, seen);
  }
  if (!fresh) {
    KRCORE_RETURN_IF_ERROR(CheckPool(pool.bytes(), node.id()));
  } else {
    KRCORE_RETURN_IF_ERROR(AwaitLeave(node, patience));
    KRCORE_RETURN_IF_ERROR(FormatPool(pool.bytes(), node.id(), home_options.chunk_bytes));
  }
  KRCORE_RETURN_IF_ERROR(PublishNode(node, patience));

  const HomeRecord mine{node.id(), node.incarnation()};
  if (super.is_home != 0) {  // a restarted home
    KRCORE_RETURN_IF_ERROR(ClaimHome(node, deadline));
    KRCORE_RETURN_IF_ERROR(EnterMember(node, mine, super.chunk_bytes, fresh, deadline, seen));
    return JoinResult{true, node.id()};
  }
  Status last;
  do {
    if (ReadConfiguration(node, deadline).ok()) {
      Unformat(pool.bytes());
      return JoinMirrored(node, pool, true, false, home_options, deadline, patience, seen);
    }
    const Result<FoundHome> home = LookupHome(node, patience.attempt());
    const bool none = home.status() == StatusCode::kNotFound || (home.ok() && home->record.node == node.id());
    if (home.ok() && !none) {
      last = EnterMember(node, home->record, super.chunk_bytes, fresh, patience.attempt(), seen);
      if (last.ok()) return JoinResult{false, home->record.node};
      if (last == StatusCode::kInvalidArgument || last == StatusCode::kBadState || last == StatusCode::kUnsupported) {
        return last;
      }
      last = Unreachable(*home, last);
    } else if (!none) {
      last = home.status();
    } else if (!fresh) {
      // Memory that belongs to a store must not be made a home.
      last = Status(StatusCode::kUnavailable,
                    "the memory is that of a store whose home has not appeared (start that memory node first, or too)");
    } else {
      // Nobody has claimed the service, or this node's predecessor had, whose memory is gone. The pool is made ready
      // first, so that a client that sees the claim sees a home.
      KRCORE_RETURN_IF_ERROR(FormatHome(pool.bytes(), home_options));
      last = ClaimHome(node, deadline);
      if (last.ok()) {
        *seen = true;
        KRCORE_RETURN_IF_ERROR(EnterMember(node, mine, super.chunk_bytes, fresh, deadline, seen));
        return JoinResult{true, node.id()};
      }
      // Another node was faster. Nobody has read this pool as a home; make it a plain member again.
      Unformat(pool.bytes());
      KRCORE_RETURN_IF_ERROR(FormatPool(pool.bytes(), node.id(), home_options.chunk_bytes));
    }
  } while (patience.Retry(last));
  return last;
}

}  // namespace

Result<JoinResult> JoinStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& home_options,
                             Deadline deadline, const TellWaiting& tell_waiting) {
  Patience patience(node.clock(), deadline, tell_waiting);
  const bool fresh = !pool.adopted() || !IsFormatted(pool.bytes());
  bool seen = false;
  auto joined = Join(node, pool, fresh, home_options, deadline, patience, &seen);
  // A later start must not take the pool for what a store has there.
  if (!joined.ok() && fresh && !seen) Unformat(pool.bytes());
  return joined;
}

}  // namespace kvs
