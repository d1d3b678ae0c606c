// Values that verify themselves: a value is a function of its record number and a version, and carries both.
//
//   size >= 24   version 8 | record number 8 | fill
//   8 .. 23      version, low 4 bytes | fill
//   < 8          fill
//
// The fill is an arithmetic sequence of 64-bit words whose start and step are hashes of record number, size and the
// version as stored, so a value torn between two writes, shifted, truncated or of another record does not verify.
//
// Thread safety: pure functions.
#ifndef YCSB_VALUES_H_
#define YCSB_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ycsb {

// Who wrote the value, and which of its writes that was. {0, 0} is the load phase.
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
// Compares every byte. True: `value` is one that FillValue(record, any version, expected_size) wrote.
bool VerifyValue(uint64_t record, std::string_view value, size_t expected_size);
// What is wrong with a value that does not verify: "expected 100 bytes, got 96", "it belongs to record 7", ...
std::string ExplainMismatch(uint64_t record, std::string_view value, size_t expected_size);

}  // namespace ycsb

#endif  // YCSB_VALUES_H_
