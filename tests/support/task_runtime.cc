// kvs/task.h's run queue and frames for tests that link no kvs.
#include <cstdlib>
#include <new>

#include "kvs/task.h"

namespace kvs {

RunQueue& RunQueue::OfThisThread() {
  thread_local RunQueue queue;
  return queue;
}
void RunQueue::Push(std::coroutine_handle<> handle) {
  if (tail_ - head_ == capacity_) Grow();
  ring_[tail_++ & (capacity_ - 1)] = handle;
}
size_t RunQueue::RunAll() {
  size_t resumed = 0;
  for (; head_ != tail_; ++resumed) ring_[head_++ & (capacity_ - 1)].resume();
  return resumed;
}
void RunQueue::Grow() {
  const size_t capacity = capacity_ == 0 ? 64 : 2 * capacity_;
  auto* ring = new std::coroutine_handle<>[capacity];
  for (size_t i = head_; i != tail_; ++i) ring[i & (capacity - 1)] = ring_[i & (capacity_ - 1)];
  delete[] ring_;
  ring_ = ring;
  capacity_ = capacity;
}

namespace internal {
namespace {
thread_local size_t live_frames = 0;
}
void* AllocateFrame(size_t bytes) {
  ++live_frames;
  return ::operator new(bytes);
}
void FreeFrame(void* frame, size_t) {
  --live_frames;
  ::operator delete(frame);
}
size_t LiveFrames() { return live_frames; }
}  // namespace internal

}  // namespace kvs
