#include "krcore/messages/place_claim.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace krcore::messages {

using queue::OwnWr;
using queue::QueueStanding;

namespace {

constexpr uint32_t kMaxSpins = 1u << 16;  // bound of a wait whose clock stands still

}  // namespace

std::string RemotePort::Name() const {
  return "port " + std::to_string(port) + " of node " + std::to_string(peer->target.address.node);
}

// ---- verbs

bool PortVerbs::Post(Op op, const Verb& verb) {
  queue::PhysicalQueue& physical = *pool_.QueueFor(to_.peer->target);
  if (physical.free() == 0) return false;
  physical.Prepare();
  std::byte* const memory = physical.own_memory();
  Sge sge{reinterpret_cast<uint64_t>(memory), 8, physical.own_lkey()};
  if (verb.into.length != 0) sge = verb.into;
  if (!verb.data.empty()) {
    std::memcpy(memory, verb.data.data(), verb.data.size());
    sge.length = static_cast<uint32_t>(verb.data.size());
  }
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = verb.opcode;
  wr.flags = 0;
  wr.remote_addr = to_.info.addr + verb.at;
  wr.rkey = to_.info.rkey;
  wr.compare_add = verb.expected;
  wr.swap = verb.desired;
  physical.FillOwn(wr, &owner_, *to_.peer, OwnWr::kInternal, verb.opcode, false, 0);
  physical.Commit(1, *to_.peer);
  op_ = op;
  return true;
}

PortVerbs::Op PortVerbs::Done(const queue::OwnWrDone& done) {
  status_ = done.completion.status;
  std::memcpy(&result_, done.memory, sizeof(result_));
  return std::exchange(op_, Op::kNone);
}

bool PortVerbs::WaitFor(const std::function<bool()>& done, Deadline deadline) {
  Clock& clock = pool_.node().clock();
  int64_t last_ns = clock.NowNs();
  for (uint32_t spins = 0, still = 0; !done(); ++spins) {
    const int64_t now_ns = clock.NowNs();
    still = now_ns == last_ns ? still + 1 : 0;
    last_ns = now_ns;
    if (still >= kMaxSpins || now_ns >= deadline.at_ns) return false;
    pool_.PollWaiting(spins);
  }
  return true;
}

void PortVerbs::WaitForEnd() {
  (void)WaitFor([this] { return !under_way(); }, Deadline::After(pool_.node().clock(), kCloseNs));
}

Status PortVerbs::Run(const Verb& verb, uint64_t* result, Deadline deadline) {
  const NodeId node = to_.peer->target.address.node;
  const Status timeout(StatusCode::kTimeout, "node " + std::to_string(node) + " did not answer within the deadline");
  for (uint32_t tries = 0;; ++tries) {
    if (deadline.Passed(pool_.node().clock())) return timeout;
    if (tries != 0) pool_.node().clock().Relax(64 * tries);  // a NIC that fails at once must not make this spin
    owner_.standing = QueueStanding::kReady;                 // otherwise the pool takes the WR back at the next fault
    const bool posted = WaitFor([&] { return Post(Op::kControl, verb); }, deadline);
    if (!posted) return timeout;
    WaitForEnd();
    owner_.standing = QueueStanding::kUnconnected;
    if (under_way()) return timeout;
    switch (status_) {
      case WcStatus::kSuccess:
        if (result != nullptr) *result = result_;
        return {};
      case WcStatus::kFlushed: continue;
      case WcStatus::kRetryExceeded:
        if (!ReceiverIsDead()) continue;
        return {StatusCode::kUnavailable, "node " + std::to_string(node) + " is dead"};
      default: return {StatusCode::kUnavailable, to_.Name() + " has been closed"};
    }
  }
}

bool PortVerbs::ReceiverIsDead() const {
  const Deadline deadline = Deadline::After(pool_.node().clock(), rnic::kPollingAskNs);
  return pool_.context().device->QueryPeer(to_.peer->target.address, deadline) == rnic::PeerState::kDead;
}

// ---- claiming a place

Status PlaceClaim::Claim(Deadline deadline) {
  queue::QueuePoolImpl& pool = verbs_.pool();
  const uint32_t senders = verbs_.to().info.senders;
  const std::span<const uint64_t> owners(reinterpret_cast<const uint64_t*>(pool.scratch()), senders);
  const Sge into{reinterpret_cast<uint64_t>(pool.scratch()), 8u * senders, pool.scratch_lkey()};
  static_assert(8 * kMaxSenders <= queue::QueuePoolImpl::kScratchBytes);
  // Each round sees other senders win every place that was free, so it is not repeated for long.
  for (int round = 0; round < 4 && !claimed_; ++round) {
    KRCORE_RETURN_IF_ERROR(verbs_.Run({.opcode = Opcode::kRead, .at = 0, .into = into}, nullptr, deadline));
    const std::vector<uint64_t> seen(owners.begin(), owners.end());
    const uint32_t first =
        peers::PlaceOwnerNumber(owner_word_) + peers::PlaceOwnerNode(owner_word_);  // senders begin at different places
    bool any_free = false;
    for (uint32_t i = 0; i < senders && !claimed_; ++i) {
      const uint32_t place = (first + i) % senders;
      if (seen[place] != 0) continue;
      any_free = true;
      KRCORE_RETURN_IF_ERROR(TryClaim(place, 0, deadline));
    }
    if (!any_free) KRCORE_RETURN_IF_ERROR(TakeOverFromDead(seen, deadline));
    if (!any_free && !claimed_) break;
  }
  if (!claimed_) return {StatusCode::kQueueFull, verbs_.to().Name() + " has no place for another sender"};
  return {};
}

Status PlaceClaim::TryClaim(uint32_t place, uint64_t expected, Deadline deadline) {
  place_ = place;
  in_doubt_ = true;
  uint64_t old = 0;
  KRCORE_RETURN_IF_ERROR(verbs_.Run({.opcode = Opcode::kCompareSwap,
                                     .at = verbs_.to().layout.owner(place),
                                     .expected = expected,
                                     .desired = owner_word_},
                                    &old, deadline));
  // The word is our own if an earlier try was executed after all.
  claimed_ = old == expected || old == owner_word_;
  in_doubt_ = false;
  return {};
}

// Takes a place whose owner died before it wrote its card. Nothing was or will be sent there, and the receiver cannot
// know whose death to ask about, so a sender that needs it takes it. The card read after the death counts: either it
// was there then or never will be, or the receiver has cleared it, and the owner word with it (wire.h).
Status PlaceClaim::TakeOverFromDead(std::span<const uint64_t> owners, Deadline deadline) {
  for (uint32_t place = 0; place < owners.size() && !claimed_; ++place) {
    const uint64_t owner = owners[place];
    if (owner == kBeingFreed) continue;
    const auto introduced = [&](const Card& card) { return card.owner == owner && card.checksum == ChecksumOf(card); };
    Card card;
    KRCORE_RETURN_IF_ERROR(ReadCard(place, &card, deadline));
    if (introduced(card) ||
        !verbs_.pool().node().IsConfirmedDead(peers::PlaceOwnerNode(owner), peers::PlaceOwnerIncarnation(owner)))
      continue;
    KRCORE_RETURN_IF_ERROR(ReadCard(place, &card, deadline));
    if (!introduced(card)) KRCORE_RETURN_IF_ERROR(TryClaim(place, owner, deadline));
  }
  return {};
}

Status PlaceClaim::ReadCard(uint32_t place, Card* card, Deadline deadline) {
  queue::QueuePoolImpl& pool = verbs_.pool();
  const Sge into{reinterpret_cast<uint64_t>(pool.scratch()), sizeof(Card), pool.scratch_lkey()};
  const size_t at = verbs_.to().layout.control(place) + offsetof(Control, card);
  KRCORE_RETURN_IF_ERROR(verbs_.Run({.opcode = Opcode::kRead, .at = at, .into = into}, nullptr, deadline));
  std::memcpy(static_cast<void*>(card), pool.scratch(), sizeof(*card));
  return {};
}

Status PlaceClaim::Introduce(Port reply_port, const PortInfo* reply, Deadline deadline) {
  const size_t control = verbs_.to().layout.control(place_);
  KRCORE_RETURN_IF_ERROR(
      verbs_.Run({.opcode = Opcode::kRead, .at = control + offsetof(Control, released)}, &first_number_, deadline));
  Card card;
  const peers::Target& self = verbs_.pool().context().self;
  card.owner = owner_word_;
  card.address = self.address;
  card.dc_key = self.dc_key;
  card.dct_num = self.dct_num;
  if (reply != nullptr) {
    card.port = reply_port;
    card.reply = *reply;
  }
  card.checksum = ChecksumOf(card);
  const Status written = verbs_.Run(
      {.opcode = Opcode::kWrite, .at = control + offsetof(Control, card), .data = std::as_bytes(std::span(&card, 1))},
      nullptr, deadline);
  introduced_ = written.ok();
  return written;
}

void PlaceClaim::EndUnintroduced(Deadline deadline) {
  // An unanswered claim can have no card, so the place belongs to the senders.
  if (in_doubt_)
    (void)verbs_.Run(
        {.opcode = Opcode::kCompareSwap, .at = verbs_.to().layout.owner(place_), .expected = owner_word_, .desired = 0},
        nullptr, deadline);
  // One that was answered may or may not have its card, which would make the place the receiver's. So it gets a card.
  if (claimed_) (void)Introduce(kNoPort, nullptr, deadline);
}

}  // namespace krcore::messages
