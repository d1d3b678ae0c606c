// Random requests from one seed: right ones, wrong ones, and right ones that meet values which they cannot use.
#ifndef TESTS_REDIS_GENERATOR_H_
#define TESTS_REDIS_GENERATOR_H_

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "tests/redis/speakers.h"

namespace redis_test {

// No reply depends on how fast the requests are executed: a lifetime lasts for days or is over, and no two are nearly
// equal unless they are absolute.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}
  Words Next();
  size_t Below(size_t limit) { return random_() % limit; }

 private:
  bool Chance(size_t percent) { return Below(100) < percent; }
  std::string_view OneOf(std::span<const std::string_view> words) { return words[Below(words.size())]; }
  std::string Word(char kind);
  std::string Lifetime(std::string_view unit);
  void AddSetOptions(Words* words, bool of_set);
  void Spoil(Words* words);

  std::mt19937_64 random_;
  uint64_t lifetimes_ = 0;
};

}  // namespace redis_test

#endif  // TESTS_REDIS_GENERATOR_H_
