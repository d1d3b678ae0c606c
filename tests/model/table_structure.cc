// The table model: split and merge. Both move headers, freeze what moves, and publish a copy of that; a split then
// clears it.
#include <algorithm>

#include "tests/model/table_stepper.h"

namespace model {

void TableModel::Stepper::ReadChildStep() {
  if (!b().published) return Go(Step::kMoveHeaders);
  if (p().then != 0) return Restart(1);
  Go(Step::kLookForFrozen);
}

void TableModel::Stepper::MoveHeadersStep() {
  if (!Mutated(M::kHeadersLate)) b().moved |= static_cast<uint8_t>(1 << p().slot);
  if (++p().slot < kBuckets) return;
  p().slot = 0;
  Go(Step::kLook);
}

void TableModel::Stepper::LookStep() {
  p().words[0] = b().slots[0][p().slot];
  p().keys[0] = 0;
  if (HasBlock(p().words[0]) && !config_.merge) {
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
  const uint8_t word = p().words[0];
  const SlotState state = StateOf(word);
  const bool moves = HasBlock(word) && (config_.merge || p().keys[0] == kMovingKey);
  p().values[0] = p().keys[0] = 0;
  if (moves && state == SlotState::kVal && !Mutated(M::kCopyWithoutFreeze)) return Go(Step::kFreeze);
  if (moves && state == SlotState::kIns && !Mutated(M::kIgnoreIns)) return Go(Step::kKillTentative);
  if (moves && state != SlotState::kIns) Copy(word);
  NextSlot();
}

void TableModel::Stepper::FreezeStep() {
  const uint8_t word = p().words[0];
  if (!Cas(0, p().slot, word, WithState(word, SlotState::kFrz))) {
    p().words[0] = 0;
    return Go(Step::kLook);
  }
  Copy(word);
  if (Mutated(M::kClearEarly)) return Go(Step::kClearEarly);
  NextSlot();
}

void TableModel::Stepper::KillTentativeStep() {
  if (Cas(0, p().slot, p().words[0], kFreeSlot)) return NextSlot();
  p().words[0] = 0;
  Go(Step::kLook);
}

void TableModel::Stepper::ClearEarlyStep() {
  const uint8_t frozen = WithState(p().words[0], SlotState::kFrz);
  if (Cas(0, p().slot, frozen, kFreeSlot)) Unfreeze(BlockOf(frozen));
  NextSlot();
}

void TableModel::Stepper::Copy(uint8_t word) { p().image[p().slot] = WithState(word, SlotState::kVal); }

void TableModel::Stepper::NextSlot() {
  p().words[0] = 0;
  Go(Step::kLook);
  if (++p().slot < config_.slots) return;
  p().slot = 0;
  Go(Step::kPublish);
}

void TableModel::Stepper::PublishStep() {
  if (!b().published || Mutated(M::kPublishWithoutCas)) {
    b().published = 1;
    std::copy(p().image, p().image + config_.slots, b().slots[1]);
  }
  if (Mutated(M::kHeadersLate)) b().moved = 3;
  std::fill(p().image, p().image + config_.slots, uint8_t{0});
  if (config_.merge) return Finished();
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
  if (++p().slot == config_.slots) Finished();
}

void TableModel::Stepper::Finished() {
  if (p().then != 0) return Restart(1);
  End(true);
}

}  // namespace model
