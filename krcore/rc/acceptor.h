// Acceptor: a node's half of RC connections that peers ask for at its desk (desk.h). It makes a QP for each, which
// serves the peer's one-sided requests and posts nothing, and keeps it until the peer has closed the connection or is
// confirmed dead: never because time has passed, so that nobody's requests in flight are lost by it.
//
// Thread safety: none; NodeImpl locks. Nothing blocks.
#ifndef KRCORE_RC_ACCEPTOR_H_
#define KRCORE_RC_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/clock.h"
#include "krcore/rc/desk.h"
#include "krcore/rnic/rnic.h"

namespace krcore::rc {

class Acceptor {
 public:
  // `desk`: zeroed memory that peers may READ, WRITE and CAS; outlives the Acceptor.
  static Result<std::unique_ptr<Acceptor>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                  std::span<Place> desk);

  // Answers what was asked and frees what was closed or whose owner is dead. Returns how many places changed.
  size_t Poll();
  // QPs that it keeps.
  size_t connections() const;

 private:
  struct Connection {  // of the place of the same index
    uint64_t owner = 0;
    int64_t claimed_ns = 0;
    bool answered = false;
    rnic::DeviceAddress peer;  // once answered
    std::unique_ptr<rnic::Qp> qp;
  };

  Acceptor(rnic::Device& device, rnic::Pd& pd, Clock& clock, std::span<Place> desk)
      : device_(device), pd_(pd), clock_(clock), desk_(desk), connections_(desk.size()) {}
  bool PollPlace(size_t index, int64_t now_ns, bool look_for_dead, Deadline asked_by);
  bool ReadRequest(size_t index, Request* request) const;
  Status Connect(const Request& request, Connection& connection);
  void Free(size_t index);

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  const std::span<Place> desk_;
  std::unique_ptr<rnic::Cq> cq_;
  std::vector<Connection> connections_;
  int64_t last_look_ns_ = 0;
};

}  // namespace krcore::rc

#endif  // KRCORE_RC_ACCEPTOR_H_
