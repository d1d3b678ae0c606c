#include "kvs/task.h"

#include <cstdlib>
#include <new>

namespace kvs {

struct RunQueueOwner {
  RunQueue queue;
  ~RunQueueOwner() {
    RunQueue::of_this_thread = nullptr;
    delete[] queue.ring_;
  }
};

RunQueue& RunQueue::MakeOfThisThread() {
  thread_local RunQueueOwner owner;
  of_this_thread = &owner.queue;
  return owner.queue;
}

void RunQueue::Grow() {
  const size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
  auto* ring = new std::coroutine_handle<>[capacity];
  for (size_t i = head_; i != tail_; ++i) ring[i & (capacity - 1)] = ring_[i & (capacity_ - 1)];
  delete[] ring_;
  ring_ = ring;
  capacity_ = capacity;
}

size_t RunQueue::RunAll() {
  size_t resumed = 0;
  for (; head_ != tail_; ++resumed) ring_[head_++ & (capacity_ - 1)].resume();
  return resumed;
}

namespace internal {
namespace {

constexpr size_t kClassBytes = 64;
constexpr size_t kClasses = 64;  // frames up to 4 KiB; larger ones are rare and go to malloc

struct FrameLists {
  void* head[kClasses] = {};
  size_t live = 0;
  ~FrameLists() {
    for (void* frame : head) {
      while (frame != nullptr) {
        void* next = *static_cast<void**>(frame);
        std::free(frame);
        frame = next;
      }
    }
  }
};

thread_local FrameLists frame_lists;

}  // namespace

// A frame that is used after its end must not be another's by then.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kReuseFrames = false;
#else
constexpr bool kReuseFrames = true;
#endif

void* AllocateFrame(size_t bytes) {
  FrameLists& lists = frame_lists;
  ++lists.live;
  const size_t size_class = (bytes - 1) / kClassBytes;
  if (kReuseFrames && size_class < kClasses && lists.head[size_class] != nullptr) {
    void* frame = lists.head[size_class];
    lists.head[size_class] = *static_cast<void**>(frame);
    return frame;
  }
  void* frame = std::malloc(kReuseFrames && size_class < kClasses ? (size_class + 1) * kClassBytes : bytes);
  if (frame == nullptr) throw std::bad_alloc();
  return frame;
}

void FreeFrame(void* frame, size_t bytes) {
  FrameLists& lists = frame_lists;
  --lists.live;
  const size_t size_class = (bytes - 1) / kClassBytes;
  if (kReuseFrames && size_class < kClasses) {
    *static_cast<void**>(frame) = lists.head[size_class];
    lists.head[size_class] = frame;
  } else {
    std::free(frame);
  }
}

size_t LiveFrames() { return frame_lists.live; }

}  // namespace internal
}  // namespace kvs
