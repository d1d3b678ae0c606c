// How an RC connection is agreed upon, like RDMA-CM's REQ, REP, DREQ and DREP, in datagrams:
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
// A request without an answer is sent again; the acceptor knows it by the client's incarnation and the id.
#ifndef KRCORE_BASELINE_EXCHANGE_H_
#define KRCORE_BASELINE_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "krcore/baseline/datagrams.h"
#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::baseline {

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

// The client's side. Thread safety: from any thread; each waits for its own peer alone, and whoever waits takes what
// has come for the others.
class Exchange {
 public:
  static Result<std::unique_ptr<Exchange>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock);

  struct Agreed {
    uint64_t id = 0;
    rnic::DeviceAddress peer;
    Reply reply;
  };
  // kNotFound: the peer has no acceptor. kUnavailable: it died. kTimeout. Other codes: the acceptor's.
  Result<Agreed> Connect(NodeId peer, uint32_t qpn, Deadline deadline);
  // Waits some milliseconds at most; an acceptor that has not heard of it finds out when the client dies.
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
  // What has come goes to those who wait for it; an answer that came twice to nobody.
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
  std::vector<Waiting*> waiting_;  // of those who are in Call
  std::unique_ptr<Datagrams> datagrams_;
};

}  // namespace krcore::baseline

#endif  // KRCORE_BASELINE_EXCHANGE_H_
