// PageArray: a fixed number of Ts, zeroed, on pages of their own. For memory of krcore's own that a NIC reads and
// writes: with kernels before 5.12 forked children lack the pages that are registered (ibv_fork_init), with whatever
// else lies on them.
//
// Thread safety: none of its own.
#ifndef KRCORE_BASE_PAGE_ARRAY_H_
#define KRCORE_BASE_PAGE_ARRAY_H_

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>

namespace krcore {

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
  size_t bytes() const { return bytes_; }  // that it takes
  T& operator[](size_t index) const { return elements_[index]; }

 private:
  const size_t page_, count_, bytes_;
  T* const elements_;
};

}  // namespace krcore

#endif  // KRCORE_BASE_PAGE_ARRAY_H_
