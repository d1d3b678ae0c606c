// LazyArray: storage for a fixed number of plain elements that nobody touches before it is used. A vector writes every
// element when it is made, and a fresh process or thread pays a page fault per 4 KiB for that: rings and arenas that
// are deep in case of need would make up most of a worker's start.
#ifndef KRCORE_BASE_LAZY_ARRAY_H_
#define KRCORE_BASE_LAZY_ARRAY_H_

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace krcore {

// An element must be assigned before it is read.
template <typename T>
class LazyArray {
  static_assert(std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T>);

 public:
  explicit LazyArray(size_t size)
      : size_(size), elements_(static_cast<T*>(::operator new (size * sizeof(T), std::align_val_t{64}))) {}

  size_t size() const { return size_; }
  T& operator[](size_t i) { return elements_.get()[i]; }
  const T& operator[](size_t i) const { return elements_.get()[i]; }

 private:
  struct Deleter {
    void operator()(T* elements) const { ::operator delete (elements, std::align_val_t{64}); }
  };
  size_t size_;
  std::unique_ptr<T, Deleter> elements_;
};

}  // namespace krcore

#endif  // KRCORE_BASE_LAZY_ARRAY_H_
