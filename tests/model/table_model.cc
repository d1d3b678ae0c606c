#include "tests/model/table_model.h"

#include <algorithm>
#include <cstdlib>

#include "tests/model/table_stepper.h"

namespace model {

const char* Name(TableMutation mutation) {
  static const char* const kNames[] = {
      "insert-directly",
      "confirm-without-kill",
      "confirm-after-failed-kill",
      "exists-on-ins",
      "failed-confirm-is-done",
      "confirm-by-write",
      "rescan-ignores-values",
      "insert-without-headers",
      "return-frozen",
      "miss-without-headers",
      "update-miss-without-headers",
      "return-tentative",
      "clear-early",
      "headers-late",
      "copy-without-freeze",
      "update-frozen",
      "ignore-ins",
      "publish-without-cas",
      "lost-put-is-done",
      "modify-of-any-word",
      "no-grace",
      "no-quarantine",
      "no-hold-while-frozen",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(TableMutation::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

const TableModel::Stepper::StepInfo TableModel::Stepper::kSteps[] = {
    {Step::kIdle, "begins", &Stepper::Begin, true},
    {Step::kDone, "is done", nullptr},
    {Step::kDead, "is dead", nullptr},
    {Step::kGetScan, "get 1: READ a word of the scan", &Stepper::ScanWord, true},
    {Step::kGetHeaders, "get 2: READ a header again", &Stepper::ScanWord, true},
    {Step::kWriteScan, "write 1: READ a word of the scan", &Stepper::ScanWord, true},
    {Step::kWriteHeaders, "write 5: READ a header again", &Stepper::ScanWord, true},
    {Step::kInserterScan, "write 6a: READ a word of the scan behind INS", &Stepper::ScanWord, true},
    {Step::kSwap, "write 2: CAS VAL", &Stepper::SwapStep},
    {Step::kTentative, "write 6a: CAS FREE -> INS", &Stepper::TentativeStep},
    {Step::kKillRival, "write 6e: CAS rival INS -> FREE", &Stepper::KillRivalStep},
    {Step::kConfirm, "write 6f: CAS INS -> VAL", &Stepper::ConfirmStep},
    {Step::kAbort, "write 6b-d: CAS own INS -> FREE", &Stepper::AbortStep},
    {Step::kReadDirectory, "get 3, get 5: READ the directory", &Stepper::ReadDirectoryStep},
    {Step::kReadChild, "split 3: READ dir[child]", &Stepper::ReadChildStep},
    {Step::kMoveHeaders, "split 3, merge 6: CAS a header", &Stepper::MoveHeadersStep},
    {Step::kLook, "split 4, merge 6: READ S[i]", &Stepper::LookStep},
    {Step::kLookAtBlock, "split 4: READ the block of S[i]", &Stepper::LookAtBlockStep},
    {Step::kFreeze, "split 4, merge 6: CAS S[i] VAL -> FRZ", &Stepper::FreezeStep},
    {Step::kKillTentative, "split 4, merge 6: CAS S[i] INS -> FREE", &Stepper::KillTentativeStep},
    {Step::kClearEarly, "CAS S[i] FRZ -> FREE too early", &Stepper::ClearEarlyStep},
    {Step::kPublish, "split 5, merge 7: CAS the directory -> N", &Stepper::PublishStep},
    {Step::kLookForFrozen, "split 6: READ S[i]", &Stepper::LookForFrozenStep},
    {Step::kClear, "split 6: CAS S[i] FRZ -> FREE", &Stepper::ClearStep},
};

TableModel::TableModel(TableConfig config) : config_(std::move(config)) {
  for (size_t i = 0; i < std::size(Stepper::kSteps); ++i) {
    if (static_cast<size_t>(Stepper::kSteps[i].step) != i) std::abort();  // the table is indexed by step
  }
  int operations = 0;
  for (const Program& program : config_.programs) operations += static_cast<int>(program.size());
  blocks_ = config_.reuse ? config_.spare_blocks + 2 : operations + 2;
}

TableModel::State TableModel::Initial() const {
  State state{.body = {}, .monitors = {Monitor(0), Monitor(0)}};
  Body& body = state.body;
  if (!config_.reuse) {  // the block of every operation has the operation's value as its index
    for (const Program& program : config_.programs) {
      for (const Op& op : program) body.blocks[op.value] = {op.key, op.value, kBlockUsed, 0, 0};
    }
  }
  for (const uint8_t key : {uint8_t{0}, kMovingKey}) {
    if (config_.initial[key] < 0) continue;
    const int block = key == kMovingKey ? 0 : config_.reuse ? 1 : blocks_ - 1;
    const uint8_t value = static_cast<uint8_t>(14 + key);
    body.blocks[block] = {key, value, kBlockUsed, 0, 0};
    body.slots[0][config_.initial[key]] = MakeSlot(SlotState::kVal, block);
    state.monitors[key] = Monitor(value);
  }
  if (config_.split_before) {
    body.published = 1;
    body.moved = 3;
    if (config_.initial[kMovingKey] >= 0) {
      std::swap(body.slots[0][config_.initial[kMovingKey]], body.slots[1][config_.initial[kMovingKey]]);
    }
  }
  for (int q = 0; q < kMaxProcesses; ++q) {
    const bool idle = q < static_cast<int>(config_.programs.size()) && !config_.programs[q].empty();
    body.processes[q].step = static_cast<uint8_t>(idle ? TableStep::kIdle : TableStep::kDone);
  }
  return state;
}

void TableModel::Hash(const State& state, Hasher* hasher) const {
  hasher->AddBytes(state.body);
  for (const Monitor& monitor : state.monitors) monitor.Hash(hasher);
}

void TableModel::Successors(const State& state, const Emit& emit) const {
  for (int q = 0; q < static_cast<int>(config_.programs.size()); ++q) {
    Stepper stepper(*this, state, q, emit);
    stepper.Run();
    const Process& process = state.body.processes[q];
    const bool expels = (config_.may_be_expelled >> q & 1) != 0 && !process.expelled;
    if (expels && static_cast<TableStep>(process.step) > TableStep::kDead) stepper.Expel();
  }
}

std::string TableModel::Violation(const State& state) const {
  const Body& body = state.body;
  bool quiet = true;
  for (size_t q = 0; q < config_.programs.size(); ++q) {
    const Process& process = body.processes[q];
    const TableStep step = static_cast<TableStep>(process.step);
    quiet &= step == TableStep::kIdle || step == TableStep::kDone ||
             config_.programs[q][process.op].kind == OpKind::kStructural;
  }
  for (uint8_t key = 0; key < kKeys; ++key) {
    if (!state.monitors[key].linearizable()) return "not linearizable, key " + std::to_string(key);
    int copies = 0;
    uint8_t value = 0;
    for (int table = 0; table < 2; ++table) {
      for (int i = 0; i < config_.slots; ++i) {
        const uint8_t word = body.slots[table][i];
        const Block& block = body.blocks[BlockOf(word)];
        if (!HasBlock(word) || block.key != key) continue;
        const bool is_value = StateOf(word) == SlotState::kVal, is_frozen = StateOf(word) == SlotState::kFrz;
        // In a closed table nothing counts once N is published; a split leaves the values that stay.
        const bool counts =
            table == 0 && body.published ? is_value && !config_.merge : is_value || (table == 0 && is_frozen);
        if (!counts) continue;
        ++copies;
        value = block.value;
        if (config_.reuse && block.state == kBlockFree) return "a slot names a free block";
      }
    }
    if (copies > 1) return "two authoritative copies of key " + std::to_string(key);
    if (quiet && !state.monitors[key].MayHold(value)) {
      return "key " + std::to_string(key) + " is not what any linearization leaves";
    }
  }
  return "";
}

std::string TableModel::Describe(const State& state) const {
  std::string text;
  for (int table = 0; table < 2; ++table) {
    text += table == 0 ? " S:" : " N:";
    for (int i = 0; i < config_.slots; ++i) {
      const uint8_t word = state.body.slots[table][i];
      text += " ";
      text += kSlotNames[static_cast<int>(StateOf(word))];
      if (HasBlock(word)) text += std::to_string(BlockOf(word));
    }
  }
  text += " headers moved " + std::to_string(state.body.moved);
  if (state.body.published) text += " published";
  return text;
}

}  // namespace model
