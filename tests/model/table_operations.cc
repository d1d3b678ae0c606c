// The table model: blocks, Get and the writers.

#include "tests/model/table_stepper.h"

namespace model {

// ---- blocks
//
// A block is in use from its operation's beginning. With reuse it is retired when it is unlinked. It is free once no
// process that was in an operation then is still in it, and no FRZ slot of S names it.

uint8_t TableModel::Stepper::InOperation() {
  uint8_t mask = 0;
  for (size_t q = 0; q < config_.programs.size(); ++q) {
    const Process& other = b().processes[q];
    const Step step = static_cast<Step>(other.step);
    if (step == Step::kIdle || step == Step::kDone) continue;
    if (Mutated(M::kNoQuarantine) && other.expelled) continue;
    mask |= static_cast<uint8_t>(1 << q);
  }
  return mask;
}

void TableModel::Stepper::TryFree(int block) {
  Block& x = b().blocks[block];
  if (x.state != kBlockRetired || x.held_by != 0) return;
  for (int i = 0; i < config_.slots && !Mutated(M::kNoHoldWhileFrozen); ++i) {
    if (b().slots[0][i] == MakeSlot(SlotState::kFrz, block)) return;
  }
  x = Block{};
}

void TableModel::Stepper::Retire(int block) {
  Block& x = b().blocks[block];
  if (!config_.reuse || x.state != kBlockUsed) return;
  x.state = kBlockRetired;
  x.held_by = Mutated(M::kNoGrace) ? 0 : InOperation() & static_cast<uint8_t>(~x.born_without);
  TryFree(block);
}

// The last FRZ slot that names the block was cleared: the block's grace period begins now.
void TableModel::Stepper::Unfreeze(int block) {
  Block& x = b().blocks[block];
  if (!config_.reuse || x.state != kBlockRetired) return;
  if (!Mutated(M::kNoHoldWhileFrozen)) x.held_by |= InOperation() & static_cast<uint8_t>(~x.born_without);
  TryFree(block);
}

void TableModel::Stepper::LetGo(int block) {
  if (b().blocks[block].state != kBlockRetired && !Mutated(M::kNoQuarantine)) return;
  b().blocks[block].held_by &= static_cast<uint8_t>(~bit());
  TryFree(block);
}

bool TableModel::Stepper::TakeBlock() {
  const Op& o = op();
  if (!config_.reuse) {
    p().block = static_cast<uint8_t>(o.value + 1);  // written before the beginning, when block == value
    return true;
  }
  for (int i = 0; i < model_.blocks_; ++i) {
    if (b().blocks[i].state != kBlockFree) continue;
    uint8_t expelled = 0;
    for (size_t q = 0; q < config_.programs.size(); ++q) {
      if (b().processes[q].expelled) expelled |= static_cast<uint8_t>(1 << q);
    }
    b().blocks[i] = {o.key, o.value, kBlockUsed, 0, expelled};
    p().block = static_cast<uint8_t>(i + 1);
    return true;
  }
  return false;
}

// ---- operations: begin and end

void TableModel::Stepper::Begin() {
  const Op& o = op();
  for (const int table : {0, 1}) {
    // A stale directory still names S; a fresh one names N, if N is published.
    if (table == 1 && (!b().published || o.key != kMovingKey || o.kind == OpKind::kStructural)) continue;
    s_ = before_;
    Clear();
    if (o.kind == OpKind::kStructural) {
      Go(config_.merge ? Step::kMoveHeaders : Step::kReadChild);
      Emit();
      continue;
    }
    Go(Step::kGetScan);  // from here on it is in an operation
    if (o.Writes() && !TakeBlock()) continue;
    Monitor::InFlight in_flight{};
    for (size_t q = 0; q < config_.programs.size(); ++q) {
      if (b().processes[q].op < config_.programs[q].size()) in_flight[q] = config_.programs[q][b().processes[q].op];
    }
    s_.monitors[o.key].Invoke(id_, in_flight);
    Scan(o.kind == OpKind::kGet ? Step::kGetScan : Step::kWriteScan, table, true, true);
    Emit();
  }
}

void TableModel::Stepper::End(bool published) {
  if (p().expelled) return;
  if (config_.reuse && p().block != 0 && !published) Retire(OwnBlock());
  p().block = 0;
  Clear();
  p().table = 0;
  ++p().op;
  Go(p().op < config_.programs[id_].size() ? Step::kIdle : Step::kDone);
  for (int i = 0; i < model_.blocks_ && config_.reuse; ++i) {
    if (b().blocks[i].state == kBlockRetired) LetGo(i);
  }
}

void TableModel::Stepper::Return(uint8_t result, bool published) {
  if (!p().expelled) s_.monitors[op().key].Respond(id_, result);
  End(published);
}

// ---- scans: bits 0..1 of `remaining` are S's headers, then the slots, then (with reuse) the slots' blocks

void TableModel::Stepper::Scan(Step step, int table, bool headers, bool slots) {
  Clear();
  Go(step);
  p().table = static_cast<uint8_t>(table);
  if (headers && table == 0) p().remaining |= 3;
  if (slots) p().remaining |= static_cast<uint8_t>(((1 << config_.slots) - 1) << kBuckets);
}

void TableModel::Stepper::ReadBlock(int i) {
  const Block& block = b().blocks[BlockOf(p().words[i])];
  p().keys[i] = block.key;
  p().values[i] = block.value;
}

void TableModel::Stepper::ScanWord() {
  const uint8_t remaining = p().remaining;
  for (int word = 0; word < 8; ++word) {
    if ((remaining >> word & 1) == 0) continue;
    s_ = before_;
    p().remaining = static_cast<uint8_t>(remaining & ~(1 << word));
    if (word < kBuckets) {
      p().headers |= static_cast<uint8_t>(b().moved & 1 << word);
    } else if (word < kBuckets + config_.slots) {
      const int i = word - kBuckets;
      p().words[i] = b().slots[p().table][i];
      if (HasBlock(p().words[i])) {
        if (config_.reuse) {
          p().remaining |= static_cast<uint8_t>(1 << (kBuckets + config_.slots + i));
        } else {
          ReadBlock(i);
        }
      }
    } else {
      ReadBlock(word - kBuckets - config_.slots);
    }
    if (p().remaining != 0 || !Scanned()) Emit();
    if (!config_.any_order) break;
  }
}

int TableModel::Stepper::Find(SlotState state, int except) {
  for (int i = 0; i < config_.slots; ++i) {
    if (i != except && StateOf(p().words[i]) == state && p().keys[i] == op().key) return i;
  }
  return -1;
}

// Returns true if it has emitted its successors itself.
bool TableModel::Stepper::Scanned() {
  switch (static_cast<Step>(p().step)) {
    case Step::kGetScan: GetScanned(); break;
    case Step::kGetHeaders: GetHeadersRead(); break;
    case Step::kWriteScan: return WriteScanned();
    case Step::kWriteHeaders: WriteHeadersRead(); break;
    default: InserterScanned();
  }
  return false;
}

// ---- Get

void TableModel::Stepper::GetScanned() {
  int i = Find(SlotState::kIns);
  if (i >= 0 && Mutated(M::kReturnTentative)) return Return(p().values[i]);
  i = Find(SlotState::kVal);
  if (i >= 0) return Return(p().values[i]);  // [Get 1]
  if (p().table == 1) return Return(0);
  const int frozen = Find(SlotState::kFrz);
  if (frozen >= 0 && Mutated(M::kReturnFrozen)) return Return(p().values[frozen]);
  if (p().unpublished && (frozen >= 0 || Moved())) return Return(frozen >= 0 ? p().values[frozen] : 0);  // [Get 5]
  if (frozen >= 0 || Moved()) return ToChild(frozen);                                                    // [Get 3]
  if (op().key != kMovingKey || Mutated(M::kMissWithoutHeaders)) return Return(0);
  Scan(Step::kGetHeaders, 0, true, false);  // [Get 2]
}

// Get 3, with the frozen candidate if there is one. At a closed table it begins again at the directory (Get 5).
void TableModel::Stepper::ToChild(int frozen) {
  const uint8_t value = frozen >= 0 ? p().values[frozen] : 0;
  Clear();
  p().frozen_value = value;
  Go(Step::kReadDirectory);
}

void TableModel::Stepper::GetHeadersRead() {
  if (!Moved()) return Return(0);
  ToChild(-1);
}

void TableModel::Stepper::ReadDirectoryStep() {
  const bool published = b().published;
  if (!published && !config_.merge) return Return(p().frozen_value);  // [Get 4]
  Scan(Step::kGetScan, published ? 1 : 0, true, true);
  p().unpublished = !published;
}

// A writer must go on in N. If N is not published yet, it runs the split or the merge itself.
void TableModel::Stepper::GoToChild() {
  Clear();
  p().table = 0;
  p().then = 1;
  Go(config_.merge ? Step::kMoveHeaders : Step::kReadChild);
}

bool TableModel::Stepper::WriteScanned() {
  const Op& o = op();
  int i = Find(SlotState::kVal);
  if (i < 0 && Mutated(M::kUpdateFrozen) && p().table == 0) i = Find(SlotState::kFrz);
  if (i >= 0) {  // [Write 2]
    if (o.kind == OpKind::kInsert) return Return(0), false;
    const uint8_t word = p().words[i], value = p().values[i];
    Clear();
    p().slot = static_cast<uint8_t>(i);
    p().words[0] = word;
    if (Modifies()) p().values[0] = value;
    return Go(Step::kSwap), false;
  }
  if (p().table == 0 && (Moved() || Find(SlotState::kFrz) >= 0)) return GoToChild(), false;  // [Write 3]
  if (o.kind == OpKind::kUpdate || o.kind == OpKind::kDelete) {                              // [Write 5]
    if (p().table == 1 || o.key != kMovingKey || Mutated(M::kUpdateMissWithoutHeaders)) return Return(0), false;
    return Scan(Step::kWriteHeaders, 0, true, false), false;
  }
  ChooseSlot();  // [Write 6]
  return true;
}

void TableModel::Stepper::WriteHeadersRead() {
  if (!Moved()) return Return(0);
  GoToChild();
}

void TableModel::Stepper::ChooseSlot() {
  const State scanned = s_;
  bool any = false;
  for (int i = 0; i < config_.slots; ++i) {
    if (StateOf(scanned.body.processes[id_].words[i]) != SlotState::kFree) continue;
    s_ = scanned;
    Clear();
    p().own = static_cast<uint8_t>(i);
    Go(Step::kTentative);
    Emit();
    any = true;
  }
  if (any) return;
  s_ = scanned;
  if (p().table == 0 && op().key == kMovingKey) {  // no room: split
    GoToChild();
  } else {
    Restart(p().table);
  }
  Emit();
}

void TableModel::Stepper::SwapStep() {
  const uint8_t read = p().values[0];
  uint8_t expected = p().words[0];
  if (Modifies() && Mutated(M::kModifyOfAnyWord)) expected = b().slots[p().table][p().slot];
  const bool removes = op().kind == OpKind::kDelete;
  const uint8_t desired = removes ? kFreeSlot : OwnSlot(StateOf(expected));
  if (Cas(p().table, p().slot, expected, desired)) {
    Retire(BlockOf(expected));
    return Return(Modifies() ? read : 1, !removes);
  }
  const bool other_value = StateOf(b().slots[p().table][p().slot]) == SlotState::kVal;
  if (Mutated(M::kLostPutIsDone) && op().kind == OpKind::kPut && other_value) return Return(1);
  Restart(p().table);
}

void TableModel::Stepper::TentativeStep() {
  const uint8_t own = p().own, table = p().table;
  const SlotState state = Mutated(M::kInsertDirectly) ? SlotState::kVal : SlotState::kIns;
  if (!Cas(table, own, kFreeSlot, OwnSlot(state))) return Restart(table);
  if (Mutated(M::kInsertDirectly)) return Return(1, true);
  Scan(Step::kInserterScan, table, true, true);
  p().own = own;
}

void TableModel::Stepper::InserterScanned() {
  const uint8_t own = p().own, table = p().table;
  uint8_t moved = p().headers;
  if (Mutated(M::kInsertWithoutHeaders)) moved = 0;
  int value = Find(SlotState::kVal, own), frozen = table == 0 ? Find(SlotState::kFrz, own) : -1;
  if (Mutated(M::kRescanIgnoresValues)) value = frozen = -1;
  const int rival = Find(SlotState::kIns, own);
  const bool killed = p().words[own] != OwnSlot(SlotState::kIns);

  if (op().kind == OpKind::kStructural) return;
  if (op().key == kMovingKey && table == 0 && moved != 0) return Abort(own, 0, 1, false);  // b
  if (killed) return Restart(table);                                                       // c
  if (value >= 0 || frozen >= 0) {                                                         // d
    return Abort(own, table, frozen >= 0 ? 1 : table, op().kind == OpKind::kInsert && value >= 0);
  }
  if (rival >= 0 && Mutated(M::kExistsOnIns) && op().kind == OpKind::kInsert) return Abort(own, table, table, true);
  if (rival >= 0 && !Mutated(M::kConfirmWithoutKill)) {  // e
    int second = -1;
    for (int i = rival + 1; i < config_.slots; ++i) {
      if (i != own && StateOf(p().words[i]) == SlotState::kIns && p().keys[i] == op().key) second = i;
    }
    const uint8_t word = p().words[rival], second_word = second >= 0 ? p().words[second] : 0;
    Clear();
    p().own = own;
    p().table = table;
    p().slot = static_cast<uint8_t>(rival);
    p().words[0] = word;
    p().frozen = static_cast<uint8_t>(second + 1);
    p().words[1] = second_word;
    return Go(Step::kKillRival);
  }
  Clear();  // f
  p().own = own;
  p().table = table;
  Go(Step::kConfirm);
}

void TableModel::Stepper::Abort(uint8_t own, uint8_t table, uint8_t then, bool exists) {
  Clear();
  p().own = own;
  p().table = table;
  p().then = then;
  p().exists = exists;
  Go(Step::kAbort);
}

void TableModel::Stepper::AbortStep() {
  Cas(p().table, p().own, OwnSlot(SlotState::kIns), kFreeSlot);
  if (p().exists) return Return(0);
  if (p().table == 0 && p().then == 1) return GoToChild();
  Restart(p().then);
}

void TableModel::Stepper::KillRivalStep() {
  const uint8_t own = p().own, table = p().table;
  const bool killed = Cas(table, p().slot, p().words[0], kFreeSlot);
  if (killed && p().frozen != 0) {
    const uint8_t slot = static_cast<uint8_t>(p().frozen - 1), word = p().words[1];
    Clear();
    p().own = own;
    p().slot = slot;
    p().words[0] = word;
    return Go(Step::kKillRival);
  }
  if (killed || Mutated(M::kConfirmAfterFailedKill)) {
    Clear();
    Go(Step::kConfirm);
  } else {
    Scan(Step::kInserterScan, table, true, true);
  }
  p().own = own;
}

void TableModel::Stepper::ConfirmStep() {
  if (Mutated(M::kConfirmByWrite)) {
    b().slots[p().table][p().own] = OwnSlot(SlotState::kVal);
    return Return(1, true);
  }
  if (Cas(p().table, p().own, OwnSlot(SlotState::kIns), OwnSlot(SlotState::kVal)))
    return Return(Modifies() ? 0 : 1, true);
  if (Mutated(M::kFailedConfirmIsDone)) return Return(1);
  Restart(p().table);
}

}  // namespace model
