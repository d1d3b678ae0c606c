// Tasks that nobody awaits.
#ifndef KVS_MEMORY_DETACHED_H_
#define KVS_MEMORY_DETACHED_H_

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>

#include "kvs/task.h"

namespace kvs {

// Runs a spawned task to its end. It owns itself.
struct Detached {
  struct promise_type {
    static void* operator new(size_t bytes) { return internal::AllocateFrame(bytes); }
    static void operator delete(void* frame, size_t bytes) { internal::FreeFrame(frame, bytes); }
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

// Runs `task`; *running counts it while it runs.
inline Detached RunDetached(Task<void> task, size_t* running) {
  ++*running;
  co_await std::move(task);
  --*running;
}

}  // namespace kvs

#endif  // KVS_MEMORY_DETACHED_H_
