// Drainer: emptying a memory node, so that it can be stopped, and taking it back into use.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_DRAINER_H_
#define KVS_UPKEEP_DRAINER_H_

#include <cstdint>
#include <memory>

#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/layout/pool.h"
#include "kvs/table/table.h"
#include "kvs/task.h"
#include "kvs/upkeep/compaction.h"
#include "kvs/upkeep/maintenance.h"

namespace kvs {

// How a drain has ended.
enum class DrainEnd : uint8_t { kGoesOn, kDone, kUnknownNode, kTakenBack, kNoRoom };

// What a client knows of a memory node that it drains, from round to round.
struct Draining {
  krcore::NodeId node = krcore::kNoNode;
  MemberWord mark;       // the node's, as it said DRAINING last
  bool settled = false;  // everybody has known it since, and takes nothing there
  bool elected = false;  // this client has been the mover
  DrainEnd end = DrainEnd::kGoesOn;
  Step step = Step::kOk;  // how the last round ended
  DrainReport report;
};

class Drainer {
 public:
  Drainer(Epochs& epochs, Table& table, Maintenance& maintenance, Compaction& compaction)
      : common_(epochs.common), epochs_(epochs), table_(table), maintenance_(maintenance), compaction_(compaction) {}

  // As Client's calls of these names.
  Task<Status> Drain(krcore::NodeId node, DrainOptions options, DrainReport* report);
  Task<Status> Undrain(krcore::NodeId node);

 private:
  Task<void> RunRound(int64_t timeout_ms);
  Task<Status> DrainInRounds(DrainOptions options, DrainReport* report);
  Task<Status> TakeBack(krcore::NodeId node);

  const Common common_;
  Epochs& epochs_;
  Table& table_;
  Maintenance& maintenance_;
  Compaction& compaction_;
  std::unique_ptr<Draining> draining_;  // null: none is being drained by this client
};

}  // namespace kvs

#endif  // KVS_UPKEEP_DRAINER_H_
