// What a VirtualQueue costs over the bare RNIC, and its request checks (Check) within that: ns per WR at batch 1, 16
// and 64, READ of 64 B and CAS, on the sw provider in one process; through a DC initiator (Vqp) and the peer's RC queue
// (Vqp/rc_). Measured on sw, that is on shared memory: it says nothing about a NIC's latency.
//
//     bench_vqp --tax [ROUNDS]       prints the difference, measured in turns in one run (vqp_tax.h)
//     bench_vqp --bare BATCHES       runs one side of it alone, for counting instructions: valgrind --tool=callgrind
//     bench_vqp --queue BATCHES
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/common/promote.h"
#include "bench/queues/batches.h"
#include "bench/queues/vqp_tax.h"
#include "cli/fail.h"
#include "krcore/node.h"
#include "krcore/queue/request_check.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace krcore {
namespace {

void Vqp(benchmark::State& state, Opcode opcode, bool rc) {
  const auto batch = static_cast<size_t>(state.range(0));
  auto node = Node::Open({.fabric = "inproc:bench_vqp", .node = 1, .create_fabric = true, .rc_peers = 1}).value();
  auto remote = node->CreateRegion({.length = kBytes, .remote_rights = kRights}).value();
  auto local = node->CreateRegion({.length = kBytes}).value();
  if (!node->HostMetaServer(16).ok() || !node->Publish(Deadline::Never()).ok()) return state.SkipWithError("publish");
  auto pool = node->CreateQueuePool({.dc_initiators = 1, .rc_hot_wrs = UINT32_MAX}).value();
  auto queue = pool->CreateQueue(128).value();
  if (!queue->Connect(1, Deadline::Never()).ok()) return state.SkipWithError("connect");
  if (rc && !MoveToRc(*node, *pool)) return state.SkipWithError("RC");
  const RemoteRegion& target = queue->regions()[0];
  Batch<WorkRequest> requests({.opcode = opcode, .batch = batch}, 0, local->bytes().data(), local->lkey(), target.addr,
                              target.rkey);
  for (auto _ : state) {
    if (!queue->Push(requests.wrs()).ok()) return state.SkipWithError("push");
    for (size_t got = 0; got < batch;) {
      pool->Poll();
      got += queue->Pop(requests.out());
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * batch));
}

void Bare(benchmark::State& state, Opcode opcode) {
  const auto batch = static_cast<size_t>(state.range(0));
  BareNode node("inproc:bench_bare");
  BareSide bare(node, {.opcode = opcode, .batch = batch}, 0);
  for (auto _ : state) {
    if (!bare.Run(1)) return state.SkipWithError("a request failed");
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * batch));
}

// The request checks alone, on the same requests: their part of Vqp minus Bare. SGEs of `regions` regions in turn.
void Check(benchmark::State& state, Opcode opcode, uint32_t regions) {
  const auto batch = static_cast<size_t>(state.range(0));
  peers::RegionTable table;
  for (uint32_t i = 0; i < 4; ++i)
    table.Add({.addr = i * kBytes + kBytes, .length = kBytes, .lkey = 0x100 * i + 7, .rights = kLocalWrite});
  peers::RegionView view(table);
  const queue::RequestLimits limits{4, 512, 1u << 30};
  const RemoteRegion remote[1] = {{1 << 30, kBytes, 99, 0}};
  std::vector<Sge> sges(batch);
  std::vector<WorkRequest> wrs(batch);
  for (size_t i = 0; i < batch; ++i) {
    const auto region = static_cast<uint32_t>(i % regions);
    sges[i] = {kBytes + region * kBytes + 64 * i, opcode == Opcode::kRead ? 64u : 8u, 0x100 * region + 7};
    wrs[i].wr_id = i;
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = opcode;
    wrs[i].remote_addr = remote[0].addr + 64 * i;
    wrs[i].rkey = remote[0].rkey;
  }
  queue::LikeRequest like;
  for (auto _ : state) {
    view.Sync();
    size_t bad_index = 0;
    bool has_inline = false;
    StatusCode code = queue::CheckRequests(wrs, limits, view, remote, &like, &bad_index, &has_inline);
    benchmark::DoNotOptimize(code);
    if (code != StatusCode::kOk) return state.SkipWithError("refused");
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * batch));
}

BENCHMARK_CAPTURE(Check, read64, Opcode::kRead, 1)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Check, read64_two_regions, Opcode::kRead, 2)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Check, cas, Opcode::kCompareSwap, 1)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Bare, read64, Opcode::kRead)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Vqp, read64, Opcode::kRead, false)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Vqp, rc_read64, Opcode::kRead, true)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Bare, cas, Opcode::kCompareSwap)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Vqp, cas, Opcode::kCompareSwap, false)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK_CAPTURE(Vqp, rc_cas, Opcode::kCompareSwap, true)->Arg(1)->Arg(16)->Arg(64);

// False: the arguments ask for no tax.
bool IsTax(int argc, char** argv, TaxOptions* options) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "--tax" && mode != "--bare" && mode != "--queue") return false;
  if (mode != "--tax") options->only = mode[2];
  if (argc > 2) options->rounds = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const bool last = argc > 3 && std::string(argv[3]) == "last";
  options->all_signaled = !last;
  if (argc > (options->only != 0 && last ? 4 : 3) || options->rounds == 0) {
    std::fprintf(stderr, "usage: %s --tax [ROUNDS] | --bare BATCHES [last] | --queue BATCHES [last]\n", argv[0]);
    std::exit(2);
  }
  return true;
}

}  // namespace
}  // namespace krcore

int main(int argc, char** argv) {
  cli::UseStandardStreams();
  krcore::TaxOptions tax;
  if (krcore::IsTax(argc, argv, &tax)) return krcore::RunTax(tax) ? 0 : 1;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
