// Copy against zero-copy by message length: ns per message from Push to the receiver's PopMessages and the sender's
// Pop, and the cost of a message, on the sw provider. Two nodes in one thread, windows of 16 messages. Measured on sw,
// that is on shared memory: it says nothing about a NIC. kDefaultCopyBytes comes from the copy/zero_copy pairs.
#include <benchmark/benchmark.h>

#include <vector>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace krcore {
namespace {

constexpr size_t kWindow = 16;
constexpr uint32_t kMaxBytes = 256 << 10;
constexpr Port kPort = 7;

struct Party {
  std::unique_ptr<Node> node;
  std::unique_ptr<Region> memory;
  std::unique_ptr<QueuePool> pool;

  Party(NodeId id, uint32_t copy_bytes) {
    node = Node::Open({.fabric = "inproc:bench_messages", .node = id, .create_fabric = true}).value();
    if (id == 1 && !node->HostMetaServer(16).ok()) std::abort();
    memory = node->CreateRegion({.length = kWindow * kMaxBytes, .remote_rights = kRemoteRead}).value();
    pool = node->CreateQueuePool({.copy_bytes = copy_bytes}).value();
  }
  Sge At(size_t index, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(memory->bytes().data()) + index * kMaxBytes, length, memory->lkey()};
  }
};

void Send(benchmark::State& state, bool zero_copy) {
  const auto length = static_cast<uint32_t>(state.range(0));
  const uint32_t copy_bytes = zero_copy ? 0 : kMaxBytes;
  Party server(1, copy_bytes), client(2, copy_bytes);
  auto inbox = server.pool->CreateQueue(1).value();
  auto outbox = client.pool->CreateQueue(2 * kWindow).value();
  const BindOptions options{.senders = 1, .slots = 2 * kWindow, .copy_bytes = copy_bytes};
  if (!inbox->Bind(kPort, options, Deadline::Never()).ok()) return state.SkipWithError("bind");
  if (!outbox->Connect(1, kPort, Deadline::Never()).ok()) return state.SkipWithError("connect");
  std::vector<Sge> sges(kWindow);
  std::vector<WorkRequest> wrs(kWindow);
  std::vector<Receive> receives(kWindow);
  for (size_t i = 0; i < kWindow; ++i) {
    sges[i] = client.At(i, length);
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = Opcode::kSend;
    receives[i] = {i, server.At(i, kMaxBytes)};
  }
  std::vector<Message> messages(kWindow);
  std::vector<Completion> completions(kWindow);
  for (auto _ : state) {
    if (!inbox->PushRecv(receives).ok()) return state.SkipWithError("receive");
    while (outbox->credits() < kWindow) client.pool->Poll();
    if (!outbox->Push(wrs).ok()) return state.SkipWithError("push");
    size_t arrived = 0, done = 0;
    while (arrived < kWindow || done < kWindow) {
      server.pool->Poll();
      arrived += inbox->PopMessages(messages);
      client.pool->Poll();
      done += outbox->Pop(completions);
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kWindow));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kWindow * length));
}

void Lengths(benchmark::internal::Benchmark* bench) {
  for (const int64_t length : {64, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144}) bench->Arg(length);
}
BENCHMARK_CAPTURE(Send, copy, false)->Apply(Lengths);
BENCHMARK_CAPTURE(Send, zero_copy, true)->Apply(Lengths);

}  // namespace
}  // namespace krcore
