#include "tests/model/directory_model.h"

#include <algorithm>
#include <cstdlib>

#include "tests/model/directory_stepper.h"

namespace model {

const char* Name(DirectoryMutation mutation) {
  static const char* const kNames[] = {
      "read-splitting-unasked",
      "resolve-parent-first",
      "split-without-reread",
      "split-sets-no-state",
      "any-merging-is-old",
      "read-closed-unasked",
      "read-closed-parent-only",
      "read-foreign-record",
      "read-wrong-half",
      "merge-without-outcome",
      "replace-child-first",
      "engage-parent-only",
      "close-late",
      "ignore-ins",
      "copy-without-freeze",
      "publish-without-cas",
      "clear-without-reread",
      "keep-merged-child",
      "insert-without-headers",
      "publish-on-late-word",
      "finish-of-another-split",
      "finish-without-first-look",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(DirectoryMutation::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

const DirectoryModel::Stepper::StepInfo DirectoryModel::Stepper::kSteps[] = {
    {Step::kIdle, "begins", &Stepper::Begin, true},
    {Step::kDone, "is done", nullptr},
    {Step::kResolve, "resolve: READ a directory entry", &Stepper::ResolveStep},
    {Step::kReadStatus, "resolve: READ the merge record", &Stepper::ReadStatusStep},
    {Step::kScan, "scan: READ a word", &Stepper::ScanWord, true},
    {Step::kCheckHeaders, "get 2, write 5: READ headers again", &Stepper::CheckHeadersStep},
    {Step::kSwap, "write 2: CAS VAL", &Stepper::SwapStep},
    {Step::kTentative, "write 6a: CAS FREE -> INS", &Stepper::TentativeStep},
    {Step::kKillRival, "write 6e: CAS rival INS -> FREE", &Stepper::KillRivalStep},
    {Step::kConfirm, "write 6f: CAS INS -> VAL", &Stepper::ConfirmStep},
    {Step::kAbort, "write 6b-d: CAS own INS -> FREE", &Stepper::AbortStep},
    {Step::kSplitReadParent, "split: READ dir[s]", &Stepper::SplitReadParentStep},
    {Step::kSplitMark, "split 2: CAS dir[s] -> SPLITTING", &Stepper::SplitMarkStep},
    {Step::kSplitReadChild, "split 3: READ dir[c]", &Stepper::SplitReadChildStep},
    {Step::kSplitRereadParent, "split 3: READ dir[s] behind it", &Stepper::SplitRereadParentStep},
    {Step::kSplitRemoveOld, "merge 8, in a split: CAS dir[c] D -> ABSENT", &Stepper::SplitRemoveOldStep},
    {Step::kMoveHeader, "split 3: CAS a header of S", &Stepper::MoveHeaderStep},
    {Step::kLookAtParent, "split 4: READ S[i]", &Stepper::LookAtParentStep},
    {Step::kFreeze, "split 4: CAS S[i] VAL -> FRZ", &Stepper::FreezeStep},
    {Step::kKillTentative, "split 4: CAS S[i] INS -> FREE", &Stepper::KillTentativeStep},
    {Step::kSplitPublish, "split 5: CAS dir[c] -> N, MIGRATING", &Stepper::SplitPublishStep},
    {Step::kFinishReadChild, "split, which parent: READ dir[c]", &Stepper::FinishReadChildStep},
    {Step::kFinishReadParent, "split, which parent: READ dir[s] behind it", &Stepper::FinishReadParentStep},
    {Step::kFinishRereadChild, "split, which parent: READ dir[c] behind it", &Stepper::FinishRereadChildStep},
    {Step::kReadImage, "split 6: READ S[i]", &Stepper::ReadImageStep},
    {Step::kRereadChild, "split 6: READ dir[c] behind the image", &Stepper::RereadChildStep},
    {Step::kClearSlot, "split 6: CAS S[i] FRZ -> FREE", &Stepper::ClearSlotStep},
    {Step::kChildDone, "split 7: CAS dir[c] -> NORMAL", &Stepper::ChildDoneStep},
    {Step::kParentDone, "split 7: CAS dir[s] -> NORMAL, d + 1", &Stepper::ParentDoneStep},
    {Step::kMergeReadParent, "merge: READ dir[s]", &Stepper::MergeReadParentStep},
    {Step::kMergeReadChild, "merge: READ dir[c]", &Stepper::MergeReadChildStep},
    {Step::kMergeReadStatus, "merge: READ D", &Stepper::MergeReadStatusStep},
    {Step::kEngageParent, "merge 2: CAS dir[s] -> D", &Stepper::EngageParentStep},
    {Step::kEngageChild, "merge 3: CAS dir[c] -> D", &Stepper::EngageChildStep},
    {Step::kDecideRecord, "merge 4: CAS D.status", &Stepper::DecideRecordStep},
    {Step::kUndoParent, "merge 5: CAS dir[s] D -> P", &Stepper::UndoParentStep},
    {Step::kUndoChild, "merge 5: CAS dir[c] D -> C", &Stepper::UndoChildStep},
    {Step::kClose, "merge 6: CAS a header -> CLOSED", &Stepper::CloseStep},
    {Step::kFreezeLook, "merge 6: READ a slot", &Stepper::FreezeLookStep},
    {Step::kFreezeSlot, "merge 6: CAS a slot VAL -> FRZ or INS -> FREE", &Stepper::FreezeSlotStep},
    {Step::kBuild, "merge 7: build M from the frozen slots", &Stepper::BuildStep},
    {Step::kChooseOutcome, "merge 7: CAS D.status ENGAGED -> JOIN or REPLACE", &Stepper::ChooseOutcomeStep, true},
    {Step::kPublishMerged, "merge 7: CAS dir[s] D -> M", &Stepper::PublishMergedStep},
    {Step::kRemoveChild, "merge 8: CAS dir[c] D -> ABSENT", &Stepper::RemoveChildStep},
    {Step::kReplaceParent, "merge 7: CAS dir[s] D -> P'", &Stepper::ReplaceParentStep},
    {Step::kReplaceChild, "merge 8: CAS dir[c] D -> C'", &Stepper::ReplaceChildStep},
};

DirectoryModel::DirectoryModel(DirectoryConfig config) : config_(std::move(config)) {
  for (size_t i = 0; i < std::size(Stepper::kSteps); ++i) {
    if (static_cast<size_t>(Stepper::kSteps[i].step) != i) std::abort();  // the table is indexed by step
  }
  for (const Program& program : config_.programs) {
    for (const Op& op : program) key_of_[op.value] = op.key;
  }
  key_of_[14] = 0;
  key_of_[15] = 1;
}

DirectoryModel::State DirectoryModel::Initial() const {
  State state{.body = {}, .monitors = {Monitor(0), Monitor(0)}};
  Body& body = state.body;
  const int tables = config_.split_before ? 2 : 1;
  const int depth = config_.split_before ? 1 : 0;
  for (uint8_t t = 0; t < tables; ++t) {
    body.tables[t].index = t;
    body.tables[t].published = 1;
    for (int i = 0; i < config_.buckets; ++i) body.tables[t].header[i] = static_cast<uint8_t>(depth);
    body.directory[t] = Entry(t, depth, EntryState::kNormal, 0).word();
  }
  body.tables_used = static_cast<uint8_t>(tables);
  for (int key = 0; key < kKeys; ++key) {
    if (config_.initial[key] < 0) continue;
    const uint8_t value = static_cast<uint8_t>(14 + key);
    body.tables[LowBits(config_.hash[key], depth)].slots[config_.initial[key]] = MakeSlot(SlotState::kVal, value);
    state.monitors[key] = Monitor(value);
  }
  for (int q = 0; q < kMaxProcesses; ++q) {
    const bool idle = q < static_cast<int>(config_.programs.size()) && !config_.programs[q].empty();
    body.processes[q].step = static_cast<uint8_t>(idle ? DirectoryStep::kIdle : DirectoryStep::kDone);
  }
  return state;
}

void DirectoryModel::Hash(const State& state, Hasher* hasher) const {
  hasher->AddBytes(state.body);
  for (const Monitor& monitor : state.monitors) monitor.Hash(hasher);
}

void DirectoryModel::Successors(const State& state, const Emit& emit) const {
  for (int q = 0; q < static_cast<int>(config_.programs.size()); ++q) Stepper(*this, state, q, emit).Run();
}

std::string DirectoryModel::Violation(const State& state) const {
  const Body& body = state.body;
  if (body.error == kOutOfTables) return "the model has too few tables for this configuration";
  if (body.error == kOutOfRecords) return "the model has too few merge records for this configuration";
  for (int key = 0; key < kKeys; ++key) {
    if (!state.monitors[key].linearizable()) return "not linearizable, key " + std::to_string(key);
  }
  // No table or record that the directory names is retired.
  for (int i = 0; i < kIndices; ++i) {
    const Entry entry(body.directory[i]);
    if (!entry.present()) continue;
    const bool retired =
        entry.Is(EntryState::kMerging) ? body.records[entry.target()].retired : body.tables[entry.target()].retired;
    if (retired) return "dir[" + std::to_string(i) + "] names retired memory";
  }
  // When no operation is in flight, the table holds what some linearization leaves.
  bool quiet = true, all_done = true;
  for (size_t q = 0; q < config_.programs.size(); ++q) {
    const Process& process = body.processes[q];
    const DirectoryStep step = static_cast<DirectoryStep>(process.step);
    all_done &= step == DirectoryStep::kDone;
    quiet &= step == DirectoryStep::kIdle || step == DirectoryStep::kDone ||
             config_.programs[q][process.op].kind == OpKind::kStructural;
  }
  if (all_done) {
    for (int i = 0; i < kIndices; ++i) {
      const Entry entry(body.directory[i]);
      if (entry.present() && !entry.Is(EntryState::kNormal))
        return "all are done, but dir[" + std::to_string(i) + "] is not settled";
    }
  }
  for (uint8_t key = 0; key < kKeys && quiet; ++key) {
    const uint8_t hash = config_.hash[key];
    // Find the deepest present entry. The child of a published merge counts as absent.
    int depth = kMaxDepth;
    Entry entry(0);
    const Record* record = nullptr;
    for (;; --depth) {
      entry = Entry(body.directory[LowBits(hash, depth)]);
      record = nullptr;
      if (depth > 0 && (LowBits(hash, depth) == LowBits(hash, depth - 1) || !entry.present())) continue;
      if (!entry.Is(EntryState::kMerging)) break;
      record = &body.records[entry.target()];
      const Entry parent(body.directory[record->parent]);
      const bool published = !(parent.Is(EntryState::kMerging) && parent.target() == entry.target());
      if (LowBits(hash, depth) == record->child && published && record->status != kReplace) continue;
      break;
    }
    uint8_t t = entry.target();
    bool closed = false;
    if (record != nullptr) {
      const bool upper = (hash >> (std::bit_width(record->child) - 1) & 1) != 0;
      t = Entry(upper ? record->old_child : record->old_parent).target();
      closed = record->status == kEngaged || record->status == kJoin || record->status == kReplace;
    }
    const Table& table = body.tables[t];
    // While the table is splitting and no deeper one is present, what is frozen in it counts.
    const bool frozen_counts = closed || entry.Is(EntryState::kSplitting);
    int copies = 0;
    uint8_t value = 0;
    for (int i = 0; i < config_.slots; ++i) {
      const uint8_t slot = table.slots[i];
      if (!HasBlock(slot) || key_of_[BlockOf(slot)] != key) continue;
      const bool frozen = StateOf(slot) == SlotState::kFrz && frozen_counts;
      if (StateOf(slot) != SlotState::kVal && !frozen) continue;
      ++copies;
      value = BlockOf(slot);
    }
    if (copies > 1) return "two authoritative copies of key " + std::to_string(key);
    if (!state.monitors[key].MayHold(value))
      return "key " + std::to_string(key) + " is not what any linearization leaves";
  }
  return config_.solo ? SoloViolation(state) : "";
}

// Obstruction freedom: a process that runs alone reaches the end of its program, wherever the others have stopped.
std::string DirectoryModel::SoloViolation(const State& state) const {
  constexpr int kEnough = 600;
  for (int q = 0; q < static_cast<int>(config_.programs.size()); ++q) {
    State at = state;
    int steps = 0;
    while (static_cast<DirectoryStep>(at.body.processes[q].step) != DirectoryStep::kDone && ++steps < kEnough) {
      bool first = true;
      const State from = at;
      Stepper(*this, from, q, [&](int, const char*, const State& next) {
        if (first) at = next;
        first = false;
      }).Run();
      if (first) break;
    }
    if (static_cast<DirectoryStep>(at.body.processes[q].step) != DirectoryStep::kDone && at.body.error == kNoError)
      return std::string("P") + std::to_string(q) + ", running alone, does not come to its end";
  }
  return "";
}

std::string DirectoryModel::Describe(const State& state) const {
  static const char* const kEntryNames[] = {"absent", "migrating", "normal", "splitting", "merging"};
  static const char* const kStatusNames[] = {"undecided", "engaged", "abandoned", "replace", "join"};
  std::string text;
  for (int i = 0; i < kIndices; ++i) {
    const Entry entry(state.body.directory[i]);
    if (entry.word() == 0 && i > 0) continue;
    text += std::string(" dir[") + std::to_string(i) + "]=" + (entry.Is(EntryState::kMerging) ? "D" : "T") +
            std::to_string(entry.target()) + "," + std::to_string(entry.depth()) + "," +
            kEntryNames[static_cast<int>(entry.state())];
  }
  for (int r = 0; r < state.body.records_used; ++r) {
    text += std::string(" D") + std::to_string(r) + "=" + kStatusNames[state.body.records[r].status];
  }
  for (int t = 0; t < state.body.tables_used; ++t) {
    const Table& table = state.body.tables[t];
    text += std::string(" | T") + std::to_string(t) + "(" + std::to_string(table.index) + "):";
    for (int i = 0; i < config_.buckets; ++i) {
      text += table.header[i] == kClosed ? std::string("closed ")
                                         : std::string("d") + std::to_string(table.header[i]) + " ";
    }
    for (int i = 0; i < config_.slots; ++i) {
      text += kSlotNames[static_cast<int>(StateOf(table.slots[i]))];
      if (HasBlock(table.slots[i])) text += std::to_string(BlockOf(table.slots[i]));
      text += " ";
    }
  }
  return text;
}

}  // namespace model
