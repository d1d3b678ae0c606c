// The checks that a request passes before it may reach a queue that others share (KRCORE section 3.1): whatever this
// node can know to be wrong is refused to its sender.
#ifndef KRCORE_QUEUE_REQUEST_CHECK_H_
#define KRCORE_QUEUE_REQUEST_CHECK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/node.h"
#include "krcore/peers/region_table.h"
#include "krcore/rnic/request_form.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::queue {

struct RequestLimits {
  uint32_t max_sge = 0;
  uint32_t max_inline_bytes = 0;
  uint64_t max_message_bytes = 0;
};

inline constexpr uint8_t kKnownFlags = rnic::kPlainFlags | kInline;

constexpr bool IsAtomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
constexpr bool IsReadOrWrite(Opcode opcode) { return opcode == Opcode::kRead || opcode == Opcode::kWrite; }

// kInvalidArgument: the request's form. kPermissionDenied: memory that it names is not, or not wholly, in a live region
// of this node or a published one of the peer. kUnsupported: a message, which is checked elsewhere. Takes a few
// nanoseconds. *bytes is the total length.
inline StatusCode CheckRequest(const WorkRequest& wr, const RequestLimits& limits, const peers::RegionView& local,
                               std::span<const RemoteRegion> remote, uint64_t* bytes) {
  if (!IsAtomic(wr.opcode) && !IsReadOrWrite(wr.opcode)) [[unlikely]] {
    const bool two_sided =
        wr.opcode == Opcode::kSend || wr.opcode == Opcode::kSendImm || wr.opcode == Opcode::kWriteImm;
    return two_sided ? StatusCode::kUnsupported : StatusCode::kInvalidArgument;
  }
  if (wr.num_sge == 0 || wr.num_sge > limits.max_sge || wr.sg_list == nullptr || (wr.flags & ~kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;

  // A READ or atomic writes to the SGEs, so these need an lkey; an inline payload is copied and does not.
  const bool is_inline = (wr.flags & kInline) != 0;
  const uint32_t needed = wr.opcode == Opcode::kWrite ? 0u : uint32_t{kLocalWrite};
  uint64_t total = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) return StatusCode::kInvalidArgument;  // means 2 GiB to some NICs
    total += sge.length;
    if (is_inline) continue;
    const peers::LocalRegion* region = local.Find(sge.lkey);
    if (region == nullptr || !region->Covers(sge.addr, sge.length) || (region->rights & needed) != needed)
      return StatusCode::kPermissionDenied;
  }
  if (total > limits.max_message_bytes || !rnic::IsWellFormed(wr, total, limits.max_inline_bytes))
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

// A filter before CheckRequest. It is made from one request that has passed, and recognizes others like it (one SGE in
// the same local region, to the same remote region) at a third of the cost. CheckRequest would pass all that it allows,
// as long as the regions stay the same; everything else has to go to CheckRequest.
class LikeRequest {
 public:
  LikeRequest() = default;  // allows nothing
  LikeRequest(const WorkRequest& passed, const RequestLimits& limits, const peers::RegionView& local_regions,
              std::span<const RemoteRegion> remote_regions) {
    if ((passed.flags & kInline) != 0) return;
    const peers::LocalRegion* const local = local_regions.Find(passed.sg_list[0].lkey);
    if (local == nullptr || (local->rights & kLocalWrite) == 0) return;
    for (const RemoteRegion& remote : remote_regions) {
      if (remote.rkey != passed.rkey) continue;
      local_ = {local->addr, local->length, local->lkey};
      remote_ = {remote.addr, remote.length, remote.rkey};
      // No range wraps around, so that KeyedRange::Covers checks both ends by one comparison.
      if (local_.addr + local_.length > local_.addr && remote_.addr + remote_.length > remote_.addr)
        longest_ = std::min({limits.max_message_bytes, local_.length, remote_.length});
      return;
    }
  }

  bool knows_nothing() const { return longest_ == 0; }
  bool Allows(const WorkRequest& wr) const {
    if ((wr.flags & ~rnic::kPlainFlags) != 0 || wr.num_sge != 1 || wr.sg_list == nullptr) return false;
    const Sge& sge = *wr.sg_list;
    const bool allowed = sge.length - uint64_t{1} < longest_ &&  // 0 is not allowed
                         sge.lkey == local_.key && wr.rkey == remote_.key && local_.Covers(sge.addr, sge.length) &&
                         remote_.Covers(wr.remote_addr, sge.length);
    if (IsReadOrWrite(wr.opcode)) return allowed;
    return allowed && IsAtomic(wr.opcode) && sge.length == 8 && wr.remote_addr % 8 == 0;
  }
  const rnic::KeyedRange& local() const { return local_; }
  const rnic::KeyedRange& remote() const { return remote_; }
  // Returns how many of `wrs` it allows before the first that it does not.
  size_t CountAllowed(std::span<const WorkRequest> wrs) const {
    size_t count = 0;
    while (count < wrs.size() && Allows(wrs[count])) ++count;
    return count;
  }

 private:
  rnic::KeyedRange local_, remote_;
  uint64_t longest_ = 0;  // bytes; 0: nothing is allowed
};

// CheckRequest for a batch. On refusal *bad_index is the first offender. *has_inline becomes true if a request is
// inline. *like is asked first, and is set to what the next batch may be like; it must not be older than the regions.
inline StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits,
                                const peers::RegionView& local, std::span<const RemoteRegion> remote, LikeRequest* like,
                                size_t* bad_index, bool* has_inline) {
  for (size_t i = like->CountAllowed(wrs); i < wrs.size();) {
    const WorkRequest& wr = wrs[i];
    uint64_t bytes;
    const StatusCode code = CheckRequest(wr, limits, local, remote, &bytes);
    if (code != StatusCode::kOk) [[unlikely]] {
      *bad_index = i;
      return code;
    }
    *has_inline |= (wr.flags & kInline) != 0;
    ++i;
    // Learns nothing from a single request that is unlike: that would cost more than its check.
    if (i < wrs.size() || like->knows_nothing()) *like = LikeRequest(wr, limits, local, remote);
    if (i < wrs.size()) i += like->CountAllowed(wrs.subspan(i));
  }
  return StatusCode::kOk;
}

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_REQUEST_CHECK_H_
