// How two nodes agree on an RC connection by datagrams.
#ifndef KRCORE_BASELINES_EXCHANGE_H_
#define KRCORE_BASELINES_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::baselines {

inline constexpr size_t kMaxDatagramBytes = 256;

// Datagrams: a UD QP with posted receives, for agreeing on connections. Unreliable, as UD is.
//
// Thread safety: belongs to one thread at a time.
class Datagrams {
 public:
  // `receives`: datagrams that may wait; more are lost.
  static Result<std::unique_ptr<Datagrams>> Create(rnic::Device& device, rnic::Pd& pd, uint32_t receives);

  uint32_t qpn() const { return qp_->num(); }
  // Best effort. `message` may be reused at once.
  void Send(const rnic::AddressHandle& to, uint32_t qpn, std::span<const std::byte> message);
  // Copies the first out.size() bytes of the oldest datagram that has arrived. Returns how many; 0: there is none.
  size_t Receive(std::span<std::byte> out);

 private:
  explicit Datagrams(size_t bytes) : buffers_(bytes) {}
  Status PostReceive(uint64_t index);

  const PageArray<std::byte> buffers_;
  uint32_t receives_ = 0;  // number of receive buffers; those of sends follow
  uint64_t sent_ = 0, sent_done_ = 0;
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
};

// How two nodes agree on an RC connection by datagrams, like RDMA-CM's REQ, REP, DREQ and DREP:
//
//   client                                       acceptor (the peer's CPU)
//   QP in INIT
//   Request connect: id, address, QP ----------> QP: INIT, RTR to the client's, RTS
//                   <---------------------- Reply: id, QP, regions
//   RTR to the acceptor's, RTS
//   ...
//   QP destroyed
//   Request disconnect: id --------------------> destroys its QP
//                   <---------------------- Reply: id
//
// A request without an answer is sent again; the acceptor recognizes it by the client's incarnation and the id.

inline constexpr uint32_t kExchangeMagic = 0x3152434B;  // "KCR1"

// The fabric record of an acceptor.
struct Announcement {
  uint32_t magic = kExchangeMagic;
  uint32_t qpn = 0;  // UD; 0: it is closed
  rnic::DeviceAddress address;
};
static_assert(sizeof(Announcement) == 40);
std::string AcceptorRecord(NodeId node);

enum class RequestKind : uint32_t { kConnect = 1, kDisconnect = 2 };

struct Request {
  uint32_t magic = kExchangeMagic;
  RequestKind kind = RequestKind::kConnect;
  uint64_t id = 0;  // of the connection; the client's choice
  rnic::DeviceAddress from;
  uint32_t reply_qpn = 0;  // UD
  uint32_t qpn = 0;        // RC
};
static_assert(sizeof(Request) == 56 && std::is_trivially_copyable_v<Request>);

struct Reply {
  uint32_t magic = kExchangeMagic;
  RequestKind kind = RequestKind::kConnect;
  uint64_t id = 0;
  uint32_t code = 0;  // of StatusCode
  uint32_t qpn = 0;
  uint32_t region_count = 0;
  uint32_t reserved = 0;
  RemoteRegion regions[kMaxRegionsPerNode] = {};
};
static_assert(sizeof(Reply) == 152 && std::is_trivially_copyable_v<Reply>);
static_assert(sizeof(Reply) <= kMaxDatagramBytes && sizeof(Request) <= kMaxDatagramBytes);

// The client's side. Thread safety: any thread may call. Each waits for its own peer alone, and a waiting thread also
// takes what has arrived for the others.
class Exchange {
 public:
  static Result<std::unique_ptr<Exchange>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock);

  struct Agreed {
    uint64_t id = 0;
    rnic::DeviceAddress peer;
    Reply reply;
  };
  // kNotFound: the peer has no acceptor. kUnavailable: the peer died. kTimeout. Other codes: the acceptor's.
  Result<Agreed> Connect(NodeId peer, uint32_t qpn, Deadline deadline);
  // Waits some milliseconds at most; an acceptor that does not get the message finds out when the client dies.
  void Disconnect(const Agreed& agreed);

 private:
  Exchange(rnic::Device& device, Clock& clock) : device_(device), clock_(clock) {}
  struct Target {
    Announcement announced;
    std::unique_ptr<rnic::AddressHandle> ah;
  };
  Result<Target> Find(NodeId peer, Deadline deadline);
  // Sends `request` until it is answered. kUnavailable: the peer died. kTimeout.
  Result<Reply> Call(const Target& target, Request request, Deadline deadline);
  // Gives arrived replies to the threads that wait for them; drops a reply that came twice.
  void TakeReplies();

  rnic::Device& device_;
  Clock& clock_;
  std::atomic<uint64_t> last_id_{0};  // relaxed: numbers
  struct Waiting {
    RequestKind kind;
    uint64_t id;
    std::optional<Reply> reply;
  };
  std::mutex mutex_;               // guards the rest; not held while waiting
  std::vector<Waiting*> waiting_;  // of the threads in Call
  std::unique_ptr<Datagrams> datagrams_;
};

}  // namespace krcore::baselines

#endif  // KRCORE_BASELINES_EXCHANGE_H_
