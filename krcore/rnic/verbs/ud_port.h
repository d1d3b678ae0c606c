// What initiators and targets of the software DC have in common: times and sizes, counters, and their UD queue.
#ifndef KRCORE_RNIC_VERBS_UD_PORT_H_
#define KRCORE_RNIC_VERBS_UD_PORT_H_

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "krcore/clock.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/sdc/target.h"
#include "krcore/rnic/sdc/types.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/service.h"

namespace krcore::rnic::verbs {

inline constexpr int kPolledAtOnce = 32;  // completions of what the software DC receives

// Times and sizes of the software DC on this provider. docs/software_dc.md says what each of them bounds.

// 21 tries in 1.15 s, so that a lost peer is noticed before the limit.
inline constexpr sdc_timing kSdcTiming{
    .limit_ns = 2'000'000'000,
    .grace_ns = 1'000'000'000,
    .retry_ns = 4'000'000,
    .retry_max_ns = 64'000'000,
    .idle_ns = 1'000'000'000,
    .rnr_ns = 1'000'000,
    .retries = 20,
    .rnr_retries = 6,
};
inline constexpr uint64_t kSdcHoldNs = 2 * kSdcTiming.idle_ns;
inline constexpr int64_t kSdcMaxRetransmissionNs = kSdcTiming.limit_ns + kSdcTiming.grace_ns;
static_assert(kSettledNs >= kSdcMaxRetransmissionNs, "the dead may still have requests at a target's agent");

inline constexpr uint32_t kSdcQkey = SDC_QKEY;

inline constexpr uint32_t kSdcPeers = 256;           // of an initiator
inline constexpr uint32_t kSdcSessions = 1024;       // of a target
inline constexpr uint32_t kSdcInitiatorSends = 128;  // buffers
inline constexpr uint32_t kSdcInitiatorReceives = 128;
inline constexpr uint32_t kSdcTargetSends = 512;
inline constexpr uint32_t kSdcTargetReceives = 1024;
inline constexpr uint32_t kSdcAtomics = 256;  // of a target, in flight at its device
inline constexpr uint32_t kSdcReplyHandles = 1024;

// Also counts while the machine sleeps, which deadlines need.
inline uint64_t SdcNowNs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// The counters behind rnic::SoftwareDcStats. Each object that counts adds what is new since it last did.
//
// Relaxed throughout: counters order nothing.
class DcCounters {
 public:
  void Add(const sdc_initiator_stats& now, sdc_initiator_stats* before) {
    Raise(sent_, now.sent, before->sent);
    Raise(sent_again_, now.sent_again, before->sent_again);
    Raise(timeouts_, now.timeouts, before->timeouts);
    Raise(sessions_, now.hellos, before->hellos);
    Raise(sessions_gone_, now.sessions_gone, before->sessions_gone);
    *before = now;
  }
  void Add(const sdc_target_stats& now, sdc_target_stats* before) {
    Raise(served_, now.executed, before->executed);
    Raise(served_again_, now.repeated, before->repeated);
    Raise(early_, now.early, before->early);
    Raise(expired_, now.expired, before->expired);
    Raise(busy_, now.busy, before->busy);
    *before = now;
  }
  void AddAtomicRepair() { atomic_repairs_.fetch_add(1, std::memory_order_relaxed); }

  SoftwareDcStats Read(int64_t agent_cpu_ns) const {
    const auto of = [](const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); };
    return {.agent_cpu_ns = agent_cpu_ns,
            .sent = of(sent_),
            .sent_again = of(sent_again_),
            .timeouts = of(timeouts_),
            .sessions = of(sessions_),
            .sessions_gone = of(sessions_gone_),
            .served = of(served_),
            .served_again = of(served_again_),
            .early = of(early_),
            .expired = of(expired_),
            .busy = of(busy_),
            .atomic_repairs = of(atomic_repairs_)};
  }

 private:
  static void Raise(std::atomic<uint64_t>& count, uint64_t now, uint64_t before) {
    if (now != before) count.fetch_add(now - before, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> sent_{0}, sent_again_{0}, timeouts_{0}, sessions_{0}, sessions_gone_{0};
  std::atomic<uint64_t> served_{0}, served_again_{0}, early_{0}, expired_{0}, busy_{0}, atomic_repairs_{0};
};

// A network that loses, doubles and reorders the software DC's datagrams. It is for tests, which have no such network
// between queues of one NIC. Nothing else sets it.
struct DatagramFaults {
  // One of so many datagrams, each on its own; 0: none.
  uint32_t lost = 0, doubled = 0, late = 0;  // late: after the next one
  uint64_t seed = 1;
};

// For all queues that this process makes from now on; null: none. What it points to stays. Relaxed: it is set before
// they are made.
inline std::atomic<const DatagramFaults*> datagram_faults{nullptr};

inline constexpr uint32_t kGrhBytes = 40;  // precede each datagram

// A UD queue with the registered buffers that the software DC sends from and receives into. It loses datagrams and
// never fails for good: a queue that broke is reset, and what was in flight is lost.
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

  // Returns a buffer of the MTU's length, the same until it is sent; null while all are in flight.
  uint8_t* Buffer();
  // Sends the first bytes of the buffer. It goes out with Flush.
  void Send(ibv_ah* ah, uint32_t qpn, uint32_t bytes);
  // How many were sent so far, and how many of these the NIC no longer needs.
  uint64_t sent() const { return sent_; }
  uint64_t done() const { return done_; }

  struct Datagram {
    const uint8_t* grh = nullptr;
    const uint8_t* payload = nullptr;  // null: there is none
    uint32_t bytes = 0;
  };
  // Returns what a completion of the receive CQ, whose wr_id has kReceive, brought. Valid until Flush, which posts the
  // receive again.
  static constexpr uint64_t kReceive = uint64_t{1} << 63;
  Datagram Received(const ibv_wc& wc);

  // Rings one doorbell each. A queue that broke is reset; if the NIC does not take it back, it stays broken until the
  // next call, and receives nothing.
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
  std::unique_ptr<RegisteredPages> buffers_;  // first those to send from, then those to receive into
  ibv_cq* send_cq_ = nullptr;
  ibv_qp* qp_ = nullptr;

  uint64_t sent_ = 0, done_ = 0;
  std::vector<ibv_send_wr> posts_;    // of Send, for Flush
  std::vector<ibv_sge> sges_;         // those of posts_
  std::vector<uint32_t> to_receive_;  // places of receives to post again
  uint32_t life_ = 0;                 // receives of an earlier life are not the queue's
  bool broken_ = false;

  const DatagramFaults* const faults_ = datagram_faults.load(std::memory_order_relaxed);
  uint64_t random_ = 0;
  Held held_;
};

// Returns the GID in the 40 bytes before a datagram that a port with the GID `own` received. It is of IPv4 if `own` is;
// the first 20 bytes then have no meaning. Otherwise it is of IPv6 or InfiniBand. Empty: it is neither.
std::optional<ibv_gid> SenderGid(const ibv_gid& own, std::span<const uint8_t, kGrhBytes> header);

// Where strangers' datagrams come from, and the address handles for answering them: a bounded number, of which the one
// used least recently is dropped.
// Thread safety: one thread at a time.
class ReplyHandles {
 public:
  ReplyHandles(Context* context, ibv_pd* pd, uint32_t limit, Clock* clock)
      : context_(context), pd_(pd), limit_(limit), clock_(clock) {}
  ~ReplyHandles();

  // Looks up by sdc_address::bytes, GID and LID. `port` will use the handle next. Null: it cannot be made; this is not
  // tried again for a second. May wait for the network, which is asked for a new address.
  ibv_ah* Get(const sdc_address& address, const UdPort& port);
  // The same without waiting: also null if Get has not been called for it recently.
  ibv_ah* Find(const sdc_address& address, const UdPort& port);

 private:
  using Key = std::array<uint8_t, 24>;
  struct Handle {
    Key key;
    ibv_ah* ah;        // null: it could not be made
    uint64_t used;     // the count of the port's datagrams when it was used
    int64_t again_ns;  // when to try again
  };
  static Key KeyOf(const sdc_address& address);
  Handle* Known(const Key& key, const UdPort& port);
  void Retire(const UdPort& port);

  Context* const context_;
  ibv_pd* const pd_;
  const uint32_t limit_;
  Clock* const clock_;
  std::list<Handle> handles_;  // last used first
  std::map<Key, std::list<Handle>::iterator> by_key_;
  std::deque<Handle> retired_;  // datagrams to them may be in flight
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_UD_PORT_H_
