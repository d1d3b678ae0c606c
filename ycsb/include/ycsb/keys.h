// KeyCodec: the key of a record number. Injective, unlike YCSB's own 64-bit hash with its sign cut off: two
// records never share a key, so every read can be verified.
//
//   hashed    "user" + 12 characters of base 64 that print a bijective mix of the number
//   ordered   "user" + the number in 12 zero-padded decimal digits (keys sort as their numbers do)
//
//   padded    "user" + the number in as many digits as it has, but at least `zero_padding`: YCSB's own ordered keys
//
// Keys shorter than 16 bytes have no "user"; longer ones have more characters.
//
// Thread safety: immutable.
#ifndef YCSB_KEYS_H_
#define YCSB_KEYS_H_

#include <cstddef>
#include <cstdint>

namespace ycsb {

class KeyCodec {
 public:
  static constexpr size_t kMinKeyBytes = 8;
  static constexpr size_t kMaxKeyBytes = 65'535;

  static constexpr size_t kMaxPadding = 1000;

  // `zero_padding`: not 0: padded, whatever key_bytes is.
  KeyCodec(size_t key_bytes, bool hashed, size_t zero_padding = 0);

  // Of the longest key.
  size_t key_bytes() const { return key_bytes_; }
  // Numbers below it have distinct keys.
  uint64_t capacity() const { return capacity_; }
  // Writes the key, and returns how many bytes it has. `out` has room for key_bytes(). `number` < capacity().
  size_t Format(uint64_t number, char* out) const;

 private:
  uint64_t Mix(uint64_t number) const;

  size_t key_bytes_;
  size_t prefix_bytes_;  // of "user"
  bool hashed_;
  size_t zero_padding_;
  uint32_t mix_bits_;  // the mix permutes numbers of so many bits
  uint64_t capacity_;
};

}  // namespace ycsb

#endif  // YCSB_KEYS_H_
