#include "bench/queues/vqp_tax.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "bench/queues/batches.h"
#include "krcore/node.h"
#include "krcore/queue/request_check.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace krcore {
namespace {

constexpr size_t kSliceWrs = 2048;

// ---- VirtualQueues: a pool of one DC initiator for each worker, on one node

struct QueueNode {
  std::unique_ptr<Node> node;
  std::unique_ptr<Region> remote, local;

  QueueNode() {
    node = Node::Open({.fabric = "inproc:tax_queue", .node = 1, .create_fabric = true}).value();
    remote = node->CreateRegion({.length = kBytes, .remote_rights = kRights}).value();
    local = node->CreateRegion({.length = kBytes}).value();
  }
  bool Publish() { return node->HostMetaServer(16).ok() && node->Publish(Deadline::Never()).ok(); }
};

class QueueSide final : public Side {
 public:
  QueueSide(QueueNode& node, const Shape& shape, size_t worker) {
    pool_ = node.node->CreateQueuePool({.dc_initiators = 1, .sq_depth = kDepth, .rc_hot_wrs = UINT32_MAX}).value();
    queue_ = pool_->CreateQueue(128).value();
    ready_ = queue_->Connect(1, Deadline::Never()).ok();
    if (!ready_) return;
    const RemoteRegion& remote = queue_->regions()[0];
    batch_ = std::make_unique<Batch<WorkRequest>>(shape, worker, node.local->bytes().data(), node.local->lkey(),
                                                  remote.addr, remote.rkey);
  }
  bool Run(size_t batches) override {
    if (!ready_) return false;
    for (size_t i = 0; i < batches; ++i) {
      if (!queue_->Push(batch_->wrs()).ok()) return false;
      for (size_t got = 0; got < batch_->completions();) {
        pool_->Poll();
        got += queue_->Pop(batch_->out());
      }
    }
    return batch_->out()[0].status == WcStatus::kSuccess;
  }

 private:
  std::unique_ptr<QueuePool> pool_;
  std::unique_ptr<VirtualQueue> queue_;
  std::unique_ptr<Batch<WorkRequest>> batch_;
  bool ready_ = false;
};

// ---- the request checks alone, on the same requests

class CheckSide final : public Side {
 public:
  CheckSide(const Shape& shape, size_t worker)
      : view_(MakeTable(table_)),
        batch_(shape, worker, reinterpret_cast<std::byte*>(kBytes), kLkey, kRemote.addr, kRemote.rkey) {}
  bool Run(size_t batches) override {
    bool ok = true;
    for (size_t i = 0; i < batches; ++i) {
      view_.Sync();
      size_t bad_index = 0;
      bool has_inline = false;
      ok &= queue::CheckRequests(batch_.wrs(), {4, 512, 1u << 30}, view_, {&kRemote, 1}, &like_, &bad_index,
                                 &has_inline) == StatusCode::kOk;
    }
    return ok;
  }

 private:
  static constexpr uint32_t kLkey = 7;
  static constexpr RemoteRegion kRemote{1 << 30, kBytes, 99, 0};
  static peers::RegionTable& MakeTable(peers::RegionTable& table) {
    table.Add({.addr = kBytes, .length = kBytes, .lkey = kLkey, .rights = kLocalWrite});
    return table;
  }
  peers::RegionTable table_;
  peers::RegionView view_;
  queue::LikeRequest like_;
  Batch<WorkRequest> batch_;
};

// ---- measuring

// CPU time of this thread, so other work on the machine is not in it.
double CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

enum SideIndex : uint8_t { kBare, kQueue, kChecks, kSides };

struct Slices {
  std::vector<double> ns[kSides];  // per WR, a slice each; those of one round have the same index
};

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

double MedianDifference(const std::vector<double>& of, const std::vector<double>& from) {
  std::vector<double> differences(of.size());
  for (size_t i = 0; i < of.size(); ++i) differences[i] = of[i] - from[i];
  std::nth_element(differences.begin(), differences.begin() + differences.size() / 2, differences.end());
  return differences[differences.size() / 2];
}

// The sides take turns, each first as often as last, in short slices: load of the machine meets all alike, and the
// least of many is hardly disturbed. With several workers all run the same side at the same time.
bool Worker(Side* const (&sides)[kSides], const Shape& shape, uint32_t rounds, std::barrier<>& together,
            Slices* slices) {
  const size_t batches = kSliceWrs / shape.batch;
  bool ok = true;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t turn = 0; turn < kSides; ++turn) {
      const uint32_t side = round % 2 == 0 ? turn : kSides - 1 - turn;
      together.arrive_and_wait();
      ok &= sides[side]->Run(1);
      const double begin = CpuNs();
      ok &= sides[side]->Run(batches);
      slices->ns[side].push_back((CpuNs() - begin) / static_cast<double>(batches * shape.batch));
    }
  }
  return ok;
}

bool Measure(BareNode& bare, QueueNode& queue, const Shape& shape, size_t workers, uint32_t rounds) {
  std::vector<Slices> slices(workers);
  std::barrier together(static_cast<std::ptrdiff_t>(workers));
  std::atomic<bool> ok = true;  // relaxed: joining the threads orders it
  {
    std::vector<std::jthread> threads;
    for (size_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&, worker] {
        BareSide bare_side(bare, shape, worker);
        QueueSide queue_side(queue, shape, worker);
        CheckSide check_side(shape, worker);
        if (!Worker({&bare_side, &queue_side, &check_side}, shape, rounds, together, &slices[worker]))
          ok.store(false, std::memory_order_relaxed);
      });
    }
  }
  if (!ok) {
    std::fprintf(stderr, "a request failed\n");
    return false;
  }
  double least[kSides] = {};
  double median = 0;
  for (const Slices& worker : slices) {
    for (uint32_t side = 0; side < kSides; ++side) least[side] += Least(worker.ns[side]) / static_cast<double>(workers);
    median += MedianDifference(worker.ns[kQueue], worker.ns[kBare]) / static_cast<double>(workers);
  }
  std::printf(
      "%-9s batch %2zu  %zu worker%s  %-6s  tax ns per WR %6.2f  median %6.2f   bare %6.2f  queue %6.2f  "
      "checks %5.2f\n",
      shape.opcode == Opcode::kRead ? "READ 64 B" : "CAS", shape.batch, workers, workers == 1 ? " " : "s",
      shape.all_signaled ? "all" : "last", least[kQueue] - least[kBare], median, least[kBare], least[kQueue],
      least[kChecks]);
  return true;
}

}  // namespace

bool RunTax(const TaxOptions& options) {
  BareNode bare("inproc:tax_bare");
  QueueNode queue;
  if (!queue.Publish()) {
    std::fprintf(stderr, "the node could not be published\n");
    return false;
  }
  if (options.only != 0) {
    const Shape shape{.all_signaled = options.all_signaled};
    BareSide bare_side(bare, shape, 0);
    QueueSide queue_side(queue, shape, 0);
    return (options.only == 'b' ? static_cast<Side&>(bare_side) : queue_side).Run(options.rounds);
  }
  std::printf(
      "CPU time of a worker on sw. The tax is the least of %u slices through the VirtualQueue less the least on\n"
      "the bare RNIC; the median is that of the slices' differences. Signaled by the user: all WRs of a batch or\n"
      "the last. Checks: the request checks alone, which are part of the queue's time.\n\n",
      options.rounds);
  for (size_t workers = 1; workers <= kWorkers; ++workers) {
    for (const bool all_signaled : {true, false}) {
      for (const Opcode opcode : {Opcode::kRead, Opcode::kCompareSwap}) {
        for (const size_t batch : {1, 16, 64}) {
          if (!Measure(bare, queue, {opcode, batch, all_signaled}, workers, options.rounds)) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace krcore
