// One process's next step from one state of the directory model: a READ of one word, or a CAS.
#ifndef TESTS_MODEL_DIRECTORY_STEPPER_H_
#define TESTS_MODEL_DIRECTORY_STEPPER_H_

#include <bit>

#include "tests/model/directory_model.h"
#include "tests/model/directory_words.h"
#include "tests/model/slot_words.h"

namespace model {

class DirectoryModel::Stepper {
 public:
  using Step = DirectoryStep;
  struct StepInfo {
    Step step;
    const char* name;  // the name of the step in docs/protocol.md
    void (Stepper::*run)();
    bool has_choices = false;  // it emits its successors itself
  };
  static const StepInfo kSteps[static_cast<size_t>(DirectoryStep::kReplaceChild) + 1];

  Stepper(const DirectoryModel& model, const State& state, int process, const Emit& emit)
      : config_(model.config_), model_(model), before_(state), id_(process), emit_(emit) {}

  void Run() {
    s_ = before_;
    const StepInfo& info = kSteps[static_cast<size_t>(step())];
    if (info.run != nullptr) (this->*info.run)();
    if (info.run != nullptr && !info.has_choices) Emit();
  }

 private:
  using M = DirectoryMutation;

  // ---- access
  Body& b() { return s_.body; }
  Process& p() { return s_.body.processes[id_]; }
  Step step() { return static_cast<Step>(p().step); }
  const Op& op() { return config_.programs[id_][p().op]; }
  uint8_t hash() { return config_.hash[op().key]; }
  Table& table(uint8_t t) { return b().tables[t]; }
  bool Mutated(M mutation) const { return config_.mutations.contains(mutation); }
  uint8_t KeyOf(uint8_t slot) const { return model_.key_of_[BlockOf(slot)]; }
  uint8_t HashOf(uint8_t slot) const { return config_.hash[KeyOf(slot)]; }
  void Emit() { emit_(id_, kSteps[before_.body.processes[id_].step].name, s_); }
  void Go(Step step) { p().step = static_cast<uint8_t>(step); }
  // Resets the local variables, except for those that tell where the process goes on.
  void Clear() {
    Process fresh{};
    fresh.op = p().op;
    p() = fresh;
  }
  bool Cas(uint8_t* slot, uint8_t expected, uint8_t desired) {
    if (*slot != expected) return false;
    *slot = desired;
    return true;
  }
  bool CasEntry(uint8_t index, uint16_t expected, Entry desired) {
    if (b().directory[index] != expected) return false;
    b().directory[index] = desired.word();
    return true;
  }

  // ---- operations: begin and end
  void Begin();
  void Return(uint8_t result);
  void End();
  void Continue(Then then);

  // ---- finding the table
  void Resolve(Purpose purpose);
  int ResolveDepth(int i) const { return config_.mutations.contains(M::kResolveParentFirst) ? i : kMaxDepth - i; }
  void ResolveStep();
  void Settle(int from);
  int DepthOf(uint8_t index) const { return std::bit_width(index); }
  void ReadStatusStep();
  void Found(uint8_t t, bool closed);

  // ---- reading a table
  void Scan(Purpose purpose, uint8_t t);
  void ScanWord();
  void SeeHeader(uint8_t header);
  int Find(SlotState state, int except = -1);
  void Scanned();
  void CheckHeaders();
  void CheckHeadersStep();

  // ---- Get
  void GetScanned();

  // ---- writers
  bool WriteScanned();
  bool ChooseSlot();
  void SwapStep();
  uint8_t OwnIns() { return MakeSlot(SlotState::kIns, op().value); }
  void TentativeStep();
  void InserterScanned();
  void AbortStep();
  void KillRivalStep();
  void ConfirmStep();

  // ---- split of dir[index]
  int SplitDepth() { return Entry(p().parent_word).depth(); }
  uint8_t ChildIndex() { return static_cast<uint8_t>(p().index | 1 << SplitDepth()); }
  void Split(uint8_t index, Then then);
  void EndSplit() { Continue(static_cast<Then>(p().then)); }
  void SplitReadParentStep();
  void SplitMarkStep();
  void SplitReadChildStep();
  void SplitRereadParentStep();
  void SplitGoOn();
  void MetMerging(bool published);
  // A process that finishes a split reads dir[c], dir[s] and dir[c]. A child that was there before and after the look
  // at its parent is this parent's.
  void FinishReadChildStep();
  void FinishReadParentStep();
  void FinishRereadChildStep();
  uint8_t NewTable(uint8_t index, int depth);
  void SplitPublishStep();
  void SplitRemoveOldStep();
  void MoveHeaderStep();
  void NextSlot();
  void LookAtParentStep();
  void FreezeStep();
  void KillTentativeStep();
  void ReadImageStep();
  void RereadChildStep();
  void NextToClear();
  void AfterClearing();
  void ClearSlotStep();
  void ChildDoneStep();
  void ParentDoneStep();

  // ---- merge of dir[index] and its sibling
  Record& d() { return b().records[p().record]; }
  uint8_t Old(bool child) { return Entry(child ? d().old_child : d().old_parent).target(); }
  void MergeReadParentStep();
  uint8_t SiblingIndex() { return static_cast<uint8_t>(p().index | 1 << (Entry(p().parent_word).depth() - 1)); }
  void MergeReadChildStep();
  void EngageParentStep();
  void HelpMerge(uint8_t record, Then then);
  void MergeReadStatusStep() { GoByStatus(); }
  void GoByStatus();
  Entry DWord(bool child);
  void EngageChildStep();
  void DecideRecordStep();
  void UndoParentStep();
  void UndoChildStep();
  void CloseStep();
  uint8_t* SlotToFreeze() { return &table(Old(p().cursor >= config_.slots)).slots[p().cursor % config_.slots]; }
  void FreezeLookStep();
  void FreezeSlotStep();
  void NextToFreeze();
  bool Counts(uint8_t slot);
  void BuildStep();
  void ChooseOutcomeStep();
  bool ChooseOutcome(bool replace);
  void Copy(uint8_t from, uint8_t to);
  void PublishMergedStep();
  void RemoveChild(uint8_t record, uint8_t index, Entry engaged);
  void RemoveChildStep();
  void ReplaceEntry(bool child);
  void ReplaceParentStep() { ReplaceEntry(false); }
  void ReplaceChildStep() { ReplaceEntry(true); }
  const DirectoryConfig& config_;
  const DirectoryModel& model_;
  const State& before_;
  const int id_;
  const DirectoryModel::Emit& emit_;
  State s_;
};

}  // namespace model

#endif  // TESTS_MODEL_DIRECTORY_STEPPER_H_
