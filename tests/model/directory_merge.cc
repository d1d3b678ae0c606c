// The directory model: merge, and replacement when two tables do not fit into one.
#include <algorithm>
#include <cstring>

#include "tests/model/directory_stepper.h"

namespace model {

void DirectoryModel::Stepper::MergeReadParentStep() {
  const Entry parent(b().directory[p().index]);
  if (parent.Is(EntryState::kMerging)) return HelpMerge(parent.target(), Then::kEnd);
  const bool has_sibling = parent.depth() > 0 && p().index < 1 << (parent.depth() - 1);
  if (!parent.Is(EntryState::kNormal) || !has_sibling) return End();
  p().parent_word = parent.word();
  Go(Step::kMergeReadChild);
}

void DirectoryModel::Stepper::MergeReadChildStep() {
  const Entry child(b().directory[SiblingIndex()]);
  if (!child.Is(EntryState::kNormal) || child.depth() != Entry(p().parent_word).depth()) return End();
  p().child_word = child.word();
  Go(Step::kEngageParent);
}

// Steps 1 and 2: D is written before it is named. If its CAS is lost, nobody can see it.
void DirectoryModel::Stepper::EngageParentStep() {
  const Entry parent(p().parent_word);
  if (b().directory[p().index] != parent.word()) return End();
  if (b().records_used == kRecords) {
    b().error = kOutOfRecords;
    return;
  }
  const uint8_t record = b().records_used++;
  b().records[record] = {p().parent_word, p().child_word, kUndecided, p().index, SiblingIndex(), 0};
  b().directory[p().index] = parent.Next(record, parent.depth(), EntryState::kMerging).word();
  HelpMerge(record, Then::kEnd);
  Go(Step::kEngageChild);
}

void DirectoryModel::Stepper::HelpMerge(uint8_t record, Then then) {
  Clear();
  p().record = record;
  p().then = static_cast<uint8_t>(then);
  Go(Step::kMergeReadStatus);
}

void DirectoryModel::Stepper::GoByStatus() {
  p().cursor = 0;
  p().waits = 0;
  switch (d().status) {
    case kUndecided: return Go(Step::kEngageChild);
    case kAbandoned: return Go(Step::kUndoParent);
    case kEngaged: return Go(Mutated(M::kCloseLate) ? Step::kFreezeLook : Step::kClose);
    default: return Go(Step::kBuild);  // the freeze has ended
  }
}

Entry DirectoryModel::Stepper::DWord(bool child) {
  return Entry(child ? d().old_child : d().old_parent)
      .Next(p().record, std::bit_width(d().child), EntryState::kMerging);
}

void DirectoryModel::Stepper::EngageChildStep() {
  uint16_t& word = b().directory[d().child];
  if (Mutated(M::kEngageParentOnly)) {
    p().waits = word == d().old_child;
    return Go(Step::kDecideRecord);
  }
  if (word == d().old_child) word = DWord(true).word();
  p().waits = word == DWord(true).word() ? 1 : 0;  // whether it is engaged now
  Go(Step::kDecideRecord);
}

void DirectoryModel::Stepper::DecideRecordStep() {
  const uint8_t found = p().waits ? kEngaged : kAbandoned;
  if (d().status == kUndecided) d().status = found;
  GoByStatus();
}

void DirectoryModel::Stepper::UndoParentStep() {
  const Entry old(d().old_parent), engaged = DWord(false);
  if (CasEntry(d().parent, engaged.word(), engaged.Next(old.target(), old.depth(), EntryState::kNormal))) {
    d().retired = 1;
  }
  Go(Step::kUndoChild);
}

void DirectoryModel::Stepper::UndoChildStep() {
  const Entry old(d().old_child), engaged = DWord(true);
  CasEntry(d().child, engaged.word(), engaged.Next(old.target(), old.depth(), EntryState::kNormal));
  Continue(static_cast<Then>(p().then));
}

// [Merge 6] Headers of P, then of C.
void DirectoryModel::Stepper::CloseStep() {
  const bool child = p().cursor >= config_.buckets;
  table(Old(child)).header[p().cursor % config_.buckets] = kClosed;
  if (++p().cursor < 2 * config_.buckets) return;
  p().cursor = 0;
  Go(Mutated(M::kCloseLate) ? Step::kBuild : Step::kFreezeLook);
}

void DirectoryModel::Stepper::FreezeLookStep() {
  const uint8_t slot = *SlotToFreeze();
  const bool value = StateOf(slot) == SlotState::kVal && !Mutated(M::kCopyWithoutFreeze);
  const bool tentative = StateOf(slot) == SlotState::kIns && !Mutated(M::kIgnoreIns);
  if (!value && !tentative) return NextToFreeze();
  p().expected = slot;
  Go(Step::kFreezeSlot);
}

void DirectoryModel::Stepper::FreezeSlotStep() {
  const uint8_t slot = p().expected;
  const bool value = StateOf(slot) == SlotState::kVal;
  const bool done = Cas(SlotToFreeze(), slot, value ? WithState(slot, SlotState::kFrz) : kFreeSlot);
  p().expected = 0;
  Go(Step::kFreezeLook);
  if (done) NextToFreeze();
}

void DirectoryModel::Stepper::NextToFreeze() {
  if (++p().cursor < 2 * config_.slots) return Go(Step::kFreezeLook);
  p().cursor = 0;
  Go(Mutated(M::kCloseLate) ? Step::kClose : Step::kBuild);
}

bool DirectoryModel::Stepper::Counts(uint8_t slot) {
  return StateOf(slot) == SlotState::kFrz || (StateOf(slot) == SlotState::kVal && Mutated(M::kCopyWithoutFreeze));
}

// [Merge 7] Builds M in the image: a key keeps its slot, or takes another that is free. waits: the keys do not fit.
void DirectoryModel::Stepper::BuildStep() {
  p().waits = 0;
  for (const bool child : {false, true}) {
    for (int i = 0; i < config_.slots; ++i) {
      const uint8_t slot = table(Old(child)).slots[i];
      if (!Counts(slot)) continue;
      int at = i;
      if (p().image[at] != kFreeSlot)
        at = static_cast<int>(std::find(p().image, p().image + config_.slots, kFreeSlot) - p().image);
      if (at == config_.slots) {
        p().waits = 1;
      } else {
        p().image[at] = WithState(slot, SlotState::kVal);
      }
    }
  }
  if (p().waits) std::memset(p().image, 0, sizeof(p().image));
  Go(Step::kChooseOutcome);
}

bool DirectoryModel::Stepper::ChooseOutcome(bool replace) {
  const bool must_replace = p().waits != 0;
  p().waits = 0;
  if (Mutated(M::kMergeWithoutOutcome) && !replace && d().status == kEngaged) {
    Go(Step::kPublishMerged);  // as if ENGAGED allowed it
    return true;
  }
  if (d().status == kEngaged) d().status = replace ? kReplace : kJoin;
  if (d().status == kReplace) {
    std::memset(p().image, 0, sizeof(p().image));
    Go(Mutated(M::kReplaceChildFirst) ? Step::kReplaceChild : Step::kReplaceParent);
  } else {
    if (must_replace) return false;  // impossible: the frozen slots are the same for all
    Go(Step::kPublishMerged);
  }
  return true;
}

void DirectoryModel::Stepper::Copy(uint8_t from, uint8_t to) {
  for (int i = 0; i < config_.slots; ++i) {
    const uint8_t slot = table(from).slots[i];
    table(to).slots[i] = Counts(slot) ? WithState(slot, SlotState::kVal) : kFreeSlot;
  }
}

void DirectoryModel::Stepper::PublishMergedStep() {
  const Entry engaged = DWord(false);
  const int depth = std::bit_width(d().child) - 1;
  if (b().directory[d().parent] == engaged.word() || Mutated(M::kPublishWithoutCas)) {
    const uint8_t t = NewTable(d().parent, depth);
    std::memcpy(table(t).slots, p().image, static_cast<size_t>(config_.slots));
    b().directory[d().parent] = engaged.Next(t, depth, EntryState::kNormal).word();
  }
  std::memset(p().image, 0, sizeof(p().image));
  Go(Step::kRemoveChild);
}

// [Merge 8] The process that wins this CAS retires P, C and D.
void DirectoryModel::Stepper::RemoveChild(uint8_t record, uint8_t index, Entry engaged) {
  const Record& r = b().records[record];
  const Entry old(r.old_child);
  if (!CasEntry(index, engaged.word(), engaged.Next(old.target(), old.depth(), EntryState::kAbsent))) return;
  table(old.target()).retired = 1;
  table(Entry(r.old_parent).target()).retired = 1;
  b().records[record].retired = 1;
}

void DirectoryModel::Stepper::RemoveChildStep() {
  RemoveChild(p().record, d().child, DWord(true));
  Continue(static_cast<Then>(p().then));
}

void DirectoryModel::Stepper::ReplaceEntry(bool child) {
  const Entry engaged = DWord(child);
  const uint8_t index = child ? d().child : d().parent;
  const int depth = std::bit_width(d().child);
  if (b().directory[index] == engaged.word()) {
    const uint8_t t = NewTable(index, depth);
    Copy(Old(child), t);
    b().directory[index] = engaged.Next(t, depth, EntryState::kNormal).word();
    table(Old(child)).retired = 1;
    if (child) d().retired = 1;
  }
  const bool last = child != Mutated(M::kReplaceChildFirst);
  if (last) return Continue(static_cast<Then>(p().then));
  Go(child ? Step::kReplaceParent : Step::kReplaceChild);
}

// All processes agree whether the keys fit. But one may have no memory for M, and then wants to replace.
void DirectoryModel::Stepper::ChooseOutcomeStep() {
  const bool must_replace = p().waits != 0;
  for (const bool replace : {false, true}) {
    if ((!replace && must_replace) || (replace && !must_replace && !config_.any_outcome)) continue;
    s_ = before_;
    if (ChooseOutcome(replace)) Emit();
  }
}

}  // namespace model
