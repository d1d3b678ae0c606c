// What benchmarks of connecting share: a worker whose way from nothing to a connected queue is timed, in parts, and a
// peer that answers connection requests.
#ifndef BENCH_COMMON_TIMED_WORKER_H_
#define BENCH_COMMON_TIMED_WORKER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace timed {

using namespace krcore;

template <typename T>
T Must(Result<T> result) {
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (!status.ok()) DieOfMissingValue(status);
}

using Samples = std::vector<int64_t>;  // ns

inline int64_t Now() { return RealClock()->NowNs(); }

// Appends how long `body` takes.
template <typename Body>
void Time(Samples& samples, Body body) {
  const int64_t begin = Now();
  body();
  samples.push_back(Now() - begin);
}

inline int64_t Percentile(Samples& ns, double percent) {
  std::sort(ns.begin(), ns.end());
  return ns[static_cast<size_t>(static_cast<double>(ns.size() - 1) * percent / 100)];
}

// A Node, and how long its steps took.
class TimedNode {
 public:
  // `now` tells the time that passes.
  template <typename Now>
  TimedNode(const std::string& plane, const NodeOptions& options, Now now) : last_(now()) {
    node_ = Must(OpenNode(plane, options, [this, now](ConnectStep step) {
      const int64_t at = now();
      step_[static_cast<size_t>(step)] += at - std::exchange(last_, at);
    }));
    last_ = now();
  }
  Node& node() { return *node_; }
  const std::array<int64_t, kConnectSteps>& steps() const { return step_; }
  // The datagram QP stands for what a kernel has ready: it is left out of what a worker is said to take.
  int64_t datagrams() const { return step_[static_cast<size_t>(ConnectStep::kDatagrams)]; }
  // What follows counts from here.
  void Restart(int64_t now) { last_ = now; }

 private:
  std::array<int64_t, kConnectSteps> step_{};
  int64_t last_;
  std::unique_ptr<Node> node_;
};

// A worker of any control plane with a pool, on the process's Node or on its own.
class TimedWorker {
 public:
  // `shared`: what the process has open, or null: the worker opens a Node. `local_bytes`: memory that it registers,
  // perhaps 0.
  TimedWorker(const std::string& plane, const NodeOptions& options, Node* shared, size_t local_bytes)
      : begun_ns_(Now()) {
    if (shared == nullptr) own_ = std::make_unique<TimedNode>(plane, options, Now);
    node_ = shared != nullptr ? shared : &own_->node();
    if (local_bytes != 0) MakeRegion(local_bytes);
    pool_ = Must(node_->CreateQueuePool({}));
    open_ns_ = Now() - begun_ns_ - datagrams_ns();
  }
  // Memory for requests, in place of what it had.
  void MakeRegion(size_t bytes) { region_ = Must(node_->CreateRegion({.length = bytes})); }
  // A queue, connected. It goes with the worker.
  VirtualQueue& Connect(NodeId peer) {
    const int64_t start = Now();
    auto queue = Must(pool_->CreateQueue(64));
    Must(queue->Connect(peer, Deadline::Never()));
    connect_ns_.push_back(Now() - start);
    queues_.push_back(std::move(queue));
    return *queues_.back();
  }
  // One request; over when it has succeeded.
  void Do(VirtualQueue& queue, const WorkRequest& wr) {
    Must(queue.Push({&wr, 1}));
    Completion done;
    while (queue.Pop({&done, 1}) == 0) pool_->Poll();
    if (done.status != WcStatus::kSuccess)
      Must(Status(StatusCode::kInternal, "a request ended with: " + std::string(WcStatusName(done.status))));
  }
  Region& region() { return *region_; }
  int64_t begun_ns() const { return begun_ns_; }
  int64_t datagrams_ns() const { return own_ ? own_->datagrams() : 0; }  // follows open_ns
  int64_t open_ns() const { return open_ns_; }               // node if its own, memory and pool; no datagram QP
  const Samples& connect_ns() const { return connect_ns_; }  // of each Connect, with making its queue

 private:
  int64_t begun_ns_;
  int64_t open_ns_ = 0;
  Samples connect_ns_;
  std::unique_ptr<TimedNode> own_;
  Node* node_ = nullptr;
  std::unique_ptr<Region> region_;
  std::unique_ptr<QueuePool> pool_;
  std::vector<std::unique_ptr<VirtualQueue>> queues_;
};

// Answers connection requests to a node from a thread of its own, until it is destroyed.
class AcceptorThread {
 public:
  explicit AcceptorThread(Node& node) : acceptor_(Must(Acceptor::Create(node))) {
    thread_ = std::thread([this, &node] {
      for (uint32_t spins = 0; !stop_.load(std::memory_order_relaxed); ++spins) {
        if (acceptor_->Serve() != 0) spins = 0;
        node.clock().Relax(spins);
      }
    });
  }
  AcceptorThread(const AcceptorThread&) = delete;
  AcceptorThread& operator=(const AcceptorThread&) = delete;
  ~AcceptorThread() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }

 private:
  std::unique_ptr<Acceptor> acceptor_;
  std::atomic<bool> stop_{false};  // relaxed: nothing else is communicated through it
  std::thread thread_;
};

// A memory node, and its fabric's metadata server, that answers connection requests.
class Peer {
 public:
  static constexpr NodeId kId = 1;

  // `fabric`: which, and on what; the rest is the Peer's own.
  explicit Peer(const NodeOptions& fabric, size_t bytes = 1 << 16)
      : node_(Must(Node::Open(HostOptions(fabric)))),
        region_(Must(node_->CreateRegion({.length = bytes, .remote_rights = kRemoteRead | kRemoteWrite}))) {
    Must(node_->HostMetaServer(4096));
    Must(node_->Publish(Deadline::Never()));
    acceptor_.emplace(*node_);
  }
  Node& node() { return *node_; }
  std::span<std::byte> bytes() { return region_->bytes(); }

 private:
  static NodeOptions HostOptions(NodeOptions fabric) {
    fabric.node = kId;
    fabric.create_fabric = true;
    fabric.rc_peers = 16;  // as a memory node
    return fabric;
  }

  std::unique_ptr<Node> node_;
  std::unique_ptr<Region> region_;
  std::optional<AcceptorThread> acceptor_;
};

}  // namespace timed

#endif  // BENCH_COMMON_TIMED_WORKER_H_
