// EventQueue: a heap of small plain events by time, and at one time in the order in which they were added.
#ifndef KRCORE_RNIC_SIM_EVENT_QUEUE_H_
#define KRCORE_RNIC_SIM_EVENT_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace krcore::rnic::sim {

enum class EventKind : uint8_t {
  kArrive,   // a verb reaches its target, which may have to let others go first
  kExecute,  // the target's NIC has come to it
  kStep,     // the next part of a torn verb
  kRespond,  // its answer reaches the initiator
  kFenced,   // a dead device's verbs are at an end
};

struct Event {
  int64_t at_ns;
  uint64_t order_and_kind;
  uint32_t subject;     // verb, or device for kFenced
  uint32_t generation;  // of the verb: an event of one that is gone is void
  EventKind kind() const { return static_cast<EventKind>(order_and_kind & 0xff); }
};
static_assert(sizeof(Event) == 24);

// Four children a node: half as deep as a binary heap, and a node's children share a cache line or two.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  const Event& top() const { return heap_.front(); }

  void Add(int64_t at_ns, EventKind kind, uint32_t subject, uint32_t generation) {
    const Event event{at_ns, next_order_++ << 8 | static_cast<uint64_t>(kind), subject, generation};
    size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (!Before(event, heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  void Pop() {
    const Event last = heap_.back();
    heap_.pop_back();
    const size_t count = heap_.size();
    if (count == 0) return;
    size_t at = 0;
    for (;;) {
      const size_t first = 4 * at + 1;
      if (first >= count) break;
      size_t best = first;
      const size_t end = std::min(first + 4, count);
      for (size_t child = first + 1; child < end; ++child) {
        if (Before(heap_[child], heap_[best])) best = child;
      }
      if (!Before(heap_[best], last)) break;
      heap_[at] = heap_[best];
      at = best;
    }
    heap_[at] = last;
  }

 private:
  static bool Before(const Event& a, const Event& b) {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.order_and_kind < b.order_and_kind;
  }
  std::vector<Event> heap_;
  uint64_t next_order_ = 0;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_EVENT_QUEUE_H_
