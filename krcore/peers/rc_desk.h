// The desk: where a node takes requests for RC connections. It lies in the node's memory, and peers reach it by
// one-sided verbs. It is an array of places, one for each connection that the node will keep.
//
//     owner    0 -> owner by a peer's CAS; -> 0 by the node, once nothing of the connection is left
//     closing  the peer's: its own owner word, when it has destroyed its QP
//     answer   the node's: Answer() of the owner and the number of the QP that the node has made for it; 0: none yet
//     request  the peer's: one WRITE, which counts once its checksum matches and it names the owner of the place
//
// Everything that a peer writes names the owner that wrote it. So what arrives after the node has given the place to
// another owner is ignored.
#ifndef KRCORE_PEERS_RC_DESK_H_
#define KRCORE_PEERS_RC_DESK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "krcore/clock.h"
#include "krcore/rnic.h"

namespace krcore::peers {

// RemoteRegion::tag of a node's desk. PeerDirectory hides it from users.
inline constexpr uint32_t kDeskTag = 0x4465736b;
inline constexpr uint32_t kMaxDeskPlaces = 1024;

struct DeskRequest {
  uint64_t checksum = 0;  // of the rest
  uint64_t owner = 0;     // PlaceOwner
  rnic::DeviceAddress address;
  uint32_t qpn = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(DeskRequest) == 56 && std::is_trivially_copyable_v<DeskRequest>);
uint64_t ChecksumOf(const DeskRequest& request);

struct DeskPlace {
  uint64_t owner;
  uint64_t closing;
  uint64_t answer;
  uint64_t reserved;
  DeskRequest request;
  uint64_t padding[5];
};
static_assert(sizeof(DeskPlace) == 128 && offsetof(DeskPlace, closing) == 8 && offsetof(DeskPlace, answer) == 16 &&
              offsetof(DeskPlace, request) == 32);

// QP number 0: refused. The other half says whose answer it is, by what distinguishes the owners of a place.
constexpr uint64_t Answer(uint64_t owner, uint32_t qpn) {
  return uint64_t{static_cast<uint32_t>(owner >> 32) ^ static_cast<uint32_t>(owner)} << 32 | qpn;
}
constexpr bool IsAnswerTo(uint64_t owner, uint64_t answer) {
  return answer != 0 && answer >> 32 == Answer(owner, 0) >> 32;
}
constexpr uint32_t AnsweredQpn(uint64_t answer) { return static_cast<uint32_t>(answer); }

// Acceptor: a node's half of the RC connections that peers ask for at its desk. For each it makes a QP, which serves
// the peer's one-sided requests and posts nothing. It keeps the QP until the peer has closed the connection or is
// confirmed dead, and never drops it because time has passed, so that no request in flight is lost.
//
// Thread safety: none; NodeImpl locks. Nothing blocks.
class Acceptor {
 public:
  // `desk`: zeroed memory that peers may READ, WRITE and CAS; outlives the Acceptor.
  static Result<std::unique_ptr<Acceptor>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                  std::span<DeskPlace> desk);

  // Answers requests, and frees places that were closed or whose owner is dead. Returns how many places changed.
  size_t Poll();

 private:
  struct Connection {  // of the place of the same index
    uint64_t owner = 0;
    int64_t claimed_ns = 0;
    bool answered = false;
    rnic::DeviceAddress peer;  // once answered
    std::unique_ptr<rnic::Qp> qp;
  };

  Acceptor(rnic::Device& device, rnic::Pd& pd, Clock& clock, std::span<DeskPlace> desk)
      : device_(device), pd_(pd), clock_(clock), desk_(desk), connections_(desk.size()) {}
  bool PollPlace(size_t index, int64_t now_ns, bool look_for_dead, Deadline asked_by);
  bool ReadRequest(size_t index, DeskRequest* request) const;
  Status Connect(const DeskRequest& request, Connection& connection);
  void Free(size_t index);

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  const std::span<DeskPlace> desk_;
  std::unique_ptr<rnic::Cq> cq_;
  std::vector<Connection> connections_;
  int64_t last_look_ns_ = 0;
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_RC_DESK_H_
