// RequestQueue: the requests that users send to a compute service, and what became of each, in memory that the front
// end shares with all workers, be they threads or processes. The front end stands for the load balancer of a
// deployment: users' requests fall due at times that it knows beforehand (an open loop), wait in order of these times,
// and are replied to exactly once, whoever dies meanwhile.
//
// A worker that is free claims the oldest request that nobody has, which may fall due later: then it waits for it. So
// requests go to idle workers first, one each, and the queue behind them is first come, first served. What a dead
// worker had claimed the front end takes back, and others serve it; a request may so be executed twice, as it would if
// a user had sent it again, but one reply counts.
//
// Why no request is lost or replied to twice: docs/protocol.md, "Requests of a compute node".
//
// Thread safety: workers' methods may be called by any thread of any process, without locks; a `worker` by one at a
// time. The front end's methods belong to one thread.
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
  uint32_t worker = 0;   // that replied
  bool failed = false;   // replied that it failed
};

// How the queue stands.
struct RequestLoad {
  uint64_t due = 0;            // requests that have fallen due
  uint64_t backlog = 0;        // of these, nobody has
  int64_t oldest_wait_ns = 0;  // since the oldest of the backlog fell due
};

class RequestQueue {
 public:
  static constexpr uint64_t kMaxRequests = 100'000'000;

  // `due`: when each request falls due, nanoseconds since the start, ascending. kInvalidArgument: none or too many;
  // kOutOfMemory.
  static krcore::Result<std::unique_ptr<RequestQueue>> Create(std::span<const int64_t> due);
  // One that another process made, by its descriptor, which stays the caller's. kInvalidArgument: it is none.
  static krcore::Result<std::unique_ptr<RequestQueue>> Attach(int fd);
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  int fd() const { return memory_.fd(); }
  uint64_t size() const { return count_; }

  // ---- workers'

  // The oldest request that nobody has. False: there is none, for now or, if the queue is not started, yet.
  bool Claim(uint32_t worker, Request* request);
  // Claimed, and not to be served by this worker after all.
  void Return(uint32_t worker, uint64_t index);
  // Served. False: it is not this worker's; then the reply does not count.
  bool Reply(uint32_t worker, uint64_t index, int64_t now_ns, bool failed);

  // ---- the front end's

  // Due times count from now on.
  void Start(int64_t start_ns);
  int64_t start_ns() const { return header_->start_ns.load(std::memory_order_acquire); }
  // The worker is dead: it is certain that it does nothing any more. Returns how many requests it had claimed.
  uint64_t TakeBack(uint32_t worker);
  RequestLoad Look(int64_t now_ns);
  // So many of the oldest have been replied to, without a gap.
  uint64_t Replied();
  RequestRecord RecordOf(uint64_t index) const;

 private:
  // What a request's word says: worker 32 | state 2. kOpen is 0.
  enum class State : uint64_t { kOpen = 0, kClaimed = 1, kReplied = 2, kFailed = 3 };
  static constexpr uint64_t Word(State state, uint32_t worker) {
    return uint64_t{worker} << 2 | static_cast<uint64_t>(state);
  }
  struct Header {
    uint64_t magic;
    uint64_t count;
    std::atomic<int64_t> start_ns;  // 0: not started
    // All before it are claimed, or were.
    alignas(64) std::atomic<uint64_t> head;
    // changes 24 | index 40: requests before `head` that are open again lie from there on; kNothingOpen: there are
    // none.
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
  uint64_t replied_ = 0;  // the front end's
  uint64_t due_count_ = 0;
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_REQUEST_QUEUE_H_
