// The table model: the steps that change the structure of the table.
#include <algorithm>

#include "tests/model/table_stepper.h"

namespace model {

// ---- migrate(i), by a writer (then: it scans N again) or by the splitter

void TableModel::Stepper::Migrate(int slot, Step then) {
  Clear();
  p().slot = static_cast<uint8_t>(slot);
  p().then = static_cast<uint8_t>(then);
  Go(Mutated(M::kDecideBeforeHeader) ? Step::kLook : Step::kMoveHeader);
}

void TableModel::Stepper::Migrated() {
  const Step then = static_cast<Step>(p().then);
  const uint8_t slot = p().slot;
  Clear();
  if (then == Step::kWriteScan) return Restart(1);
  p().slot = static_cast<uint8_t>(slot + 1);
  Go(Step::kLookAtChild);
  if (p().slot == config_.slots) {
    p().slot = 0;
    Go(Step::kLookForFrozen);
  }
}

void TableModel::Stepper::MoveHeaderStep() {
  if (Mutated(M::kLookBeforeHeader) && p().frozen == 0) {  // the look comes before the header's move
    p().words[0] = b().slots[0][p().slot];
    p().frozen = 1;
    return ReadBlock(0);
  }
  b().moved |= static_cast<uint8_t>(1 << p().slot % kBuckets);
  if (Mutated(M::kLookBeforeHeader)) {
    const bool nothing = !HasBlock(p().words[0]);
    p().frozen = 0;
    p().words[0] = p().keys[0] = p().values[0] = 0;
    if (nothing) return Go(Step::kDecide);
  }
  Go(Step::kLook);
}

void TableModel::Stepper::LookStep() {
  p().words[0] = b().slots[0][p().slot];
  p().keys[0] = 0;
  if (HasBlock(p().words[0])) {
    if (config_.reuse) return Go(Step::kLookAtBlock);
    ReadBlock(0);
  }
  Looked();
}

void TableModel::Stepper::LookAtBlockStep() {
  ReadBlock(0);
  Looked();
}

void TableModel::Stepper::Looked() {
  const SlotState state = StateOf(p().words[0]);
  const bool moves = HasBlock(p().words[0]) && p().keys[0] == kMovingKey;
  p().values[0] = 0;
  p().keys[0] = 0;
  Go(Step::kDecide);
  if (!moves) {
    p().words[0] = 0;
  } else if (state == SlotState::kVal && !Mutated(M::kCopyWithoutFreeze)) {
    Go(Step::kFreeze);
  } else if (state == SlotState::kIns) {
    if (!Mutated(M::kIgnoreIns)) return Go(Step::kKillTentative);
    p().words[0] = 0;
  }
}

void TableModel::Stepper::FreezeStep() {
  const uint8_t word = p().words[0], frozen = WithState(word, SlotState::kFrz);
  const bool done = Cas(0, p().slot, word, frozen);
  p().words[0] = done ? frozen : 0;
  Go(done ? Step::kDecide : Step::kLook);
}

void TableModel::Stepper::KillTentativeStep() {
  const bool done = Cas(0, p().slot, p().words[0], kFreeSlot);
  p().words[0] = 0;
  Go(done ? Step::kDecide : Step::kLook);
}

void TableModel::Stepper::DecideStep() {
  const uint8_t word = p().words[0];
  const uint8_t decision = word != 0 ? WithState(word, SlotState::kVal) : kFreeSlot;
  if (Mutated(M::kDecideByWrite)) {
    b().slots[1][p().slot] = decision;
  } else {
    Cas(1, p().slot, Mutated(M::kStartsFree) ? kFreeSlot : kPendSlot, decision);
  }
  if ((Mutated(M::kClearEarly) || Mutated(M::kCopyWithoutFreeze)) && word != 0) return Go(Step::kClearEarly);
  Migrated();
}

void TableModel::Stepper::ClearEarlyStep() {
  if (Cas(0, p().slot, p().words[0], kFreeSlot)) Unfreeze(BlockOf(p().words[0]));
  Migrated();
}

// ---- split

void TableModel::Stepper::PublishChildStep() {
  if (config_.merge) {
    Clear();
    return Go(Step::kClose);
  }
  b().published = 1;
  p().slot = 0;
  Go(Step::kMoveHeaders);
}

void TableModel::Stepper::MoveHeadersStep() {
  if (!Mutated(M::kDecideBeforeHeader)) b().moved |= static_cast<uint8_t>(1 << p().slot);
  if (++p().slot < kBuckets) return;
  p().slot = 0;
  Go(Step::kLookAtChild);
}

void TableModel::Stepper::LookAtChildStep() {
  if (StateOf(b().slots[1][p().slot]) == SlotState::kPend || Mutated(M::kStartsFree)) {
    return Migrate(p().slot, Step::kLookAtChild);
  }
  if (++p().slot < config_.slots) return;
  p().slot = 0;
  Go(Step::kLookForFrozen);
}

void TableModel::Stepper::LookForFrozenStep() {
  p().words[0] = b().slots[0][p().slot];
  if (StateOf(p().words[0]) == SlotState::kFrz) return Go(Step::kClear);
  Cleared();
}

void TableModel::Stepper::ClearStep() {
  if (Cas(0, p().slot, p().words[0], kFreeSlot)) Unfreeze(BlockOf(p().words[0]));
  Cleared();
}

void TableModel::Stepper::Cleared() {
  p().words[0] = 0;
  Go(Step::kLookForFrozen);
  if (++p().slot < config_.slots) return;
  if (Mutated(M::kDecideBeforeHeader)) b().moved = 3;
  End(true);
}

// ---- merge

void TableModel::Stepper::CloseStep() {
  if (!Mutated(M::kCloseLate)) b().moved |= static_cast<uint8_t>(1 << p().slot);
  if (++p().slot < kBuckets) return;
  p().slot = 0;
  Go(Step::kMergeLook);
}

// The image of M is kept in `values`.
void TableModel::Stepper::MergeLookStep() {
  const uint8_t word = b().slots[0][p().slot];
  const SlotState state = StateOf(word);
  p().words[0] = word;
  const bool as_it_is = state == SlotState::kFrz || state == SlotState::kFree ||
                        (state == SlotState::kIns && Mutated(M::kMergeIgnoresIns)) ||
                        (state == SlotState::kVal && Mutated(M::kMergeWithoutFreeze));
  if (!as_it_is) return Go(Step::kMergeFreeze);
  if (state == SlotState::kFrz || state == SlotState::kVal) {
    p().values[p().slot] = WithState(word, SlotState::kVal);
  }
  MergeNext();
}

void TableModel::Stepper::MergeFreezeStep() {
  const uint8_t word = p().words[0];
  if (StateOf(word) == SlotState::kIns) {
    if (Cas(0, p().slot, word, kFreeSlot)) return MergeNext();
  } else if (Cas(0, p().slot, word, WithState(word, SlotState::kFrz))) {
    p().values[p().slot] = WithState(word, SlotState::kVal);
    return MergeNext();
  }
  p().words[0] = 0;
  Go(Step::kMergeLook);
}

void TableModel::Stepper::MergeNext() {
  p().words[0] = 0;
  Go(Step::kMergeLook);
  if (++p().slot < config_.slots) return;
  p().slot = 0;
  Go(Step::kPublishMerged);
}

void TableModel::Stepper::PublishMergedStep() {
  if (!b().published || Mutated(M::kPublishWithoutCas)) {
    b().published = 1;
    std::copy(p().values, p().values + config_.slots, b().slots[1]);
  }
  if (p().then != 0) return Restart(1);
  if (Mutated(M::kCloseLate)) b().moved = 3;
  End(true);
}

}  // namespace model
