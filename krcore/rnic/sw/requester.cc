#include "krcore/rnic/sw/requester.h"

#include <algorithm>

#include "krcore/clock.h"
#include "krcore/rnic/request_form.h"
#include "krcore/rnic/software_nic.h"
#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {
namespace {

constexpr uint32_t kPrefetchBytes = 512;
constexpr uint64_t kLineBytes = 64;

// The word of a DCT that serves.
constexpr uint64_t DctWord(uint32_t number) {
  return QpWord(number, EntryType::kDct, static_cast<uint8_t>(QpState::kRts));
}

// Prefetches at least one byte.
template <bool kForWrite>
void AskFor(const std::byte* address, uint32_t length) {
  const uint64_t end = reinterpret_cast<uint64_t>(address) + std::min(length, kPrefetchBytes);
  uint64_t line = reinterpret_cast<uint64_t>(address) & ~(kLineBytes - 1);
  do {
    __builtin_prefetch(reinterpret_cast<void*>(line), kForWrite);
    line += kLineBytes;
  } while (line < end);
}

bool IsMessage(Opcode opcode) {
  return opcode == Opcode::kSend || opcode == Opcode::kSendImm || opcode == Opcode::kWriteImm;
}

}  // namespace

void Requester::Connect(std::shared_ptr<Peer> peer, uint32_t remote_number) {
  peer_ = std::move(peer);
  entry_ = peer_ == nullptr ? nullptr : &peer_->tables().qps[QpIndex(remote_number)];
  entry_word_ = QpWord(remote_number, EntryType::kRc, static_cast<uint8_t>(QpState::kRtr));
  passed_.fill({});
  if (peer_ == nullptr) ForgetTranslations();
}

void Requester::ForgetTranslations() {
  passed_.fill({});
  for (Translation& translation : translations_) translation = Translation{};
  for (Inbox& inbox : inboxes_) inbox = Inbox{};
}

// Executes a request of one SGE.
template <Requester::Kind kKind>
inline void Requester::ExecuteOne(const WorkRequest& wr, std::byte* remote, std::byte* local, uint32_t length) {
  if constexpr (kKind == Kind::kRead) {
    FenceStores();
    LoadWords(local, remote, length);
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the release of the writer of what was read
  } else if constexpr (kKind == Kind::kWrite) {
    std::atomic_thread_fence(std::memory_order_release);  // earlier WRs are visible before this one
    StoreWords(remote, local, length);
    stores_pending_ = true;
  } else {
    const std::atomic_ref word(*reinterpret_cast<uint64_t*>(remote));
    uint64_t old = wr.compare_add;
    if constexpr (kKind == Kind::kCompareSwap)
      word.compare_exchange_strong(old, wr.swap);
    else
      old = word.fetch_add(wr.compare_add);
    std::memcpy(local, &old, sizeof(old));
    stores_pending_ = false;  // a locked instruction is a fence on x86, and a seq_cst one elsewhere is close enough
  }
}

Requester::Outcome Requester::Run(std::span<const SendWr> wrs) {
  Outcome outcome;
  size_t resolved = 0;
  while (resolved < wrs.size()) {
    if (const size_t alike = ResolveAlike(wrs.subspan(resolved), &steps_[resolved]); alike != 0) [[likely]] {
      resolved += alike;
      continue;
    }
    outcome.status = Resolve(wrs[resolved], &steps_[resolved], &outcome.malformed);
    if (outcome.status != WcStatus::kSuccess || outcome.malformed) [[unlikely]]
      break;
    ++resolved;
  }
  for (const Step *step = &steps_[0], *const end = step + resolved; step != end; ++step) {
    if (step->kind == Kind::kRead) [[likely]] {
      ExecuteOne<Kind::kRead>(*step->wr, step->remote, step->local, step->length);
      continue;
    }
    const WcStatus status = Execute(*step);
    if (status != WcStatus::kSuccess) [[unlikely]] {
      outcome.status = status;
      outcome.malformed = false;
      resolved = static_cast<size_t>(step - &steps_[0]);
      break;
    }
  }
  outcome.done = resolved;
  return outcome;
}

bool Requester::LocalRanges(const SendWr& wr, bool written) const {
  if ((wr.flags & kInline) != 0) return true;
  for (uint8_t i = 0; i < wr.num_sge; ++i) {
    if (!LocalRange(*own_, pd_, wr.sg_list[i], written)) return false;
  }
  return true;
}

WcStatus Requester::ResolveTarget(const SendWr& wr, Step* step) {
  if (type_ == QpType::kRc) {
    step->peer = peer_.get();
    step->entry = entry_;
    if (!peer_->Alive()) return WcStatus::kRetryExceeded;
    const bool serves = (entry_->word.load(std::memory_order_acquire) & kServingMask) == entry_word_ &&
                        entry_->peer.load(std::memory_order_relaxed) == own_word_;
    return serves ? WcStatus::kSuccess : WcStatus::kRetryExceeded;
  }
  step->peer = static_cast<const SwAddressHandle*>(wr.ah)->peer();
  step->entry = &step->peer->tables().qps[QpIndex(wr.remote_qpn)];
  if (type_ == QpType::kUd) return WcStatus::kSuccess;  // nobody answers a datagram
  if (!step->peer->Alive()) return WcStatus::kRetryExceeded;
  if (step->entry->word.load(std::memory_order_acquire) != DctWord(wr.remote_qpn)) return WcStatus::kRetryExceeded;
  return step->entry->peer.load(std::memory_order_relaxed) == wr.dc_key ? WcStatus::kSuccess
                                                                        : WcStatus::kRemoteAccessError;
}

WcStatus Requester::ResolveRemote(const SendWr& wr, uint32_t need, Step* step) {
  Translation& mr = TranslationOf(step->peer, wr.rkey);
  if (mr.peer != step->peer || mr.key != wr.rkey) [[unlikely]] {
    mr = Translation{};
    if (!step->peer->Translate(wr.rkey, &mr)) {
      mr = Translation{};
      return WcStatus::kRemoteAccessError;
    }
  }
  const uint64_t offset = wr.remote_addr - mr.base;
  const bool allowed = mr.live_key->load(std::memory_order_acquire) == wr.rkey && offset <= mr.length &&
                       step->length <= mr.length - offset && mr.pd == step->entry->pd.load(std::memory_order_relaxed) &&
                       (mr.rights & step->entry->rights.load(std::memory_order_relaxed) & need) != 0;
  step->remote = reinterpret_cast<std::byte*>(wr.remote_addr + static_cast<uint64_t>(mr.delta));
  return allowed ? WcStatus::kSuccess : WcStatus::kRemoteAccessError;
}

void Requester::Remember(const SendWr& wr, const Step& step, uint32_t need, uint32_t local_need) {
  const bool rc = type_ == QpType::kRc;
  PassedOf(wr.ah, wr.rkey, step.kind) = {.form = FormOf(wr),
                                         .lkey = wr.sg_list->lkey,
                                         .rkey = wr.rkey,
                                         .remote_qpn = wr.remote_qpn,
                                         .ah = wr.ah,
                                         .dc_key = wr.dc_key,
                                         .local = &own_->mrs[MrIndex(wr.sg_list->lkey)],
                                         .remote = &TranslationOf(step.peer, wr.rkey),
                                         .peer = step.peer,
                                         .entry = step.entry,
                                         .serves = rc ? entry_word_ : DctWord(wr.remote_qpn),
                                         .serves_mask = rc ? kServingMask : ~uint64_t{0},
                                         .serves_whom = rc ? own_word_ : wr.dc_key,
                                         .need = need,
                                         .local_need = local_need};
}

// Whether `passed` is of that target and key, and all that Resolve checked, except ranges, rights and the local key, is
// unchanged. The translation is checked before what it keeps alive: while it belongs to the key, the peer and
// its mappings exist. The handle is checked too, because its address may be another's by now.
inline bool Requester::Holds(const Passed& passed, const Target& target, uint32_t rkey) const {
  if (passed.remote == nullptr || passed.rkey != rkey || passed.ah != target.ah ||
      passed.remote_qpn != target.remote_qpn || passed.dc_key != target.dc_key)
    return false;
  const Translation& remote = *passed.remote;
  if (remote.peer != passed.peer || remote.key != passed.rkey) return false;
  if (type_ != QpType::kRc && static_cast<const SwAddressHandle*>(target.ah)->peer() != passed.peer) return false;
  return passed.peer->Alive() &&
         (passed.entry->word.load(std::memory_order_acquire) & passed.serves_mask) == passed.serves &&
         passed.entry->peer.load(std::memory_order_relaxed) == passed.serves_whom &&
         remote.live_key->load(std::memory_order_acquire) == passed.rkey &&
         passed.entry->pd.load(std::memory_order_relaxed) == remote.pd &&
         passed.local->pd.load(std::memory_order_relaxed) == pd_;
}

// Whether a WR of its opcode is allowed.
inline bool Requester::Allows(const Passed& passed) {
  return (passed.entry->rights.load(std::memory_order_relaxed) & passed.remote->rights & passed.need) != 0 &&
         (passed.local->rights.load(std::memory_order_relaxed) & passed.local_need) == passed.local_need;
}

template <Requester::Kind kKind>
inline const Requester::Passed* Requester::FindAlike(const SendWr& wr) {
  const Passed& passed = PassedOf(wr.ah, wr.rkey, kKind);
  const bool holds = passed.form == FormOf(wr) && Holds(passed, TargetOf(wr), wr.rkey) && Allows(passed);
  return holds ? &passed : nullptr;
}

// Checks keys, rights, the peer's life and the target's state once for a row of WRs that are alike. Between two checks
// this thread would do nothing that others see, and depend on nobody; so the result of one check could have been the
// result of one for each WR. Ranges are checked for each WR.
template <Requester::Kind kKind>
[[gnu::noinline]] size_t Requester::ResolveAlike(const Passed& like, std::span<const SendWr> wrs, Step* steps) {
  constexpr bool kAtomic = kKind == Kind::kCompareSwap || kKind == Kind::kFetchAdd;
  const uint64_t local_base = like.local->base.load(std::memory_order_relaxed);
  const uint64_t local_length = like.local->length.load(std::memory_order_relaxed);
  // Another MR's fields in its place would be seen with another key; pairs with the release of Tables::AddMr.
  const uint32_t lkey = like.lkey, rkey = like.rkey, form = like.form;
  if (like.local->key.load(std::memory_order_acquire) != lkey) [[unlikely]]
    return 0;
  const bool rc = type_ == QpType::kRc;  // whose target is the queue's, whatever its WRs say
  const Translation& remote = *like.remote;
  const uint64_t remote_base = remote.base, remote_length = remote.length;
  const uint64_t longest = kAtomic ? 8 : std::min({local_length, remote_length, uint64_t{kMaxMessageBytes}});
  Step* step = steps;
  for (const SendWr& wr : wrs) {
    if (FormOf(wr) != form || wr.sg_list == nullptr) break;
    const Sge& sge = *wr.sg_list;
    const uint64_t length = sge.length;
    step->length = sge.length;
    if (kAtomic ? length != 8 || (wr.remote_addr & 7) != 0 : length - 1 >= longest) break;
    step->local = reinterpret_cast<std::byte*>(sge.addr);
    if (sge.lkey != lkey || sge.addr - local_base > local_length - length) break;
    step->remote = reinterpret_cast<std::byte*>(wr.remote_addr + static_cast<uint64_t>(remote.delta));
    if (wr.rkey != rkey || wr.remote_addr - remote_base > remote_length - length) break;
    if (!rc && (wr.ah != like.ah || wr.remote_qpn != like.remote_qpn || wr.dc_key != like.dc_key)) break;
    step->wr = &wr;
    step->kind = kKind;
    AskFor<kKind != Kind::kRead>(step->remote, sge.length);
    ++step;
  }
  return static_cast<size_t>(step - steps);
}

size_t Requester::ResolveAlike(std::span<const SendWr> wrs, Step* steps) {
  const auto resolve = [&]<Kind kKind>() -> size_t {
    const Passed* const like = FindAlike<kKind>(wrs[0]);
    return like != nullptr ? ResolveAlike<kKind>(*like, wrs, steps) : 0;
  };
  switch (wrs[0].opcode) {
    case Opcode::kRead: return resolve.operator()<Kind::kRead>();
    case Opcode::kWrite: return resolve.operator()<Kind::kWrite>();
    case Opcode::kCompareSwap: return resolve.operator()<Kind::kCompareSwap>();
    case Opcode::kFetchAdd: return resolve.operator()<Kind::kFetchAdd>();
    default: return 0;
  }
}

// Not inlined, so that each instance saves only the registers that it needs. Members of the request are loaded once and
// one by one: a wider load would wait for a caller's recent stores, and the request may write to itself.
template <Requester::Kind kKind>
[[gnu::noinline]] bool Requester::RunOne(const WorkRequest& wr, const Target& target, const Reach* reach) {
  constexpr bool kAtomic = kKind == Kind::kCompareSwap || kKind == Kind::kFetchAdd;
  const uint32_t rkey = wr.rkey;
  const Passed& like = PassedOf(target.ah, rkey, kKind);
  if (!Holds(like, target, rkey) || !Allows(like)) return false;
  if ((wr.flags & ~kPlainFlags) != 0 || wr.num_sge != 1 || wr.sg_list == nullptr) return false;
  const Sge& sge = *wr.sg_list;
  const uint64_t length = sge.length, local_addr = sge.addr, remote_addr = wr.remote_addr;
  if (kAtomic ? length != 8 || (remote_addr & 7) != 0 : length - 1 >= kMaxMessageBytes) return false;
  const KeyedRange local{like.local->base.load(std::memory_order_relaxed),
                         like.local->length.load(std::memory_order_relaxed), like.lkey};
  // As in ResolveAlike.
  if (like.local->key.load(std::memory_order_acquire) != local.key || sge.lkey != local.key) return false;
  const Translation& remote = *like.remote;
  if (!local.Covers(local_addr, length) || !KeyedRange{remote.base, remote.length, rkey}.Covers(remote_addr, length))
    return false;
  if (reach != nullptr && (reach->local.key != local.key || !reach->local.Covers(local_addr, length) ||
                           reach->remote.key != rkey || !reach->remote.Covers(remote_addr, length)))
    return false;
  ExecuteOne<kKind>(wr, reinterpret_cast<std::byte*>(remote_addr + static_cast<uint64_t>(remote.delta)),
                    reinterpret_cast<std::byte*>(local_addr), static_cast<uint32_t>(length));
  return true;
}

inline bool Requester::RunOne(const WorkRequest& wr, const Target& target, const Reach* reach) {
  switch (wr.opcode) {
    case Opcode::kRead: return RunOne<Kind::kRead>(wr, target, reach);
    case Opcode::kWrite: return RunOne<Kind::kWrite>(wr, target, reach);
    case Opcode::kCompareSwap: return RunOne<Kind::kCompareSwap>(wr, target, reach);
    case Opcode::kFetchAdd: return RunOne<Kind::kFetchAdd>(wr, target, reach);
    default: return false;
  }
}

bool Requester::RunAlike(const SendWr& wr) { return RunOne(wr, TargetOf(wr), nullptr); }

// As ResolveAlike: checks keys, rights, life and state once for all of them. It works in two passes, with only ranges,
// which both sides must know, between a request and its memory.
bool Requester::ExecuteAll(const Passed& like, std::span<const WorkRequest> wrs, const Reach& reach) {
  // What each opcode needs, by AccessRights: of the peer's side, and kLocalWrite of this side. Messages need more than
  // there is.
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint32_t kNeeds[] = {
      kRemoteRead | kLocalWrite,  kRemoteWrite, kNone, kNone, kNone, kRemoteAtomic | kLocalWrite,
      kRemoteAtomic | kLocalWrite};
  const Translation& translation = *like.remote;
  const uint32_t rights =
      (like.entry->rights.load(std::memory_order_relaxed) & translation.rights & ~uint32_t{kLocalWrite}) |
      (like.local->rights.load(std::memory_order_relaxed) & kLocalWrite);
  const uint64_t local_base = like.local->base.load(std::memory_order_relaxed);
  const uint64_t local_length = like.local->length.load(std::memory_order_relaxed);
  const uint32_t lkey = reach.local.key, rkey = reach.remote.key;
  if (like.local->key.load(std::memory_order_acquire) != lkey) [[unlikely]]
    return false;
  const uint64_t local_begin = std::max(local_base, reach.local.addr);
  const uint64_t local_end = std::min(local_base + local_length, reach.local.addr + reach.local.length);
  const uint64_t remote_begin = std::max(translation.base, reach.remote.addr);
  const uint64_t remote_end = std::min(translation.base + translation.length, reach.remote.addr + reach.remote.length);
  if (local_begin >= local_end || remote_begin >= remote_end) [[unlikely]]
    return false;
  const uint64_t local_size = local_end - local_begin, remote_size = remote_end - remote_begin;
  const uint64_t longest = std::min({local_size, remote_size, uint64_t{kMaxMessageBytes}});
  const auto delta = static_cast<uint64_t>(translation.delta);
  const bool may_read = (rights & kNeeds[0]) == kNeeds[0];
  const size_t asked_for = wrs.data() == asked_for_ ? asked_count_ : 0;
  const WorkRequest* const not_asked_for = wrs.data() + std::min(asked_for, wrs.size());
  Ready* ready = &ready_[0];
  for (const WorkRequest& wr : wrs) {
    if ((wr.flags & ~kPlainFlags) != 0 || wr.num_sge != 1 || wr.sg_list == nullptr) [[unlikely]]
      return false;
    const Sge& sge = *wr.sg_list;
    const uint64_t length = sge.length, local_addr = sge.addr, remote_addr = wr.remote_addr;
    const Opcode opcode = wr.opcode;
    if (length - 1 >= longest || sge.lkey != lkey || local_addr - local_begin > local_size - length) [[unlikely]]
      return false;
    if (wr.rkey != rkey || remote_addr - remote_begin > remote_size - length) [[unlikely]]
      return false;
    auto* const remote = reinterpret_cast<std::byte*>(remote_addr + delta);
    *ready++ = {remote, reinterpret_cast<std::byte*>(local_addr), static_cast<uint32_t>(length), opcode};
    const bool to_ask_for = &wr >= not_asked_for;
    if (opcode == Opcode::kRead && may_read) [[likely]] {
      if (to_ask_for) AskFor<false>(remote, static_cast<uint32_t>(length));
      continue;
    }
    const auto index = static_cast<size_t>(opcode);
    const uint32_t need = index < std::size(kNeeds) ? kNeeds[index] : kNone;
    if ((rights & need) != need) [[unlikely]]
      return false;
    if (opcode >= Opcode::kCompareSwap && (length != 8 || (remote_addr & 7) != 0)) [[unlikely]]
      return false;
    if (to_ask_for) AskFor<true>(remote, static_cast<uint32_t>(length));
  }
  ready = &ready_[0];
  for (const WorkRequest& wr : wrs) {
    const auto& [remote, local, length, opcode] = *ready++;
    switch (opcode) {
      case Opcode::kRead: ExecuteOne<Kind::kRead>(wr, remote, local, length); break;
      case Opcode::kWrite: ExecuteOne<Kind::kWrite>(wr, remote, local, length); break;
      case Opcode::kCompareSwap: ExecuteOne<Kind::kCompareSwap>(wr, remote, local, length); break;
      default: ExecuteOne<Kind::kFetchAdd>(wr, remote, local, length); break;
    }
  }
  return true;
}

bool Requester::Execute(std::span<const WorkRequest> wrs, const Reach& reach) {
  static constexpr Kind kKinds[] = {Kind::kRead,    Kind::kWrite,       Kind::kNothing, Kind::kNothing,
                                    Kind::kNothing, Kind::kCompareSwap, Kind::kFetchAdd};
  const Target target{reach.ah, reach.remote_qpn, reach.dc_key};
  if (wrs.size() == 1) return RunOne(wrs[0], target, &reach);
  const auto opcode = static_cast<size_t>(wrs[0].opcode);
  const Kind kind = opcode < std::size(kKinds) ? kKinds[opcode] : Kind::kNothing;
  if (kind == Kind::kNothing || wrs.size() > kMaxExecuted) [[unlikely]]
    return false;
  const Passed& like = PassedOf(reach.ah, reach.remote.key, kind);
  return Holds(like, target, reach.remote.key) && ExecuteAll(like, wrs, reach);
}

void Requester::Prefetch(std::span<const WorkRequest> wrs, const AddressHandle* ah, uint32_t rkey) {
  const Passed& like = PassedOf(ah, rkey, Kind::kRead);
  if (like.remote == nullptr || like.ah != ah || like.rkey != rkey) return;
  if (wrs.data() != asked_for_ + asked_count_) {  // not directly after the previous ones
    asked_for_ = wrs.data();
    asked_count_ = 0;
  }
  asked_count_ += wrs.size();
  const auto delta = static_cast<uint64_t>(like.remote->delta);
  for (const WorkRequest& wr : wrs) {
    if (wr.num_sge != 1 || wr.sg_list == nullptr) continue;
    const auto* const remote = reinterpret_cast<const std::byte*>(wr.remote_addr + delta);
    if (wr.opcode == Opcode::kRead) {
      AskFor<false>(remote, wr.sg_list->length);
    } else {
      AskFor<true>(remote, wr.sg_list->length);
    }
  }
}

WcStatus Requester::Resolve(const SendWr& wr, Step* step, bool* malformed) {
  if (IsMalformed(wr, type_, kMaxSge, kMaxInlineBytes)) [[unlikely]] {
    *malformed = true;
    return WcStatus::kSuccess;
  }
  step->wr = &wr;
  const bool reads = wr.opcode == Opcode::kRead;
  const bool atomic = wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd;
  const uint64_t total = wr.num_sge == 1 ? wr.sg_list[0].length : TotalLength(wr);
  if (total > (type_ == QpType::kUd ? kUdMtuBytes : kMaxMessageBytes)) return WcStatus::kLocalLengthError;
  step->length = static_cast<uint32_t>(total);
  if (!LocalRanges(wr, reads || atomic)) [[unlikely]]
    return WcStatus::kLocalProtectionError;
  if (const WcStatus status = ResolveTarget(wr, step); status != WcStatus::kSuccess) [[unlikely]]
    return status;
  if (wr.num_sge != 0) step->local = reinterpret_cast<std::byte*>(wr.sg_list[0].addr);
  if (wr.opcode == Opcode::kSend || wr.opcode == Opcode::kSendImm || (wr.opcode == Opcode::kWriteImm && total == 0)) {
    step->kind = Kind::kMessage;
    return WcStatus::kSuccess;
  }
  if (total == 0) {  // as in verbs, a transfer of nothing needs no key
    step->kind = Kind::kNothing;
    return WcStatus::kSuccess;
  }
  const uint32_t need = reads ? kRemoteRead : atomic ? kRemoteAtomic : kRemoteWrite;
  if (const WcStatus status = ResolveRemote(wr, need, step); status != WcStatus::kSuccess) [[unlikely]]
    return status;
  if (reads) {
    step->kind = wr.num_sge == 1 ? Kind::kRead : Kind::kScatter;
    AskFor<false>(step->remote, step->length);
  } else {
    step->kind = wr.opcode == Opcode::kCompareSwap ? Kind::kCompareSwap
                 : wr.opcode == Opcode::kFetchAdd  ? Kind::kFetchAdd
                 : IsMessage(wr.opcode)            ? Kind::kMessage
                 : wr.num_sge == 1                 ? Kind::kWrite
                                                   : Kind::kGather;
    AskFor<true>(step->remote, step->length);
  }
  // Not what is inline, whose local memory was not looked at.
  if (step->kind <= Kind::kFetchAdd && (wr.flags & kInline) == 0)
    Remember(wr, *step, need, reads || atomic ? uint32_t{kLocalWrite} : 0);
  return WcStatus::kSuccess;
}

void Requester::Read(const Step& step) {
  FenceStores();
  const std::byte* from = step.remote;
  for (uint8_t i = 0; i < step.wr->num_sge; ++i) {
    const Sge& sge = step.wr->sg_list[i];
    LoadWords(reinterpret_cast<std::byte*>(sge.addr), from, sge.length);
    from += sge.length;
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the release of the writer of what was read
}

void Requester::Write(const Step& step) {
  std::atomic_thread_fence(std::memory_order_release);  // earlier WRs are visible before this one
  std::byte* to = step.remote;
  for (uint8_t i = 0; i < step.wr->num_sge; ++i) {
    const Sge& sge = step.wr->sg_list[i];
    StoreWords(to, reinterpret_cast<const std::byte*>(sge.addr), sge.length);
    to += sge.length;
  }
  stores_pending_ = true;
}

WcStatus Requester::Execute(const Step& step) {
  const SendWr& wr = *step.wr;
  switch (step.kind) {
    case Kind::kRead: ExecuteOne<Kind::kRead>(wr, step.remote, step.local, step.length); break;
    case Kind::kScatter: Read(step); break;
    case Kind::kWrite: ExecuteOne<Kind::kWrite>(wr, step.remote, step.local, step.length); break;
    case Kind::kGather: Write(step); break;
    case Kind::kCompareSwap: ExecuteOne<Kind::kCompareSwap>(wr, step.remote, step.local, step.length); break;
    case Kind::kFetchAdd: ExecuteOne<Kind::kFetchAdd>(wr, step.remote, step.local, step.length); break;
    case Kind::kMessage: return SendMessage(step);
    case Kind::kNothing: break;
  }
  return WcStatus::kSuccess;
}

void Requester::LookForDeadPeers() {
  const int64_t now = RealClock()->NowNs();
  if (now - last_look_ns_ < kLookIntervalNs) return;
  last_look_ns_ = now;
  if (peer_ != nullptr) (void)peer_->ConfirmAlive();
  const void* last = peer_.get();
  for (const Translation& translation : translations_) {
    if (translation.peer == nullptr || translation.peer == last) continue;
    last = translation.peer;
    (void)static_cast<const Peer*>(last)->ConfirmAlive();
  }
}

}  // namespace krcore::rnic::sw
