// RequestQueue: the requests that users send to a compute service, and what became of each, in memory that the front
// end shares with all workers, whether threads or processes. The front end stands for the load balancer of a
// deployment. Users' requests fall due at times that it knows beforehand (an open loop), wait in the order of these
// times, and are replied to exactly once, whichever worker dies meanwhile.
//
// A free worker claims the oldest request that nobody has. If it falls due only later, the worker waits for it. So
// requests go to idle workers first, one each, and the rest are served first come, first served. The front end takes
// back what a dead worker had claimed, and others serve it. So a request may be executed twice, as if the user had sent
// it again, but only one reply counts.
//
// docs/protocol.md, "Requests of a compute node", shows why no request is lost or replied to twice.
//
// Thread safety: workers' methods may be called by any thread of any process, without locks, but for one `worker` by
// one thread at a time. The front end's methods belong to one thread.
#ifndef COMPUTENODE_ELASTIC_REQUEST_QUEUE_H_
#define COMPUTENODE_ELASTIC_REQUEST_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "computenode/elastic/shared_memory.h"
#include "krcore/status.h"

namespace computenode {

struct Request {
  uint64_t index = 0;
  int64_t due_ns = 0;  // of the clock
};

// What became of a request. Times are nanoseconds since the start.
struct RequestRecord {
  int64_t due_ns = 0;
  int64_t done_ns = -1;  // -1: no reply
  uint32_t worker = 0;   // the one that replied
  bool failed = false;   // the reply was a failure
};

// The state of the queue.
struct RequestLoad {
  uint64_t due = 0;            // requests that have fallen due
  uint64_t backlog = 0;        // of these, those that nobody has claimed
  int64_t oldest_wait_ns = 0;  // since the oldest of the backlog fell due
};

class RequestQueue {
 public:
  static constexpr uint64_t kMaxRequests = 100'000'000;

  // `due`: when each request falls due, in nanoseconds since the start, ascending. kInvalidArgument: none or too many;
  // kOutOfMemory.
  static krcore::Result<std::unique_ptr<RequestQueue>> Create(std::span<const int64_t> due);
  // Attaches to a queue that another process made, by its descriptor, which stays the caller's. kInvalidArgument: it is
  // no queue.
  static krcore::Result<std::unique_ptr<RequestQueue>> Attach(int fd);
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  int fd() const { return memory_.fd(); }
  uint64_t size() const { return count_; }

  // ---- for workers

  // Claims the oldest request that nobody has. False: there is none, or the queue is not started yet.
  bool Claim(uint32_t worker, Request* request);
  // Gives back a claimed request that this worker will not serve after all.
  void Return(uint32_t worker, uint64_t index);
  // Says that a request was served. False: it is not this worker's; then the reply does not count.
  bool Reply(uint32_t worker, uint64_t index, int64_t now_ns, bool failed);

  // ---- for the front end

  // Due times count from `start_ns` on.
  void Start(int64_t start_ns);
  int64_t start_ns() const { return header_->start_ns.load(std::memory_order_acquire); }
  // Takes back the requests of a worker that is certainly dead and does nothing any more. Returns how many it had
  // claimed.
  uint64_t TakeBack(uint32_t worker);
  RequestLoad Look(int64_t now_ns);
  // Returns how many of the oldest have been replied to, without a gap.
  uint64_t Replied();
  RequestRecord RecordOf(uint64_t index) const;

 private:
  // The content of a request's word: worker 32 | state 2. kOpen is 0.
  enum class State : uint64_t { kOpen = 0, kClaimed = 1, kReplied = 2, kFailed = 3 };
  static constexpr uint64_t Word(State state, uint32_t worker) {
    return uint64_t{worker} << 2 | static_cast<uint64_t>(state);
  }
  struct Header {
    uint64_t magic;
    uint64_t count;
    std::atomic<int64_t> start_ns;  // 0: not started
    // All requests before it are claimed, or were.
    alignas(64) std::atomic<uint64_t> head;
    // changes 24 | index 40: reopened requests before `head` lie at this index or later; kNothingOpen: there are none.
    alignas(64) std::atomic<uint64_t> reopened;
  };
  struct Entry {
    std::atomic<uint64_t> word;
    std::atomic<int64_t> done_ns;  // written before the word says kReplied or kFailed
  };

  explicit RequestQueue(SharedMemory memory);
  static uint64_t Bytes(uint64_t count);
  void LookAgainFrom(uint64_t index);
  bool ClaimReopened(uint32_t worker, Request* request);

  const SharedMemory memory_;
  Header* const header_;
  const uint64_t count_;
  int64_t* const due_;
  Entry* const entries_;
  uint64_t replied_ = 0;  // used by the front end only
  uint64_t due_count_ = 0;
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_REQUEST_QUEUE_H_
