#include "krcore/vqp/request_check.h"

#include "krcore/base/word_pair.h"

namespace krcore::vqp {
namespace {

// Members that lie side by side, as one number.
uint32_t FormAndFlagsOf(const WorkRequest& wr) {
  static_assert(offsetof(WorkRequest, flags) == offsetof(WorkRequest, num_sge) + 2);
  static_assert(offsetof(WorkRequest, imm) == offsetof(WorkRequest, num_sge) + sizeof(uint32_t));
  return WordAt<offsetof(WorkRequest, num_sge), uint32_t>(wr);  // with a byte that nothing is in
}

uint64_t LengthAndKeyOf(const Sge& sge) {
  static_assert(offsetof(Sge, lkey) == offsetof(Sge, length) + sizeof(sge.length) && sizeof(sge.length) == 4);
  return WordAt<offsetof(Sge, length)>(sge);
}

}  // namespace

// Those behind the first that have its opcode, and name as many bytes of the same local region, so that where they may
// begin is the same for all. Not inlined, so that the loop has the registers for all that it compares with.
template <bool kAtomic>
[[gnu::noinline]] size_t LikeRequest::CountAlike(std::span<const WorkRequest> wrs) const {
  const WorkRequest& like = wrs[0];
  if (like.num_sge != 1 || like.sg_list == nullptr) return 0;
  const uint64_t length = like.sg_list->length;
  if (length - 1 >= longest_) return 0;  // 0 is refused too
  if (kAtomic && length != 8) return 0;
  constexpr uint8_t kAllowedFlags = kKnownFlags & ~kInline;
  constexpr uint32_t kFormMask = 0xffffu | uint32_t{static_cast<uint8_t>(~kAllowedFlags)} << 16;
  const uint32_t form = FormOf(like);  // with no other flags than those
  const uint64_t extent = length | uint64_t{local_.key} << 32;
  const uint64_t local = local_.addr, local_room = local_.length - length;
  const uint64_t remote = remote_.addr, remote_room = remote_.length - length;
  const uint32_t rkey = remote_.key;
  size_t count = 0;
  do {
    const WorkRequest& wr = wrs[count];
    if ((FormAndFlagsOf(wr) & kFormMask) != form || wr.sg_list == nullptr) break;
    const Sge& sge = *wr.sg_list;
    if (LengthAndKeyOf(sge) != extent || sge.addr - local > local_room) break;
    if (wr.rkey != rkey || wr.remote_addr - remote > remote_room) break;
    if (kAtomic && wr.remote_addr % 8 != 0) break;
  } while (++count < wrs.size());
  return count;
}

size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  size_t allowed = 0;
  while (allowed < wrs.size()) {
    const std::span<const WorkRequest> rest = wrs.subspan(allowed);
    size_t alike = 0;
    switch (rest[0].opcode) {
      case Opcode::kRead:
      case Opcode::kWrite: alike = CountAlike<false>(rest); break;
      case Opcode::kCompareSwap:
      case Opcode::kFetchAdd: alike = CountAlike<true>(rest); break;
      default: break;
    }
    if (alike == 0) break;
    allowed += alike;
  }
  return allowed;
}

StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const mr::RegionView& local,
                         std::span<const RemoteRegion> remote, LikeRequest* like, size_t* bad_index, bool* has_inline) {
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
    // Not for one request that is alone unlike, which costs less than to learn from it.
    if (i < wrs.size() || like->knows_nothing()) *like = LikeRequest(wr, limits, local, remote);
    if (i < wrs.size()) i += like->CountAllowed(wrs.subspan(i));
  }
  return StatusCode::kOk;
}

}  // namespace krcore::vqp
