// Slot words of the models: state and block, in one byte.
#ifndef TESTS_MODEL_SLOT_WORDS_H_
#define TESTS_MODEL_SLOT_WORDS_H_

#include <cstdint>

namespace model {

enum class SlotState : uint8_t { kFree, kIns, kVal, kFrz };

constexpr uint8_t MakeSlot(SlotState state, int block) {
  return static_cast<uint8_t>(static_cast<int>(state) << 5 | block);
}
constexpr SlotState StateOf(uint8_t slot) { return static_cast<SlotState>(slot >> 5); }
constexpr uint8_t BlockOf(uint8_t slot) { return slot & 31; }
constexpr uint8_t WithState(uint8_t slot, SlotState state) { return MakeSlot(state, BlockOf(slot)); }
constexpr bool HasBlock(uint8_t slot) {
  return StateOf(slot) == SlotState::kIns || StateOf(slot) == SlotState::kVal || StateOf(slot) == SlotState::kFrz;
}

constexpr uint8_t kFreeSlot = MakeSlot(SlotState::kFree, 0);
inline constexpr const char* kSlotNames[] = {"-", "ins", "val", "frz"};

}  // namespace model

#endif  // TESTS_MODEL_SLOT_WORDS_H_
