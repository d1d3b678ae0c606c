// Upkeep: what a client does for the store by itself.
#ifndef KVS_UPKEEP_UPKEEP_H_
#define KVS_UPKEEP_UPKEEP_H_

#include "kvs/epochs/epochs.h"
#include "kvs/table/table.h"
#include "kvs/upkeep/compaction.h"
#include "kvs/upkeep/drainer.h"
#include "kvs/upkeep/maintenance.h"

namespace kvs {

struct Upkeep {
  Upkeep(Epochs& epochs, Table& table)
      : maintenance(epochs, table),
        compaction(epochs, table, maintenance),
        drainer(epochs, table, maintenance, compaction) {}

  Maintenance maintenance;
  Compaction compaction;
  Drainer drainer;
};

}  // namespace kvs

#endif  // KVS_UPKEEP_UPKEEP_H_
