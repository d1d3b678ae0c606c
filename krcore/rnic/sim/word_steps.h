// Copies a part of a READ's or WRITE's words: each aligned word of the remote side belongs to one of up to four steps,
// drawn from a seed, so that nothing need be remembered between steps.
#ifndef KRCORE_RNIC_SIM_WORD_STEPS_H_
#define KRCORE_RNIC_SIM_WORD_STEPS_H_

#include <cstddef>
#include <cstdint>

namespace krcore::rnic::sim {

struct WordStep {
  uint64_t seed = 0;
  uint8_t steps = 1;
  uint8_t step = 0;  // 0 to steps - 1
};

// `remote` decides where words begin, whichever side it is on.
void CopyWords(std::byte* to, const std::byte* from, size_t length, uint64_t remote, const WordStep& part);

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_WORD_STEPS_H_
