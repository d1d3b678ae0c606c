// A UD queue with the registered buffers that the software DC sends from and receives into. It loses datagrams and
// never fails for good: a queue that broke is reset, and what was under way is lost.
#ifndef KRCORE_RNIC_VERBS_UD_PORT_H_
#define KRCORE_RNIC_VERBS_UD_PORT_H_

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "krcore/rnic/verbs/context.h"
#include "krcore/rnic/verbs/datagram_faults.h"
#include "krcore/rnic/verbs/registered_pages.h"

namespace krcore::rnic::verbs {

inline constexpr uint32_t kGrhBytes = 40;  // in front of each datagram

// Thread safety: one thread at a time.
class UdPort {
 public:
  struct Sizes {
    uint32_t mtu_bytes;  // payload
    uint32_t sends;
    uint32_t receives;
  };
  // `recv_cq` has room for all receives, and is polled by the caller.
  static Result<std::unique_ptr<UdPort>> Open(Context* context, ibv_pd* pd, ibv_cq* recv_cq, const Sizes& sizes);
  ~UdPort();
  UdPort(const UdPort&) = delete;
  UdPort& operator=(const UdPort&) = delete;

  uint32_t qpn() const { return qp_->qp_num; }

  // A buffer of the MTU's length, the same until it is sent; null while all are under way.
  uint8_t* Buffer();
  // Sends the first bytes of it. Goes out with Flush.
  void Send(ibv_ah* ah, uint32_t qpn, uint32_t bytes);
  // How many were sent so far, and how many of these the NIC does not need any more.
  uint64_t sent() const { return sent_; }
  uint64_t done() const { return done_; }

  struct Datagram {
    const uint8_t* grh = nullptr;
    const uint8_t* payload = nullptr;  // null: it is none
    uint32_t bytes = 0;
  };
  // What a completion of the receive CQ, whose wr_id has kReceive, brought. Valid until Flush, which posts the receive
  // again.
  static constexpr uint64_t kReceive = uint64_t{1} << 63;
  Datagram Received(const ibv_wc& wc);

  // One doorbell each. A queue that broke is reset; if the NIC does not take it back, it stays broken until the next
  // call, and receives nothing.
  void Flush();
  bool broken() const { return broken_; }

 private:
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr size_t kBatch = 32;

  struct Held {
    ibv_ah* ah = nullptr;
    uint32_t qpn = 0;
    std::vector<uint8_t> bytes;  // empty: none
  };
  UdPort(Context* context, const Sizes& sizes) : context_(context), sizes_(sizes) {}
  void Enqueue(ibv_ah* ah, uint32_t qpn, uint32_t bytes);
  void SendFaultily(ibv_ah* ah, uint32_t qpn, uint32_t bytes);
  void SendCopy(const Held& held);
  bool Happens(uint32_t one_of);
  Status ToRts();
  void PostSends();
  void PostReceives();
  void Reap();
  void Recover();
  uint8_t* SendBuffer(uint64_t position) { return buffers_->data() + position % sizes_.sends * stride_; }
  uint8_t* ReceiveBuffer(uint32_t place) { return buffers_->data() + (sizes_.sends + size_t{place}) * stride_; }

  Context* const context_;
  const Sizes sizes_;
  size_t stride_ = 0;
  std::unique_ptr<RegisteredPages> buffers_;  // to send from, and behind them to receive into
  ibv_cq* send_cq_ = nullptr;
  ibv_qp* qp_ = nullptr;

  uint64_t sent_ = 0, done_ = 0;
  std::vector<ibv_send_wr> posts_;    // of Send, for Flush
  std::vector<ibv_sge> sges_;         // theirs
  std::vector<uint32_t> to_receive_;  // places of receives to post again
  uint32_t life_ = 0;                 // receives of an earlier one are not the queue's
  bool broken_ = false;

  const DatagramFaults* const faults_ = datagram_faults.load(std::memory_order_relaxed);
  uint64_t random_ = 0;
  Held held_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_UD_PORT_H_
