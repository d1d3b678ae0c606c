// Maintenance: the rounds in which a client announces its epoch, frees what is old enough, and looks after what others
// have left.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_MAINTENANCE_H_
#define KVS_UPKEEP_MAINTENANCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvs/epochs/epochs.h"
#include "kvs/table/table.h"
#include "kvs/task.h"

namespace kvs {

// How often a part of upkeep looks whether something has ended.
inline constexpr int64_t kLookNs = 200'000;

class Maintenance {
 public:
  Maintenance(Epochs& epochs, Table& table) : common_(epochs.common), epochs_(epochs), table_(table) {}

  // After a look at the clock, while the lease lasts. True: a round was due, and has begun.
  bool BeginIfDue(int64_t now_ns);
  // One round that begins now. Ends with it.
  Task<Step> MaintainNow();
  bool running() const { return running_ > 0; }
  // When the next round is due; `idle`: while this client does nothing.
  int64_t next_ns(bool idle) const { return idle ? idle_at_ns_ : epochs_.wanted.maintain_at_ns; }

  // At least this epoch was announced by all clients that are not expelled, when the last round looked;
  uint64_t announced_by_living() const { return announced_by_living_; }
  // and these by those that are.
  const std::vector<uint64_t>& expelled_epochs() const { return expelled_epochs_; }

 private:
  Task<void> Maintain();
  Task<Step> ReleaseHeldBlocks();

  const Common common_;
  Epochs& epochs_;
  Table& table_;
  size_t running_ = 0;  // 1 while Maintain() runs
  int64_t idle_at_ns_ = 0;
  std::vector<uint64_t> expelled_epochs_;
  uint64_t announced_by_living_ = 0;
  uint32_t held_cursor_ = 0;
};

}  // namespace kvs

#endif  // KVS_UPKEEP_MAINTENANCE_H_
