// WordPair: two neighbouring words that are loaded, made and stored at once, because the number of stores is what
// limits the writing of work requests.
#ifndef KRCORE_BASE_WORD_PAIR_H_
#define KRCORE_BASE_WORD_PAIR_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace krcore {

static_assert(std::endian::native == std::endian::little);

// A vector of the compiler's, on any machine: + & | work on both words.
using WordPair = uint64_t __attribute__((vector_size(16)));

// Returns the word that lies `kOffset` bytes into an object, whatever its members are called.
template <size_t kOffset, typename Word = uint64_t, typename T>
Word WordAt(const T& object) {
  static_assert(kOffset + sizeof(Word) <= sizeof(T) && std::is_trivially_copyable_v<T>);
  Word word;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(&object) + kOffset, sizeof(word));
  return word;
}

template <size_t kOffset, typename Word, typename T>
void SetWordAt(T& object, Word word) {
  static_assert(kOffset + sizeof(Word) <= sizeof(T) && std::is_trivially_copyable_v<T>);
  std::memcpy(reinterpret_cast<std::byte*>(&object) + kOffset, &word, sizeof(word));
}

template <size_t kOffset, typename T>
WordPair PairAt(const T& object) {
  return WordAt<kOffset, WordPair>(object);
}

template <size_t kOffset, typename T>
void SetPairAt(T& object, WordPair pair) {
  SetWordAt<kOffset, WordPair>(object, pair);
}

// A member at `kOffset`, as part of the word at `kWordOffset`.
template <size_t kOffset, size_t kWordOffset>
constexpr uint64_t PartOfWord(auto member) {
  static_assert(kOffset >= kWordOffset && kOffset + sizeof(member) <= kWordOffset + sizeof(uint64_t));
  return static_cast<uint64_t>(member) << 8 * (kOffset - kWordOffset);
}

}  // namespace krcore

#endif  // KRCORE_BASE_WORD_PAIR_H_
