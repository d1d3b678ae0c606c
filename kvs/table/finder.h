// Finder: a key's candidates in one table, and the blocks that match; and the steps of a read in its usual case.
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_FINDER_H_
#define KVS_TABLE_FINDER_H_

#include <array>
#include <bit>
#include <cstdint>

#include "kvs/epochs/common.h"
#include "kvs/epochs/directory_cache.h"
#include "kvs/epochs/operation.h"
#include "kvs/layout/block.h"
#include "kvs/layout/candidates.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"
#include "kvs/table/address_cache.h"
#include "kvs/task.h"

namespace kvs {

class Finder : private Part {
 public:
  Finder(const Common& common, DirectoryCache& cache, AddressCache& addresses)
      : Part(common), cache_(cache), addresses_(addresses) {}

  // ---- a read in its usual case
  // Call BeginRead, then GoOnReading as long as the last call said kRun and all that it asked for has arrived [Get 1].
  // Any other result than kOk and kRun means that this is not the usual case.
  Step BeginRead(Operation& op, Batch& batch);
  // kOk: op.scan.val is the value, or the key is absent, as far as the operation must know.
  Step GoOnReading(Operation& op, Batch& batch);

  // ---- a scan
  // A scan reads the operation's two combined buckets in op.scan.table (after whatever the batch already holds). It
  // also reads the blocks of candidates whose fingerprint matches and whose state is in `states`, a mask of 1 <<
  // SlotState with VAL. `guess` is a slot word whose block is read along with the buckets; FREE: none. A scan is done
  // in steps. Each step looks at what the last round trip has brought and asks for the next. The batch is the
  // operation's own or one that many operations share:
  //
  //   Step scanned = BeginScan(op, batch, states, guess);
  //   for (;;) {
  //     const Outcome read = co_await batch.Run();
  //     if (scanned != Step::kRun || read != Outcome::kOk) break;
  //     scanned = GoOnScan(op, batch);
  //   }
  //
  // kUnavailable: the memory node of op.scan.table cannot be reached.
  Step BeginScan(Operation& op, Batch& batch, uint32_t states, Slot guess);
  // Call it when what was asked for has arrived. kRun: more has been asked for.
  Step GoOnScan(Operation& op, Batch& batch);
  // Does the same as a coroutine, for callers that scan rarely.
  Task<Step> ScanTable(Operation& op, TableRef table, uint32_t states, Slot guess = {});
  // Asks for the two combined buckets of the operation's table.
  inline static void ReadBuckets(Operation& op, Batch& batch);
  // Chooses, from the buckets that were read, the candidates whose blocks must be read. Each is read at most once.
  void PlanMatches(Operation& op);
  // Reads the four bucket headers of the last scan again: kOk if they all still fit the key, else kRestart.
  Task<Step> CheckHeaders(Operation& op);
  // Reads the slot's block, however long it is. If that is whole, scan.block becomes a view of it.
  Task<Step> ReadBlock(Operation& op, Slot slot);

 private:
  Slot UsableGuess(Slot guess, krcore::NodeId node) const;
  inline static bool FindOnlyMatch(const Operation& op, uint32_t* candidate);
  bool AskForOnlyMatch(Operation& op, Batch& batch);
  static bool IsOnlyMatchRight(Operation& op);
  void LookAtBuckets(Operation& op);
  bool IsGuessRight(Operation& op);
  Step ReadMatches(Operation& op, Batch& batch);
  bool JudgeRead(Operation& op, Batch& batch, Step* step);
  Step JudgeMatches(Operation& op, Batch& batch);
  bool JudgeMatch(Operation& op, uint32_t c, BlockView block);
  Step AskForLargeBlock(Operation& op, Batch& batch, Slot slot, uint64_t bytes);
  bool IsTorn(Operation& op, BlockView block, uint64_t bytes);
  Step CheckBlock(Operation& op, BlockView block, uint64_t bytes);
  static void ReadHeaders(Operation& op, Batch& batch);
  static bool HeadersFit(const Operation& op);

  DirectoryCache& cache_;
  AddressCache& addresses_;
};

inline void Finder::ReadBuckets(Operation& op, Batch& batch) {
  const GlobalAddress table = op.scan.table.address;
  const std::array<uint64_t, 2> offsets = {table.offset + CombinedOffset(op.scan.places.place[0]),
                                           table.offset + CombinedOffset(op.scan.places.place[1])};
  batch.Read(table.node, offsets, op.buffers->buckets.data(), kCombinedBytes);
}

// The usual case: exactly one candidate matches, it is a value whose length is known, and there is no guess or
// stranger. The scan must be for values.
inline bool Finder::FindOnlyMatch(const Operation& op, uint32_t* candidate) {
  if (!op.scan.guess.free() || op.strangers != 0) return false;
  const uint32_t matches = MatchSlots(op.buffers->candidates(), op.hash.fingerprint());
  if (matches == 0 || (matches & (matches - 1)) != 0) return false;  // has_single_bit is a call without popcnt
  *candidate = static_cast<uint32_t>(std::countr_zero(matches));
  const Slot slot = op.Candidate(*candidate);
  return slot.state() == SlotState::kVal && slot.length_units() != kLargeBlock;
}

}  // namespace kvs

#endif  // KVS_TABLE_FINDER_H_
