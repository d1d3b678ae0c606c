// The directory model: split.
#include <cstring>

#include "tests/model/directory_stepper.h"

namespace model {

void DirectoryModel::Stepper::Split(uint8_t index, Then then) {
  Clear();
  p().index = index;
  p().then = static_cast<uint8_t>(then);
  Go(Step::kSplitReadParent);
}

void DirectoryModel::Stepper::SplitReadParentStep() {
  const Entry parent(b().directory[p().index]);
  p().parent_word = parent.word();
  switch (parent.state()) {
    case EntryState::kAbsent: return EndSplit();
    case EntryState::kMigrating:  // its own birth must end first
      p().index = ParentIndex(p().index);
      return;
    case EntryState::kMerging: return HelpMerge(parent.target(), static_cast<Then>(p().then));
    case EntryState::kNormal:
      // Who helps begins no new split.
      if (parent.depth() == kMaxDepth || static_cast<Then>(p().then) == Then::kOperation) return EndSplit();
      return Go(Mutated(M::kSplitSetsNoState) ? Step::kSplitReadChild : Step::kSplitMark);
    case EntryState::kSplitting: return Go(Step::kSplitReadChild);
  }
}

void DirectoryModel::Stepper::SplitMarkStep() {
  const Entry old(p().parent_word), marked = old.Next(old.target(), old.depth(), EntryState::kSplitting);
  if (!CasEntry(p().index, old.word(), marked)) return Go(Step::kSplitReadParent);
  p().parent_word = marked.word();
  Go(Step::kSplitReadChild);
}

void DirectoryModel::Stepper::SplitReadChildStep() {
  p().child_word = b().directory[ChildIndex()];
  Go(Step::kSplitRereadParent);
  if (Mutated(M::kSplitWithoutReread)) SplitGoOn();
}

void DirectoryModel::Stepper::SplitRereadParentStep() {
  if (b().directory[p().index] != p().parent_word) return Go(Step::kSplitReadParent);
  SplitGoOn();
}

void DirectoryModel::Stepper::SplitGoOn() {
  const Entry child(p().child_word);
  switch (child.state()) {
    case EntryState::kAbsent:
      p().parent_table = Entry(p().parent_word).target();
      p().remaining = static_cast<uint8_t>(config_.buckets);
      p().cursor = 0;
      return Go(Step::kMoveHeader);
    case EntryState::kMerging: return MetMerging(true);
    default: return Go(Step::kFinishReadChild);
  }
}

// If `published`, this is the end of an earlier merge of this pair. Otherwise the child may have begun a merge with a
// child of its own.
void DirectoryModel::Stepper::MetMerging(bool published) {
  const Record& d = b().records[Entry(p().child_word).target()];
  if (d.parent != p().index && !Mutated(M::kAnyMergingIsOld)) return Go(Step::kParentDone);
  Go(published ? Step::kSplitRemoveOld : Step::kSplitReadParent);
}

void DirectoryModel::Stepper::FinishReadChildStep() {
  p().entries[0] = b().directory[ChildIndex()];
  Go(Step::kFinishReadParent);
}

void DirectoryModel::Stepper::FinishReadParentStep() {
  const Entry parent(b().directory[p().index]);
  const bool splitting = parent.Is(EntryState::kSplitting) || Mutated(M::kSplitSetsNoState);
  if (!splitting || parent.depth() != Entry(p().parent_word).depth()) {
    p().entries[0] = 0;
    return Go(Step::kSplitReadParent);
  }
  p().parent_word = parent.word();
  Go(Step::kFinishRereadChild);
}

void DirectoryModel::Stepper::FinishRereadChildStep() {
  p().child_word = b().directory[ChildIndex()];
  const Entry child(p().child_word);
  const bool same = child.word() == p().entries[0];
  p().entries[0] = 0;
  if (child.Is(EntryState::kMerging)) return MetMerging(same || Mutated(M::kFinishWithoutFirstLook));
  if (!child.present() || (!same && !Mutated(M::kFinishOfAnotherSplit))) return Go(Step::kSplitReadParent);
  if (!child.Is(EntryState::kMigrating)) return Go(Step::kParentDone);  // the split is done; N may be splitting by now
  p().parent_table = Entry(p().parent_word).target();
  p().cursor = 0;
  Go(Step::kReadImage);
}

uint8_t DirectoryModel::Stepper::NewTable(uint8_t index, int depth) {
  if (b().tables_used == kTables) {
    b().error = kOutOfTables;
    return 0;
  }
  const uint8_t t = b().tables_used++;
  Table& fresh = table(t);
  fresh = Table{};
  fresh.index = index;
  fresh.published = 1;
  for (int i = 0; i < config_.buckets; ++i) fresh.header[i] = static_cast<uint8_t>(depth);
  return t;
}

void DirectoryModel::Stepper::SplitRemoveOldStep() {
  const Entry old(p().child_word);
  RemoveChild(old.target(), ChildIndex(), old);
  Go(Step::kSplitReadChild);
}

void DirectoryModel::Stepper::MoveHeaderStep() {
  uint8_t* header = &table(p().parent_table).header[--p().remaining];
  if (*header == SplitDepth()) ++*header;
  if (p().remaining == 0) Go(Step::kLookAtParent);
}

void DirectoryModel::Stepper::LookAtParentStep() {
  const uint8_t slot = table(p().parent_table).slots[p().cursor];
  const bool moves = HasBlock(slot) && (HashOf(slot) >> SplitDepth() & 1) != 0;
  p().expected = 0;
  if (!moves) return NextSlot();
  if (StateOf(slot) == SlotState::kFrz) {
    p().image[p().cursor] = WithState(slot, SlotState::kVal);
    return NextSlot();
  }
  p().expected = slot;
  Go(StateOf(slot) == SlotState::kVal ? Step::kFreeze : Step::kKillTentative);
}

void DirectoryModel::Stepper::FreezeStep() {
  const uint8_t slot = p().expected;
  p().expected = 0;
  if (!Cas(&table(p().parent_table).slots[p().cursor], slot, WithState(slot, SlotState::kFrz))) {
    return Go(Step::kLookAtParent);
  }
  p().image[p().cursor] = slot;
  NextSlot();
}

void DirectoryModel::Stepper::KillTentativeStep() {
  const bool killed = Cas(&table(p().parent_table).slots[p().cursor], p().expected, kFreeSlot);
  p().expected = 0;
  if (!killed) return Go(Step::kLookAtParent);
  NextSlot();
}

void DirectoryModel::Stepper::NextSlot() {
  Go(Step::kLookAtParent);
  if (++p().cursor < config_.slots) return;
  p().cursor = 0;
  Go(Step::kSplitPublish);
}

// If dir[child] still has the word that was read before the headers moved, nobody has cleared what is in the image.
void DirectoryModel::Stepper::SplitPublishStep() {
  const Entry now(b().directory[ChildIndex()]);
  const bool late = Mutated(M::kPublishOnLateWord) && !now.present();
  if (now.word() == p().child_word || late) {
    const uint8_t t = NewTable(ChildIndex(), SplitDepth() + 1);
    std::memcpy(table(t).slots, p().image, static_cast<size_t>(config_.slots));
    b().directory[ChildIndex()] = now.Next(t, SplitDepth() + 1, EntryState::kMigrating).word();
  }
  std::memset(p().image, 0, sizeof(p().image));
  Go(Step::kFinishReadChild);
}

void DirectoryModel::Stepper::ReadImageStep() {
  const uint8_t slot = table(p().parent_table).slots[p().cursor];
  p().image[p().cursor] = StateOf(slot) == SlotState::kFrz ? slot : 0;
  if (++p().cursor < config_.slots) return;
  p().cursor = 0;
  Go(Step::kRereadChild);
  if (Mutated(M::kClearWithoutReread)) NextToClear();
}

void DirectoryModel::Stepper::RereadChildStep() {
  if (b().directory[ChildIndex()] != p().child_word) return AfterClearing();
  NextToClear();
}

void DirectoryModel::Stepper::NextToClear() {
  while (p().cursor < config_.slots && p().image[p().cursor] == 0) ++p().cursor;
  if (p().cursor == config_.slots) return AfterClearing();
  Go(Step::kClearSlot);
}

void DirectoryModel::Stepper::AfterClearing() {
  std::memset(p().image, 0, sizeof(p().image));
  p().cursor = 0;
  Go(Step::kChildDone);
}

void DirectoryModel::Stepper::ClearSlotStep() {
  Cas(&table(p().parent_table).slots[p().cursor], p().image[p().cursor], kFreeSlot);
  p().image[p().cursor++] = 0;
  NextToClear();
}

void DirectoryModel::Stepper::ChildDoneStep() {
  const Entry child(p().child_word);
  CasEntry(ChildIndex(), child.word(), child.Next(child.target(), child.depth(), EntryState::kNormal));
  Go(Step::kParentDone);
}

void DirectoryModel::Stepper::ParentDoneStep() {
  const Entry parent(p().parent_word);
  CasEntry(p().index, parent.word(), parent.Next(parent.target(), parent.depth() + 1, EntryState::kNormal));
  EndSplit();
}

}  // namespace model
