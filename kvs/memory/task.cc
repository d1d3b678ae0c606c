#include "kvs/task.h"

#include <cstdlib>
#include <utility>

#include "krcore/fork.h"

namespace kvs {

// A thread's run queue and its frames are plain objects, which live as long as the thread's storage. The owners that
// give their memory back leave them empty. So an object that ends after that, such as a static one, can still use them.
struct RunQueueOwner {
  static constinit inline thread_local RunQueue queue;
  ~RunQueueOwner() {
    delete[] queue.ring_;
    queue = {};
  }
};

RunQueue& RunQueue::MakeOfThisThread() {
  thread_local RunQueueOwner owner;
  (void)&owner;  // made now, so that it ends with the thread
  of_this_thread = &RunQueueOwner::queue;
  RunQueueOwner::queue.generation_ = krcore::ForkGeneration();
  return RunQueueOwner::queue;
}

void RunQueue::Grow() {
  const size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
  auto* ring = new std::coroutine_handle<>[capacity];
  for (size_t i = head_; i != tail_; ++i) ring[i & (capacity - 1)] = ring_[i & (capacity_ - 1)];
  delete[] ring_;
  ring_ = ring;
  capacity_ = capacity;
  mask_ = capacity - 1;
}

void RunQueue::DropInherited() {
  if (std::exchange(generation_, krcore::ForkGeneration()) != generation_) head_ = tail_;
}

size_t RunQueue::RunAll() {
  size_t resumed = 0;
  for (; head_ != tail_; ++resumed) ring_[head_++ & mask_].resume();
  return resumed;
}

namespace internal {
namespace {

struct FrameListsOwner {
  static constinit inline thread_local FrameLists lists;
  ~FrameListsOwner() {
    for (void*& head : lists.head) {
      void* frame = std::exchange(head, nullptr);
      while (frame != nullptr) {
        void* next = *static_cast<void**>(frame);
        std::free(frame);
        frame = next;
      }
    }
  }
};

}  // namespace

FrameLists& FrameLists::MakeOfThisThread() {
  thread_local FrameListsOwner owner;
  (void)&owner;
  of_this_thread = &FrameListsOwner::lists;
  return FrameListsOwner::lists;
}

void* NewFrame(size_t bytes) {
  constexpr size_t kUnit = FrameLists::kClassBytes;
  void* const frame = std::malloc((bytes + kUnit - 1) / kUnit * kUnit);  // the size of all frames of its class
  if (frame == nullptr) throw std::bad_alloc();
  return frame;
}

void DeleteFrame(void* frame) { std::free(frame); }

}  // namespace internal
}  // namespace kvs
