// One process's next step from one state of the table model: a READ of one word, or a CAS.
#ifndef TESTS_MODEL_TABLE_STEPPER_H_
#define TESTS_MODEL_TABLE_STEPPER_H_

#include "tests/model/slot_words.h"
#include "tests/model/table_model.h"

namespace model {

inline constexpr uint8_t kMovingKey = 1;
inline constexpr uint8_t kBlockFree = 0, kBlockUsed = 1, kBlockRetired = 2;

enum class TableStep : uint8_t {
  kIdle,
  kDone,
  kDead,
  // Scans, one word per step.
  kGetScan,
  kGetHeaders,
  kWriteScan,
  kWriteHeaders,
  kInserterScan,
  // These take one verb each.
  kSwap,
  kTentative,
  kKillRival,
  kConfirm,
  kAbort,
  // Split and merge.
  kReadDirectory,
  kReadChild,
  kMoveHeaders,
  kLook,
  kLookAtBlock,
  kFreeze,
  kKillTentative,
  kClearEarly,
  kPublish,
  kLookForFrozen,
  kClear,
};

class TableModel::Stepper {
 public:
  using Step = TableStep;
  struct StepInfo {
    Step step;
    const char* name;  // the name of the step in docs/protocol.md
    void (Stepper::*run)();
    bool has_choices = false;  // it emits its successors itself
  };
  static const StepInfo kSteps[static_cast<size_t>(TableStep::kClear) + 1];

  Stepper(const TableModel& model, const State& state, int process, const Emit& emit)
      : model_(model), config_(model.config_), before_(state), id_(process), emit_(emit) {}

  void Run() {
    s_ = before_;
    const StepInfo& info = kSteps[p().step];
    if (info.run != nullptr) (this->*info.run)();
    if (info.run != nullptr && !info.has_choices) Emit();
  }
  void Expel() {
    s_ = before_;
    p().expelled = 1;
    if (Mutated(M::kNoQuarantine)) {
      for (int i = 0; i < model_.blocks_; ++i) LetGo(i);
    }
    emit_(id_, "IS EXPELLED", s_);
  }

 private:
  using M = TableMutation;

  Body& b() { return s_.body; }
  Process& p() { return s_.body.processes[id_]; }
  const Op& op() { return config_.programs[id_][p().op]; }
  bool Modifies() { return op().kind == OpKind::kModify; }
  bool Mutated(M mutation) const { return config_.mutations.contains(mutation); }
  uint8_t bit() const { return static_cast<uint8_t>(1 << id_); }
  void Emit() {
    if (before_.body.processes[id_].expelled) {  // that step was its last verb
      Clear();
      Go(Step::kDead);
    }
    emit_(id_, kSteps[before_.body.processes[id_].step].name, s_);
  }
  void Go(Step step) { p().step = static_cast<uint8_t>(step); }
  // Resets all local variables except the program's position, the table and the block.
  void Clear() {
    Process fresh{};
    fresh.step = p().step;
    fresh.op = p().op;
    fresh.table = p().table;
    fresh.block = p().block;
    fresh.expelled = p().expelled;
    p() = fresh;
  }
  bool Cas(int table, int slot, uint8_t expected, uint8_t desired) {
    uint8_t& word = b().slots[table][slot];
    if (word != expected) return false;
    word = desired;
    return true;
  }

  // ---- blocks (table_operations.cc says when one is free)
  uint8_t InOperation();
  void TryFree(int block);
  void Retire(int block);
  void Unfreeze(int block);
  void LetGo(int block);
  bool TakeBlock();
  int OwnBlock() { return p().block - 1; }
  uint8_t OwnSlot(SlotState state) { return MakeSlot(state, OwnBlock()); }

  // ---- operations: begin and end
  void Begin();
  void End(bool published);
  void Return(uint8_t result, bool published = false);

  // ---- scans: bits 0..1 of `remaining` are S's headers, then the slots, then (with reuse) the slots' blocks
  void Scan(Step step, int table, bool headers, bool slots);
  void ReadBlock(int i);
  void ScanWord();
  int Find(SlotState state, int except = -1);
  bool Moved() { return p().headers != 0 && op().key == kMovingKey; }
  bool Scanned();

  // ---- Get
  void GetScanned();
  void ToChild(int frozen);
  void GetHeadersRead();
  void ReadDirectoryStep();

  // ---- writers
  void Restart(int table) { Scan(Step::kWriteScan, table, true, true); }
  void GoToChild();
  bool WriteScanned();
  void WriteHeadersRead();
  void ChooseSlot();
  void SwapStep();
  void TentativeStep();
  void InserterScanned();
  void Abort(uint8_t own, uint8_t table, uint8_t then, bool exists);
  void AbortStep();
  void KillRivalStep();
  void ConfirmStep();

  // ---- split and merge, by the process whose work that is or by a writer (`then`), which goes on in N
  void ReadChildStep();
  void MoveHeadersStep();
  void LookStep();
  void LookAtBlockStep();
  void Looked();
  void FreezeStep();
  void KillTentativeStep();
  void ClearEarlyStep();
  void Copy(uint8_t word);
  void NextSlot();
  void PublishStep();
  void LookForFrozenStep();
  void ClearStep();
  void Cleared();
  void Finished();

  const TableModel& model_;
  const TableConfig& config_;
  const State& before_;
  const int id_;
  const TableModel::Emit& emit_;
  State s_;
};

}  // namespace model

#endif  // TESTS_MODEL_TABLE_STEPPER_H_
