// OneSidedChannel: synchronous one-sided verbs over a QP of its own, for the control path: a DC initiator, which
// reaches everybody, or an RC QP with one peer.
//
// Thread safety: none; its user locks. Blocking: each call up to its deadline.
#ifndef KRCORE_META_ONE_SIDED_CHANNEL_H_
#define KRCORE_META_ONE_SIDED_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/page_array.h"
#include "krcore/clock.h"
#include "krcore/dct/peer.h"
#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::meta {

// A word or range of memory at a DC target; over RC, at the peer.
struct RemoteMemory {
  const dct::Target* target = nullptr;
  const rnic::AddressHandle* ah = nullptr;
  uint64_t addr = 0;
  uint32_t rkey = 0;
};

class OneSidedChannel {
 public:
  static constexpr size_t kMaxBytes = 1024;  // of a channel made without saying more

  // `max_bytes` per verb.
  static Result<std::unique_ptr<OneSidedChannel>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                         size_t max_bytes = kMaxBytes);
  // With an RC QP, of use once connected; the peer posts nothing.
  static Result<std::unique_ptr<OneSidedChannel>> CreateRc(rnic::Device& device, rnic::Pd& pd, Clock& clock);
  uint32_t qpn() const { return qp_->num(); }
  // Whether nothing that failed can happen any more. Does not block.
  bool IsReady() { return !resetting_ || EndWhatIsPosted({INT64_MIN}).ok(); }
  Status ConnectRc(const rnic::DeviceAddress& peer, uint32_t peer_qpn);

  // A verb that failed may happen until IsReady: the next one waits for that, up to its own deadline. An RC QP is of no
  // use after a failure: all further ones fail.
  //
  // kUnavailable: the target does not answer or refuses; the outcome of a Write or CompareSwap is then unknown.
  // kTimeout: the deadline passed first, likewise.
  Status Read(const RemoteMemory& remote, std::span<std::byte> out, Deadline deadline);
  Status Write(const RemoteMemory& remote, std::span<const std::byte> data, Deadline deadline);
  // Stores the word found in *old; the swap happened if that equals `expected`.
  Status CompareSwap(const RemoteMemory& remote, uint64_t expected, uint64_t desired, uint64_t* old, Deadline deadline);

 private:
  OneSidedChannel(Clock& clock, size_t max_bytes) : clock_(clock), buffer_(max_bytes) {}
  static Result<std::unique_ptr<OneSidedChannel>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                         size_t max_bytes, rnic::QpType type);
  // kTimeout: not yet; the QP and the buffer are not to be used.
  Status EndWhatIsPosted(Deadline deadline);
  Status Execute(rnic::SendWr wr, const RemoteMemory& remote, size_t length, Deadline deadline);

  Clock& clock_;
  const PageArray<std::byte> buffer_;
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
  uint64_t last_wr_id_ = 0;
  bool resetting_ = false;  // EndWhatIsPosted has not come to its end
};

}  // namespace krcore::meta

#endif  // KRCORE_META_ONE_SIDED_CHANNEL_H_
