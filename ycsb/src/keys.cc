#include "ycsb/keys.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

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

}  // namespace ycsb
