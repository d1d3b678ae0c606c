// Task<T>: a lazily started coroutine that yields one T. Awaiting it starts it. Its end puts the awaiter on the run
// queue of the thread that drives it. (It does not use symmetric transfer: GCC 12 does not always make that a tail
// call.) Frames come from a per-thread free list, so a task costs no malloc in the steady state.
//
// Thread safety: a task lives and dies on one thread.
// GCC 12: no co_await inside ?:, an `if`'s condition or an aggregate initializer, and no lambda in its operand.
#ifndef KVS_TASK_H_
#define KVS_TASK_H_

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

namespace kvs {

// Coroutines that are ready to run. One per thread; a Client drains it in Poll().
class RunQueue {
 public:
  static RunQueue& OfThisThread() { return of_this_thread != nullptr ? *of_this_thread : MakeOfThisThread(); }
  void Push(std::coroutine_handle<> handle) {
    if (tail_ - head_ == capacity_) [[unlikely]]
      Grow();
    ring_[tail_++ & mask_] = handle;
  }
  // Resumes coroutines until the queue is empty. Returns how many were resumed.
  size_t RunAll();
  bool empty() const { return head_ == tail_; }
  // In a forked child, drops what the parent's thread had ready: that is for the parent to resume.
  void DropInherited();

 private:
  static RunQueue& MakeOfThisThread();
  void Grow();

  static constinit inline thread_local RunQueue* of_this_thread = nullptr;
  // A ring of `capacity_`, a power of two, entries; head_ and tail_ count for ever.
  std::coroutine_handle<>* ring_ = nullptr;
  size_t capacity_ = 0;
  size_t mask_ = 0;  // capacity_ - 1, if there is a ring
  size_t head_ = 0, tail_ = 0;
  uint32_t generation_ = 0;  // krcore::ForkGeneration() of the process whose coroutines these are
  friend struct RunQueueOwner;
};

namespace internal {

// A thread's free frames, by size in units of kClassBytes. Larger frames are rare and come from malloc.
struct FrameLists {
  static constexpr size_t kClassBytes = 64;
  static constexpr size_t kClasses = 64;
  static constinit inline thread_local FrameLists* of_this_thread = nullptr;

  static FrameLists& OfThisThread() { return of_this_thread != nullptr ? *of_this_thread : MakeOfThisThread(); }
  static FrameLists& MakeOfThisThread();

  void* head[kClasses] = {};
  size_t live = 0;
};

// With the sanitizer frames are not reused, so that it finds a use of a frame after its end.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kReuseFrames = false;
#else
inline constexpr bool kReuseFrames = true;
#endif

void* NewFrame(size_t bytes);
inline void* AllocateFrame(size_t bytes) {
  FrameLists& lists = FrameLists::OfThisThread();
  ++lists.live;
  const size_t size_class = (bytes - 1) / FrameLists::kClassBytes;
  if (!kReuseFrames || size_class >= FrameLists::kClasses || lists.head[size_class] == nullptr) [[unlikely]]
    return NewFrame(bytes);
  void* const frame = lists.head[size_class];
  lists.head[size_class] = *static_cast<void**>(frame);
  return frame;
}

void DeleteFrame(void* frame);
inline void FreeFrame(void* frame, size_t bytes) {
  FrameLists& lists = FrameLists::OfThisThread();
  --lists.live;
  const size_t size_class = (bytes - 1) / FrameLists::kClassBytes;
  if (!kReuseFrames || size_class >= FrameLists::kClasses) [[unlikely]]
    return DeleteFrame(frame);
  *static_cast<void**>(frame) = lists.head[size_class];
  lists.head[size_class] = frame;
}

// Frames allocated and not freed on this thread, for leak checks in tests.
inline size_t LiveFrames() { return FrameLists::OfThisThread().live; }

struct PromiseBase {
  std::coroutine_handle<> continuation;

  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* frame, size_t bytes) { FreeFrame(frame, bytes); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> handle) noexcept {
      if (handle.promise().continuation) RunQueue::OfThisThread().Push(handle.promise().continuation);
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { std::terminate(); }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  void return_value(T result) { value.emplace(std::move(result)); }
  T Take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
  void return_void() {}
  void Take() {}
};

}  // namespace internal

template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type : internal::Promise<T> {
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool done() const { return !handle_ || handle_.done(); }
  // Runs to the first suspension. Call it once, on a task that nobody awaits.
  void Start() { handle_.resume(); }
  // The result of a task that is done.
  T Take() { return handle_.promise().Take(); }

  // co_await std::move(task).Join(): waits for a task that was started.
  auto Join() && noexcept {
    struct Awaiter {
      std::coroutine_handle<promise_type> handle;
      bool await_ready() noexcept { return handle.done(); }
      void await_suspend(std::coroutine_handle<> awaiting) noexcept { handle.promise().continuation = awaiting; }
      T await_resume() { return handle.promise().Take(); }
    };
    return Awaiter{handle_};
  }

  auto operator co_await() && noexcept {
    struct Awaiter {
      std::coroutine_handle<promise_type> handle;
      bool await_ready() noexcept { return false; }
      bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
        handle.resume();                  // runs at once, to its first suspension
        if (handle.done()) return false;  // ended already: go on without a turn of the run queue
        handle.promise().continuation = awaiting;
        return true;
      }
      T await_resume() { return handle.promise().Take(); }
    };
    return Awaiter{handle_};
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_ = nullptr;
};

}  // namespace kvs

#endif  // KVS_TASK_H_
