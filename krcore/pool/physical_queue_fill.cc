// How a PhysicalQueue writes work requests to its ring: entries, places for completions, and what is posted.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <type_traits>

#include "krcore/base/word_pair.h"
#include "krcore/pool/inline_payload.h"
#include "krcore/pool/physical_queue.h"
#include "krcore/vqp/request_check.h"

namespace krcore::pool {

namespace {

// What WRs of one SGE that agree in opcode and flags, but for kSignaled, have in common, in whole words.
struct Form {
  Form(Opcode opcode, uint8_t flags)
      : posted(PartOfWord<offsetof(WorkRequest, num_sge), 16>(uint8_t{1}) |
               PartOfWord<offsetof(WorkRequest, opcode), 16>(opcode) |
               PartOfWord<offsetof(WorkRequest, flags), 16>(static_cast<uint8_t>(flags & ~kSignaled))),
        told(PartOfWord<offsetof(Completion, opcode), 8>(opcode)),
        opcode(static_cast<uint64_t>(opcode)),
        atomic(vqp::IsAtomic(opcode)) {}
  uint64_t posted;  // of WorkRequest, from num_sge on; unsignaled
  uint64_t told;    // of Completion, behind wr_id
  uint64_t opcode;
  bool atomic;
};

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
    const WordPair form = PairAt<16>(wr) & unsignaled;
    SetPairAt<0>(*sges_, PairAt<0>(*wr.sg_list));
    SetPairAt<0>(*out_, own_);
    SetPairAt<16>(*out_, form);
    SetPairAt<32>(*out_, PairAt<32>(wr));
    SetPairAt<48>(*out_, WordPair{wr.swap, ah_});
    SetPairAt<64>(*out_, target_);
    Advance();
    return form;
  }
  // The same of one that `like` allows, and only what means something. kKnown: what all have in common is there.
  template <bool kKnown>
  void WriteAllowed(const WorkRequest& wr, const Form& form, const vqp::LikeRequest::Place& place,
                    const vqp::LikeRequest& like) {
    SetWordAt<0>(*sges_, place.addr);
    if constexpr (kKnown)
      sges_->length = place.length;
    else
      SetWordAt<8>(*sges_, place.length | uint64_t{like.lkey()} << 32);
    if constexpr (!kKnown) SetPairAt<0>(*out_, own_);
    SetPairAt<16>(*out_, WordPair{form.posted, place.remote_addr});
    if constexpr (!kKnown) out_->rkey = like.rkey();
    if (form.atomic) {
      out_->compare_add = wr.compare_add;
      out_->swap = wr.swap;
    }
    if constexpr (!kKnown) {
      SetWordAt<56>(*out_, ah_);
      SetPairAt<64>(*out_, target_);
    }
    Advance<!kKnown>();
  }

 private:
  template <bool kOwnToo = true>
  void Advance() {
    constexpr WordPair kNext = {1, kMaxSge * sizeof(Sge)};
    if constexpr (kOwnToo) own_ += kNext;
    ++out_;
    sges_ += kMaxSge;
  }

  rnic::SendWr* out_;
  Sge* sges_;
  WordPair own_;
  const WordPair target_;
  const uint64_t ah_;
};

}  // namespace

// What the ring remembers of WRs, one behind the other, and what their owner will be told of those that are signaled,
// written in whole words and pairs of them.
class PhysicalQueue::EntryWriter {
 public:
  EntryWriter(Entry* entry, QueueState* owner, uint32_t kept, uint32_t qp_num)
      : entry_(entry),
        owner_(owner),
        kept_(kept),
        told_qp_num_{PartOfWord<offsetof(Completion, qp_num), 16>(qp_num), 0} {}
  void Write(uint64_t wr_id, const Form& form, bool signaled) {
    static_assert(offsetof(Entry, user_wr_id) == 0 && offsetof(Entry, owner) == sizeof(uint64_t));
    static_assert(kMark + sizeof(uint64_t) == sizeof(Entry));
    static_assert(offsetof(Entry, opcode) == kMark && offsetof(Entry, kind) == kMark + 1 &&
                  uint8_t{kUserSignaled} == 1 && uint8_t{static_cast<uint8_t>(WcStatus::kSuccess)} == 0);
    SetPairAt<0>(*entry_, WordPair{wr_id, reinterpret_cast<uint64_t>(owner_)});
    SetWordAt<kMark>(*entry_++, form.opcode | uint64_t{signaled} << 8);  // the rest is 0
    if (!signaled) return;
    static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_id) == 0 && kNoNode == 0);
    Completion& place = owner_->Place(kept_++);
    SetPairAt<0>(place, WordPair{wr_id, form.told});
    SetPairAt<16>(place, told_qp_num_);
  }
  // Places that are not free any more.
  uint32_t kept() const { return kept_; }

 private:
  static constexpr size_t kMark = offsetof(Entry, opcode);
  Entry* entry_;
  QueueState* const owner_;
  uint32_t kept_;
  const WordPair told_qp_num_;
};

// Not inlined, like FillSlots, so that what all WRs have in common stays in registers.
[[gnu::noinline]] uint32_t PhysicalQueue::FillEntries(std::span<const WorkRequest> wrs, uint64_t position,
                                                      QueueState* owner, uint32_t kept) {
  EntryWriter writer(&entries_[position & mask_], owner, kept, qp_num());
  for (const WorkRequest& wr : wrs) writer.Write(wr.wr_id, Form(wr.opcode, wr.flags), (wr.flags & kSignaled) != 0);
  return writer.kept() - kept;
}

inline void PhysicalQueue::SignalSome(uint64_t position, size_t count) {
  for (uint64_t p = position | (kSignalEvery - 1); p < position + count; p += kSignalEvery)
    wrs_[p & mask_].flags |= kSignaled;
}

[[gnu::noinline]] void PhysicalQueue::FillSlots(std::span<const WorkRequest> wrs, uint64_t position,
                                                const dct::Peer& peer) {
  const uint64_t slot = position & mask_;
  ForgetCommon();
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

bool PhysicalQueue::AcceptAllowed(std::span<const WorkRequest> wrs, QueueState* owner, const dct::Peer& peer,
                                  const vqp::LikeRequest& like) {
  Prepare();
  const auto count = static_cast<uint32_t>(wrs.size());
  const uint64_t slot = tail_ & mask_;
  if (wrs.empty() || wrs.size() > free() || slot + wrs.size() > mask_ + 1) [[unlikely]]
    return false;
  std::optional<uint32_t> kept;
  const bool common = common_ == like.number();
  if (common && common_begin_ <= slot && slot + count <= common_end_) {
    kept = FillAllowed<true>(wrs, owner, peer, like);
  } else {
    if (!common || slot < common_begin_ || slot > common_end_) {
      common_ = like.number();
      common_begin_ = common_end_ = slot;
    }
    kept = FillAllowed<false>(wrs, owner, peer, like);
    if (kept) common_end_ = std::max(common_end_, slot + count);
  }
  if (!kept) [[unlikely]]
    return false;
  SignalSome(tail_, count);
  entries_[slot].tag = Run::Tag(count, *kept);
  Commit(count, peer);
  owner->Accept(count, *kept);
  return true;
}

template <bool kKnown>
[[gnu::always_inline]] inline std::optional<uint32_t> PhysicalQueue::FillAllowed(std::span<const WorkRequest> wrs,
                                                                                 QueueState* owner,
                                                                                 const dct::Peer& peer,
                                                                                 const vqp::LikeRequest& like) {
  const uint64_t slot = tail_ & mask_;
  SlotWriter slots(&wrs_[slot], &sges_[slot * kMaxSge], PhysicalId(tail_), peer);
  EntryWriter entries(&entries_[slot], owner, 0, qp_num());
  const WorkRequest* wr = wrs.data();
  const WorkRequest* const end = wr + wrs.size();
  do {  // for each of those that agree in opcode and flags, but for whether they are signaled
    const Opcode opcode = wr->opcode;
    const uint8_t first_flags = wr->flags;
    if (!like.AllowsForm(opcode, first_flags)) [[unlikely]]
      return std::nullopt;
    const Form form(opcode, first_flags);
    uint8_t flags = first_flags;
    do {
      vqp::LikeRequest::Place place;
      if (!like.AllowsPlace(*wr, form.atomic, &place)) [[unlikely]]
        return std::nullopt;
      slots.WriteAllowed<kKnown>(*wr, form, place, like);
      entries.Write(wr->wr_id, form, (flags & kSignaled) != 0);
    } while (++wr != end && wr->opcode == opcode && (((flags = wr->flags) ^ first_flags) & ~kSignaled) == 0);
  } while (wr != end);
  return entries.kept();
}

void PhysicalQueue::FillSges(const WorkRequest& wr, uint64_t position) {
  const uint64_t slot = position & mask_;
  Sge* const sges = &sges_[slot * kMaxSge];
  if ((wr.flags & kInline) != 0)
    CopyInline(wr, &wrs_[slot], sges);
  else
    std::copy_n(wr.sg_list, wr.num_sge, sges);
}

uint32_t PhysicalQueue::Fill(std::span<const WorkRequest> wrs, QueueState* owner, const dct::Peer& peer) {
  uint32_t kept = 0;
  for (uint64_t position = tail_; !wrs.empty();) {
    const size_t most = std::min<size_t>(wrs.size(), mask_ + 1 - (position & mask_));  // up to the ring's end
    FillSlots(wrs.first(most), position, peer);
    kept += FillEntries(wrs.first(most), position, owner, kept);
    position += most;
    wrs = wrs.subspan(most);
  }
  return kept;
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
  own.tag = tag;
}

}  // namespace krcore::pool
