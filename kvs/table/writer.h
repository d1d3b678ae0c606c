// Writer: Put, Insert, Update, Delete and Modify. A write takes the steps of the usual case (write_steps.cc). What
// these leave is settled there too. If the write has not taken effect then, it begins again in a loop that handles
// every case (writer.cc). The steps are those of docs/protocol.md, "Writes".
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_WRITER_H_
#define KVS_TABLE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvs/epochs/epochs.h"
#include "kvs/layout/block.h"
#include "kvs/table/address_cache.h"
#include "kvs/table/combiner.h"
#include "kvs/table/directory.h"
#include "kvs/table/finder.h"
#include "kvs/table/merger.h"
#include "kvs/table/splitter.h"
#include "kvs/table/workbench.h"
#include "kvs/task.h"

namespace kvs {

struct NewBlock {
  GlobalAddress address;
  uint64_t bytes = 0;          // as allocated
  uint64_t content_bytes = 0;  // as written
  uint64_t birth = 0;          // epoch
  const std::byte* local = nullptr;
  uint32_t lkey = 0;
  krcore::NodeId preferred = krcore::kNoNode;  // the node that it should be on
  uint32_t tentatives = 0;                     // how often it was to be in a tentative slot, kTentativeWords at most
  bool written = false;                        // the WRITE has completed
  bool shown = false;                          // it was in a slot, if only tentatively: others may be reading it
  bool published = false;                      // it is in a VAL slot
  bool in_doubt = false;                       // a verb that names it has an unknown outcome: it is never reused

  Slot InState(SlotState state, uint8_t fingerprint, uint8_t version) const {
    return Slot::Make(state, fingerprint, LengthUnits(content_bytes), address, version);
  }
};

// A write of one key: the block that it is about to publish, and how far it has come. It lives in the coroutine or call
// to which the write belongs.
struct PendingWrite {
  // What the write waits for: what it asked for last and has not looked at yet.
  enum class Phase : uint8_t {
    kBegin,    // nothing yet
    kScan,     // [Write 1] the block's WRITE, the buckets, the blocks that match, [Write 5] the headers again
    kBlock,    // [Modify 2] the WRITE of a Modify's block
    kScanned,  // nothing: all of that has arrived, and shows that the write may be published
    kReplace,  // [Write 2] the CAS of a VAL slot
    kInsert,   // [Write 6a] the CAS of a FREE slot to the write's tentative one, and the buckets again
    kConfirm,  // [Write 6f] the CAS that turns it into a value
  };

  PendingWrite(Operation& operation, WriteKind write_kind, std::string_view written, uint64_t expires_at)
      : op(&operation), kind(write_kind), value(written), expires_at_ms(expires_at) {}
  PendingWrite(Operation& operation, Turn& turn)
      : PendingWrite(operation, turn.kind(), turn.in().value, turn.in().expires_at_ms) {
    modify = turn.modifies() ? &turn : nullptr;
  }
  // Takes over what the turn's group has become.
  void Become(const Turn& turn) {
    kind = turn.kind();
    value = turn.in().value;
    expires_at_ms = turn.in().expires_at_ms;
  }

  bool inserts() const { return kind == WriteKind::kPut || kind == WriteKind::kInsert; }
  // No verb that puts the block's address into a slot has been asked for.
  bool unpublished() const { return phase <= Phase::kScanned; }
  // The slot's address, in kReplace and the phases after it.
  GlobalAddress at() const { return op->SlotAddress(candidate); }

  Operation* op;
  WriteKind kind;  // of a Modify: kModify until its functions have run, then what they want
  std::string_view value;
  uint64_t expires_at_ms;  // 0: never
  Turn* modify = nullptr;  // of a Modify: its place in the line, which has its functions
  NewBlock block;
  Phase phase = Phase::kBegin;
  Step step = Step::kRun;          // what GoOnWriting last returned
  Outcome outcome = Outcome::kOk;  // how what it asked for ended
  uint32_t candidate = 0;          // the slot, in kReplace and the phases after it
  Slot old, now;                   // what it changes from and to; after kReplace `now` is the tentative slot
  bool expired = false;            // the value in the slot had expired when it was last looked at
  krcore::Status result;           // how the write ended
  bool existed = true;             // whether the key was there
};

class Writer : private Part {
 public:
  Writer(Epochs& epochs, AddressCache& addresses, Combiner& combiner, Directory& directory, Finder& finder,
         Workbench& workbench, Merger& merger, Splitter& splitter)
      : Part(epochs.common),
        epochs_(epochs),
        cache_(epochs.cache),
        addresses_(addresses),
        combiner_(combiner),
        directory_(directory),
        finder_(finder),
        workbench_(workbench),
        merger_(merger),
        splitter_(splitter) {}

  // Runs one write to its end. The lengths of key and value must be valid. `modify`: of a Modify.
  Task<Status> Write(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms = 0,
                     const ModifyFunction* modify = nullptr);
  // Reads a key whose value was seen to have expired. It removes that value, or finds another one. The caller may hold
  // no operation. kNotFound.
  Task<Status> ReadExpired(std::string_view key, std::string* value, uint64_t* expires_at_ms = nullptr);

  // ---- its steps, for one write or for many at a time, in a coroutine or without one
  //
  //   do {
  //     write.step = GoOnWriting(write, batch);
  //     write.outcome = co_await batch.Run();
  //   } while (GoesOn(write.step, write.outcome, batch));
  //
  // Call it when what was asked for has arrived. kOk: the write has ended with write.result; kRun: more has been asked
  // for. Any other result means that this is not the usual case, and SettleWrite must follow; kFull: no slot is FREE
  // (or there is no memory for a large READ).
  Step GoOnWriting(PendingWrite& write, Batch& batch);
  // Finds out from what was asked for last whether the write has taken effect, or settles that.
  //
  // kOk: the write has ended with write.result. kRestart: it has not taken effect and will not; it may begin again.
  // kUnavailable: nor has it, because nothing was published, but a memory node of that round trip is away.
  Task<Step> SettleWrite(PendingWrite& write);
  // Does the rest of a write that the steps have not ended: SettleWrite, and then whatever it takes.
  Task<void> FinishWrite(PendingWrite& write);
  // Call it for a write that has ended.
  void EndWrite(const PendingWrite& write);
  // Gives back the operation's own block, if no VAL slot names it.
  void GiveBackUnused(const PendingWrite& write);
  // Its block fits an operation's own buffer.
  static bool IsSmall(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
    return BlockBytes(key.size(), value.size(), expires_at_ms != 0) <= kMaxSmallBlockBytes;
  }

 private:
  // ---- writer.cc
  auto TakeStep(PendingWrite& write);
  Task<Step> PublishAlone(PendingWrite& write);
  Task<void> WriteAfterAll(PendingWrite& write);
  Task<Step> LeaveTable(Operation& op);
  Task<Step> MakeRoom(Operation& op, Status* why_not);
  Task<Step> CanBeSplit(Operation& op, Status* why_not);

  // ---- write_steps.cc
  Step BeginWrite(PendingWrite& write, Batch& batch);
  Step Publish(PendingWrite& write, Batch& batch);
  Step Decide(PendingWrite& write, Batch& batch);
  Step LookBehindTentative(PendingWrite& write, Batch& batch);
  static void AskToSwap(PendingWrite& write, Batch& batch, Slot old, Slot now);
  Slot Replacement(const PendingWrite& write) const;
  void Replaced(PendingWrite& write);
  void Inserted(PendingWrite& write);
  Task<Step> ReplaceAfterAll(PendingWrite& write, Outcome outcome);
  Task<Step> LookAgain(PendingWrite& write, Slot there);
  Task<Step> ConfirmAfterAll(PendingWrite& write, Step scanned);
  static void AskToConfirm(PendingWrite& write);
  Task<Step> LookAtConfirm(PendingWrite& write, Outcome outcome);
  Task<Step> AbortTentative(PendingWrite& write);
  Step InDoubt(PendingWrite& write);
  Task<Step> LookAtOutcome(Operation& op, GlobalAddress at, Slot before, Slot after);
  Step EndUnknown(PendingWrite& write) const;
  Status UnknownStatus() const;
  Step PlaceBlock(PendingWrite& write);
  Step BuildNewBlock(PendingWrite& write);
  bool SendBlock(Batch& batch, NewBlock* block);
  void DropBlock(PendingWrite& write);
  // The write's value expires, and the home does not say yet that there are such values.
  bool MustSayExpiring(const PendingWrite& write) const { return write.expires_at_ms != 0 && !epochs_.home.expiring(); }
  void RetireOld(Operation& op, Slot old);

  Epochs& epochs_;
  DirectoryCache& cache_;
  AddressCache& addresses_;
  Combiner& combiner_;
  Directory& directory_;
  Finder& finder_;
  Workbench& workbench_;
  Merger& merger_;
  Splitter& splitter_;
};

}  // namespace kvs

#endif  // KVS_TABLE_WRITER_H_
