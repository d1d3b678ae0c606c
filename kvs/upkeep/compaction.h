// Compaction: when a client gives memory back by a run of the mover (mover.h), and what it learns from that.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_COMPACTION_H_
#define KVS_UPKEEP_COMPACTION_H_

#include <algorithm>
#include <cstdint>

#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/layout/pool.h"
#include "kvs/table/table.h"
#include "kvs/task.h"
#include "kvs/upkeep/maintenance.h"

namespace kvs {

// How often a client looks at least that waits for its turn as the mover, or for a run's end. At first: kLookNs.
inline constexpr int64_t kMaxLookNs = 10'000'000;
inline int64_t NextLook(int64_t look_ns) { return std::min(2 * look_ns, kMaxLookNs); }

// Another client's mover word: as seen last, since when, and when to ask whether its process is dead.
struct SeenMover {
  MoverWord word;
  int64_t since_ns = 0, ask_at_ns = 0;
};

class Compaction final : public Room::Maker {
 public:
  Compaction(Epochs& epochs, Table& table, Maintenance& maintenance)
      : common_(epochs.common), epochs_(epochs), table_(table), maintenance_(maintenance) {
    epochs.room.maker = this;
  }

  // Until it has ended. For Client::CompactAsync.
  Task<Status> Compact(CompactOptions options, CompactReport* report);
  // With a round of maintenance: because somebody has gone who held memory, or there are many free blocks.
  void BeginIfWanted(int64_t now_ns);
  void MakeRoom(int64_t timeout_ms) override { Start({.thorough = true, .timeout_ms = timeout_ms}, /*for_room=*/true); }

  // Any run of the mover is between these two. Its operation.
  Operation& BeginMover(bool drains);
  void EndMover(uint64_t chunks_freed);
  SeenMover& seen_mover() { return seen_mover_; }

 private:
  void Start(const CompactOptions& options, bool for_room);
  Task<void> Run(CompactOptions options, bool for_room);

  const Common common_;
  Epochs& epochs_;
  Table& table_;
  Maintenance& maintenance_;
  CompactReport last_report_;
  SeenMover seen_mover_;
  int64_t again_at_ns_ = 0;  // unless memory is wanted
};

}  // namespace kvs

#endif  // KVS_UPKEEP_COMPACTION_H_
