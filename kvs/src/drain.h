// What a client knows of a memory node that it drains, from round to round.
#ifndef KVS_SRC_DRAIN_H_
#define KVS_SRC_DRAIN_H_

#include <cstdint>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/src/client_core.h"

namespace kvs {

// How a drain has ended.
enum class DrainEnd : uint8_t { kGoesOn, kDone, kUnknownNode, kTakenBack, kNoRoom };

struct ClientCore::Draining {
  krcore::NodeId node = krcore::kNoNode;
  MemberWord mark;       // the node's, as it said DRAINING last
  bool settled = false;  // everybody has known it since, and takes nothing there
  bool elected = false;  // this client has been the mover
  DrainEnd end = DrainEnd::kGoesOn;
  Step step = Step::kOk;  // how the last round ended
  DrainReport report;
};

}  // namespace kvs

#endif  // KVS_SRC_DRAIN_H_
