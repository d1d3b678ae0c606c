// What a record is: KeyCodec makes its key out of its number; its value verifies itself.
#ifndef YCSB_WORKLOAD_RECORDS_H_
#define YCSB_WORKLOAD_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ycsb {

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
class KeyCodec {
 public:
  static constexpr size_t kMinKeyBytes = 8;
  static constexpr size_t kMaxKeyBytes = 65'535;

  static constexpr size_t kMaxPadding = 1000;

  // `zero_padding`: if not 0, keys are padded, whatever key_bytes is.
  KeyCodec(size_t key_bytes, bool hashed, size_t zero_padding = 0);

  // Returns the bytes of the longest key.
  size_t key_bytes() const { return key_bytes_; }
  // Numbers below the result have distinct keys.
  uint64_t capacity() const { return capacity_; }
  // Writes the key, and returns how many bytes it has. `out` has room for key_bytes(). `number` < capacity().
  size_t Format(uint64_t number, char* out) const;

 private:
  uint64_t Mix(uint64_t number) const;

  size_t key_bytes_;
  size_t prefix_bytes_;  // of "user"
  bool hashed_;
  size_t zero_padding_;
  uint32_t mix_bits_;  // the mix permutes numbers of this many bits
  uint64_t capacity_;
};

// Values that verify themselves: a value is a function of its record number and a version, and carries both.
//
//   size >= 24   version 8 | record number 8 | fill
//   8 .. 23      version, low 4 bytes | fill
//   < 8          fill
//
// The fill is an arithmetic sequence of 64-bit words whose start and step are hashes of the record number, the size and
// the version as stored. So a value that is torn between two writes, shifted, truncated or another record's does not
// verify.
//
// Thread safety: pure functions.

// Who wrote the value, and which of its writes it was. {0, 0} is the load phase.
struct Version {
  uint16_t writer = 0;
  uint64_t count = 0;  // 48 bits are kept

  uint64_t Pack() const { return uint64_t{writer} << 48 | (count & ((uint64_t{1} << 48) - 1)); }
  static Version Unpack(uint64_t packed) {
    return {static_cast<uint16_t>(packed >> 48), packed & ((uint64_t{1} << 48) - 1)};
  }
};

// Writes `size` bytes to `out`.
void FillValue(uint64_t record, Version version, char* out, size_t size);
// Compares every byte. True: `value` is what FillValue(record, any version, expected_size) wrote.
bool VerifyValue(uint64_t record, std::string_view value, size_t expected_size);
// Returns what is wrong with a value that does not verify: "expected 100 bytes, got 96", "it belongs to record 7", ...
std::string ExplainMismatch(uint64_t record, std::string_view value, size_t expected_size);

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_RECORDS_H_
