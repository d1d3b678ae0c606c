// How a PhysicalQueue writes work requests to its ring: entries, places for completions, and what is posted.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "krcore/base/word_pair.h"
#include "krcore/pool/inline_payload.h"
#include "krcore/pool/physical_queue.h"
#include "krcore/vqp/request_check.h"

namespace krcore::pool {

// Not inlined, like FillSlots, so that what all WRs have in common stays in registers.
[[gnu::noinline]] size_t PhysicalQueue::FillEntries(std::span<const WorkRequest> wrs, uint64_t position,
                                                    QueueState* owner, uint32_t kept) {
  static_assert(uint8_t{kUserSignaled} == uint8_t{kSignaled});
  const WorkRequest& like = wrs[0];
  const uint8_t flags = like.flags;
  const Opcode opcode = like.opcode;
  const uint16_t form = vqp::FormOf(like);
  const bool signaled = (flags & kSignaled) != 0;
  Entry* const entries = &entries_[position & mask_];
  // Written in whole words and pairs of them, of which all but the first are the same for all.
  static_assert(offsetof(Entry, user_wr_id) == 0 && offsetof(Entry, owner) == sizeof(uint64_t));
  const auto told_owner = reinterpret_cast<uint64_t>(owner);
  constexpr size_t kMark = offsetof(Entry, opcode);
  static_assert(kMark + sizeof(uint64_t) == sizeof(Entry) && uint8_t{static_cast<uint8_t>(WcStatus::kSuccess)} == 0);
  const uint64_t mark = PartOfWord<offsetof(Entry, opcode), kMark>(opcode) |
                        PartOfWord<offsetof(Entry, kind), kMark>(static_cast<uint8_t>(flags & kSignaled)) |
                        PartOfWord<offsetof(Entry, run_or_tag), kMark>(uint32_t{1});
  static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_id) == 0 && kNoNode == 0);
  const uint64_t told_opcode = PartOfWord<offsetof(Completion, opcode), 8>(opcode);
  const WordPair told_qp_num = {PartOfWord<offsetof(Completion, qp_num), 16>(qp_num()), 0};
  Completion* place = nullptr;
  if (signaled) {
    const std::span<Completion> places = owner->Places(kept);
    wrs = wrs.first(std::min(wrs.size(), places.size()));
    place = places.data();
  }
  Entry* entry = entries;
  const WorkRequest* const end = wrs.data() + wrs.size();
  const WorkRequest* wr = wrs.data();
  do {
    if (vqp::FormOf(*wr) != form || wr->flags != flags) break;
    WordPair told = {wr->wr_id, told_owner};
    SetPairAt<0>(*entry, told);
    SetWordAt<kMark>(*entry++, mark);
    if (signaled) {
      told[1] = told_opcode;
      SetPairAt<0>(*place, told);
      SetPairAt<16>(*place++, told_qp_num);
    }
  } while (++wr != end);
  const auto count = static_cast<size_t>(wr - wrs.data());
  entries[0].run_or_tag = static_cast<uint32_t>(count);
  return count;
}

namespace {

// What is posted of WRs, one behind the other: five pairs. Its number and its SGEs; two of the WorkRequest's; one that
// ends that and begins what SendWr has beyond it; and the rest, which is the peer's.
class SlotWriter {
 public:
  SlotWriter(rnic::SendWr* slot, Sge* sges, uint64_t number, const dct::Peer& peer)
      : out_(slot),
        sges_(sges),
        own_{number, reinterpret_cast<uint64_t>(sges)},
        target_{peer.target.dct_num, peer.target.dc_key},
        ah_(reinterpret_cast<uint64_t>(peer.ah.get())) {}
  // Not signaled, and with the first of its SGEs. Returns what it is: the pair that begins with num_sge.
  WordPair Write(const WorkRequest& wr) {
    static_assert(std::is_standard_layout_v<WorkRequest> && std::is_trivially_copyable_v<rnic::SendWr>);
    static_assert(offsetof(WorkRequest, wr_id) == 0 && offsetof(WorkRequest, sg_list) == 8 && sizeof(Sge) == 16);
    static_assert(offsetof(WorkRequest, num_sge) == 16 && offsetof(WorkRequest, swap) == 48);
    static_assert(sizeof(WorkRequest) == 56 && sizeof(rnic::SendWr) == 80);  // ah, QP number and no qkey, DC key
    const WordPair unsignaled = {~PartOfWord<offsetof(WorkRequest, flags), 16>(uint8_t{kSignaled}), ~uint64_t{0}};
    constexpr WordPair kNext = {1, kMaxSge * sizeof(Sge)};
    const WordPair form = PairAt<16>(wr) & unsignaled;
    SetPairAt<0>(*sges_, PairAt<0>(*wr.sg_list));
    SetPairAt<0>(*out_, own_);
    SetPairAt<16>(*out_, form);
    SetPairAt<32>(*out_, PairAt<32>(wr));
    SetPairAt<48>(*out_, WordPair{wr.swap, ah_});
    SetPairAt<64>(*out_, target_);
    own_ += kNext;
    ++out_;
    sges_ += kMaxSge;
    return form;
  }

 private:
  rnic::SendWr* out_;
  Sge* sges_;
  WordPair own_;
  const WordPair target_;
  const uint64_t ah_;
};

}  // namespace

inline void PhysicalQueue::SignalSome(uint64_t position, size_t count) {
  for (uint64_t p = position | (kSignalEvery - 1); p < position + count; p += kSignalEvery)
    wrs_[p & mask_].flags |= kSignaled;
}

[[gnu::noinline]] void PhysicalQueue::FillSlots(std::span<const WorkRequest> wrs, uint64_t position,
                                                const dct::Peer& peer) {
  const uint64_t slot = position & mask_;
  SlotWriter writer(&wrs_[slot], &sges_[slot * kMaxSge], PhysicalId(position), peer);
  WordPair forms = {0, 0};
  for (const WorkRequest& wr : wrs) forms |= writer.Write(wr);
  static_assert(kMaxSge < 256 && sizeof(WorkRequest::num_sge) == 1);
  const uint64_t unusual = PartOfWord<offsetof(WorkRequest, num_sge), 16>(uint8_t{0xfe}) |
                           PartOfWord<offsetof(WorkRequest, flags), 16>(uint8_t{kInline});
  if ((forms[0] & unusual) != 0) [[unlikely]] {
    for (size_t i = 0; i < wrs.size(); ++i) FillSges(wrs[i], position + i);
  }
  SignalSome(position, wrs.size());
}

// One pass that checks and writes: what is read for the one is there for the other.
template <bool kAtomic>
[[gnu::noinline]] bool PhysicalQueue::FillAlikeSlots(std::span<const WorkRequest> wrs, const dct::Peer& peer,
                                                     const vqp::LikeRequest& like) {
  const uint64_t slot = tail_ & mask_;
  const vqp::AlikeRequests<kAtomic> alike(like, wrs[0]);
  SlotWriter writer(&wrs_[slot], &sges_[slot * kMaxSge], PhysicalId(tail_), peer);
  for (const WorkRequest& wr : wrs) {
    if (!alike.Allows(wr)) return false;
    (void)writer.Write(wr);
  }
  SignalSome(tail_, wrs.size());
  return true;
}

bool PhysicalQueue::FillAllowed(std::span<const WorkRequest> wrs, QueueState* owner, const dct::Peer& peer,
                                const vqp::LikeRequest& like, uint32_t* expected) {
  if (wrs.size() == 1) {
    if (!like.Allows(wrs[0])) return false;
    FillOne(wrs[0], owner, peer);
    *expected = wrs[0].flags & kSignaled;
    return true;
  }
  if (wrs.empty() || (tail_ & mask_) + wrs.size() > mask_ + 1) return false;
  const Opcode opcode = wrs[0].opcode;
  if (vqp::IsReadOrWrite(opcode) ? !FillAlikeSlots<false>(wrs, peer, like)
                                 : !vqp::IsAtomic(opcode) || !FillAlikeSlots<true>(wrs, peer, like))
    return false;
  *expected = FillAllEntries(wrs, tail_, owner, 0);
  return true;
}

void PhysicalQueue::FillSges(const WorkRequest& wr, uint64_t position) {
  const uint64_t slot = position & mask_;
  Sge* const sges = &sges_[slot * kMaxSge];
  if ((wr.flags & kInline) != 0)
    CopyInline(wr, &wrs_[slot], sges);
  else
    std::copy_n(wr.sg_list, wr.num_sge, sges);
}

inline void PhysicalQueue::FillEntry(const WorkRequest& wr, uint64_t position, QueueState* owner, uint32_t kept) {
  const auto kind = static_cast<uint8_t>(wr.flags & kSignaled);
  entries_[position & mask_] = {wr.wr_id, owner, wr.opcode, kind, WcStatus::kSuccess, 1};
  if (kind == 0) return;
  Completion& place = owner->Places(kept)[0];
  place = {};
  place.wr_id = wr.wr_id;
  place.opcode = wr.opcode;
  place.qp_num = qp_num();
}

// What FillEntries and FillSlots do, of one usual WR: setting them up would take longer.
void PhysicalQueue::FillOne(const WorkRequest& wr, QueueState* owner, const dct::Peer& peer) {
  FillEntry(wr, tail_, owner, 0);
  const uint64_t slot = tail_ & mask_;
  rnic::SendWr& out = wrs_[slot];
  Sge* const sges = &sges_[slot * kMaxSge];
  static_cast<WorkRequest&>(out) = wr;
  out.wr_id = PhysicalId(tail_);
  out.sg_list = sges;
  const bool signal = tail_ % kSignalEvery == kSignalEvery - 1;
  out.flags = static_cast<uint8_t>((wr.flags & ~kSignaled) | (signal ? kSignaled : 0));
  out.ah = peer.ah.get();
  out.remote_qpn = peer.target.dct_num;
  out.qkey = 0;
  out.dc_key = peer.target.dc_key;
  sges[0] = wr.sg_list[0];
}

uint32_t PhysicalQueue::Fill(std::span<const WorkRequest> wrs, QueueState* owner, const dct::Peer& peer) {
  if (wrs.size() == 1 && wrs[0].num_sge == 1 && (wrs[0].flags & kInline) == 0) {
    FillOne(wrs[0], owner, peer);
    return wrs[0].flags & kSignaled;
  }
  uint32_t kept = 0;
  for (uint64_t position = tail_; !wrs.empty();) {
    const size_t most = std::min<size_t>(wrs.size(), mask_ + 1 - (position & mask_));  // up to the ring's end
    FillSlots(wrs.first(most), position, peer);
    kept += FillAllEntries(wrs.first(most), position, owner, kept);
    position += most;
    wrs = wrs.subspan(most);
  }
  return kept;
}

uint32_t PhysicalQueue::FillAllEntries(std::span<const WorkRequest> wrs, uint64_t position, QueueState* owner,
                                       uint32_t kept) {
  uint32_t expected = 0;
  while (!wrs.empty()) {
    size_t count = 1;
    if (wrs.size() == 1)  // often unlike the others: the last of a batch, signaled alone
      FillEntry(wrs[0], position, owner, kept + expected);
    else
      count = FillEntries(wrs, position, owner, kept + expected);
    if ((wrs[0].flags & kSignaled) != 0) expected += static_cast<uint32_t>(count);
    position += count;
    wrs = wrs.subspan(count);
  }
  return expected;
}

void PhysicalQueue::FillOwn(const WorkRequest& wr, QueueState* owner, const dct::Peer& peer, OwnWr kind,
                            Opcode user_opcode, bool zero_copy, uint32_t tag) {
  FillSlots({&wr, 1}, tail_, peer);
  entry(tail_) = {wr.wr_id, owner, wr.opcode, static_cast<uint8_t>(wr.flags & kSignaled), WcStatus::kSuccess};
  MarkOwn(kind, user_opcode, zero_copy, tag);
}

void PhysicalQueue::CopyInline(const WorkRequest& wr, rnic::SendWr* out, Sge* sge) {
  std::byte* const payload = &inline_arena_[inline_used_];
  *sge = {reinterpret_cast<uint64_t>(payload), CopyInlinePayload(wr, payload), 0};
  inline_used_ += sge->length;
  out->num_sge = 1;
}

void PhysicalQueue::MarkOwn(OwnWr kind, Opcode user_opcode, bool zero_copy, uint32_t tag) {
  Entry& own = entry(tail_);
  own.opcode = user_opcode;
  own.kind |= static_cast<uint8_t>(kOwn | (zero_copy ? kOwnZeroCopy : 0) | static_cast<uint32_t>(kind) << kOwnShift);
  own.run_or_tag = tag;
}

}  // namespace krcore::pool
