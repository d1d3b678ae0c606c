// Keys with equal hashes, for tests that know the store's seed.
#ifndef TESTS_KVS_COLLIDING_KEY_H_
#define TESTS_KVS_COLLIDING_KEY_H_

#include <array>
#include <cstdint>
#include <string>

namespace surgekv_test {

// Makes a key of 64 bytes that is distinct for each `n`. All have one XXH3-128 under the secret that begins with these
// words: the hash multiplies parts of each 16 bytes with each other, and one factor is made 0.
inline std::string CollidingKey(const uint64_t* secret, uint64_t n) {
  std::array<uint64_t, 8> words{secret[0], 0, secret[4], 0x9e3779b97f4a7c15 * (n + 1), secret[6], n, secret[2], 0};
  words[1] = words[2] + words[3] - words[0];
  words[7] = words[4] + words[5] - words[6];
  return {reinterpret_cast<const char*>(words.data()), sizeof(words)};
}

}  // namespace surgekv_test

#endif  // TESTS_KVS_COLLIDING_KEY_H_
