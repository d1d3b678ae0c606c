// Datagrams: a UD QP with posted receives, over which connections are agreed upon. Unreliable, as UD is.
//
// Thread safety: belongs to one thread at a time.
#ifndef KRCORE_BASELINE_DATAGRAMS_H_
#define KRCORE_BASELINE_DATAGRAMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/page_array.h"
#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::baseline {

inline constexpr size_t kMaxDatagramBytes = 256;

class Datagrams {
 public:
  // `receives`: datagrams that may wait; more are lost.
  static Result<std::unique_ptr<Datagrams>> Create(rnic::Device& device, rnic::Pd& pd, uint32_t receives);

  uint32_t qpn() const { return qp_->num(); }
  // Best effort. `message` may be reused at once.
  void Send(const rnic::AddressHandle& to, uint32_t qpn, std::span<const std::byte> message);
  // The oldest that has come: its first out.size() bytes. Returns how many; 0: none is there.
  size_t Receive(std::span<std::byte> out);

 private:
  explicit Datagrams(size_t bytes) : buffers_(bytes) {}
  Status PostReceive(uint64_t index);

  const PageArray<std::byte> buffers_;
  uint32_t receives_ = 0;  // of the buffers; behind them are those of sends
  uint64_t sent_ = 0, sent_done_ = 0;
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
};

}  // namespace krcore::baseline

#endif  // KRCORE_BASELINE_DATAGRAMS_H_
