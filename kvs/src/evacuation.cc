// One round of the mover: the chunks chosen are announced, emptied and freed, or given up. The step numbers are those
// of docs/protocol.md, "Emptying chunks".
#include <algorithm>
#include <cstring>

#include "kvs/src/epoch_buffers.h"
#include "kvs/src/mover.h"
#include "kvs/src/mutation.h"

namespace kvs {
namespace {

constexpr uint64_t kEvacuationOffset = kHomeAreaOffset + offsetof(HomeArea, evacuation);
constexpr uint64_t kEvacuationsOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, evacuations);
constexpr uint64_t kRetiredTablesOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, retired_tables);
constexpr uint64_t kFreedChunksOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, freed_chunks);
// Scans of one round, until all that its chunks held has moved.
constexpr int kScansPerRound = 16;
constexpr int64_t kInvalidScanNs = 8'000'000;

uint64_t SlotOfEvacuation(uint32_t slot) { return kEvacuationOffset + slot * sizeof(uint64_t); }

}  // namespace

// Tells everybody. Those for which there is no slot are left for another time.
Task<Step> ClientCore::Mover::Announce() {
  uint64_t* const slots = op_.buffers->slots.data();
  size_t next = 0;
  for (uint32_t slot = 0; slot < kEvacuationSlots && next < victims_.size(); ++slot) {
    Victim& victim = victims_[next];
    if (victim.word.kind() == ChunkKind::kTables) {  // nobody cuts from it any more
      const ChunkWord full = victim.word.As(ChunkKind::kTables, 0xfffff);
      op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), full.word(), &slots[0]);
      const Outcome sealed = co_await op_.batch.Run();
      if (sealed != Outcome::kOk) co_return Step::kUnavailable;
      if (slots[0] != victim.word.word()) {
        victims_.erase(victims_.begin() + static_cast<std::ptrdiff_t>(next));
        --slot;
        continue;
      }
      victim.word = full;
    }
    op_.batch.CompareSwap({home_, SlotOfEvacuation(slot)}, 0, victim.Evacuation().word(), &slots[0]);
    const Outcome set = co_await op_.batch.Run();
    if (set != Outcome::kOk) co_return Step::kUnavailable;
    if (slots[0] != 0) continue;  // another mover's
    victim.slot = slot;
    ++next;
  }
  victims_.resize(next);
  // Behind them all: memory kept from ended clients is not used by who finds another count.
  op_.batch.FetchAdd({home_, kEvacuationsOffset}, 1, &slots[0]);
  const Outcome counted = co_await op_.batch.Run();
  co_return counted == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// Slots of movers that did not come to an end.
Task<Step> ClientCore::Mover::ClearSlots() {
  EpochBuffers::Registered& words = client_.epoch_buffers_->words();
  std::array<uint64_t, kEvacuationSlots> found;
  op_.batch.Read({home_, kEvacuationOffset}, op_.buffers->match.data(), sizeof(words.evacuation));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  std::memcpy(found.data(), op_.buffers->match.data(), sizeof(found));
  for (uint32_t slot = 0; slot < kEvacuationSlots; ++slot) {
    if (found[slot] == 0) continue;
    const Step given_up = co_await GiveUp(EvacuationWord(found[slot]));
    if (given_up != Step::kOk) co_return given_up;
    op_.batch.CompareSwap({home_, SlotOfEvacuation(slot)}, found[slot], 0, &op_.buffers->cas[0]);
    const Outcome cleared = co_await op_.batch.Run();
    if (cleared != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

Task<Step> ClientCore::Mover::Free(const Victim& victim) {
  uint64_t& old = op_.buffers->cas[0];
  if (!client_.connections_.Reach(victim.chunk.first)) co_return Step::kUnavailable;
  uint64_t count = 1;
  if (victim.word.kind() == ChunkKind::kRun) {
    // The rest first: whoever finds the first chunk of a run finds all of it. Where its taker died some are missing.
    const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
    count = std::min<uint64_t>(victim.word.count(), kMatchBytes / sizeof(ChunkWord));
    op_.batch.Read(victim.WordAddress(), op_.buffers->match.data(), static_cast<uint32_t>(count * sizeof(ChunkWord)));
    const Outcome read = co_await op_.batch.Run();
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    if (words[0] != victim.word) co_return Step::kRestart;
    uint64_t end = 1;
    while (end < count && words[end].kind() == ChunkKind::kRunRest) ++end;
    count = end;
    for (uint64_t i = end; i-- > 1;) {
      const GlobalAddress at{victim.chunk.first, ChunkWordOffset(victim.chunk.second + i)};
      op_.batch.CompareSwap(at, words[i].word(), words[i].Freed().word(), &op_.buffers->cas[i % kCandidates]);
      if (!op_.batch.full() && i > 1) continue;
      const Outcome freed = co_await op_.batch.Run();
      if (freed != Outcome::kOk) co_return Step::kUnavailable;
    }
  }
  op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), victim.word.Freed().word(), &old);
  const Outcome freed = co_await op_.batch.Run();
  if (freed != Outcome::kOk) co_return Step::kUnavailable;
  if (old != victim.word.word()) co_return Step::kRestart;
  report_->chunks_freed += count;
  client_.stats_.chunks_freed += count;
  op_.batch.FetchAdd({home_, kFreedChunksOffset}, count, &old);
  const Outcome told = co_await op_.batch.Run();
  co_return told == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// The chunks were chosen by what a scan saw of them while others filled them, perhaps. Now nobody adds to them any
// more: those for which there is no room after all are given up before anything is moved.
Task<Step> ClientCore::Mover::LookAgain() {
  Census census;
  bool valid = false;  // or not: it is an estimate
  const Step scanned = co_await Scan(&census, &valid);
  if (scanned != Step::kOk) co_return scanned;
  for (Victim& victim : victims_) victim.room = census.blocks[victim.chunk].Needed();
  std::sort(victims_.begin(), victims_.end(), [](const Victim& a, const Victim& b) { return a.room < b.room; });
  size_t fit = 0;
  const Step claimed = co_await ClaimRoom(&fit);
  for (; victims_.size() > fit; victims_.pop_back()) {
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step ended = co_await End(victims_.back(), /*free=*/false);
    if (ended == Step::kUnavailable) co_return ended;
  }
  co_return claimed;
}

// One round: the chunks chosen are announced, emptied and freed. What cannot be emptied stays as it was.
Task<Step> ClientCore::Mover::Evacuate() {
  Step step = co_await Announce();  // (1)
  if (step == Step::kOk) step = co_await client_.MaintainNow();
  if (step == Step::kOk && !Mutated(Mutation::kEvacuationUnannounced)) step = co_await WaitForAll();  // (2)
  if (step == Step::kOk && scarce_) step = co_await LookAgain();
  int scans = 0, invalid = 0, left = victims_.empty() ? 0 : INT32_MAX;
  while (step == Step::kOk && left > 0 && scans < kScansPerRound && invalid < kInvalidScans && !OutOfTime()) {
    bool valid = false;
    for (Victim& victim : victims_) victim.references = 0;
    step = co_await Scan(nullptr, &valid);  // (3)
    if (step != Step::kOk) break;
    if (!valid) {
      ++invalid;
      co_await FinishOthersWork();
      continue;
    }
    ++scans;
    left = 0;
    for (Victim& victim : victims_) {
      victim.empty = victim.references == 0;  // and stays so
      left += victim.empty ? 0 : 1;
    }
  }
  const bool any = std::any_of(victims_.begin(), victims_.end(), [](const Victim& victim) { return victim.empty; });
  if (step == Step::kOk && any) step = co_await WaitForReaders();  // (4)
  for (const Victim& victim : victims_) {
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step ended = co_await End(victim, step == Step::kOk && victim.empty);
    if (ended == Step::kUnavailable) co_return ended;
  }
  victims_.clear();
  co_return step;
}

// Splits and merges that the last scan met: whoever was at one may have stopped, and others may find no memory to
// finish it. Those that go on come to an end by themselves.
Task<void> ClientCore::Mover::FinishOthersWork() {
  const std::vector<uint32_t> under_way = under_way_;
  for (const uint32_t index : under_way) {
    TableRef table;
    op_.epoch = client_.epoch_;
    const Step read = co_await client_.ReadDirectoryEntry(op_.batch, &op_.buffers->directory[0], index, &table);
    if (read != Step::kOk) co_return;
    if (table.entry.merging()) {
      const Step known = co_await client_.ReadMerge(op_.batch, &op_.buffers->merge, table.entry, &op_.merge);
      if (known != Step::kOk) co_return;
      (void)co_await client_.HelpMerge(op_);
    }
    if (table.entry.splitting()) (void)co_await client_.Split(op_, table);
  }
  co_await Wait(kInvalidScanNs);
}

Task<Step> ClientCore::Mover::WaitForReaders() {
  if (Mutated(Mutation::kNoSecondGrace)) co_return Step::kOk;
  const bool tables = std::any_of(victims_.begin(), victims_.end(),
                                  [](const Victim& victim) { return victim.word.kind() == ChunkKind::kTables; });
  if (tables) {
    // Whoever unlinked a table may have died before he told the others, whose directory caches may name it.
    op_.batch.FetchAdd({home_, kRetiredTablesOffset}, 1, &op_.buffers->cas[0]);
    const Outcome told = co_await op_.batch.Run();
    if (told != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return co_await WaitForAll();
}

// Frees the chunk, or gives it up; and only then clears its slot. A chunk that is given up gets another generation, so
// that no mover who thinks that it is still being emptied can free it.
Task<Step> ClientCore::Mover::End(const Victim& victim, bool free) {
  if (free) {
    const Step freed = co_await Free(victim);
    if (freed == Step::kUnavailable) co_return freed;
  } else {
    const Step given_up = co_await GiveUp(victim.Evacuation());
    if (given_up != Step::kOk) co_return given_up;
    given_up_.insert(victim.chunk);
  }
  op_.batch.CompareSwap({home_, SlotOfEvacuation(victim.slot)}, victim.Evacuation().word(), 0, &op_.buffers->cas[0]);
  const Outcome cleared = co_await op_.batch.Run();
  co_return cleared == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

Task<Step> ClientCore::Mover::GiveUp(EvacuationWord evacuation) {
  const GlobalAddress at{evacuation.node(), ChunkWordOffset(evacuation.chunk())};
  if (!client_.connections_.Reach(at.node)) co_return Step::kUnavailable;
  uint64_t& word = op_.buffers->cas[0];
  op_.batch.Read(at, &word, sizeof(word));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (ChunkWord found(word); evacuation.OfGeneration(found.generation()); found = ChunkWord(word)) {
    const ChunkWord next = ChunkWord::Make(found.kind(), found.count(), found.generation() + 1);
    op_.batch.CompareSwap(at, found.word(), next.word(), &word);
    const Outcome swapped = co_await op_.batch.Run();
    if (swapped != Outcome::kOk) co_return Step::kUnavailable;
    if (word == found.word()) break;
  }
  co_return Step::kOk;
}

}  // namespace kvs
