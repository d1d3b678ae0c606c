// How a PhysicalQueue writes work requests to its ring: entries, places for completions, and what is posted.
#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "krcore/base/word_pair.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_state.h"
#include "krcore/queue/request_check.h"

namespace krcore::queue {

namespace {

// What is posted of WRs, one behind the other: five pairs. Its number and its SGEs; two of the WorkRequest's; one that
// ends that and begins what SendWr has beyond it; and the rest, which is the peer's.
class SlotWriter {
 public:
  SlotWriter(rnic::SendWr* slot, Sge* sges, uint64_t number, const peers::Peer& peer)
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

// Of a WR of one SGE, by opcode and flags.
struct Form {
  // What is posted from num_sge on, but for its imm, unsignaled, since the NIC is asked to signal by others than the
  // user. 0: it is none that AcceptAllowed may take. An atomic's has kAtomic, in what is padding.
  uint32_t posted = 0;
  uint32_t mark = 0;  // of the ring's Entry
};
constexpr uint32_t kAtomic = 1u << 31;
constexpr uint32_t kSignaledMark = 1u << 8;
static_assert(offsetof(WorkRequest, imm) == 20 && offsetof(WorkRequest, flags) < 19);
constexpr uint32_t kOpcodes = 8, kFlagSets = 16;
constexpr auto kForms = [] {
  std::array<Form, kOpcodes * kFlagSets> forms{};
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite, Opcode::kCompareSwap, Opcode::kFetchAdd}) {
    for (uint8_t flags = 0; flags < kFlagSets; ++flags) {
      if (!LikeRequest::AllowsForm(opcode, flags)) continue;
      const uint64_t posted = PartOfWord<offsetof(WorkRequest, num_sge), 16>(uint8_t{1}) |
                              PartOfWord<offsetof(WorkRequest, opcode), 16>(opcode) |
                              PartOfWord<offsetof(WorkRequest, flags), 16>(static_cast<uint8_t>(flags & ~kSignaled));
      const uint32_t atomic = IsAtomic(opcode) ? kAtomic : 0;
      forms[static_cast<uint32_t>(opcode) * kFlagSets + flags] = {
          static_cast<uint32_t>(posted) | atomic,
          static_cast<uint32_t>(opcode) | ((flags & kSignaled) != 0 ? kSignaledMark : 0)};
    }
  }
  return forms;
}();

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

// One of AcceptAllowed, in slot and entry. False: `like` does not allow it; what has been written there means nothing.
// Members are loaded one by one and once, since a wider load would wait for the stores of whoever has just written
// them, and of what is posted that is written in which WRs that are alike differ.
inline bool PhysicalQueue::FillAllowed(const WorkRequest& wr, rnic::SendWr* out, Entry* entry, QueueState* owner,
                                       const LikeRequest& like, LastOfLength* last, uint32_t* kept) {
  const auto opcode = static_cast<uint32_t>(wr.opcode);
  const uint32_t flags = wr.flags;
  static_assert(kFlagSets == 2 * kOpcodes);
  if ((opcode | flags / 2) >= kOpcodes) [[unlikely]]
    return false;
  const Form form = kForms[opcode * kFlagSets + flags];
  if (form.posted == 0 || wr.num_sge != 1 || wr.sg_list == nullptr) [[unlikely]]
    return false;
  const Sge& from = *wr.sg_list;
  Sge& to = const_cast<Sge&>(*out->sg_list);
  if (!like.AllowsKeys(from.lkey, wr.rkey)) [[unlikely]]
    return false;
  const uint32_t length = from.length;
  to.length = length;
  if (length != last->length) [[unlikely]] {
    if (!like.AllowsLength(length)) return false;
    *last = like.LastOf(length);
  }
  const uint64_t addr = from.addr;
  to.addr = addr;
  if (!like.AllowsLocal(addr, *last)) [[unlikely]]
    return false;
  const uint64_t remote_addr = wr.remote_addr;
  out->remote_addr = remote_addr;
  if (!like.AllowsRemote(remote_addr, *last)) [[unlikely]]
    return false;
  if ((form.posted & kAtomic) != 0) {
    if (!like.AllowsAtomic(remote_addr, length)) [[unlikely]]
      return false;
    out->compare_add = wr.compare_add;
    out->swap = wr.swap;
  }
  SetWordAt<16>(*out, uint64_t{form.posted});
  const uint64_t wr_id = wr.wr_id;
  entry->user_wr_id = wr_id;
  SetWordAt<kMark>(*entry, uint64_t{form.mark});
  if ((form.mark & kSignaledMark) != 0) QueueState::Promise(owner->Place((*kept)++), wr_id, form.mark & 0xff, qp_num_);
  return true;
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

bool PhysicalQueue::AcceptAllowed(const WorkRequest& wr, QueueState* owner, const peers::Peer& peer,
                                  const LikeRequest& like) {
  Prepare();
  const uint64_t slot = tail_ & mask_;
  if (!HasCommon(slot, 1, like) && !MakeCommon(slot, 1, owner, peer, like)) [[unlikely]]
    return false;
  LastOfLength last;
  uint32_t kept = 0;
  if (!FillAllowed(wr, &wrs_[slot], &entries_[slot], owner, like, &last, &kept)) [[unlikely]]
    return false;
  if ((slot + 1) % kSignalEvery == 0) Signal(tail_);
  entries_[slot].tag = Run::Tag(1, kept);
  Commit(1, peer);
  owner->Accept(1, kept);
  return true;
}

bool PhysicalQueue::AcceptAllowed(std::span<const WorkRequest> wrs, QueueState* owner, const peers::Peer& peer,
                                  const LikeRequest& like) {
  Prepare();
  const size_t count = wrs.size();
  const uint64_t slot = tail_ & mask_;
  if (!HasCommon(slot, count, like) && !MakeCommon(slot, count, owner, peer, like)) [[unlikely]]
    return false;
  rnic::SendWr* out = &wrs_[slot];
  Entry* entry = &entries_[slot];
  LastOfLength last;
  uint32_t kept = 0;
  for (const WorkRequest& wr : wrs) {
    if (!FillAllowed(wr, out++, entry++, owner, like, &last, &kept)) [[unlikely]]
      return false;
  }
  SignalSome(tail_, count);
  entries_[slot].tag = Run::Tag(static_cast<uint32_t>(count), kept);
  Commit(static_cast<uint32_t>(count), peer);
  owner->Accept(static_cast<uint32_t>(count), kept);
  return true;
}

inline bool PhysicalQueue::HasCommon(uint64_t slot, size_t count, const LikeRequest& like) const {
  return common_ == like.number() && common_begin_ <= slot && slot + count <= common_end_ && count - 1 < free();
}

[[gnu::noinline]] bool PhysicalQueue::MakeCommon(uint64_t slot, size_t count, QueueState* owner,
                                                 const peers::Peer& peer, const LikeRequest& like) {
  if (count - 1 >= std::min<uint64_t>(free(), mask_ + 1 - slot)) return false;  // none is not allowed either
  if (common_ != like.number() || slot < common_begin_ || slot > common_end_) {
    common_ = like.number();
    common_begin_ = common_end_ = slot;
  }
  for (uint64_t at = std::max(slot, common_end_); at < slot + count; ++at) {
    Sge& sge = sges_[at * kMaxSge];
    sge.lkey = like.local().key;
    rnic::SendWr& wr = wrs_[at];
    wr.wr_id = PhysicalId(at);
    wr.sg_list = &sge;
    wr.rkey = like.remote().key;
    wr.ah = peer.ah.get();
    wr.remote_qpn = peer.target.dct_num;
    wr.qkey = 0;
    wr.dc_key = peer.target.dc_key;
    entries_[at].owner = owner;
  }
  common_end_ = std::max(common_end_, slot + count);
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
