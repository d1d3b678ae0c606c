// Copies that never tear an aligned 8-byte word of the remote side, whatever other threads do to it meanwhile.
//
// On x86-64, 16-byte vector moves guarantee that: a word within one is read or written at once. ThreadSanitizer does
// not see that, and other machines may not guarantee it, so both use atomic words.
#ifndef KRCORE_RNIC_SW_WORD_COPY_H_
#define KRCORE_RNIC_SW_WORD_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#  define KRCORE_SW_VECTOR_COPY 1
#  include <immintrin.h>
#endif

namespace krcore::rnic::sw {

// Callers order copies by fences around them. ThreadSanitizer does not model fences, so there the words themselves
// carry the order: the reader of a copy's last word happens after its writer. (Not each word does, because
// ThreadSanitizer keeps a record of every address that was released.)
#ifdef __SANITIZE_THREAD__
inline constexpr int kLoadOrder = __ATOMIC_ACQUIRE, kStoreOrder = __ATOMIC_RELEASE;
#else
inline constexpr int kLoadOrder = __ATOMIC_RELAXED, kStoreOrder = __ATOMIC_RELAXED;
#endif

template <typename T>
inline void LoadPart(std::byte*& to, const std::byte*& from) {
  const T value = __atomic_load_n(reinterpret_cast<const T*>(from), kLoadOrder);
  std::memcpy(to, &value, sizeof(T));
  to += sizeof(T);
  from += sizeof(T);
}

template <typename T>
inline void StorePart(std::byte*& to, const std::byte*& from, bool last) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  __atomic_store_n(reinterpret_cast<T*>(to), value, last ? kStoreOrder : __ATOMIC_RELAXED);
  to += sizeof(T);
  from += sizeof(T);
}

inline bool HasAlignment(const void* address, size_t alignment) {
  return (reinterpret_cast<uintptr_t>(address) & (alignment - 1)) == 0;
}

// Copies all whole vectors; their 8-byte words are atomic where the shared side is 8-byte aligned. Most copies are some
// hundred bytes long, a multiple of 16: that takes two steps and no loop for the rest.
inline void CopyVectors([[maybe_unused]] std::byte*& to, [[maybe_unused]] const std::byte*& from,
                        [[maybe_unused]] size_t& length) {
#ifdef KRCORE_SW_VECTOR_COPY
  const auto load = [&](size_t at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)); };
  const auto store = [&](size_t at, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), value); };
  const auto advance = [&](size_t bytes) {
    to += bytes;
    from += bytes;
    length -= bytes;
  };
  const auto copy_64 = [&](size_t at) {
    const __m128i a = load(at), b = load(at + 16), c = load(at + 32), d = load(at + 48);
    store(at, a);
    store(at + 16, b);
    store(at + 32, c);
    store(at + 48, d);
  };
  while (length >= 128) {
    copy_64(0);
    copy_64(64);
    advance(128);
  }
  if ((length & 64) != 0) {
    copy_64(0);
    advance(64);
  }
  if ((length & 32) != 0) {
    const __m128i a = load(0), b = load(16);
    store(0, a);
    store(16, b);
    advance(32);
  }
  if ((length & 16) != 0) {
    store(0, load(0));
    advance(16);
  }
#endif
}

// Copies shared memory `from` to private memory `to`. Orders nothing: the caller adds fences.
inline void LoadWords(std::byte* to, const std::byte* from, size_t length) {
  if (!HasAlignment(from, 8)) [[unlikely]] {
    for (; length > 0 && !HasAlignment(from, 8); --length) LoadPart<uint8_t>(to, from);
  }
  CopyVectors(to, from, length);
  if (length == 0) return;
  for (; length >= 8; length -= 8) LoadPart<uint64_t>(to, from);
  for (; length > 0; --length) LoadPart<uint8_t>(to, from);
}

// Copies private memory `from` to shared memory `to`.
inline void StoreWords(std::byte* to, const std::byte* from, size_t length) {
  if (!HasAlignment(to, 8)) [[unlikely]] {
    for (; length > 0 && !HasAlignment(to, 8); --length) StorePart<uint8_t>(to, from, length == 1);
  }
  CopyVectors(to, from, length);
  if (length == 0) return;
  for (; length >= 8; length -= 8) StorePart<uint64_t>(to, from, length == 8);
  for (; length > 0; --length) StorePart<uint8_t>(to, from, length == 1);
}

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_WORD_COPY_H_
