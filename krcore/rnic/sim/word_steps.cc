#include "krcore/rnic/sim/word_steps.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace krcore::rnic::sim {
namespace {

constexpr size_t kWordsPerGroup = 64;  // whose steps are drawn together

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The words of a group that belong to the step, as bits. Each word draws two bits; what is beyond the last step goes
// to the last.
uint64_t WordsOf(const WordStep& part, uint64_t group) {
  const uint64_t low = Mix(part.seed ^ (2 * group)), high = Mix(part.seed ^ (2 * group + 1));
  switch (part.steps) {
    case 2: return part.step == 0 ? low : ~low;
    case 3: return part.step == 0 ? ~high & ~low : part.step == 1 ? ~high & low : high;
    default: return (part.step & 1 ? low : ~low) & (part.step & 2 ? high : ~high);
  }
}

}  // namespace

void CopyWords(std::byte* to, const std::byte* from, size_t length, uint64_t remote, const WordStep& part) {
  if (part.steps == 1) {
    std::memcpy(to, from, length);
    return;
  }
  // Word w covers [begin(w), begin(w + 1)), the first and the last perhaps less than 8 bytes.
  const size_t first = 8 - (remote & 7);
  const auto begin = [&](size_t word) { return word == 0 ? 0 : std::min(length, first + 8 * (word - 1)); };
  const size_t words = length <= first ? 1 : 1 + (length - first + 7) / 8;
  for (size_t group = 0; group * kWordsPerGroup < words; ++group) {
    const size_t base = group * kWordsPerGroup;
    uint64_t mask = WordsOf(part, group);
    if (words - base < kWordsPerGroup) mask &= (uint64_t{1} << (words - base)) - 1;
    for (; mask != 0; mask &= mask - 1) {
      const size_t word = base + static_cast<size_t>(std::countr_zero(mask));
      const size_t at = begin(word), bytes = begin(word + 1) - at;
      if (bytes == 8) {
        std::memcpy(to + at, from + at, 8);
      } else {
        std::memcpy(to + at, from + at, bytes);
      }
    }
  }
}

}  // namespace krcore::rnic::sim
