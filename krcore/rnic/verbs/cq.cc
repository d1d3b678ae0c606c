#include "krcore/rnic/verbs/cq.h"

#include <algorithm>
#include <cerrno>

namespace krcore::rnic::verbs {
namespace {

constexpr int kBatch = 32;

}  // namespace

Result<std::unique_ptr<Cq>> VerbsCq::Create(Context* context, uint32_t depth, uint32_t max_depth) {
  if (depth == 0 || depth > max_depth)
    return Status(StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(max_depth));
  ibv_cq* const cq = ibv_create_cq(context->get(), static_cast<int>(depth), nullptr, nullptr, 0);
  if (cq == nullptr) return FailedCall(errno, "create a CQ");
  return std::unique_ptr<Cq>(new VerbsCq(cq, depth, max_depth));
}

VerbsCq::~VerbsCq() { ibv_destroy_cq(cq_); }

Status VerbsCq::Reserve(uint32_t wrs) {
  const uint64_t needed = reserved_ + wrs;
  if (needed > max_depth_)
    return {StatusCode::kOutOfMemory, "a CQ of this device has room for " + std::to_string(max_depth_) +
                                          " WRs, and its queues would have " + std::to_string(needed)};
  if (needed > static_cast<uint64_t>(cq_->cqe)) {
    if (const int error = ibv_resize_cq(cq_, static_cast<int>(needed)); error != 0)
      return FailedCall(error, "give a CQ room for " + std::to_string(needed) + " WRs");
  }
  reserved_ = needed;
  return {};
}

uint16_t VerbsCq::Attach(CqUser* user) {
  const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  const auto slot = static_cast<uint16_t>(free - slots_.begin());
  if (free == slots_.end()) {
    slots_.push_back(user);
  } else {
    *free = user;
  }
  return slot;
}

void VerbsCq::Detach(uint16_t slot) { slots_[slot] = nullptr; }

CqUser* VerbsCq::Owner(uint64_t wr_id) const {
  const uint16_t slot = WrToken::Slot(wr_id);
  CqUser* const user = slot < slots_.size() ? slots_[slot] : nullptr;
  return user != nullptr && user->IsOfThisLife(wr_id) ? user : nullptr;
}

size_t VerbsCq::Poll(std::span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !kept_.empty(); kept_.pop_front()) out[count++] = kept_.front().completion;
  while (count < out.size()) {
    ibv_wc wcs[kBatch];
    const int wanted = static_cast<int>(std::min<size_t>(kBatch, out.size() - count));
    const int got = ibv_poll_cq(cq_, wanted, wcs);
    for (int i = 0; i < got; ++i) {
      CqUser* const user = Owner(wcs[i].wr_id);
      if (user != nullptr && user->Complete(wcs[i], &out[count])) ++count;
    }
    if (got < wanted) break;
  }
  for (size_t i = 0; flushes_ > 0 && i < slots_.size(); ++i) {
    if (slots_[i] != nullptr) count += slots_[i]->TakeFlushes(this, out.subspan(count));
  }
  if (sources_awake_) count += TakeFromSources(out.subspan(count));
  return count;
}

size_t VerbsCq::TakeFromSources(std::span<Completion> out) {
  size_t count = 0;
  sources_awake_ = false;
  // Each goes first in its turn, so that none has to wait for ever.
  const size_t sources = sources_.size();
  if (++first_source_ >= sources) first_source_ = 0;
  for (size_t i = 0, next = first_source_; i < sources; ++i) {
    count += sources_[next]->Take(out.subspan(count));
    sources_awake_ = sources_awake_ || sources_[next]->Awake();
    if (++next == sources) next = 0;
  }
  return count;
}

void VerbsCq::Forget(const CqUser* user) {
  ibv_wc wc{};
  while (ibv_poll_cq(cq_, 1, &wc) == 1) {
    CqUser* const owner = Owner(wc.wr_id);
    Completion completion;
    if (owner != nullptr && owner->Complete(wc, &completion)) kept_.push_back({completion, owner});
  }
  std::erase_if(kept_, [&](const Kept& kept) { return kept.user == user; });
}

}  // namespace krcore::rnic::verbs
