#include "kvs/task.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "krcore/fork.h"

namespace kvs {

// Of a thread's run queue and frames: what holds memory is plain, and lives as long as the thread's storage; what gives
// the memory back leaves it empty. So who ends after that, as a static object does, finds it usable.
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
  void* const frame = std::malloc((bytes + kUnit - 1) / kUnit * kUnit);  // as all frames of its class
  if (frame == nullptr) throw std::bad_alloc();
  return frame;
}

void DeleteFrame(void* frame) { std::free(frame); }

}  // namespace internal
}  // namespace kvs
