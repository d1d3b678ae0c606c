#include "krcore/rnic/verbs/roster.h"

#include <algorithm>

#include "krcore/rnic/verbs/wire.h"

namespace krcore::rnic::verbs {
namespace {

// Ids that are handed out before the first comes again. All fit in 16 bits, as in the owner words of kvs.
constexpr NodeId kDynamicNodes = (1 << 16) - kFirstDynamicNode;

}  // namespace

Status CheckRecordName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  if (!name.empty() && name.size() < kNameBytes && std::all_of(name.begin(), name.end(), allowed)) return {};
  return {StatusCode::kInvalidArgument, "record name '" + name + "' is not 1 to 15 of [a-z0-9_-]"};
}

Roster::Roster(uint32_t first_incarnation, uint64_t seed, int64_t resume_ns)
    : first_incarnation_(std::max(first_incarnation, 1U)),
      resume_ns_(resume_ns),
      next_incarnation_(first_incarnation_),
      seed_(seed) {}

// splitmix64: tokens tell members apart, and a stranger from a member; they are no defence against who reads the wire.
uint64_t Roster::NextToken() {
  uint64_t mixed = seed_ += 0x9e37'79b9'7f4a'7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d0'49bb'1331'11eb;
  return mixed ^ mixed >> 31;
}

bool Roster::Taken(NodeId node) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) { return entry.second.node == node; });
}

Result<Identity> Roster::Join(NodeId wanted, int64_t now_ns) {
  Expire(now_ns);
  NodeId node = wanted;
  if (wanted != kNoNode) {
    const auto holder = std::ranges::find_if(members_, [&](const auto& entry) { return entry.second.node == wanted; });
    if (holder != members_.end()) {
      if (!holder->second.away) return Status(StatusCode::kExists, "node id " + std::to_string(wanted) + " is held");
      Expel(holder->first);
    }
  }
  if (members_.size() >= kMaxMembers && !MakeRoom())
    return Status(StatusCode::kOutOfMemory, "the fabric has " + std::to_string(kMaxMembers) + " devices, its limit");
  if (wanted == kNoNode) {
    // Not the lowest free one, so that ids of the recently dead stay unused for a while; and none of who is away.
    do {
      node = next_node_++;
      if (next_node_ == kFirstDynamicNode + kDynamicNodes) next_node_ = kFirstDynamicNode;
    } while (Taken(node));
  }
  const uint32_t incarnation = next_incarnation_++;
  const uint64_t token = NextToken();
  members_[incarnation] = {.node = node, .token = token, .lost_ns = now_ns};
  return Identity{node, incarnation, token};
}

Status Roster::Attach(uint32_t incarnation, uint64_t token, uint32_t channel, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found == members_.end() || found->second.token != token)
    return {StatusCode::kNotFound, "the fabric has no such member any more"};
  if (channel >= kChannels) return {StatusCode::kInvalidArgument, "a member has two channels"};
  found->second.channels[channel] = Channel::kOpen;
  if (found->second.away) {
    found->second.away = false;
    found->second.lost_ns = now_ns;
  }
  return {};
}

void Roster::Lose(uint32_t incarnation, uint32_t channel, Loss loss, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found == members_.end()) return;
  found->second.channels[channel] = loss == Loss::kClosed ? Channel::kClosed : Channel::kBroken;
  found->second.lost_ns = now_ns;
}

void Roster::Leave(uint32_t incarnation) { Remove(incarnation); }

bool Roster::Alive(const Member& member) {
  return std::all_of(member.channels.begin(), member.channels.end(), [](Channel c) { return c == Channel::kOpen; });
}

// One who never opened the other channel was told of no identity that it could have used: nothing of it is on its way.
bool Roster::Dead(const Member& member, int64_t now_ns) {
  const auto gone = [](Channel c) { return c == Channel::kClosed || c == Channel::kNever; };
  const bool any_closed =
      std::any_of(member.channels.begin(), member.channels.end(), [](Channel c) { return c == Channel::kClosed; });
  return any_closed && std::all_of(member.channels.begin(), member.channels.end(), gone) &&
         now_ns - member.lost_ns >= kSettledNs;
}

PeerState Roster::StateOf(uint32_t incarnation, int64_t now_ns) {
  const auto found = members_.find(incarnation);
  if (found != members_.end()) {
    if (Alive(found->second)) return PeerState::kAlive;
    return Dead(found->second, now_ns) ? PeerState::kDead : PeerState::kUnreachable;
  }
  if (expelled_.count(incarnation) != 0) return PeerState::kUnreachable;
  // Of another service's time, perhaps before this one's host was restarted: its member may well live.
  const bool mine = incarnation - first_incarnation_ < next_incarnation_ - first_incarnation_;
  return mine ? PeerState::kDead : PeerState::kUnreachable;
}

Status Roster::Publish(uint32_t incarnation, const std::string& name, std::span<const std::byte> value,
                       int64_t now_ns) {
  KRCORE_RETURN_IF_ERROR(CheckRecordName(name));
  if (value.size() > kValueBytes)
    return {StatusCode::kInvalidArgument, "a record has at most " + std::to_string(kValueBytes) + " bytes"};
  Expire(now_ns);
  const auto member = members_.find(incarnation);
  if (member == members_.end()) return {StatusCode::kNotFound, "the fabric has no such member any more"};
  if (member->second.away) return {StatusCode::kUnavailable, "the member is not back yet"};
  const auto found = records_.find(name);
  if (found != records_.end() && found->second.owner != incarnation)
    return {StatusCode::kExists, "record '" + name + "' is another device's"};
  if (found == records_.end() && records_.size() >= kMaxRecords)
    return {StatusCode::kOutOfMemory, "the fabric has " + std::to_string(kMaxRecords) + " records, its limit"};
  records_[name] = {incarnation, {value.begin(), value.end()}};
  return {};
}

Result<std::vector<std::byte>> Roster::Lookup(const std::string& name, int64_t now_ns) {
  Expire(now_ns);
  const auto found = records_.find(name);
  if (found == records_.end()) return Status(StatusCode::kNotFound, "no record '" + name + "'");
  return found->second.value;
}

void Roster::Expire(int64_t now_ns) {
  std::vector<uint32_t> dead;
  for (auto& [incarnation, member] : members_) {
    if (Dead(member, now_ns)) {
      dead.push_back(incarnation);
    } else if (!member.away && !Alive(member) && now_ns - member.lost_ns >= resume_ns_) {
      member.away = true;
      ForgetRecords(incarnation);
    }
  }
  for (const uint32_t incarnation : dead) Remove(incarnation);
}

// By giving up the one that has been away longest. False: none is away.
bool Roster::MakeRoom() {
  auto longest = members_.end();
  for (auto member = members_.begin(); member != members_.end(); ++member) {
    if (!member->second.away) continue;
    if (longest == members_.end() || member->second.lost_ns < longest->second.lost_ns) longest = member;
  }
  if (longest == members_.end()) return false;
  Expel(longest->first);
  return true;
}

void Roster::Expel(uint32_t incarnation) {
  expelled_.insert(incarnation);
  Remove(incarnation);
}

void Roster::Remove(uint32_t incarnation) {
  members_.erase(incarnation);
  ForgetRecords(incarnation);
}

void Roster::ForgetRecords(uint32_t incarnation) {
  std::erase_if(records_, [&](const auto& entry) { return entry.second.owner == incarnation; });
}

}  // namespace krcore::rnic::verbs
