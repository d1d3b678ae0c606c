// The checks a request passes before it may reach a queue that others share (KRCORE section 3.1): whatever this
// node can know to be wrong is refused to its sender.
#ifndef KRCORE_VQP_REQUEST_CHECK_H_
#define KRCORE_VQP_REQUEST_CHECK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "krcore/base/word_pair.h"
#include "krcore/mr/region_table.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::vqp {

struct RequestLimits {
  uint32_t max_sge = 0;
  uint32_t max_inline_bytes = 0;
  uint64_t max_message_bytes = 0;
};

// Number of SGEs and opcode, as they lie in memory: compared at once.
inline uint16_t FormOf(const WorkRequest& wr) {
  static_assert(offsetof(WorkRequest, opcode) == offsetof(WorkRequest, num_sge) + 1);
  uint16_t form;
  std::memcpy(&form, reinterpret_cast<const std::byte*>(&wr) + offsetof(WorkRequest, num_sge), sizeof(form));
  return form;
}

inline bool IsAtomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
inline bool IsReadOrWrite(Opcode opcode) { return opcode == Opcode::kRead || opcode == Opcode::kWrite; }

inline constexpr uint8_t kKnownFlags = kSignaled | kFence | kInline | kSolicited;

// kInvalidArgument: the request's form. kPermissionDenied: memory it names is not, or not wholly, in a live region of
// this node or a published one of the peer. kUnsupported: a message, which is not for here. A few nanoseconds; *bytes
// is the total length.
inline StatusCode CheckRequest(const WorkRequest& wr, const RequestLimits& limits, const mr::RegionView& local,
                               std::span<const RemoteRegion> remote, uint64_t* bytes) {
  const bool atomic = IsAtomic(wr.opcode);
  if (!atomic && !IsReadOrWrite(wr.opcode)) [[unlikely]] {
    const bool two_sided =
        wr.opcode == Opcode::kSend || wr.opcode == Opcode::kSendImm || wr.opcode == Opcode::kWriteImm;
    return two_sided ? StatusCode::kUnsupported : StatusCode::kInvalidArgument;
  }
  if (wr.num_sge == 0 || wr.num_sge > limits.max_sge || wr.sg_list == nullptr || (wr.flags & ~kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;

  // A read or atomic writes the SGEs, so these need an lkey; an inline payload is copied and does not.
  const bool is_inline = (wr.flags & kInline) != 0;
  if (is_inline && wr.opcode != Opcode::kWrite) return StatusCode::kInvalidArgument;
  const uint32_t needed = wr.opcode == Opcode::kWrite ? 0u : uint32_t{kLocalWrite};
  uint64_t total = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) return StatusCode::kInvalidArgument;  // means 2 GiB to some NICs
    total += sge.length;
    if (is_inline) continue;
    const mr::LocalRegion* region = local.Find(sge.lkey);
    if (region == nullptr || !region->Covers(sge.addr, sge.length) || (region->rights & needed) != needed)
      return StatusCode::kPermissionDenied;
  }
  if (atomic && (wr.num_sge != 1 || total != 8 || wr.remote_addr % 8 != 0)) return StatusCode::kInvalidArgument;
  if (total > limits.max_message_bytes || (is_inline && total > limits.max_inline_bytes))
    return StatusCode::kInvalidArgument;
  *bytes = total;

  for (const RemoteRegion& region : remote) {
    if (region.rkey != wr.rkey) continue;
    const bool covered = wr.remote_addr >= region.addr && total <= region.length &&
                         wr.remote_addr - region.addr <= region.length - total;
    return covered ? StatusCode::kOk : StatusCode::kPermissionDenied;
  }
  return StatusCode::kPermissionDenied;
}

// A filter in front of CheckRequest: made from one request that has passed, it knows others like it, of one SGE in the
// same local region, to the same remote region, at a third of the cost. What it allows CheckRequest does too, as long
// as the regions are what they were; what it does not know has to go there.
class LikeRequest {
 public:
  LikeRequest() = default;  // knows nothing
  LikeRequest(const WorkRequest& passed, const RequestLimits& limits, const mr::RegionView& local_regions,
              std::span<const RemoteRegion> remote_regions) {
    if ((passed.flags & kInline) != 0) return;
    const mr::LocalRegion* const local = local_regions.Find(passed.sg_list[0].lkey);
    if (local == nullptr || (local->rights & kLocalWrite) == 0) return;
    for (const RemoteRegion& remote : remote_regions) {
      if (remote.rkey != passed.rkey) continue;
      local_ = {local->addr, local->length, local->lkey};
      remote_ = {remote.addr, remote.length, remote.rkey};
      // No range that wraps around, so that below one comparison tells both ends.
      if (local_.addr + local_.length > local_.addr && remote_.addr + remote_.length > remote_.addr)
        longest_ = std::min({limits.max_message_bytes, local_.length, remote_.length});
      return;
    }
  }

  bool knows_nothing() const { return longest_ == 0; }
  bool Allows(const WorkRequest& wr) const {
    if (wr.num_sge != 1 || wr.sg_list == nullptr || (wr.flags & ~(kKnownFlags & ~kInline)) != 0) return false;
    const Sge& sge = *wr.sg_list;
    if (uint64_t{sge.length} - 1 >= longest_ || sge.lkey != local_.key || wr.rkey != remote_.key) return false;
    if (sge.addr - local_.addr > local_.length - sge.length) return false;
    if (wr.remote_addr - remote_.addr > remote_.length - sge.length) return false;
    return IsReadOrWrite(wr.opcode) || (IsAtomic(wr.opcode) && sge.length == 8 && wr.remote_addr % 8 == 0);
  }
  // How many of `wrs` it allows, up to the first that it does not.
  size_t CountAllowed(std::span<const WorkRequest> wrs) const;

 private:
  template <bool kAtomic>
  friend class AlikeRequests;
  struct Range {
    uint64_t addr = 0, length = 0;
    uint32_t key = 0;
  };

  Range local_, remote_;
  uint64_t longest_ = 0;  // bytes; 0: nothing is allowed
};

// Of those that a LikeRequest allows, the ones that have the first one's opcode and name as many bytes, so that where
// they may begin is the same for all. `kAtomic`: the opcode is an atomic's, else that of a READ or WRITE.
template <bool kAtomic>
class AlikeRequests {
 public:
  AlikeRequests(const LikeRequest& like, const WorkRequest& first) {
    if (first.num_sge != 1 || first.sg_list == nullptr) return;
    const uint64_t length = first.sg_list->length;
    if (length - 1 >= like.longest_ || (kAtomic && length != 8)) return;  // 0 is refused too
    form_ = FormOf(first);                                                // with no flags but those that are allowed
    extent_ = length | uint64_t{like.local_.key} << 32;
    local_ = like.local_.addr, local_room_ = like.local_.length - length;
    remote_ = like.remote_.addr, remote_room_ = like.remote_.length - length;
    rkey_ = like.remote_.key;
  }
  bool Allows(const WorkRequest& wr) const {
    // Members that lie side by side are compared as one number; in this one there is a byte that nothing is in.
    static_assert(offsetof(WorkRequest, flags) == offsetof(WorkRequest, num_sge) + 2);
    static_assert(offsetof(WorkRequest, imm) == offsetof(WorkRequest, num_sge) + sizeof(uint32_t));
    constexpr uint8_t kAllowedFlags = kKnownFlags & ~kInline;
    constexpr uint32_t kFormMask = 0xffffu | uint32_t{static_cast<uint8_t>(~kAllowedFlags)} << 16;
    if ((WordAt<offsetof(WorkRequest, num_sge), uint32_t>(wr) & kFormMask) != form_ || wr.sg_list == nullptr)
      return false;
    static_assert(offsetof(Sge, lkey) == offsetof(Sge, length) + sizeof(Sge::length) && sizeof(Sge::length) == 4);
    const Sge& sge = *wr.sg_list;
    if (WordAt<offsetof(Sge, length)>(sge) != extent_ || sge.addr - local_ > local_room_) return false;
    if (wr.rkey != rkey_ || wr.remote_addr - remote_ > remote_room_) return false;
    return !kAtomic || wr.remote_addr % 8 == 0;
  }

 private:
  uint32_t form_ = ~uint32_t{0};  // no request's: none is allowed
  uint32_t rkey_ = 0;
  uint64_t extent_ = 0, local_ = 0, local_room_ = 0, remote_ = 0, remote_room_ = 0;
};

// CheckRequest of a batch. On refusal *bad_index is the first offender. *has_inline becomes true if one of them is
// inline. *like is asked first and becomes what the next batch may be like; it must not be older than the regions.
StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const mr::RegionView& local,
                         std::span<const RemoteRegion> remote, LikeRequest* like, size_t* bad_index, bool* has_inline);

}  // namespace krcore::vqp

#endif  // KRCORE_VQP_REQUEST_CHECK_H_
