// Copy against zero-copy by message length: ns per message from Push to the receiver's PopMessages and the sender's
// Pop, and the cost of a message, on the sw provider. Two nodes in one thread, windows of 16 messages. Measured on sw,
// that is on shared memory: it says nothing about a NIC. kDefaultCopyBytes comes from the copy/zero_copy pairs.
#include <benchmark/benchmark.h>

#include "bench/common/message_pair.h"

namespace krcore {
namespace {

constexpr size_t kWindow = 16;
constexpr uint32_t kMaxBytes = 256 << 10;

void Send(benchmark::State& state, bool zero_copy) {
  const auto length = static_cast<uint32_t>(state.range(0));
  MessagePair pair("inproc:bench_messages", 1, zero_copy, kMaxBytes, kWindow);
  for (auto _ : state) {
    if (!pair.Send(kWindow, length)) return state.SkipWithError("a message failed");
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
