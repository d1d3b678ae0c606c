// How a PhysicalQueue writes work requests to its ring: entries, places for completions, and what is posted.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "krcore/base/word_pair.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_state.h"
#include "krcore/queue/request_check.h"

namespace krcore::queue {

namespace {

// Writes what is posted of WRs, one after the other, as five pairs of words: the number and SGEs; two pairs of the
// WorkRequest; its last word with the first that only SendWr has; and the peer's words.
class SlotWriter {
 public:
  SlotWriter(rnic::SendWr* slot, Sge* sges, uint64_t number, const peers::Peer& peer)
      : out_(slot),
        sges_(sges),
        own_{number, reinterpret_cast<uint64_t>(sges)},
        target_{peer.target.dct_num, peer.target.dc_key},
        ah_(reinterpret_cast<uint64_t>(peer.ah.get())) {}
  // Writes a WR unsignaled and with its first SGE. Returns its form: the pair that begins with num_sge.
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
    own_ += WordPair{1, kMaxSge * sizeof(Sge)};
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

uint32_t PhysicalQueue::FillEntries(std::span<const WorkRequest> wrs, uint64_t position, QueueState* owner,
                                    uint32_t kept) {
  const uint32_t before = kept;
  for (const WorkRequest& wr : wrs) {
    entry(position++) = {wr.wr_id, owner, wr.opcode, static_cast<uint8_t>(wr.flags & kSignaled), WcStatus::kSuccess};
    if ((wr.flags & kSignaled) != 0)
      QueueState::Promise(owner->Place(kept++), wr.wr_id, static_cast<uint32_t>(wr.opcode), qp_num_);
  }
  return kept - before;
}

inline void PhysicalQueue::SignalSome(uint64_t position, size_t count) {
  for (uint64_t p = position | (kSignalEvery - 1); p < position + count; p += kSignalEvery) Signal(p);
}

[[gnu::noinline]] void PhysicalQueue::FillSlots(std::span<const WorkRequest> wrs, uint64_t position,
                                                const peers::Peer& peer) {
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

bool PhysicalQueue::Execute(std::span<const WorkRequest> wrs, QueueState* owner, const peers::Peer& peer,
                            const LikeRequest& like) {
  assert(!wrs.empty() && !blocked_ && !broken_ && !like.knows_nothing());
  const rnic::Reach reach{peer.ah.get(), peer.target.dct_num, peer.target.dc_key, like.local(), like.remote()};
  if (!qp_->Execute(wrs, reach)) [[unlikely]]
    return false;
  owner->DeliverAtOnce(wrs, qp_num_);
  ++pool_->stats.doorbells;
  pool_->stats.work_requests += wrs.size();
  pool_->stats.completions += wrs.size();
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

uint32_t PhysicalQueue::Fill(std::span<const WorkRequest> wrs, QueueState* owner, const peers::Peer& peer) {
  const auto count = static_cast<uint32_t>(wrs.size());
  uint32_t kept = 0;
  for (uint64_t position = tail_; !wrs.empty();) {
    const size_t most = std::min<size_t>(wrs.size(), mask_ + 1 - (position & mask_));  // up to the ring's end
    FillSlots(wrs.first(most), position, peer);
    kept += FillEntries(wrs.first(most), position, owner, kept);
    position += most;
    wrs = wrs.subspan(most);
  }
  if (count != 0) entry(tail_).tag = Run::Tag(count, kept);
  return kept;
}

void PhysicalQueue::FillOwn(const WorkRequest& wr, QueueState* owner, const peers::Peer& peer, OwnWr kind,
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

}  // namespace krcore::queue
