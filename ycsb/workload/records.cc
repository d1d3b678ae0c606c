#include "ycsb/workload/records.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <limits>

#include "ycsb/workload/generators.h"

namespace ycsb {
namespace {

constexpr char kPrefix[] = "user";
constexpr size_t kPrefixBytes = sizeof(kPrefix) - 1;
constexpr char kBase64[] = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
static_assert(sizeof(kBase64) == 64 + 1);
constexpr size_t kMaxDigits64 = 11;  // of 6 bits, for 64 bits
constexpr size_t kMaxDigits10 = 19;  // decimal digits that always fit 64 bits

uint64_t PowerOfTen(size_t exponent) {
  uint64_t power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}

}  // namespace

KeyCodec::KeyCodec(size_t key_bytes, bool hashed, size_t zero_padding)
    : key_bytes_(zero_padding != 0 ? kPrefixBytes + std::max(zero_padding, kMaxDigits10)
                                   : std::clamp(key_bytes, kMinKeyBytes, kMaxKeyBytes)),
      prefix_bytes_(key_bytes_ >= 16 ? kPrefixBytes : 0),
      hashed_(hashed),
      zero_padding_(zero_padding) {
  const size_t characters = key_bytes_ - prefix_bytes_;
  mix_bits_ = static_cast<uint32_t>(std::min<size_t>(64, 6 * characters));
  if (hashed_) {
    capacity_ = mix_bits_ == 64 ? std::numeric_limits<uint64_t>::max() : uint64_t{1} << mix_bits_;
  } else {
    capacity_ = PowerOfTen(std::min(characters, kMaxDigits10));
  }
}

// Odd multiplications and xor-shifts are each a bijection of the mix_bits_-bit numbers.
uint64_t KeyCodec::Mix(uint64_t number) const {
  const uint64_t mask = ~uint64_t{0} >> (64 - mix_bits_);
  const uint32_t half = mix_bits_ / 2;
  uint64_t x = number;
  x = (x * 0x9e3779b97f4a7c15u) & mask;
  x ^= x >> half;
  x = (x * 0xd6e8feb86659fd93u) & mask;
  x ^= x >> half;
  return x;
}

size_t KeyCodec::Format(uint64_t number, char* out) const {
  assert(number < capacity_);
  std::memcpy(out, kPrefix, prefix_bytes_);
  char* digits = out + prefix_bytes_;
  size_t characters = key_bytes_ - prefix_bytes_;
  if (zero_padding_ != 0) {
    characters = 1;
    for (uint64_t rest = number; rest >= 10; rest /= 10) ++characters;
    characters = std::max(characters, zero_padding_);
  }
  const size_t used = std::min(characters, hashed_ ? kMaxDigits64 : kMaxDigits10);
  const size_t padding = characters - used;
  std::memset(digits, hashed_ ? kBase64[0] : '0', padding);
  if (hashed_) {
    uint64_t x = Mix(number);
    for (size_t i = characters; i-- > padding;) {
      digits[i] = kBase64[x & 63];
      x >>= 6;
    }
  } else {
    uint64_t x = number;
    for (size_t i = characters; i-- > padding;) {
      digits[i] = static_cast<char>('0' + x % 10);
      x /= 10;
    }
  }
  return prefix_bytes_ + characters;
}

namespace {

static_assert(std::endian::native == std::endian::little, "values are written in host order");

constexpr size_t kFullHeaderBytes = 16;
constexpr size_t kFullSize = 24;
constexpr size_t kShortHeaderBytes = 4;
constexpr size_t kShortSize = 8;

size_t HeaderBytes(size_t size) {
  if (size >= kFullSize) return kFullHeaderBytes;
  return size >= kShortSize ? kShortHeaderBytes : 0;
}

uint64_t LoadWord(const char* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// The words of the fill: start, start + step, start + 2 step, ...
struct Fill {
  uint64_t start;
  uint64_t step;

  Fill(uint64_t record, uint64_t stored_version, size_t size) {
    start = Mix64(record + 0x9e3779b97f4a7c15u * (stored_version + 1) + 0xd6e8feb86659fd93u * size);
    step = Mix64(start) | 1;
  }
  uint64_t Word(size_t index) const { return start + index * step; }
};

uint64_t StoredVersion(const char* value, size_t size) {
  if (size >= kFullSize) return LoadWord(value);
  if (size < kShortSize) return 0;
  uint32_t low = 0;
  std::memcpy(&low, value, sizeof(low));
  return low;
}

std::string Hex(std::string_view bytes) {
  std::string text;
  char two[3];
  for (const char byte : bytes) {
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

}  // namespace

void FillValue(uint64_t record, Version version, char* out, size_t size) {
  const size_t header = HeaderBytes(size);
  uint64_t stored = 0;
  if (header == kFullHeaderBytes) {
    stored = version.Pack();
    std::memcpy(out, &stored, sizeof(stored));
    std::memcpy(out + 8, &record, sizeof(record));
  } else if (header == kShortHeaderBytes) {
    // Fold in the writer; otherwise two writers' n-th writes would look alike.
    const uint32_t low = static_cast<uint32_t>(version.count) ^ static_cast<uint32_t>(version.writer) << 20;
    stored = low;
    std::memcpy(out, &low, sizeof(low));
  }
  const Fill fill(record, stored, size);
  const size_t words = (size - header) / 8;
  char* at = out + header;
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = fill.Word(i);
    std::memcpy(at + 8 * i, &word, sizeof(word));
  }
  const uint64_t last = fill.Word(words);
  std::memcpy(at + 8 * words, &last, (size - header) % 8);
}

bool VerifyValue(uint64_t record, std::string_view value, size_t expected_size) {
  if (value.size() != expected_size) return false;
  const size_t header = HeaderBytes(expected_size);
  if (header == kFullHeaderBytes && LoadWord(value.data() + 8) != record) return false;
  const Fill fill(record, StoredVersion(value.data(), expected_size), expected_size);
  const size_t words = (expected_size - header) / 8;
  const char* at = value.data() + header;
  uint64_t difference = 0;
  for (size_t i = 0; i < words; ++i) difference |= LoadWord(at + 8 * i) ^ fill.Word(i);
  const uint64_t last = fill.Word(words);
  return difference == 0 && std::memcmp(at + 8 * words, &last, (expected_size - header) % 8) == 0;
}

std::string ExplainMismatch(uint64_t record, std::string_view value, size_t expected_size) {
  if (value.size() != expected_size) {
    return "expected " + std::to_string(expected_size) + " bytes, got " + std::to_string(value.size());
  }
  const size_t header = HeaderBytes(expected_size);
  const uint64_t stored = StoredVersion(value.data(), expected_size);
  std::string what;
  if (header == kFullHeaderBytes) {
    const uint64_t other = LoadWord(value.data() + 8);
    const Version version = Version::Unpack(stored);
    if (other != record && VerifyValue(other, value, expected_size)) {
      return "expected a value of record " + std::to_string(record) + ", got an intact one of record " +
             std::to_string(other);
    }
    what = "got record " + std::to_string(other) + ", writer " + std::to_string(version.writer) + ", version " +
           std::to_string(version.count) + "; ";
  }
  const Fill fill(record, stored, expected_size);
  for (size_t offset = header; offset < expected_size; ++offset) {
    const uint64_t word = fill.Word((offset - header) / 8);
    const auto expected = static_cast<char>(word >> (8 * ((offset - header) % 8)));
    if (value[offset] == expected) continue;
    const size_t shown = std::min<size_t>(8, expected_size - offset);
    std::string wanted;
    for (size_t i = 0; i < shown; ++i) {
      const size_t at = offset + i - header;
      wanted += static_cast<char>(fill.Word(at / 8) >> (8 * (at % 8)));
    }
    return what + "first wrong byte at " + std::to_string(offset) + ": expected " + Hex(wanted) + "..., got " +
           Hex(value.substr(offset, shown)) + "...";
  }
  return what + "expected record " + std::to_string(record);
}

}  // namespace ycsb
