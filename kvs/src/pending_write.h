// A write of one key: the block that it is about to publish, and how far it has come. Lives in the coroutine, or call,
// that the write belongs to.
#ifndef KVS_SRC_PENDING_WRITE_H_
#define KVS_SRC_PENDING_WRITE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/layout/subtable.h"
#include "kvs/src/combiner.h"
#include "kvs/src/operation.h"

namespace kvs {

struct NewBlock {
  GlobalAddress address;
  uint64_t bytes = 0;          // as allocated
  uint64_t content_bytes = 0;  // as written
  uint64_t birth = 0;          // epoch
  const std::byte* local = nullptr;
  uint32_t lkey = 0;
  krcore::NodeId preferred = krcore::kNoNode;  // where it was to be
  bool written = false;                        // the WRITE has completed
  bool shown = false;                          // it was in a slot, if only tentatively: others may be reading it
  bool published = false;                      // it is in a VAL slot
  bool in_doubt = false;                       // a verb that names it has an unknown outcome: it is never reused

  Slot InState(SlotState state, uint8_t fingerprint, uint8_t version) const {
    return Slot::Make(state, fingerprint, LengthUnits(content_bytes), address, version);
  }
};

struct PendingWrite {
  // What is waited for: the last thing that was asked for and not looked at yet.
  enum class Phase : uint8_t {
    kBegin,    // nothing yet
    kScan,     // (1) of docs/protocol.md: the block's WRITE, the buckets, the blocks that match, (5) the headers again
    kScanned,  // nothing: all of that is there, and shows that the write may be published
    kReplace,  // (2) the CAS of a VAL slot
    kInsert,   // (6a) the CAS of a FREE slot to one's own tentative one, and the buckets again
    kConfirm,  // (6f) the CAS that makes a value of that
  };

  PendingWrite(Operation& operation, OpKind write_kind, std::string_view written)
      : op(&operation), kind(write_kind), value(written) {}

  bool inserts() const { return kind == OpKind::kPut || kind == OpKind::kInsert; }
  // No verb that names the block in a slot was asked for.
  bool unpublished() const { return phase <= Phase::kScanned; }
  // Of kReplace and what follows. The slot's address.
  GlobalAddress at() const { return op->SlotAddress(candidate); }

  Operation* op;
  OpKind kind;
  std::string_view value;
  NewBlock block;
  Phase phase = Phase::kBegin;
  Step step = Step::kRun;          // what the last step said (write_steps.cc),
  Outcome outcome = Outcome::kOk;  // and how what it asked for ended
  uint32_t candidate = 0;          // the slot of kReplace and what follows,
  Slot old, now;          // and what it is to be changed from and to; in the phases after kReplace `now` is the
                          // tentative slot
  krcore::Status result;  // once it has ended,
  bool existed = true;    // and whether the key was there
};

}  // namespace kvs

#endif  // KVS_SRC_PENDING_WRITE_H_
