// Storage for a fixed number of plain elements.
#ifndef KRCORE_BASE_ARRAYS_H_
#define KRCORE_BASE_ARRAYS_H_

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace krcore {

// LazyArray: storage for a fixed number of plain elements that nothing touches before it is used. A vector writes every
// element when it is made, which costs a fresh process or thread one page fault per 4 KiB. Rings and arenas that are
// deep only for rare cases would make up most of a worker's start.
//
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

// PageArray: a fixed number of Ts, zeroed, on pages of their own. For krcore's own memory that a NIC reads and writes:
// with kernels before 5.12, forked children lack registered pages (ibv_fork_init), with whatever else lies on them.
//
// Thread safety: none of its own.
template <typename T>
class PageArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit PageArray(size_t count)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        count_(count),
        bytes_((count * sizeof(T) + page_ - 1) / page_ * page_),
        elements_(static_cast<T*>(::operator new(bytes_, std::align_val_t(page_)))) {
    std::memset(static_cast<void*>(elements_), 0, bytes_);
  }
  ~PageArray() { ::operator delete(elements_, std::align_val_t(page_)); }
  PageArray(const PageArray&) = delete;
  PageArray& operator=(const PageArray&) = delete;

  T* data() const { return elements_; }
  size_t size() const { return count_; }
  size_t bytes() const { return bytes_; }  // the size of its pages
  T& operator[](size_t index) const { return elements_[index]; }

 private:
  const size_t page_, count_, bytes_;
  T* const elements_;
};

}  // namespace krcore

#endif  // KRCORE_BASE_ARRAYS_H_
